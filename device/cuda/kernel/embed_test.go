package kernel

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"apr/device/cuda/kernel/manifest"
)

func hash(t *testing.T, files ...string) string {
	t.Helper()
	h := sha256.New()
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		h.Write(text)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// TestManifest: the PTX is what the sources beside it compile to, as far as hashes can tell.
func TestManifest(t *testing.T) {
	headers, _ := filepath.Glob("*.cuh")
	m := readManifest()
	if got := hash(t, headers...); got != m.Headers {
		t.Errorf("a header changed since the kernels were compiled: run `make kernels`")
	}
	sources, _ := filepath.Glob("*.cu")
	var names []string
	for _, module := range m.Modules {
		names = append(names, module.Name+".cu")
		if hash(t, module.Name+".cu") != module.Source {
			t.Errorf("%s.cu changed since it was compiled: run `make kernels`", module.Name)
		}
		text := PTX(module.Name)
		if fmt.Sprintf("%x", sha256.Sum256(text)) != module.PTXHash || len(text) != module.Bytes {
			t.Errorf("the PTX of %s was not written by `make kernels`", module.Name)
		}
	}
	if !slices.Equal(names, sources) {
		t.Errorf("compiled are %v, sources are %v", names, sources)
	}
}

// TestDeclarations: what the manifest says of a module is what its source declares.
func TestDeclarations(t *testing.T) {
	for _, m := range Modules() {
		source, err := os.ReadFile(m.Name + ".cu")
		if err != nil {
			t.Fatal(err)
		}
		d, err := manifest.Declare(string(source))
		if err != nil {
			t.Fatalf("%s.cu: %v", m.Name, err)
		}
		if d.Target != m.Target || d.Emulated != m.Emulated || !slices.Equal(d.Types, m.Types) || !slices.Equal(d.Roles, m.Roles) {
			t.Errorf("%s.cu declares %+v, the manifest has %+v: run `make kernels`", m.Name, d, m.Declaration)
		}
		twins := 0
		for _, k := range m.Kernels {
			if of, ok := d.Twin(k); ok {
				twins++
				if m.Twins[of] != k || !isKernel(of) {
					t.Errorf("%s stands in for %s, the manifest has %q", k, of, m.Twins[of])
				}
			}
		}
		if twins != len(m.Twins) {
			t.Errorf("%s: %d twins, the manifest has %d", m.Name, twins, len(m.Twins))
		}
	}
}

// isKernel reports whether a module has a kernel of that name.
func isKernel(name string) bool {
	return slices.ContainsFunc(Modules(), func(m Module) bool { return slices.Contains(m.Kernels, name) })
}

// BenchmarkPTX decompresses all modules.
func BenchmarkPTX(b *testing.B) {
	for range b.N {
		n := 0
		for _, m := range Modules() {
			n += len(PTX(m.Name))
		}
		b.SetBytes(int64(n))
	}
}

// TestKernelNames: an entry point belongs to one module, is defined by KERNEL in its source, and is in its PTX.
func TestKernelNames(t *testing.T) {
	seen := map[string]string{}
	for _, m := range Modules() {
		if len(m.Kernels) == 0 {
			t.Errorf("%s has no kernel", m.Name)
		}
		text := string(PTX(m.Name))
		for _, k := range m.Kernels {
			if other := seen[k]; other != "" {
				t.Errorf("%s is in %s and in %s", k, other, m.Name)
			}
			seen[k] = m.Name
			if !strings.Contains(text, ".entry "+k+"(") {
				t.Errorf("%s is not in the PTX of %s", k, m.Name)
			}
		}
	}
}

// TestSafePTX: no module asks for a newer target than it says, calls a function that nobody links, or adds floats atomically.
func TestSafePTX(t *testing.T) {
	for _, m := range Modules() {
		text := string(PTX(m.Name))
		if !strings.Contains(text, ".target "+m.Target+"\n") {
			t.Errorf("%s: target is not %s", m.Name, m.Target)
		}
		for _, bad := range []string{`\.extern \.func`, `(atom|red)\.[a-z.]*add\.[a-z.]*(b?f)\d+`} {
			if found := regexp.MustCompile(bad).FindString(text); found != "" {
				t.Errorf("%s: PTX has %q", m.Name, found)
			}
		}
	}
}

// TestArgBytes: the PTX of every kernel says how large its argument is.
func TestArgBytes(t *testing.T) {
	for _, m := range Modules() {
		sizes := ArgBytes(PTX(m.Name))
		for _, name := range m.Kernels {
			if sizes[name] == 0 {
				t.Errorf("%s: nothing of %s", m.Name, name)
			}
		}
		if len(sizes) != len(m.Kernels) {
			t.Errorf("%s: %d arguments of %d kernels", m.Name, len(sizes), len(m.Kernels))
		}
	}
	if sizes := ArgBytes(PTX("experts_rows")); sizes["experts_mix_rows"] != int(unsafe.Sizeof(expertMixArgs{})) || sizes["experts_gated_rows"] != int(unsafe.Sizeof(expertGatedArgs{})) {
		t.Errorf("%v", sizes)
	}
}
