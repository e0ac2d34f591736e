package hub

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"apr/hub/hubtest"
	"apr/internal/fault"
)

// TestLayout: the cache holds exactly what huggingface_hub would have written for the chosen files (see doc.go).
func TestLayout(t *testing.T) {
	g := newRig(t)
	s, err := g.pull(t, Options{})
	if err != nil {
		t.Fatal(err)
	}
	const base = "models--org--name/"
	want := map[string]string{base + "refs/main": hubtest.Commit}
	for _, name := range []string{"config.json", "tokenizer.json", "generation_config.json", weightsFile} {
		etag := hubtest.ETag(name, g.Files[name])
		want[base+"blobs/"+etag] = string(g.Files[name])
		want[base+"snapshots/"+hubtest.Commit+"/"+name] = "-> ../../blobs/" + etag
		want[".locks/models--org--name/"+etag+".lock"] = ""
	}
	for _, name := range small {
		if _, ok := g.Files[name]; !ok {
			want[base+".no_exist/"+hubtest.Commit+"/"+name] = ""
		}
	}
	if diff := cmp.Diff(want, tree(t, g.cache)); diff != "" {
		t.Errorf("cache (-want +got):\n%s", diff)
	}
	if s.Path != filepath.Join(g.cache, base, "snapshots", hubtest.Commit) || s.Commit != hubtest.Commit || s.Cached() {
		t.Errorf("got %+v", s)
	}
	for _, f := range s.Files {
		if want := fmt.Sprintf("%x", sum256(g.Files[f.Name])); f.SHA256 != want || f.Size != int64(len(g.Files[f.Name])) {
			t.Errorf("%s: got %d bytes, %s, want %s", f.Name, f.Size, f.SHA256, want)
		}
	}
}

