package eval

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"go/version"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"apr/eval/sandbox"
	"apr/internal/fault"
)

// goTools is the user's Go toolchain. The go command never sees text that a model wrote: it is asked for the standard
// library, in compiled form, of which programs get a copy that they cannot change. Programs are compiled and linked by
// the compiler and the linker alone, inside the sandbox: no modules, no cgo, no generated or embedded files, no settings
// of the user, no cache that one program could fill for another.
type goTools struct {
	command, compile, link string
	language               string            // its version that programs are written in, the toolchain's: go1.26
	settings               string            // -X for the linker: the GODEBUG that go build gives to a module of this version
	std                    map[string]bool   // packages that a program may import
	archives               map[string]string // copies of compiled packages, by import path
	asked                  map[string]bool   // packages whose archives, and those of all that they import, are there
	dir                    string            // of the copies
}

// buildLimits bound the compiler and the linker.
var buildLimits = sandbox.Limits{Time: 2 * time.Minute, Memory: 2 << 30, FileBytes: 256 << 20, Files: 256}

// findGo asks the go command what there is. Close removes what it makes.
func findGo(ctx context.Context) (g *goTools, err error) {
	g = &goTools{std: map[string]bool{}, archives: map[string]string{}, asked: map[string]bool{}}
	if g.command, err = find("go"); err != nil {
		return nil, err
	}
	if g.dir, err = sandbox.MakeTemp("apr-go-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			g.Close()
		}
	}()
	if err := os.Chmod(g.dir, 0o755); err != nil { // for the user that programs run as
		return nil, fault.New(fault.IO, "no directory for Go's library").Because(err)
	}
	if g.language, err = g.newest(ctx); err != nil {
		return nil, err
	}
	module := "module program\n\ngo " + strings.TrimPrefix(g.language, "go") + "\n"
	for name, text := range map[string]string{"go.mod": module, "main.go": "package main\n\nfunc main() {}\n"} {
		if err := os.WriteFile(filepath.Join(g.dir, name), []byte(text), 0o600); err != nil {
			return nil, fault.New(fault.IO, "no directory for Go's library").Because(err)
		}
	}
	return g, g.ask(ctx)
}

// newest returns the version of the language that the toolchain knows, such as go1.26.
func (g *goTools) newest(ctx context.Context) (string, error) {
	says, err := g.run(ctx, "env", "GOVERSION")
	if err != nil {
		return "", err
	}
	for _, word := range strings.Fields(says) { // a development version says: devel go1.27-...
		if lang := version.Lang(strings.SplitN(word, "-", 2)[0]); lang != "" {
			return lang, nil
		}
	}
	return "", fault.New(fault.Unavailable, "%s does not say which version of Go it is: %q", g.command,
		strings.TrimSpace(says)).WithID("E-EVAL-034")
}

// ask fills what the go command knows before a program is seen.
func (g *goTools) ask(ctx context.Context) error {
	root, err := g.run(ctx, "env", "GOTOOLDIR")
	if err != nil {
		return err
	}
	g.compile, g.link = filepath.Join(strings.TrimSpace(root), "compile"), filepath.Join(strings.TrimSpace(root), "link")
	if g.settings, err = g.run(ctx, "list", "-f", "{{.DefaultGODEBUG}}", "."); err != nil {
		return err
	}
	list, err := g.run(ctx, "list", "std")
	if err != nil {
		return err
	}
	for _, path := range strings.Fields(list) {
		parts := strings.Split(path, "/")
		g.std[path] = parts[0] != "vendor" && !slices.Contains(parts, "internal")
	}
	return g.need(ctx, "runtime")
}

// Close removes the copies.
func (g *goTools) Close() error { return sandbox.Remove(g.dir) }

// run runs the go command, which does nothing but look at and compile the standard library, and returns what it says.
func (g *goTools) run(ctx context.Context, args ...string) (string, error) {
	limited, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(limited, g.command, args...)
	cmd.Dir = g.dir
	cmd.Env = []string{"CGO_ENABLED=0", "GO111MODULE=on", "GOENV=off", "GOFLAGS=", "GOPROXY=off", "GOWORK=off", "GOTOOLCHAIN=local"}
	for _, name := range []string{"PATH", "HOME", "GOROOT", "GOCACHE", "XDG_CACHE_HOME", "TMPDIR", "GOMAXPROCS"} {
		if value, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		return "", fault.New(fault.Unavailable, "%s %s fails: %s", g.command, args[0], strings.TrimSpace(said.String())).Because(err).WithID("E-EVAL-034")
	}
	return string(out), nil
}

