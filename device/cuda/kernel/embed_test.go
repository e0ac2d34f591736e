package kernel

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
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
		if hash(t, filepath.Join("ptx", module.Name+".ptx")) != module.PTXHash {
			t.Errorf("ptx/%s.ptx was not written by `make kernels`", module.Name)
		}
	}
	if !slices.Equal(names, sources) {
		t.Errorf("compiled are %v, sources are %v", names, sources)
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
