package falsify

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"apr/internal/fault"
)

// Prebuilt describes test programs that were built for a machine with a GPU and without a Go toolchain: those of the
// checks that have a meaning there, and of each of their mutants.
type Prebuilt struct {
	Schema    string    `json:"schema"` // "apr.prebuilt/1"
	Commit    string    `json:"commit"` // empty outside a repository
	Dirty     bool      `json:"dirty"`
	GoVersion string    `json:"go_version"`
	Programs  []Program `json:"programs"`
}

// Program is one test program.
type Program struct {
	Package  string `json:"package"`
	Contract string `json:"contract,omitempty"` // of the mutant
	Mutant   string `json:"mutant,omitempty"`   // empty: of the tree as it is
	File     string `json:"file"`
	SHA256   string `json:"sha256"`
}

// prebuiltSchema and prebuiltName are those of the list of programs in their folder.
const prebuiltSchema, prebuiltName = "apr.prebuilt/1", "prebuilt.json"

// The build tags of tests for a GPU and for the emulator. A test for both has them as alternatives.
const cardTag, emulatorTag = "gpu", "emulate"

// onCard returns the Go test of a check as it is built for a GPU, nil if it says nothing about one: a check that needs a
// CUDA device, or that runs on the emulator.
func onCard(c *Check) *GoTest {
	if c.Go == nil || c.Compile != "" || len(c.Go.Tags) != 1 || c.Go.Tags[0] != cardTag && c.Go.Tags[0] != emulatorTag {
		return nil
	}
	return &GoTest{Package: localPackage(c.Go.Package), Test: c.Go.Test, Tags: []string{cardTag}}
}

// wanted are the programs that the checks and mutants of a contract need on a GPU, built with a tag.
func wanted(doc *Document, tree *Tree, tag string) (all []Program, mutants []Mutant) {
	byID := map[string]string{} // package of a check
	checks := map[string]*Check{}
	for _, t := range doc.Contract.FalsificationTests {
		checks[t.ID] = t.Check
	}
	for _, h := range doc.Contract.KaniHarnesses {
		checks[h.ID] = &Check{Go: h.Go}
	}
	add := func(p Program, m Mutant) {
		if !slices.Contains(all, p) {
			all, mutants = append(all, p), append(mutants, m)
		}
	}
	for id, c := range checks {
		g := onCard(c)
		if g == nil {
			continue
		}
		if tree.Test(GoTest{Package: g.Package, Test: g.Test, Tags: []string{tag}}) == nil { // of those for the emulator alone there is none
			byID[id] = g.Package
			add(Program{Package: g.Package}, Mutant{})
		}
	}
	for _, m := range doc.Contract.Mutants {
		for _, id := range m.Kills {
			if pkg := byID[id]; pkg != "" {
				add(Program{Package: pkg, Contract: doc.Contract.ID, Mutant: m.ID}, m)
			}
		}
	}
	return all, mutants
}

// Prebuild builds the test programs of contracts for a GPU into dir, which must be empty or absent, with a list of
// them. progress is called for each; it may be nil. With onEmulator they are built for the emulator, which rehearses a
// run on a GPU.
func Prebuild(ctx context.Context, files []string, dir string, onEmulator bool, progress func(file string)) (*Prebuilt, error) {
	tag := cardTag
	if onEmulator {
		tag = emulatorTag
	}
	if len(files) == 0 {
		return nil, fault.New(fault.Vacuous, "no contract was selected").WithID("E-CONTRACT-002")
	}
	tree := FindTree(files[0])
	if tree == nil {
		return nil, fault.In(fault.Unavailable, files[0], "no source tree (go.mod) around the contract: nothing can be built").WithID("E-CONTRACT-007")
	}
	g, err := newGotool(tree.Root)
	if err != nil {
		return nil, err
	}
	defer g.close()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fault.In(fault.IO, dir, "cannot be made").Because(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		return nil, fault.In(fault.Usage, dir, "is not an empty folder").Because(err)
	}
	p := &Prebuilt{Schema: prebuiltSchema}
	p.GoVersion, p.Commit, p.Dirty = g.describe(ctx)
	for _, file := range files {
		doc, err := Read(file, Ours)
		if err != nil {
			return nil, err
		}
		programs, mutants := wanted(doc, tree, tag)
		for i, program := range programs {
			if slices.ContainsFunc(p.Programs, func(q Program) bool { return q.Package == program.Package && q.Mutant == "" && program.Mutant == "" }) {
				continue
			}
			if err := g.prebuild(ctx, &program, &mutants[i], dir, tag, tree); err != nil {
				return nil, err
			}
			if progress != nil {
				progress(program.File)
			}
			p.Programs = append(p.Programs, program)
		}
	}
	slices.SortFunc(p.Programs, func(a, b Program) int { return cmp.Compare(a.File, b.File) })
	text, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, prebuiltName), append(text, '\n'), 0o644); err != nil {
		return nil, fault.In(fault.IO, dir, "cannot be written").Because(err)
	}
	return p, nil
}

