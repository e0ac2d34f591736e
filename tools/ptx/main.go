// Ptx compiles the CUDA kernels of device/cuda/kernel to PTX with clang-19 and writes the manifest that says from which
// bytes. Run it in the root of the module, or through `make kernels`:
//
//	go run ./tools/ptx/main.go [-lint PTXAS]
//
// A kernel is compiled when its source, a header, the flags or the compiler changed, or with -force. Files named
// *_sm90.cu are for compute capability 9.0 alone, the others for 8.0 and later. With -lint every kernel also passes
// ptxas, which must report no spill and no local memory.
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
)

const dir = "device/cuda/kernel"

// manifest is manifest.json; the type of the same name in device/cuda/kernel reads it.
type manifest struct {
	Compiler string   `json:"compiler"`
	Headers  string   `json:"headers_sha256"` // of all .cuh files, in order of name
	Modules  []module `json:"modules"`
}

type module struct {
	Name    string   `json:"name"`
	Target  string   `json:"target"`
	Flags   string   `json:"flags"`
	Source  string   `json:"source_sha256"`
	PTX     string   `json:"ptx_sha256"`
	Kernels []string `json:"kernels"`
}

var (
	lint  = flag.String("lint", "", "path of ptxas")
	force = flag.Bool("force", false, "compile everything")
	check = flag.Bool("check", false, "compile everything into memory and compare with what is there")
)

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "ptx:", err)
		os.Exit(1)
	}
}

func run() error {
	compiler, err := version()
	if err != nil {
		return err
	}
	headers, err := hashFiles(filepath.Join(dir, "*.cuh"))
	if err != nil {
		return err
	}
	var old manifest
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
	now := manifest{Compiler: compiler, Headers: headers}
	for _, source := range sources {
		m, err := build(source, old, same)
		if err != nil {
			return err
		}
		now.Modules = append(now.Modules, m)
	}
	if *check {
		if !slices.EqualFunc(now.Modules, old.Modules, func(a, b module) bool { return a.Name == b.Name && a.PTX == b.PTX }) {
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
func build(source string, old manifest, same bool) (module, error) {
	name := strings.TrimSuffix(filepath.Base(source), ".cu")
	arch, feature := "sm_80", "+ptx80"
	if strings.HasSuffix(name, "_sm90") {
		arch = "sm_90a"
	}
	flags := "-x cuda --cuda-device-only --cuda-gpu-arch=" + arch + " --cuda-feature=" + feature +
		" -nocudainc -nocudalib -nostdinc -std=c++17 -O3 -Wall -Werror -S"
	hash, err := hashFiles(source)
	if err != nil {
		return module{}, err
	}
	target := filepath.Join(dir, "ptx", name+".ptx")
	for _, m := range old.Modules {
		if have, err := hashFiles(target); same && m.Name == name && m.Source == hash && m.Flags == flags && err == nil && have == m.PTX {
			return m, nil
		}
	}
	args := append(strings.Fields(flags), source, "-o", "-")
	cmd := exec.Command("clang-19", args...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		return module{}, fmt.Errorf("%s: %w\n%s", source, err, complaint.Bytes())
	}
	if err := inspect(name, arch, out); err != nil {
		return module{}, err
	}
	m := module{Name: name, Target: arch, Flags: flags, Source: hash, PTX: fmt.Sprintf("%x", sha256.Sum256(out))}
	for _, match := range regexp.MustCompile(`\.entry (\w+)\(`).FindAllSubmatch(out, -1) {
		m.Kernels = append(m.Kernels, string(match[1]))
	}
	if *check {
		return m, nil
	}
	fmt.Fprintf(os.Stderr, "ptx: %s, %d kernels, %d bytes\n", name, len(m.Kernels), len(out))
	return m, os.WriteFile(target, out, 0o644)
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
func removeOthers(now manifest) error {
	files, err := filepath.Glob(filepath.Join(dir, "ptx", "*.ptx"))
	if err != nil {
		return err
	}
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".ptx")
		if !slices.ContainsFunc(now.Modules, func(m module) bool { return m.Name == name }) {
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