func TestAgain(t *testing.T) {
	g := newRig(t)
	first, err := g.pull(t, Options{})
	if err != nil {
		t.Fatal(err)
	}
	sent := g.Sent()
	second, err := g.pull(t, Options{})
	if err != nil || !second.Cached() || g.Sent() != sent {
		t.Fatalf("second pull: %v, cached %v, %d bytes more", err, second.Cached(), g.Sent()-sent)
	}
	for i := range first.Files {
		first.Files[i].Cached = true
	}
	if diff := cmp.Diff(first.Files, second.Files, cmp.AllowUnexported(File{})); diff != "" {
		t.Errorf("second pull (-first +second):\n%s", diff)
	}
	offline, err := g.c.Cached(t.Context(), whole, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(second, offline, cmp.AllowUnexported(File{})); diff != "" {
		t.Errorf("cached (-pulled +cached):\n%s", diff)
	}
	if _, err := g.pull(t, Options{Force: true}); err != nil || g.Sent() != 2*sent {
		t.Errorf("forced: %v, %d bytes in all, want %d", err, g.Sent(), 2*sent)
	}
}

func TestRevisions(t *testing.T) {
	tests := []struct{ revision, ref string }{
		{"main", "refs/main"}, {"v1", "refs/v1"}, {"refs/pr/1", "refs/refs/pr/1"}, {hubtest.Commit, ""},
	}
	for _, tt := range tests {
		t.Run(tt.revision, func(t *testing.T) {
			g := newRig(t)
			ref := Ref{Repo: repo, Revision: tt.revision}
			s, err := g.c.Pull(t.Context(), ref, Options{Part: Tokenizer})
			if err != nil || s.Commit != hubtest.Commit {
				t.Fatal(s, err)
			}
			refs := 0
			for name, text := range tree(t, filepath.Join(g.cache, "models--org--name")) {
				if strings.HasPrefix(name, "refs/") {
					refs++
					if name != tt.ref || text != hubtest.Commit {
						t.Errorf("%s: %q", name, text)
					}
				}
			}
			if refs == 0 != (tt.ref == "") {
				t.Errorf("%d refs", refs)
			}
			if _, err := g.c.Cached(t.Context(), ref, Options{Part: Tokenizer}); err != nil {
				t.Error(err)
			}
		})
	}
	g := newRig(t)
	_, err := g.c.Pull(t.Context(), Ref{Repo: repo, Revision: "v2"}, Options{})
	wantFault(t, err, fault.HTTP404, "E-HUB-018")
	_, err = g.c.Pull(t.Context(), Ref{Repo: "org/other", Revision: "main"}, Options{})
	wantFault(t, err, fault.HTTP404, "E-HUB-018")
}

func TestChoice(t *testing.T) {
	g := newRig(t)
	g.Files = map[string][]byte{
		"config.json": []byte("{}"), "tokenizer.json": []byte("{}"), "a.gguf": []byte("A"), "b.gguf": []byte("B"),
		"pytorch_model.bin": []byte("P"), "sub/model.safetensors": []byte("S"), "sub/config.json": []byte("C"),
		"sub/model.safetensors.index.json": []byte(`{"weight_map":{"x":"model.safetensors"}}`),
	}
	tests := []struct {
		name, file string
		opt        Options
		want       string // names, or the identifier of the fault
	}{
		{"no safetensors", "", Options{}, "E-HUB-013"},
		{"tokenizer", "", Options{Part: Tokenizer}, "config.json tokenizer.json"},
		{"named gguf", "a.gguf", Options{}, "a.gguf"},
		{"named file is not there", "c.gguf", Options{}, "E-HUB-012"},
		{"named safetensors", "sub/model.safetensors", Options{}, "sub/config.json sub/model.safetensors"},
		{"named index", "sub/model.safetensors.index.json", Options{}, "sub/config.json sub/model.safetensors sub/model.safetensors.index.json"},
		{"pattern", "", Options{Include: []string{"*.gguf"}}, "a.gguf b.gguf"},
		{"patterns in folders", "", Options{Include: []string{"sub/*.json", "a.*"}}, "a.gguf sub/config.json sub/model.safetensors.index.json"},
		{"pickle on demand", "", Options{Include: []string{"*.bin"}}, "pytorch_model.bin"},
		{"no match", "", Options{Include: []string{"*.pt"}}, "E-HUB-011"},
		{"no glob", "", Options{Include: []string{"[a"}}, "E-HUB-010"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ref := Ref{Repo: repo, Revision: "main", File: tt.file}
			s, err := g.c.Pull(t.Context(), ref, tt.opt)
			if id, ok := strings.CutPrefix(tt.want, "E-"); ok {
				wantFault(t, err, fault.KindOf(err), "E-"+id)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, f := range s.Files {
				names = append(names, f.Name)
			}
			if got := strings.Join(names, " "); got != tt.want {
				t.Errorf("got %s", got)
			}
			if data, err := os.ReadFile(s.Path); tt.file != "" && (err != nil || string(data) != string(g.Files[tt.file])) {
				t.Errorf("%s: %q, %v", s.Path, data, err)
			}
		})
	}
}

func TestDryRun(t *testing.T) {
	g := newRig(t)
	s, err := g.pull(t, Options{DryRun: true})
	if err != nil || len(s.Files) != 4 || s.Cached() || g.Sent() != 0 {
		t.Fatalf("%+v, %v, %d bytes", s, err, g.Sent())
	}
	if _, err := os.Stat(g.cache); err == nil {
		t.Error("a dry run made a cache")
	}
}

// TestWhole: a snapshot is believed only if it is whole.
func TestWhole(t *testing.T) {
	dir := "models--org--name/"
	snapshot := dir + "snapshots/" + hubtest.Commit + "/"
	index := []byte(`{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}`)
	tests := []struct {
		name   string
		add    map[string][]byte
		remove []string
		whole  bool
	}{
		{"as pulled", nil, nil, true},
		{"no generation_config.json", nil, []string{snapshot + "generation_config.json"}, true},
		{"no tokenizer.json", nil, []string{snapshot + "tokenizer.json"}, false},
		{"no config.json", nil, []string{snapshot + "config.json"}, false},
		{"no weights", nil, []string{snapshot + weightsFile}, false},
		{"no blob", nil, []string{dir + "blobs/" + hubtest.ETag(weightsFile, files()[weightsFile])}, false},
		{"no ref", nil, []string{dir + "refs/main"}, false},
		{"shards", map[string][]byte{"model.safetensors.index.json": index, "model-1.safetensors": {1}, "model-2.safetensors": {2}}, nil, true},
		{"a shard too few", map[string][]byte{"model.safetensors.index.json": index, "model-1.safetensors": {1}, "model-2.safetensors": {2}},
			[]string{snapshot + "model-2.safetensors"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g := newRig(t)
			for name, data := range tt.add {
				g.Files[name] = data
			}
			if _, err := g.pull(t, Options{}); err != nil {
				t.Fatal(err)
			}
			for _, name := range tt.remove {
				if err := os.Remove(filepath.Join(g.cache, name)); err != nil {
					t.Fatal(err)
				}
			}
			_, err := g.c.Find(t.Context(), whole, Options{}, true)
			if tt.whole && err != nil {
				t.Error(err)
			}
			if !tt.whole {
				wantFault(t, err, fault.NotFound, "E-HUB-035")
				if _, err := g.c.Find(t.Context(), whole, Options{}, false); err != nil {
					t.Errorf("with the network: %v", err)
				}
				if _, err := g.c.Find(t.Context(), whole, Options{}, true); err != nil {
					t.Errorf("afterwards: %v", err)
				}
			}
		})
	}
}

// TestKnownAbsent: a model without tokenizer.json is whole, because the cache knows that there is none.
func TestKnownAbsent(t *testing.T) {
	g := newRig(t)
	delete(g.Files, "tokenizer.json")
	if _, err := g.pull(t, Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := g.c.Cached(t.Context(), whole, Options{}); err != nil {
		t.Error(err)
	}
}

// TestOfflineAsksNobody: what is in the cache is found without a request.
func TestOfflineAsksNobody(t *testing.T) {
	g := newRig(t)
	if _, err := g.pull(t, Options{}); err != nil {
		t.Fatal(err)
	}
	g.Reset()
	if _, err := g.c.Find(t.Context(), whole, Options{}, true); err != nil {
		t.Error(err)
	}
	if _, err := g.c.Find(t.Context(), whole, Options{}, false); err != nil {
		t.Error(err)
	}
	_, err := g.c.Find(t.Context(), Ref{Repo: "org/other", Revision: "main"}, Options{}, true)
	wantFault(t, err, fault.NotFound, "E-HUB-035")
	if f := err.(*fault.Error); !strings.Contains(f.Hint, "apr pull hf://org/other") {
		t.Errorf("hint %q", f.Hint)
	}
	if n := len(g.Calls("")); n != 0 {
		t.Errorf("%d requests", n)
	}
}

func TestVerify(t *testing.T) {
	for _, name := range []string{weightsFile, "tokenizer.json"} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			if _, err := g.pull(t, Options{}); err != nil {
				t.Fatal(err)
			}
			blob := filepath.Join(g.cache, "models--org--name/blobs", hubtest.ETag(name, g.Files[name]))
			rot := slices.Clone(g.Files[name])
			rot[len(rot)/2] ^= 1
			if err := os.WriteFile(blob, rot, fileMode); err != nil {
				t.Fatal(err)
			}
			_, err := g.c.Cached(t.Context(), whole, Options{Verify: true})
			wantFault(t, err, fault.Invalid, "E-HUB-033")
			if s, err := g.pull(t, Options{Verify: true}); err != nil || s.Cached() {
				t.Fatalf("%v, cached %v", err, s.Cached())
			}
			if _, err := g.c.Cached(t.Context(), whole, Options{Verify: true}); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCopy: plain files elsewhere.
func TestCopy(t *testing.T) {
	g := newRig(t)
	s, err := g.pull(t, Options{Include: []string{"*.json", "onnx/*"}})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "out")
	for range 2 { // equal files stay
		if err := g.c.Copy(t.Context(), s, dir, false); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]string{}
	for _, name := range []string{"config.json", "tokenizer.json", "generation_config.json", "onnx/model.safetensors"} {
		want[name] = string(g.Files[name])
	}
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte("mine"), fileMode); err != nil {
		t.Fatal(err)
	}
	wantFault(t, g.c.Copy(t.Context(), s, dir, false), fault.Invalid, "E-FILE-011")
	if err := g.c.Copy(t.Context(), s, dir, true); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, tree(t, dir)); diff != "" {
		t.Errorf("forced (-want +got):\n%s", diff)
	}
}

