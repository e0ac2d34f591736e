// Ptx compiles the CUDA kernels of device/cuda/kernel to PTX with clang-19 and writes the manifest that says from which
// bytes. Run it in the root of the module, or through `make kernels`:
//
//	go run ./tools/ptx/main.go [-lint PTXAS] [-force] [-check] [-print MODULE]
//
// A kernel is compiled when its source, a header, the flags or the compiler changed, or with -force. Its line //apr:module
// says for which target, and what else the host has to know: see device/cuda/kernel/manifest. PTX is stored compressed; the
// manifest has the hash of the text, and -print writes a module's text to standard output. With -lint every kernel also
// passes ptxas, which must report no spill and no local memory.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"apr/device/cuda/kernel/manifest"
)

const dir = "device/cuda/kernel"

var (
	lint  = flag.String("lint", "", "path of ptxas")
	force = flag.Bool("force", false, "compile everything")
	check = flag.Bool("check", false, "compile everything into memory and compare with what is there")
	show  = flag.String("print", "", "write the PTX of this module to standard output")
)

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "ptx:", err)
		os.Exit(1)
	}
}

func run() error {
	if *show != "" {
		text, err := stored(*show)
		if err == nil {
			_, err = os.Stdout.Write(text)
		}
		return err
	}
	compiler, err := version()
	if err != nil {
		return err
	}
	headers, err := hashFiles(filepath.Join(dir, "*.cuh"))
	if err != nil {
		return err
	}
	var old manifest.Manifest
	if text, err := os.ReadFile(filepath.Join(dir, "ptx", "manifest.json")); err == nil {
		if err := json.Unmarshal(text, &old); err != nil {
			return fmt.Errorf("manifest.json: %w", err)
		}
	}
	same := old.Compiler == compiler && old.Headers == headers && !*force && !*check
	sources, err := filepath.Glob(filepath.Join(dir, "*.cu"))
	if err != nil {
		return err
	}
	now := manifest.Manifest{Compiler: compiler, Headers: headers}
	for _, source := range sources {
		m, err := build(source, old, same)
		if err != nil {
			return err
		}
		now.Modules = append(now.Modules, m)
	}
	if *check {
		if !slices.EqualFunc(now.Modules, old.Modules, func(a, b manifest.Module) bool { return a.Name == b.Name && a.PTXHash == b.PTXHash }) {
			return errors.New("the PTX of device/cuda/kernel is not what its sources compile to: run `make kernels`")
		}
		return nil
	}
	if err := removeOthers(now); err != nil {
		return err
	}
	text, err := json.MarshalIndent(now, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "ptx", "manifest.json"), append(text, '\n'), 0o644)
}

// version names the compiler by its first line without the packager's addition.
func version() (string, error) {
	out, err := exec.Command("clang-19", "--version").Output()
	if err != nil {
		return "", fmt.Errorf("clang-19 is needed to compile CUDA kernels (on Debian: apt-get install clang-19): %w", err)
	}
	found := regexp.MustCompile(`clang version \d+\.\d+\.\d+`).Find(out)
	if found == nil {
		return "", fmt.Errorf("clang-19 --version says %q", out)
	}
	return string(found), nil
}

// build returns the module of a source, compiling it unless it is known.
func build(source string, old manifest.Manifest, same bool) (manifest.Module, error) {
	name := strings.TrimSuffix(filepath.Base(source), ".cu")
	text, err := os.ReadFile(source)
	if err != nil {
		return manifest.Module{}, err
	}
	d, err := manifest.Declare(string(text))
	if err != nil {
		return manifest.Module{}, fmt.Errorf("%s: %w", source, err)
	}
	flags := "-x cuda --cuda-device-only --cuda-gpu-arch=" + d.Target +
		" --cuda-feature=+ptx80 -nocudainc -nocudalib -nostdinc -std=c++17 -O3 -Wall -Werror -S"
	hash := fmt.Sprintf("%x", sha256.Sum256(text))
	was, wasErr := stored(name)
	for _, m := range old.Modules {
		if same && m.Name == name && m.Source == hash && m.Flags == flags && wasErr == nil && fmt.Sprintf("%x", sha256.Sum256(was)) == m.PTXHash {
			return m, nil
		}
	}
	args := append(strings.Fields(flags), source, "-o", "-")
	cmd := exec.Command("clang-19", args...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return manifest.Module{}, fmt.Errorf("%s: %w\n%s", source, err, complaint.Bytes())
	}
	out = slim(out)
	if err := inspect(name, d.Target, out); err != nil {
		return manifest.Module{}, err
	}
	m := manifest.Module{Name: name, Declaration: d, Flags: flags, Source: hash, PTXHash: fmt.Sprintf("%x", sha256.Sum256(out)), Bytes: len(out)}
	for _, match := range regexp.MustCompile(`\.entry (\w+)\(`).FindAllSubmatch(out, -1) {
		k := string(match[1])
		m.Kernels = append(m.Kernels, k)
		if of, ok := d.Twin(k); ok {
			if m.Twins == nil {
				m.Twins = map[string]string{}
			}
			m.Twins[of] = k
		}
	}
	if *check || wasErr == nil && bytes.Equal(was, out) {
		return m, nil
	}
	fmt.Fprintf(os.Stderr, "ptx: %s, %d kernels, %d bytes\n", name, len(m.Kernels), len(out))
	return m, store(name, out)
}

// unread is what no assembler reads of PTX: comments to the end of a line, indentation, spaces at the end, empty lines.
var unread = regexp.MustCompile(`(?m)[ \t]*//.*$|^[ \t]+|[ \t]+$|^\n`)

// slim returns PTX without comments and indentation, a tenth of it when compressed.
func slim(text []byte) []byte {
	for {
		out := unread.ReplaceAll(text, nil)
		if len(out) == len(text) {
			return out
		}
		text = out
	}
}

// fileOf is where the PTX of a module is stored.
func fileOf(name string) string { return filepath.Join(dir, "ptx", name+manifest.Extension) }

// store writes the PTX of a module, compressed as well as it goes.
func store(name string, text []byte) error {
	packed, err := manifest.Pack(text)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return os.WriteFile(fileOf(name), packed, 0o644)
}

// stored returns the PTX of a module as it was stored.
func stored(name string) ([]byte, error) {
	packed, err := os.ReadFile(fileOf(name))
	if err != nil {
		return nil, err
	}
	return manifest.Unpack(packed)
}

// inspect passes the PTX through ptxas, if there is one.
func inspect(name, arch string, ptx []byte) error {
	if *lint == "" {
		return nil
	}
	file := filepath.Join(os.TempDir(), name+".lint.ptx")
	if err := os.WriteFile(file, ptx, 0o600); err != nil {
		return err
	}
	defer os.Remove(file)
	out, err := exec.Command(*lint, "-arch="+arch, "--warn-on-spills", "--warn-on-local-memory-usage", "-Werror", file, "-o", os.DevNull).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}

// removeOthers deletes PTX without a source.
func removeOthers(now manifest.Manifest) error {
	files, err := filepath.Glob(filepath.Join(dir, "ptx", "*.ptx*"))
	if err != nil {
		return err
	}
	for _, f := range files {
		if !slices.ContainsFunc(now.Modules, func(m manifest.Module) bool { return fileOf(m.Name) == f }) {
			if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// hashFiles returns the SHA-256 of the files' contents, in order of name.
func hashFiles(pattern string) (string, error) {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		h.Write(text)
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}