// prebuild builds one test program into dir. Those of a package stand beside each other in order of their names: they are
// nearly equal, and so they compress to little more than one.
func (g *gotool) prebuild(ctx context.Context, p *Program, m *Mutant, dir, tag string, tree *Tree) error {
	p.File = strings.ReplaceAll(strings.TrimPrefix(p.Package, "./"), "/", "-") + ".test"
	args := []string{"test", "-c", "-vet=off", "-trimpath", "-ldflags=-s -w", "-tags=" + tag}
	if p.Mutant != "" {
		p.File = strings.TrimSuffix(p.File, ".test") + "+" + p.Contract + "+" + p.Mutant + ".test"
		overlay, err := g.overlay(&mutation{Mutant: *m, name: "mutant"}, tree)
		if err != nil {
			return err
		}
		args = append(args, "-overlay="+overlay)
	}
	target, err := filepath.Abs(filepath.Join(dir, p.File))
	if err != nil {
		return err
	}
	if _, stderr, _, err := g.run(ctx, buildTime, nil, g.bin, append(args, "-o", target, p.Package)...); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fault.In(fault.Vacuous, p.File, "does not build: %s", tail(stderr)).Because(err)
	}
	p.SHA256, err = hashOf(target)
	return err
}

// hashOf returns the SHA-256 of a file.
func hashOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fault.In(fault.IO, path, "cannot be read").Because(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fault.In(fault.IO, path, "cannot be read").Because(err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// prebuilt is a tool that has its programs. It builds nothing.
type prebuilt struct {
	Prebuilt
	*gotool
	dir string
}

// openPrebuilt reads the list of a folder of Prebuild and checks that its programs are those of the list.
func openPrebuilt(dir, root string) (*prebuilt, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	name := filepath.Join(dir, prebuiltName)
	text, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fault.In(fault.NotFound, name, "does not exist").WithHint("make gpu-binaries makes it")
	}
	if err != nil {
		return nil, fault.In(fault.IO, name, "cannot be read").Because(err)
	}
	p := &prebuilt{dir: dir}
	if err := json.Unmarshal(text, &p.Prebuilt); err != nil || p.Schema != prebuiltSchema {
		return nil, fault.In(fault.Format, name, "is no list of prebuilt programs (%s)", prebuiltSchema).Because(err)
	}
	for _, program := range p.Programs {
		if !filepath.IsLocal(program.File) {
			return nil, fault.In(fault.Format, name, "program %q is not in its folder", program.File)
		}
		sum, err := hashOf(filepath.Join(dir, program.File))
		if err != nil {
			return nil, err
		}
		if sum != program.SHA256 {
			return nil, fault.In(fault.Format, filepath.Join(dir, program.File), "has SHA-256 %s, and its list %s", sum, program.SHA256)
		}
	}
	temp, err := tempFolder()
	if err != nil {
		return nil, err
	}
	p.gotool = &gotool{root: root, temp: temp}
	return p, nil
}

// find returns the program of a package, under a mutant if that is not empty.
func (p *prebuilt) find(pkg, contract, mutant string) *Program {
	i := slices.IndexFunc(p.Programs, func(q Program) bool { return q.Package == pkg && q.Contract == contract && q.Mutant == mutant })
	if i < 0 {
		return nil
	}
	return &p.Programs[i]
}

// carries reports whether there is a program for a check, under a mutant of its contract if that is not empty.
func (p *prebuilt) carries(contract, mutant string, c *Check) bool {
	g := onCard(c)
	if g == nil {
		return false
	}
	if mutant == "" {
		contract = ""
	}
	program := p.find(g.Package, contract, mutant)
	return program != nil && (mutant != "" || p.lists(program, g))
}

// lists reports whether a program has the test: one for the emulator alone is not in it.
func (p *prebuilt) lists(program *Program, g *GoTest) bool {
	name, _, _ := strings.Cut(g.Test, "/")
	out, _, _, err := p.run(context.Background(), time.Minute, nil, filepath.Join(p.dir, program.File), "-test.list=^"+name+"$")
	return err == nil && slices.Contains(strings.Fields(string(out)), name)
}

func (p *prebuilt) overlay(m *mutation, _ *Tree) (string, error) {
	return m.contract + "\x00" + m.ID, nil
}

func (p *prebuilt) build(context.Context, string, string) (string, string, error) {
	return "", "", errors.New("only test programs are carried")
}

// test runs the test program of a package in the folder of the package, as go test does.
func (p *prebuilt) test(ctx context.Context, pkg string, _, names []string, overlay string, limit time.Duration) (*stream, error) {
	contract, mutant, _ := strings.Cut(overlay, "\x00")
	program := p.find(localPackage(pkg), contract, mutant)
	if program == nil {
		return nil, fault.New(fault.NotFound, "no test program of %s was carried", pkg)
	}
	there := gotool{root: filepath.Join(p.root, pkg), temp: p.temp}
	stdout, stderr, timedOut, err := there.run(ctx, limit+time.Minute, nil, filepath.Join(p.dir, program.File),
		"-test.v=test2json", "-test.paniconexit0", "-test.count=1", "-test.timeout="+limit.String(), "-test.run="+runPattern(names))
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, fault.In(fault.Unavailable, program.File, "cannot be run").Because(err)
	}
	s, err2 := readVerbose(bytes.NewReader(stdout), err == nil)
	if err2 != nil {
		return nil, err2
	}
	s.output = appendOutput(s.output, string(stderr))
	s.timedOut = s.timedOut || timedOut || bytes.Contains(stderr, []byte(timeoutPanic))
	return s, nil
}
