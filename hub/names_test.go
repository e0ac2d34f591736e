package hub

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/hub/hubtest"
	"apr/internal/fault"
)

// hostile are names that would leave a folder, or mean something else than a file, on some system.
var hostile = []string{
	"..", ".", "", "/", "//", "../x", "../../x", "a/../../x", "a/..", "./x", "a/./x", "a//x", "/etc/passwd", "//host/share/x",
	`..\x`, `a\..\..\x`, `\x`, `\\host\share\x`, `\\?\C:\x`, `C:\x`, "C:/x", "C:x", "c:", "a:b", "file::$DATA", "x\x00y", "x\ny", "x\x1b[2Jy", "x\x7fy", "x\u0085y",
	"NUL", "nul.txt", "a/CON", "COM1", "lpt9.json", "AUX ", "CONIN$", "COM¹", "x.", "x ", " x", "a./b", "x|y", "x?y", "x*y", `x"y`, "x<y", ".git", ".GIT/hooks/post-checkout",
	"\xff\xfe", strings.Repeat("a", 256), strings.Repeat("a/", 16) + "a", strings.Repeat("abcdefgh/", 200) + "a",
}

func TestHostileNames(t *testing.T) {
	if len(hostile) < 40 {
		t.Fatalf("%d names", len(hostile))
	}
	outside := t.TempDir()
	if err := os.Chdir(outside); err != nil { // what is relative would land here
		t.Fatal(err)
	}
	g := newRig(t)
	sinks := map[string]func(name string) error{
		"file of a listing": func(name string) error {
			g.Handle(func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
				if c.Kind == hubtest.List {
					hubtest.WriteListing(w, repo, hubtest.Commit, []string{"config.json", name})
				}
				return c.Kind == hubtest.List
			})
			// chosen whatever it is: the pattern matches it or its last component, or it is refused for leaving
			_, err := g.c.Pull(t.Context(), whole, Options{Include: []string{"*", "*/*", "*/*/*", "*/*/*/*"}})
			return err
		},
		"commit of a listing": func(name string) error {
			g.Handle(func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
				if c.Kind == hubtest.List {
					hubtest.WriteListing(w, repo, name, []string{"config.json"})
				}
				return c.Kind == hubtest.List
			})
			_, err := g.c.Pull(t.Context(), whole, Options{Include: []string{"*"}})
			return err
		},
		"etag": func(name string) error {
			if strings.ContainsAny(name, "\x00\n\x1b\x7f") {
				return checkETag(name) // no header can carry it
			}
			g.Handle(func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
				if c.Kind == hubtest.Head {
					w.Header().Set("ETag", `"`+name+`"`)
					w.Header().Set("Content-Length", "5")
				}
				return c.Kind == hubtest.Head
			})
			_, err := g.c.Pull(t.Context(), whole, Options{})
			return err
		},
		"revision":   func(name string) error { return Ref{Repo: repo, Revision: name}.check() },
		"repository": func(name string) error { return Ref{Repo: "org/" + name, Revision: "main"}.check() },
		"owner":      func(name string) error { return Ref{Repo: name + "/name", Revision: "main"}.check() },
		"file":       func(name string) error { return Ref{Repo: repo, Revision: "main", File: name + "/x"}.check() },
		"ref of the cache": func(name string) error {
			return g.inCache(t, "refs/main", name, func() error {
				_, err := g.c.Cached(t.Context(), whole, Options{})
				return err
			})
		},
		"shard of an index": func(name string) error {
			index := fmt.Sprintf(`{"weight_map": {"t": %s}}`, jsonString(name))
			snapshot := "snapshots/" + hubtest.Commit + "/"
			return g.inCache(t, "refs/main", hubtest.Commit, func() error {
				return g.inCache(t, snapshot+"model.safetensors.index.json", index, func() error {
					return g.inCache(t, snapshot+"model-1.safetensors", "x", func() error {
						_, err := g.c.Cached(t.Context(), whole, Options{})
						return err
					})
				})
			})
		},
	}
	for sink, try := range sinks {
		t.Run(sink, func(t *testing.T) {
			for _, name := range hostile {
				err := try(name)
				noCanary(t, err)
				ok := fault.KindOf(err) == fault.UnsafePath
				if name == "\xff\xfe" && (sink == "file of a listing" || sink == "shard of an index") {
					ok = err != nil // not JSON; the encoder of the listing replaces it by a character that is no harm
				}
				if sink == "file of a listing" && name == "\xff\xfe" {
					ok = true
				}
				if !ok {
					t.Errorf("%q: %v", name, err)
				}
			}
		})
	}
	if left := tree(t, outside); len(left) > 0 {
		t.Errorf("outside the cache there is %v", left)
	}
	for name := range tree(t, g.cache) {
		if strings.Contains(name, "/snapshots/") && !strings.Contains(name, "�") {
			t.Errorf("%s appeared", name)
		}
	}
}

