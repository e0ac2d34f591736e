// Command release builds what people download: a stripped program for each system, the licences, a list of what is inside in
// SPDX JSON, and SHA256SUMS over all of it. Run it in the folder tools, by `make release` or `make release-check`.
//
// It builds a clone of the commit that is checked out, so that nothing else on the machine gets in, and the same commit and
// the same Go give the same bytes in any folder. With -check it builds in two folders and compares.
package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// targets are the systems that programs are made for.
var targets = []struct{ os, arch string }{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "arm64"}, {"windows", "amd64"}}

// environment keeps settings of the machine out of the programs.
var environment = []string{
	"CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOEXPERIMENT=", "GOFIPS140=off", "GOAMD64=v1", "GOARM64=v8.0",
}

// documents go with the programs.
var documents = []string{"LICENSE", "THIRD_PARTY_NOTICES.md"}

func main() {
	out := flag.String("o", "dist", "folder for what is made; it is replaced")
	root := flag.String("root", "..", "the repository")
	check := flag.Bool("check", false, "build in two folders, compare, and keep nothing")
	fresh := flag.Bool("fresh", false, "with -check: compile everything twice, each time into an empty cache")
	flag.Parse()
	if err := run(*root, *out, *check, *fresh); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(root, out string, check, fresh bool) error {
	temp, err := os.MkdirTemp("", "apr-release-*")
	if err != nil {
		return err
	}
	defer removeAll(temp)
	if !check {
		changed, err := output(root, nil, "git", "status", "--porcelain", "--untracked-files=no")
		if err != nil {
			return err
		}
		if changed != "" {
			return fmt.Errorf("a release is built from a commit, and these files differ from it:\n%s", changed)
		}
		source, made := filepath.Join(temp, "source"), filepath.Join(temp, "made")
		if err := clone(root, source); err != nil {
			return err
		}
		if err := makeIn(source, made, nil); err != nil {
			return err
		}
		return replace(out, made)
	}
	var sums [2]string
	dirs := []string{filepath.Join(temp, "a"), filepath.Join(temp, "another folder, deeper/b")}
	for _, dir := range dirs { // both before anything is built: another commit may come meanwhile
		if err := clone(root, filepath.Join(dir, "source")); err != nil {
			return err
		}
	}
	for i, dir := range dirs {
		var env []string
		if fresh {
			env = []string{"GOCACHE=" + filepath.Join(temp, fmt.Sprint("cache", i))}
		}
		if err := makeIn(filepath.Join(dir, "source"), filepath.Join(dir, "made"), env); err != nil {
			return err
		}
		text, err := os.ReadFile(filepath.Join(dir, "made", sumsName))
		if err != nil {
			return err
		}
		sums[i] = string(text)
	}
	if sums[0] != sums[1] {
		return fmt.Errorf("two folders gave different bytes:\n%s\n%s", sums[0], sums[1])
	}
	fmt.Printf("two folders gave the same bytes:\n%s", sums[0])
	return nil
}

// removeAll removes a folder in which a cache may have read-only files.
func removeAll(dir string) {
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.Chmod(path, 0o700)
		}
		return nil
	})
	_ = os.RemoveAll(dir)
}

// replace makes the folder out hold what from holds.
func replace(out, from string) error {
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := os.CopyFS(out, os.DirFS(from)); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(out, sumsName))
	if err == nil {
		fmt.Printf("%s:\n%s", out, text)
	}
	return err
}

const sumsName = "SHA256SUMS"

// clone copies the repository's commit into a folder.
func clone(root, source string) error {
	if err := os.MkdirAll(filepath.Dir(source), 0o755); err != nil {
		return err
	}
	absolute, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	_, err = output(".", nil, "git", "clone", "--quiet", "--shared", absolute, source)
	return err
}

// makeIn makes a release of source in out.
func makeIn(source, out string, env []string) error {
	version, err := versionOf(filepath.Join(source, "cmd/apr/version.go"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	var built []program
	for _, t := range targets {
		p := program{file: fmt.Sprintf("apr-%s-%s-%s", version, t.os, t.arch), os: t.os, arch: t.arch}
		if t.os == "windows" {
			p.file += ".exe"
		}
		path, err := filepath.Abs(filepath.Join(out, p.file))
		if err != nil {
			return err
		}
		env := slices.Concat(environment, env, []string{"GOOS=" + t.os, "GOARCH=" + t.arch})
		if _, err := output(source, env, "go", "build", "-trimpath", "-buildvcs=true", "-ldflags=-s -w", "-o", path, "./cmd/apr"); err != nil {
			return fmt.Errorf("%s/%s: %w", t.os, t.arch, err)
		}
		if err := p.inspect(path); err != nil {
			return err
		}
		built = append(built, p)
	}
	for _, name := range documents {
		text, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out, name), text, 0o644); err != nil {
			return err
		}
	}
	text, err := spdx(source, version, built)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "apr-"+version+".spdx.json"), text, 0o644); err != nil {
		return err
	}
	return writeSums(out)
}

var versionLine = regexp.MustCompile(`(?m)^const version = "([0-9][0-9A-Za-z.+-]*)"$`)

// versionOf reads the release from the source.
func versionOf(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	m := versionLine.FindSubmatch(text)
	if m == nil {
		return "", fmt.Errorf("%s names no version", path)
	}
	return string(m[1]), nil
}

// writeSums writes the checksums of all files of a folder, as sha256sum --check reads them.
func writeSums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(text), e.Name())
	}
	return os.WriteFile(filepath.Join(dir, sumsName), []byte(b.String()), 0o644)
}

// output runs a program in dir, with more variables than ours, and returns what it printed.
func output(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	text, err := cmd.Output()
	if err != nil {
		return "", errors.Join(fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err), errors.New(errs.String()))
	}
	return strings.TrimRight(string(text), "\n"), nil
}
