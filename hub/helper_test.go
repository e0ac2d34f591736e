package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"apr/hub/hubtest"
	"apr/internal/fault"
)

// canary is the token of all tests: it must appear nowhere.
const canary = "hf_canaryCANARY0123456789"

const repo = "org/name"

// content returns n bytes that depend on seed.
func content(n int, seed uint64) []byte {
	p := make([]byte, n)
	src := rand.New(rand.NewPCG(seed, 1))
	for i := range p {
		p[i] = byte(src.Uint32())
	}
	return p
}

const weightsFile = "model.safetensors"

// files is a small repository with what must not be downloaded beside it.
func files() map[string][]byte {
	return map[string][]byte{
		"config.json": []byte(`{"a": 1}`), "tokenizer.json": content(3000, 1), "generation_config.json": []byte(`{}`),
		weightsFile: content(1<<20, 2), "pytorch_model.bin": []byte("a program"), "README.md": []byte("text"),
		"onnx/model.safetensors": []byte("elsewhere"), "logs/12:30|x?.txt": []byte("an odd name"),
	}
}

// rig is a hub, a client of it, and everything that the client says.
type rig struct {
	*hubtest.Server
	c     *Client
	cache string
	waits []time.Duration

	mu   sync.Mutex
	logs bytes.Buffer
}

func (g *rig) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.logs.Write(p)
}

// newRig starts a hub with files() and makes a client with the canary as token.
func newRig(t *testing.T) *rig {
	t.Helper()
	g := &rig{Server: hubtest.New(repo, files()), cache: filepath.Join(t.TempDir(), "hub")}
	t.Cleanup(g.Close)
	g.c = g.client(t)
	t.Cleanup(func() {
		if s := g.logs.String(); strings.Contains(s, canary) {
			t.Errorf("the token is in the log:\n%s", s)
		}
	})
	return g
}

func (g *rig) client(t *testing.T) *Client {
	t.Helper()
	endpoint, err := url.Parse(g.Hub.URL)
	if err != nil {
		t.Fatal(err)
	}
	token, err := NewToken(canary)
	if err != nil {
		t.Fatal(err)
	}
	c := New(Config{Endpoint: endpoint, Cache: g.cache, Token: token, Agent: "apr/test"},
		slog.New(slog.NewJSONHandler(g, &slog.HandlerOptions{Level: slog.LevelDebug})))
	c.sleep = func(ctx context.Context, d time.Duration) error {
		g.mu.Lock()
		g.waits = append(g.waits, d)
		g.mu.Unlock()
		return ctx.Err()
	}
	return c
}

var whole = Ref{Repo: repo, Revision: DefaultRevision}

// pull pulls the repository and looks for the token in the error.
func (g *rig) pull(t *testing.T, opt Options) (*Snapshot, error) {
	t.Helper()
	s, err := g.c.Pull(t.Context(), whole, opt)
	noCanary(t, err)
	return s, err
}

// noCanary looks for the token in an error.
func noCanary(t *testing.T, err error) {
	t.Helper()
	var f *fault.Error
	text := fmt.Sprintf("%v %+v %#v", err, err, err)
	if errors.As(err, &f) {
		text += f.Hint + f.Path + f.Msg + f.Place
	}
	if strings.Contains(text, canary) {
		t.Errorf("the token is in the error: %s", text)
	}
}

// wantFault requires the kind and the identifier of an error.
func wantFault(t *testing.T, err error, kind fault.Kind, id string) {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != kind || id != "" && f.ID != id {
		t.Fatalf("got %v (%v), want a fault of kind %s with id %q", err, fault.KindOf(err), kind, id)
	}
}

// tree lists what is below a folder: files with their mode, links with their target.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			if info.Mode().Perm() != dirMode && p != dir {
				t.Errorf("%s has mode %v", name, info.Mode())
			}
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			all[filepath.ToSlash(name)] = "-> " + target
			return err
		default:
			if info.Mode().Perm() != fileMode {
				t.Errorf("%s has mode %v", name, info.Mode())
			}
			data, err := os.ReadFile(p)
			if bytes.Contains(data, []byte(canary)) {
				t.Errorf("the token is in %s", name)
			}
			all[filepath.ToSlash(name)] = string(data)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// nothingPublished requires that no snapshot and no ref appeared, and no blob but those whose content is right.
func (g *rig) nothingPublished(t *testing.T, wrong ...string) {
	t.Helper()
	for name := range tree(t, g.cache) {
		if strings.Contains(name, "/snapshots/") || strings.Contains(name, "/refs/") {
			t.Errorf("%s appeared", name)
		}
		for _, w := range wrong {
			if strings.Contains(name, "/blobs/"+hubtest.ETag(w, g.Files[w])) {
				t.Errorf("%s is there, the content of %s", name, w)
			}
		}
	}
}