// jsonString quotes bytes as JSON without repairing them.
func jsonString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case c < 0x20 || c == 0x7f || c == '"' || c == '\\':
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String() + `"`
}

// inCache calls f while a file of the repository's folder has some text.
func (g *rig) inCache(t *testing.T, name, text string, f func() error) error {
	t.Helper()
	full := filepath.Join(g.cache, "models--org--name", name)
	if err := os.MkdirAll(filepath.Dir(full), dirMode); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(text), fileMode); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(full)
	return f()
}

// TestOddNamesBeside: names that some system cannot hold are no harm while nobody wants the file.
func TestOddNamesBeside(t *testing.T) {
	g := newRig(t) // files() has one
	if _, err := g.pull(t, Options{}); err != nil {
		t.Error(err)
	}
	_, err := g.pull(t, Options{Include: []string{"*.txt"}})
	wantFault(t, err, fault.UnsafePath, "E-HUB-004")
}

// TestOnlyCaseDiffers: two files that one name would be on some system.
func TestOnlyCaseDiffers(t *testing.T) {
	g := newRig(t)
	g.Files["Config.json"] = []byte("{}")
	_, err := g.pull(t, Options{Include: []string{"*.json"}})
	wantFault(t, err, fault.UnsafePath, "E-HUB-004")
}

// TestLinksOut: links that lead out of the repository's folder are neither read nor written through.
func TestLinksOut(t *testing.T) {
	const base = "models--org--name/"
	snapshot := base + "snapshots/" + hubtest.Commit
	tests := map[string]struct{ link, replaces string }{
		"file of the snapshot": {snapshot + "/config.json", snapshot + "/config.json"},
		"the snapshot":         {snapshot, snapshot},
		"all snapshots":        {base + "snapshots", base + "snapshots"},
		"the blobs":            {base + "blobs", base + "blobs"},
		"refs":                 {base + "refs", base + "refs"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			if _, err := g.pull(t, Options{}); err != nil {
				t.Fatal(err)
			}
			outside := t.TempDir()
			secret := filepath.Join(outside, "config.json")
			if err := os.WriteFile(secret, []byte("secret"), fileMode); err != nil {
				t.Fatal(err)
			}
			target := outside
			if strings.HasSuffix(tt.link, ".json") {
				target = secret
			}
			if err := os.RemoveAll(filepath.Join(g.cache, tt.replaces)); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(target, filepath.Join(g.cache, tt.link)); err != nil {
				t.Fatal(err)
			}
			_, err := g.c.Cached(t.Context(), whole, Options{})
			wantFault(t, err, fault.UnsafePath, "E-HUB-025")
			if _, err := g.pull(t, Options{Force: true}); err != nil { // a link instead of a file is replaced, others are refused
				wantFault(t, err, fault.UnsafePath, "E-HUB-025")
			}
			if got := tree(t, outside); len(got) != 1 || got["config.json"] != "secret" {
				t.Errorf("outside there is now %v", got)
			}
		})
	}
}

// TestCopyLinksOut: a folder to write into that has links out of itself.
func TestCopyLinksOut(t *testing.T) {
	g := newRig(t)
	s, err := g.pull(t, Options{Include: []string{"onnx/*", "config.json"}})
	if err != nil {
		t.Fatal(err)
	}
	outside, dir := t.TempDir(), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, "onnx")); err != nil {
		t.Fatal(err)
	}
	wantFault(t, g.c.Copy(t.Context(), s, dir, true), fault.UnsafePath, "E-HUB-025")
	if got := tree(t, outside); len(got) != 0 {
		t.Errorf("outside there is now %v", got)
	}
}

