package emulator

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOverlay: a source that an overlay replaces is compiled in the place of the module's, whose other sources stay; an
// overlay of Go's sources changes nothing.
func TestOverlay(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	plain, err := newBuilder(nil)
	if err != nil {
		t.Fatal(err)
	}
	with := func(source, text string) *builder {
		t.Helper()
		by, list := filepath.Join(t.TempDir(), "by"), filepath.Join(t.TempDir(), "list")
		b, err := json.Marshal(map[string]map[string]string{"Replace": {source: by}})
		if err != nil {
			t.Fatal(err)
		}
		for path, content := range map[string]string{by: text, list: string(b)} {
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv(overlayVariable, list)
		built, err := newBuilder(nil)
		if err != nil {
			t.Fatal(err)
		}
		return built
	}
	if b := with(filepath.Join(plain.kernels, "move.go"), "package kernel\n"); b.kernels != plain.kernels {
		t.Errorf("Go's sources are read from %s", b.kernels)
	}
	const text = "//apr:module target=sm_80 types=f32\n"
	b := with(filepath.Join(plain.kernels, "move.cu"), text)
	changed := 0
	sources, err := filepath.Glob(filepath.Join(plain.kernels, "*.cu*"))
	if err != nil || len(sources) < 20 {
		t.Fatalf("%d sources, %v", len(sources), err)
	}
	for _, path := range sources {
		was, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		now, err := os.ReadFile(filepath.Join(b.kernels, filepath.Base(path)))
		if err != nil {
			t.Fatal(err)
		}
		if string(now) == string(was) {
			continue
		}
		if changed++; !strings.HasSuffix(path, "/move.cu") || string(now) != text {
			t.Errorf("%s has %d bytes", path, len(now))
		}
	}
	if changed != 1 {
		t.Errorf("%d sources are replaced", changed)
	}
	before, err := plain.objects()
	if err != nil {
		t.Fatal(err)
	}
	after, err := b.objects()
	if err != nil {
		t.Fatal(err)
	}
	others := 0
	for i, o := range before {
		if o.path != after[i].path {
			others++
		}
	}
	if len(before) != len(after) || others != 1 {
		t.Errorf("%d of %d objects are compiled again", others, len(before))
	}
}