// need gets the archives of packages of the standard library and of all that they import.
func (g *goTools) need(ctx context.Context, packages ...string) error {
	packages = slices.DeleteFunc(packages, func(p string) bool { return g.asked[p] || p == "unsafe" })
	if len(packages) == 0 {
		return nil
	}
	list, err := g.run(ctx, append([]string{"list", "-export", "-deps", "-f", "{{with .Export}}{{$.ImportPath}} {{.}}{{end}}", "--"}, packages...)...)
	if err != nil {
		return err
	}
	for line := range strings.Lines(list) {
		path, file, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || g.archives[path] != "" {
			continue
		}
		archive := filepath.Join(g.dir, strconv.Itoa(len(g.archives))+".a")
		if err := copyFile(archive, file); err != nil {
			return fault.New(fault.IO, "package %s of Go's library cannot be copied", path).Because(err)
		}
		g.archives[path] = archive
	}
	for _, p := range packages {
		g.asked[p] = true
	}
	return nil
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) // for the user that programs run as
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// build compiles and links a program of package main in a directory of the box; why says that it does not compile.
func (g *goTools) build(ctx context.Context, box *sandbox.Box, dir string, files map[string]string) (program, why string, err error) {
	names := slices.Sorted(maps.Keys(files))
	for _, name := range names {
		if err := writeSource(dir, name, files[name]); err != nil {
			return "", "", fault.New(fault.IO, "a program cannot be written").Because(err)
		}
	}
	imports, why := g.imports(names, files)
	if why != "" {
		return "", "does not compile: " + why, nil
	}
	if err := g.need(ctx, imports...); err != nil {
		return "", "", err
	}
	var config strings.Builder
	for _, path := range slices.Sorted(maps.Keys(g.archives)) {
		fmt.Fprintf(&config, "packagefile %s=%s\n", path, g.archives[path])
	}
	if err := errors.Join(writeSource(dir, "compile.cfg", config.String()), writeSource(dir, "link.cfg", config.String()+"packagefile main=main.a\n")); err != nil {
		return "", "", fault.New(fault.IO, "a program cannot be written").Because(err)
	}
	link := []string{g.link, "-importcfg", "link.cfg", "-buildmode=exe", "-s", "-w", "-o", "program"}
	if s := strings.TrimSpace(g.settings); s != "" {
		link = append(link, "-X=runtime.godebugDefault="+s)
	}
	compile := []string{
		g.compile, "-p", "main", "-lang=" + g.language, "-complete", "-pack", "-nolocalimports",
		"-importcfg", "compile.cfg", "-o", "main.a",
	}
	for _, name := range names {
		compile = append(compile, "./"+name)
	}
	for _, argv := range [][]string{compile, append(link, "main.a")} {
		res, err := box.Run(ctx, sandbox.Program{Argv: argv, Dir: dir, Read: []string{argv[0], g.dir}, Limits: &buildLimits})
		switch {
		case err != nil:
			return "", "", err
		case res.TimedOut:
			return "", "does not compile: out of time", nil
		case res.Exit != 0:
			res.Stderr = cmp.Or(strings.TrimSpace(res.Stderr), res.Stdout) // the compiler tells errors on stdout
			return "", "does not compile: " + lastLine(res), nil
		}
	}
	return filepath.Join(dir, "program"), "", nil
}

func writeSource(dir, name, text string) error {
	return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644) // for the user that the compiler runs as
}

// imports returns what files import; why names one that is not of the standard library. What does not parse is left to the
// compiler.
func (g *goTools) imports(names []string, files map[string]string) (imports []string, why string) {
	for _, name := range names {
		f, err := parser.ParseFile(token.NewFileSet(), name, files[name], parser.ImportsOnly)
		if err != nil {
			continue
		}
		for _, spec := range f.Imports {
			p, err := strconv.Unquote(spec.Path.Value)
			if err != nil || !g.std[p] {
				return nil, fmt.Sprintf("%s: package %s is not in std, or internal to it", name, spec.Path.Value)
			}
			imports = append(imports, p)
		}
	}
	slices.Sort(imports)
	return slices.Compact(imports), ""
}
