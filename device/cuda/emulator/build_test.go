//go:build emulate

package emulator

import (
	"os"
	"path/filepath"
	"testing"
)

// The name of an object is a hash of its source and of all headers that the source includes, at any depth. So an object is
// compiled again when one of these files changes, and copies of the module in other folders share it.
func TestObjectNames(t *testing.T) {
	name := func(change, text string) string {
		t.Helper()
		b, err := newBuilder(nil)
		if err != nil {
			t.Fatal(err)
		}
		b.kernels = t.TempDir()
		for file, text := range map[string]string{
			"a.cu": "#include \"b.cuh\"\n", "b.cuh": "  # include \"c.cuh\"\n#include \"b.cuh\"\n",
			"c.cuh": "int c;\n", "other.cuh": "int other;\n", change: text,
		} {
			if err := os.WriteFile(filepath.Join(b.kernels, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		objects, err := b.objects()
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range objects {
			if o.module == "a" {
				return o.path
			}
		}
		t.Fatalf("no object of a.cu among %v", objects)
		return ""
	}
	before := name("other.cuh", "int other;\n")
	for _, tt := range []struct {
		file, text string
		same       bool
	}{
		{"other.cuh", "int changed;\n", true},
		{"a.cu", "#include \"b.cuh\"\nint a;\n", false},
		{"b.cuh", "#include \"c.cuh\"\n", false},
		{"c.cuh", "int changed;\n", false},
	} {
		if got := name(tt.file, tt.text); (got == before) != tt.same {
			t.Errorf("%s changed: the object has the same name: %v, want %v", tt.file, got == before, tt.same)
		}
	}
}
