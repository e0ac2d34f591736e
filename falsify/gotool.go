package falsify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"apr/internal/fault"
	"apr/internal/readfile"
)

// buildTime is what building may take, beyond the time of a check.
const buildTime = 15 * time.Minute

// tool builds the programs of checks, or has them built already, and runs them.
type tool interface {
	// overlay puts a mutant into what test and build make, and returns the word that they know it by.
	overlay(m *mutation, tree *Tree) (string, error)
	// test runs tests of one package afresh, under an overlay if that is not empty.
	test(ctx context.Context, pkg string, tags, names []string, overlay string, limit time.Duration) (*stream, error)
	// build makes the program whose commands checks run, and returns its path; output is the compiler's.
	build(ctx context.Context, name, overlay string) (bin, output string, err error)
	// command runs the program bin as a check says.
	command(ctx context.Context, bin string, c *Check, least uint64, limit time.Duration) (verdict, error)
	close() error
}

// gotool runs the go command on a source tree.
type gotool struct {
	root string
	bin  string
	temp string // for overlays and programs
}

// newGotool finds the go command. Without it nothing can be run.
func newGotool(root string) (*gotool, error) {
	bin, err := exec.LookPath("go")
	if err != nil {
		return nil, fault.New(fault.Unavailable, "checks are run by the go command, which is not on PATH").Because(err).WithID("E-CONTRACT-006")
	}
	temp, err := tempFolder()
	if err != nil {
		return nil, err
	}
	return &gotool{root, bin, temp}, nil
}

func tempFolder() (string, error) {
	temp, err := os.MkdirTemp("", "apr-falsify-*")
	if err != nil {
		return "", fault.New(fault.IO, "no temporary folder").Because(err)
	}
	return temp, nil
}

func (g *gotool) close() error { return os.RemoveAll(g.temp) }

// run starts a program in the root of the tree and waits for it. What it started ends with it. PWD makes the go command
// name files as overlays do, also behind a link.
func (g *gotool) run(ctx context.Context, limit time.Duration, env []string, bin string, args ...string) (stdout, stderr []byte, timedOut bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Dir = g.root
	cmd.Env = append(os.Environ(), append([]string{"CGO_ENABLED=0", "GOWORK=off", "PWD=" + g.root}, env...)...)
	endTogether(cmd)
	cmd.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.Bytes(), errs.Bytes(), errors.Is(ctx.Err(), context.DeadlineExceeded), err
}

// test runs tests of one package afresh, under an overlay if that is not empty.
func (g *gotool) test(ctx context.Context, pkg string, tags, names []string, overlay string, limit time.Duration) (*stream, error) {
	args := []string{"test", "-json", "-vet=off", "-count=1", "-timeout=" + limit.String(), "-run=" + runPattern(names)}
	if len(tags) > 0 {
		args = append(args, "-tags="+strings.Join(tags, ","))
	}
	var env []string
	if overlay != "" {
		args = append(args, "-overlay="+overlay)
		env = []string{"APR_EMULATOR_OVERLAY=" + overlay} // sources that the go command does not compile
	}
	stdout, stderr, timedOut, err := g.run(ctx, limit+buildTime, env, g.bin, append(args, localPackage(pkg))...)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, fault.New(fault.Unavailable, "the go command could not be run").Because(err).WithID("E-CONTRACT-006")
	}
	s, err := readStream(bytes.NewReader(stdout))
	if err != nil {
		return nil, err
	}
	s.output = appendOutput(s.output, string(stderr))
	s.timedOut = s.timedOut || timedOut
	return s, nil
}

// localPackage is a package below the module's root as the go command wants it.
func localPackage(pkg string) string {
	return "./" + filepath.ToSlash(filepath.Clean(strings.TrimPrefix(pkg, "./")))
}

// runPattern is the -run of exactly these tests and subtests, with everything below them.
func runPattern(names []string) string {
	var all []string
	for _, name := range names {
		parts := strings.Split(name, "/")
		for i, p := range parts {
			parts[i] = "^" + regexp.QuoteMeta(p) + "$"
		}
		all = append(all, strings.Join(parts, "/"))
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), "|")
}

// build builds the program whose commands checks run, and returns its path; output is the compiler's.
func (g *gotool) build(ctx context.Context, name, overlay string) (bin, output string, err error) {
	bin = filepath.Join(g.temp, name)
	args := []string{"build", "-ldflags=-s -w", "-o", bin}
	if overlay != "" {
		args = append(args, "-overlay="+overlay)
	}
	_, stderr, _, err := g.run(ctx, buildTime, nil, g.bin, append(args, "./cmd/apr")...)
	if ctx.Err() != nil {
		return "", "", ctx.Err()
	}
	return bin, string(stderr), err
}

// overlay writes the files that put one mutant into the tree, and returns the name of the list of them. The tree
// itself is not touched.
func (g *gotool) overlay(m *mutation, tree *Tree) (string, error) {
	source, err := tree.inside(m.File)
	if err != nil {
		return "", err
	}
	text, err := readfile.String(source, maxSource)
	if err != nil {
		return "", err
	}
	if n := strings.Count(text, m.Find); n != 1 {
		return "", fault.In(fault.Vacuous, m.File, "mutant %s: its text occurs %d times, not once", plain(m.ID), n)
	}
	mutated := filepath.Join(g.temp, m.name+"-"+filepath.Base(m.File))
	if err := os.WriteFile(mutated, []byte(strings.Replace(text, m.Find, m.Replace, 1)), 0o600); err != nil {
		return "", fault.In(fault.IO, mutated, "cannot be written").Because(err)
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {source: mutated}})
	if err != nil {
		return "", err
	}
	file := filepath.Join(g.temp, m.name+".json")
	if err := os.WriteFile(file, list, 0o600); err != nil {
		return "", fault.In(fault.IO, file, "cannot be written").Because(err)
	}
	return file, nil
}

// describe says which toolchain and which commit checks are built of.
func (g *gotool) describe(ctx context.Context) (goVersion, commit string, dirty bool) {
	goVersion = strings.TrimPrefix(g.line(ctx, g.bin, "version"), "go version ")
	commit = g.line(ctx, "git", "rev-parse", "HEAD")
	return goVersion, commit, commit != "" && g.line(ctx, "git", "status", "--porcelain") != ""
}

// line returns the first line that a command prints, empty if it fails.
func (g *gotool) line(ctx context.Context, bin string, args ...string) string {
	out, _, _, err := g.run(ctx, time.Minute, nil, bin, args...)
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return first
}