// TestCancelled: a cancelled pull can be continued.
func TestCancelled(t *testing.T) {
	g := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	g.Handle(func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
		if c.Kind == hubtest.Storage && c.Nth == 0 {
			w.Header().Set("ETag", `"storage-model.safetensors"`)
			w.Header().Set("Content-Length", fmt.Sprint(len(g.Files[weightsFile])))
			_, _ = w.Write(g.Files[weightsFile][:500_000])
			_ = http.NewResponseController(w).Flush()
			part := filepath.Join(g.cache, "models--org--name/blobs", hubtest.ETag(weightsFile, g.Files[weightsFile])+".incomplete")
			for info, err := os.Stat(part); err != nil || info.Size() < 500_000; info, err = os.Stat(part) {
				time.Sleep(time.Millisecond)
			}
			cancel()
			<-r.Context().Done()
			return true
		}
		return false
	})
	_, err := g.c.Pull(ctx, whole, Options{})
	if err == nil || fault.KindOf(err) != fault.Other || ctx.Err() == nil {
		t.Fatalf("got %v", err)
	}
	g.nothingPublished(t)
	if _, err := g.pull(t, Options{}); err != nil {
		t.Fatal(err)
	}
	calls := g.Calls(hubtest.Storage)
	if from := calls[len(calls)-1].From; from == 0 {
		t.Error("the second pull began anew")
	}
}
