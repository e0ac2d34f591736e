// Wgsl compiles the kernels of device/vulkan/kernel to SPIR-V with naga, which tools/go.mod names, and writes the
// manifest that says from which bytes. Run it in the root of the module, or through `make kernels`:
//
//	go run ./tools/wgsl/main.go [-check] [-print KERNEL] [-source KERNEL]
//
// How a .wgsl file becomes a kernel says device/vulkan/kernel/manifest. Every module passes spirv-val where that is
// installed. All modules are one compressed file; -print writes one of them to standard output, -source its WGSL
// text.
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"

	"apr/device/vulkan/kernel/manifest"
)

const (
	dir  = "device/vulkan/kernel"
	naga = "github.com/gogpu/naga/cmd/nagac"
)

var (
	check  = flag.Bool("check", false, "compile everything into memory and compare with what is there")
	show   = flag.String("print", "", "write the SPIR-V of this kernel to standard output")
	source = flag.String("source", "", "write the WGSL text of this kernel to standard output")
)

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "wgsl:", err)
		os.Exit(1)
	}
}

func run() error {
	texts, err := manifest.Sources(os.DirFS(dir))
	if err != nil {
		return err
	}
	if *show != "" || *source != "" {
		return print(texts)
	}
	work, err := os.MkdirTemp("", "apr-wgsl-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	compiler := filepath.Join(work, "nagac")
	if out, err := exec.Command("go", "build", "-modfile=tools/go.mod", "-o", compiler,
		naga).CombinedOutput(); err != nil {
		return fmt.Errorf("building naga: %w\n%s", err, out)
	}
	version, err := nagaVersion()
	if err != nil {
		return err
	}
	now := manifest.Manifest{Compiler: version}
	var modules [][]byte
	for _, t := range texts {
		code, err := compile(work, compiler, t)
		if err != nil {
			return fmt.Errorf("%s: %w", t.Name, err)
		}
		k := t.Kernel
		k.Source, k.Hash, k.Bytes = hash([]byte(t.Source)), hash(code), len(code)
		now.Kernels, modules = append(now.Kernels, k), append(modules, code)
	}
	packed, err := manifest.Pack(modules)
	if err != nil {
		return err
	}
	now.Packed = hash(packed)
	text, err := json.MarshalIndent(now, "", " ")
	if err != nil {
		return err
	}
	return store(append(text, '\n'), packed)
}

func hash(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

// nagaVersion returns the version that tools/go.mod names.
func nagaVersion() (string, error) {
	text, err := os.ReadFile("tools/go.mod")
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`github.com/gogpu/naga (v\S+)`).FindSubmatch(text)
	if m == nil {
		return "", errors.New("tools/go.mod does not name github.com/gogpu/naga")
	}
	return "naga " + string(m[1]), nil
}

var localArray = regexp.MustCompile(`(?m)^\s+var (\w+): array<[^;=]*>;`)

// unset returns an array of a function that nothing sets to zero. The language says that all are zero; naga leaves
// what was there, which is zero on llvmpipe and not on a GPU.
func unset(source string) string {
	for _, m := range localArray.FindAllStringSubmatch(source, -1) {
		if !regexp.MustCompile(`\b` + m[1] + `\[i\] = (vec4<f32>\()?0\.0`).MatchString(source) {
			return m[1]
		}
	}
	return ""
}

// compile returns the SPIR-V of a kernel.
func compile(work, compiler string, t manifest.Text) ([]byte, error) {
	if v := unset(t.Source); v != "" {
		return nil, fmt.Errorf("array %s has no value: set %s[i] to 0.0 in a loop after its declaration", v, v)
	}
	in, out := filepath.Join(work, t.Name+".wgsl"), filepath.Join(work, t.Name+".spv")
	if err := os.WriteFile(in, []byte(t.Source), 0o600); err != nil {
		return nil, err
	}
	if text, err := exec.Command(compiler, "-o", out, in).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, text)
	}
	code, err := os.ReadFile(out)
	if err != nil {
		return nil, err
	}
	if code, err = manifest.Exact(code); err != nil {
		return nil, err
	}
	if validator, err := exec.LookPath("spirv-val"); err == nil {
		cmd := exec.Command(validator, "--target-env", "vulkan1.1", "-")
		cmd.Stdin = bytes.NewReader(code)
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("spirv-val: %w\n%s", err, text)
		}
	}
	return code, nil
}

// store writes manifest and modules, or compares them.
func store(text, packed []byte) error {
	for name, b := range map[string][]byte{"manifest.json": text, "kernels.spv.br": packed} {
		path := filepath.Join(dir, "spirv", name)
		was, err := os.ReadFile(path)
		if err == nil && bytes.Equal(was, b) {
			continue
		}
		if *check {
			return errors.New("the SPIR-V of device/vulkan/kernel is not what its sources compile to: run `make kernels`")
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, b, 0o644); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "wgsl: %s, %d bytes\n", path, len(b))
	}
	return nil
}

// print writes a kernel's SPIR-V or WGSL to standard output.
func print(texts []manifest.Text) error {
	for _, t := range texts {
		if t.Name == *source {
			_, err := os.Stdout.WriteString(t.Source)
			return err
		}
	}
	var m manifest.Manifest
	text, err := os.ReadFile(filepath.Join(dir, "spirv", "manifest.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return err
	}
	packed, err := os.ReadFile(filepath.Join(dir, "spirv", "kernels.spv.br"))
	if err != nil {
		return err
	}
	modules, err := m.Unpack(packed)
	if err != nil {
		return err
	}
	code, ok := modules[*show]
	if !ok {
		return fmt.Errorf("there is no kernel %q", *show+*source)
	}
	_, err = os.Stdout.Write(code)
	return err
}