func TestParseRef(t *testing.T) {
	tests := []struct {
		text string
		want Ref
		kind fault.Kind
		back string // what String makes of it; empty: text
	}{
		{"hf://org/name", Ref{repo, "main", "", false}, 0, ""},
		{"org/name", Ref{repo, "main", "", false}, 0, "hf://org/name"},
		{"hf://org/name@main", Ref{repo, "main", "", false}, 0, "hf://org/name"},
		{"hf://org/name@v1.0", Ref{repo, "v1.0", "", false}, 0, ""},
		{"hf://org/name@v1.0/sub/x.gguf", Ref{repo, "v1.0", "sub/x.gguf", false}, 0, ""},
		{"hf://org/name/x.gguf", Ref{repo, "main", "x.gguf", false}, 0, ""},
		{"hf://org/name/a@b.gguf", Ref{repo, "main", "a@b.gguf", false}, 0, ""},
		{"hf://org/name@refs/pr/7", Ref{repo, "refs/pr/7", "", false}, 0, ""},
		{"hf://org/name@refs/pr/7/x.gguf", Ref{repo, "refs/pr/7", "x.gguf", false}, 0, ""},
		{"hf://org/name@feature%2Fone/x.gguf", Ref{repo, "feature/one", "x.gguf", false}, 0, ""},
		{"hf://org/name@" + hubtest.Commit, Ref{repo, hubtest.Commit, "", false}, 0, ""},
		{"hf://datasets/org/name", Ref{repo, "main", "", true}, 0, ""},
		{"hf://datasets/org/name@v1/data/train-*.parquet", Ref{repo, "v1", "data/train-*.parquet", true}, 0, ""},
		{"hf://datasets/org/name/en", Ref{repo, "main", "en", true}, 0, ""},
		{"hf://datasets/org", Ref{}, fault.Usage, ""},
		{"hf://datasets/org/name/[", Ref{}, fault.Usage, ""},
		{"hf://datasets/org/name/../*", Ref{}, fault.UnsafePath, ""},
		{"hf://org/name/*.gguf", Ref{}, fault.UnsafePath, ""},
		{"hf://name", Ref{}, fault.Usage, ""},
		{"hf://", Ref{}, fault.Usage, ""},
		{"hf:///name", Ref{}, fault.Usage, ""},
		{"hf://org/", Ref{}, fault.Usage, ""},
		{"hf://org/name/", Ref{}, fault.Usage, ""},
		{"hf://org@v1/name", Ref{}, fault.Usage, ""},
		{"hf://org/name@%zz", Ref{}, fault.Usage, ""},
		{"hf://org/name@", Ref{}, fault.UnsafePath, ""},
		{"hf://org/name@..%2F..%2Fx", Ref{}, fault.UnsafePath, ""},
		{"hf://org/name/../x", Ref{}, fault.UnsafePath, ""},
		{"hf://../name", Ref{}, fault.UnsafePath, ""},
		{"hf://org/..", Ref{}, fault.UnsafePath, ""},
		{"hf://org/na--me", Ref{}, fault.UnsafePath, ""},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			got, err := ParseRef(tt.text)
			if fault.KindOf(err) != tt.kind {
				t.Fatalf("got %v", err)
			}
			if err != nil {
				return
			}
			back := tt.back
			if back == "" {
				back = tt.text
			}
			if got != tt.want || got.String() != back {
				t.Errorf("got %+v, %s", got, got)
			}
		})
	}
}

func FuzzParseRef(f *testing.F) {
	for _, s := range append([]string{"hf://org/name@v1/file", "org/name"}, hostile...) {
		f.Add(s)
		f.Add("hf://org/name@" + s)
		f.Add("hf://org/name/" + s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRef(s)
		if err != nil {
			return
		}
		again, err := ParseRef(r.String())
		if err != nil || again != r {
			t.Fatalf("%q is %+v, whose text %q is %+v, %v", s, r, r, again, err)
		}
		for _, p := range []string{r.folder(), r.Revision, r.File} {
			if p != "" && !filepath.IsLocal(p) {
				t.Fatalf("%q: %q is not local", s, p)
			}
		}
	})
}
