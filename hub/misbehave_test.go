package hub

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"apr/hub/hubtest"
	"apr/internal/fault"
)

func sum256(p []byte) [32]byte { return sha256.Sum256(p) }

// storage makes a Handler of requests for the weights at the other server.
func storage(f hubtest.Handler) hubtest.Handler {
	return func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
		return c.Kind == hubtest.Storage && c.Name == weightsFile && f(c, w, r)
	}
}

const validator = `"storage-model.safetensors"`

// TestCuts: a connection that breaks is continued where it broke, so that little is sent twice.
func TestCuts(t *testing.T) {
	size := len(files()[weightsFile])
	tests := map[string][]int{ // bytes of the body that each attempt gets
		"before the first byte": {0}, "after one byte": {1}, "in the middle": {size / 2}, "before the last byte": {size - 1},
		"four times without progress": {0, 0, 0, 0}, "twelve times": {90000, 80000, 70000, 90000, 80000, 70000, 66000, 90000, 80000, 70000, 90000, 80000},
	}
	for name, cuts := range tests {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			g.Handle(storage(func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
				if c.Nth >= len(cuts) {
					return false
				}
				w.Header().Set("ETag", validator)
				if cuts[c.Nth] == 0 {
					panic(http.ErrAbortHandler)
				}
				g.Cut(w, r, g.Files[weightsFile], cuts[c.Nth])
				return true
			}))
			s, err := g.pull(t, Options{Include: []string{weightsFile}})
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(filepath.Join(s.Dir, weightsFile))
			if err != nil || !bytes.Equal(data, g.Files[weightsFile]) {
				t.Fatalf("wrong content, %v", err)
			}
			// What the server writes before a cut may be lost in its buffers, at most one of them each time.
			if most := int64(size + len(cuts)*64<<10); g.Sent() < int64(size) || g.Sent() > most {
				t.Errorf("%d bytes sent for a file of %d in %d pieces", g.Sent(), size, len(cuts)+1)
			}
			if n := len(g.Calls(hubtest.Storage)); n != len(cuts)+1 {
				t.Errorf("%d requests, want %d", n, len(cuts)+1)
			}
		})
	}
}

// TestGivesUp: five attempts that bring nothing are enough; what came stays for the next time.
func TestGivesUp(t *testing.T) {
	g := newRig(t)
	g.Handle(storage(func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("ETag", validator)
		if c.Nth > 0 {
			panic(http.ErrAbortHandler)
		}
		g.Cut(w, r, g.Files[weightsFile], 300_000)
		return true
	}))
	_, err := g.pull(t, Options{})
	wantFault(t, err, fault.Network, "")
	if n := len(g.Calls(hubtest.Storage)); n != tries { // the first brought something
		t.Errorf("%d requests", n)
	}
	g.nothingPublished(t)
	g.Handle(nil)
	g.Reset()
	if _, err := g.pull(t, Options{}); err != nil {
		t.Fatal(err)
	}
	if calls := g.Calls(hubtest.Storage); len(calls) != 1 || calls[0].From == 0 {
		t.Errorf("the next pull asked for %+v", calls)
	}
}

// TestResume: what the server does when it is asked to continue.
func TestResume(t *testing.T) {
	weights := files()[weightsFile]
	half := len(weights) / 2
	other := content(len(weights), 99)
	tests := map[string]struct {
		begun  []byte // of an earlier process
		answer func(g *rig, w http.ResponseWriter, r *http.Request)
		first  int64 // first byte asked for
		gets   int
	}{
		"continues":                {weights[:half], nil, int64(half), 1},
		"was whole":                {weights, nil, -1, 0},
		"too long":                 {append(slices.Clone(weights), 1), nil, 0, 1},
		"begun by another content": {other[:half], nil, int64(half), 2},
		"ignores the range": {weights[:half], func(g *rig, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(weights)))
			_, _ = w.Write(weights)
		}, int64(half), 1},
		"sends another range": {weights[:half], func(g *rig, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", half+1, len(weights)-1, len(weights)))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(weights[half+1:])
		}, int64(half), 2},
		"range not satisfiable": {weights[:half], func(g *rig, w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		}, int64(half), 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			blobs := filepath.Join(g.cache, "models--org--name/blobs")
			if err := os.MkdirAll(blobs, dirMode); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(blobs, hubtest.ETag(weightsFile, weights)+".incomplete"), tt.begun, fileMode); err != nil {
				t.Fatal(err)
			}
			g.Handle(storage(func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
				if tt.answer == nil || c.Nth > 0 {
					return false
				}
				tt.answer(g, w, r)
				return true
			}))
			s, err := g.pull(t, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if data, err := os.ReadFile(filepath.Join(s.Dir, weightsFile)); err != nil || !bytes.Equal(data, weights) {
				t.Errorf("wrong content, %v", err)
			}
			calls := g.Calls(hubtest.Storage)
			if len(calls) != tt.gets || len(calls) > 0 && calls[0].From != tt.first {
				t.Errorf("requests %+v", calls)
			}
		})
	}
}

// TestChangesMeanwhile: a file that is another version when it is continued is begun anew.
func TestChangesMeanwhile(t *testing.T) {
	for _, status := range []int{http.StatusPartialContent, http.StatusOK} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			g := newRig(t)
			other := content(len(g.Files[weightsFile]), 99)
			g.Handle(storage(func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
				switch c.Nth {
				case 0:
					w.Header().Set("ETag", `"old"`)
					g.Cut(w, r, other, 400_000)
				case 1:
					if got := r.Header.Get("If-Range"); got != `"old"` {
						t.Errorf("If-Range is %q", got)
					}
					if status == http.StatusPartialContent { // a server that does not know If-Range
						r.Header.Del("If-Range")
					}
					w.Header().Set("ETag", `"new"`)
					g.Serve(w, r, g.Files[weightsFile])
				default:
					return false
				}
				return true
			}))
			s, err := g.pull(t, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if data, err := os.ReadFile(filepath.Join(s.Dir, weightsFile)); err != nil || !bytes.Equal(data, g.Files[weightsFile]) {
				t.Errorf("wrong content, %v", err)
			}
		})
	}
}

// TestLies: content that is not what the server said never gets its name.
func TestLies(t *testing.T) {
	weights := files()[weightsFile]
	send := func(p []byte, length int) func(g *rig, c hubtest.Call, w http.ResponseWriter, r *http.Request) {
		return func(g *rig, c hubtest.Call, w http.ResponseWriter, r *http.Request) {
			if length >= 0 {
				w.Header().Set("Content-Length", fmt.Sprint(length))
			}
			_, _ = w.Write(p)
			_ = http.NewResponseController(w).Flush()
		}
	}
	head := func(etag, size string) func(g *rig, c hubtest.Call, w http.ResponseWriter, r *http.Request) {
		return func(g *rig, c hubtest.Call, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Linked-Etag", etag)
			w.Header().Set("X-Linked-Size", size)
			http.Redirect(w, r, g.Other.URL+"/"+weightsFile, http.StatusFound)
		}
	}
	tag := `"` + hubtest.ETag(weightsFile, weights) + `"`
	tests := map[string]struct {
		kind   hubtest.Kind
		answer func(g *rig, c hubtest.Call, w http.ResponseWriter, r *http.Request)
		want   fault.Kind
		id     string
	}{
		"wrong content":              {hubtest.Storage, send(content(len(weights), 9), len(weights)), fault.Network, "E-HUB-029"},
		"shorter than said":          {hubtest.Storage, send(weights[:1000], 1000), fault.Network, "E-HUB-032"},
		"longer than said":           {hubtest.Storage, send(append(slices.Clone(weights), 1), len(weights)+1), fault.Network, "E-HUB-032"},
		"longer, without a length":   {hubtest.Storage, send(append(slices.Clone(weights), 1), -1), fault.Network, "E-HUB-032"},
		"shorter, without a length":  {hubtest.Storage, send(weights[:1000], -1), fault.Network, "E-HUB-015"},
		"length over what comes":     {hubtest.Storage, send(nil, len(weights)), fault.Network, "E-HUB-015"},
		"head says more":             {hubtest.Head, head(tag, fmt.Sprint(len(weights)+1)), fault.Network, "E-HUB-032"},
		"head says less":             {hubtest.Head, head(tag, "1000"), fault.Network, "E-HUB-032"},
		"head says nothing":          {hubtest.Head, head(tag, "many"), fault.Network, "E-HUB-024"},
		"head says a negative size":  {hubtest.Head, head(tag, "-1"), fault.Network, "E-HUB-024"},
		"head says more than a disk": {hubtest.Head, head(tag, "4611686018427387904"), fault.IO, "E-HUB-027"},
		"etag is no hash":            {hubtest.Head, head(`"abc-7"`, "5"), fault.Network, "E-HUB-007"},
		"no etag":                    {hubtest.Head, head("", "5"), fault.UnsafePath, "E-HUB-006"},
		"hash of another content":    {hubtest.Head, head(`"`+strings.Repeat("ab", 32)+`"`, fmt.Sprint(len(weights))), fault.Network, "E-HUB-029"},
		"another commit": {hubtest.Head, func(g *rig, c hubtest.Call, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Repo-Commit", strings.Repeat("f", 40))
			head(tag, "5")(g, c, w, r)
		}, fault.Network, "E-HUB-023"},
		"compressed": {hubtest.Storage, func(g *rig, c hubtest.Call, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			send(weights, len(weights))(g, c, w, r)
		}, fault.Network, "E-HUB-030"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			g.Handle(func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
				if c.Kind != tt.kind || c.Name != weightsFile {
					return false
				}
				tt.answer(g, c, w, r)
				return true
			})
			_, err := g.pull(t, Options{})
			wantFault(t, err, tt.want, tt.id)
			if tt.id == "E-HUB-015" { // what came may be the beginning of the right content
				g.nothingPublished(t)
			} else {
				g.nothingPublished(t, weightsFile)
			}
			g.Handle(nil)
			if _, err := g.pull(t, Options{}); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// TestStatuses: what is tried again, how long is waited, and what is said.
func TestStatuses(t *testing.T) {
	s := time.Second
	tests := map[string]struct {
		status []int // of the first answers; then all is well
		header [2]string
		kind   fault.Kind // 0: it succeeds
		waits  []time.Duration
		hint   string
	}{
		"401":                       {[]int{401}, [2]string{}, fault.Network, nil, "token in use"},
		"403 gated":                 {[]int{403}, [2]string{"X-Error-Code", "GatedRepo"}, fault.Network, nil, "token in use"},
		"404":                       {[]int{404}, [2]string{}, fault.HTTP404, nil, ""},
		"410":                       {[]int{410}, [2]string{}, fault.Network, nil, ""},
		"500 then well":             {[]int{500, 502, 503, 504}, [2]string{}, 0, []time.Duration{s / 2, s, 2 * s, 4 * s}, ""},
		"500 for ever":              {[]int{500, 500, 500, 500, 500, 500, 500}, [2]string{}, fault.Network, []time.Duration{s / 2, s, 2 * s, 4 * s}, ""},
		"429 with seconds":          {[]int{429, 429}, [2]string{"Retry-After", "7"}, 0, []time.Duration{7 * s, 7 * s}, ""},
		"503 with a date gone by":   {[]int{503}, [2]string{"Retry-After", "Wed, 21 Oct 2015 07:28:00 GMT"}, 0, []time.Duration{s / 2}, ""},
		"429 with nonsense":         {[]int{429}, [2]string{"Retry-After", "soon"}, 0, []time.Duration{s / 2}, ""},
		"429 with a wait too long":  {[]int{429}, [2]string{"Retry-After", "86400"}, fault.Network, nil, ""},
		"429 with an absurd number": {[]int{429}, [2]string{"Retry-After", "99999999999999999999"}, 0, []time.Duration{s / 2}, ""},
	}
	for _, kind := range []hubtest.Kind{hubtest.List, hubtest.Head, hubtest.Storage} {
		for name, tt := range tests {
			t.Run(string(kind)+" "+name, func(t *testing.T) {
				g := newRig(t)
				g.Handle(func(c hubtest.Call, w http.ResponseWriter, _ *http.Request) bool {
					if c.Kind != kind || c.Name != weightsFile && c.Name != "" || c.Nth >= len(tt.status) {
						return false
					}
					if tt.header[0] != "" {
						w.Header().Set(tt.header[0], tt.header[1])
					}
					w.WriteHeader(tt.status[c.Nth])
					return true
				})
				_, err := g.pull(t, Options{})
				if fault.KindOf(err) != tt.kind {
					t.Fatalf("got %v", err)
				}
				if !slices.Equal(g.waits, tt.waits) {
					t.Errorf("waited %v, want %v", g.waits, tt.waits)
				}
				if err != nil {
					g.nothingPublished(t)
					if f := err.(*fault.Error); !strings.Contains(f.Hint, tt.hint) {
						t.Errorf("hint %q", f.Hint)
					}
				}
			})
		}
	}
}

func TestDateOfRetry(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	if d := retryAfter(now.Add(90*time.Second).Format(http.TimeFormat), now); d != 90*time.Second {
		t.Errorf("got %v", d)
	}
}

// TestStall: a server that falls silent is given up and asked again.
func TestStall(t *testing.T) {
	for _, kind := range []hubtest.Kind{hubtest.List, hubtest.Head, hubtest.Storage} {
		t.Run(string(kind), func(t *testing.T) {
			g := newRig(t)
			g.c.stall = 200 * time.Millisecond
			g.Handle(func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
				if c.Kind != kind || c.Nth > 0 {
					return false
				}
				if kind == hubtest.Storage {
					w.Header().Set("ETag", validator)
					w.Header().Set("Content-Length", fmt.Sprint(len(g.Files[weightsFile])))
					_, _ = w.Write(g.Files[weightsFile][:200_000])
					_ = http.NewResponseController(w).Flush()
				}
				<-r.Context().Done()
				return true
			})
			if _, err := g.pull(t, Options{}); err != nil {
				t.Fatal(err)
			}
			if calls := g.Calls(hubtest.Storage); kind == hubtest.Storage && (len(calls) != 2 || calls[1].From != 200_000) {
				t.Errorf("requests %+v", calls)
			}
		})
	}
}

// TestSlowIsNoStall: a slow server that keeps sending is waited for.
func TestSlowIsNoStall(t *testing.T) {
	g := newRig(t)
	g.c.stall = 400 * time.Millisecond
	g.Handle(storage(func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Length", fmt.Sprint(len(g.Files[weightsFile])))
		for part := range slices.Chunk(g.Files[weightsFile], 1<<17) {
			_, _ = w.Write(part)
			_ = http.NewResponseController(w).Flush()
			time.Sleep(100 * time.Millisecond)
		}
		return true
	}))
	if _, err := g.pull(t, Options{}); err != nil || len(g.Calls(hubtest.Storage)) != 1 {
		t.Errorf("%v after %d requests", err, len(g.Calls(hubtest.Storage)))
	}
}

// TestUnreachable: a hub that was never there is not waited for.
func TestUnreachable(t *testing.T) {
	g := newRig(t)
	g.Close()
	_, err := g.pull(t, Options{})
	wantFault(t, err, fault.Network, "E-HUB-016")
	if len(g.waits) != 0 {
		t.Errorf("waited %v", g.waits)
	}
}

// TestTokenStaysHome: the token goes to the hub, and to nobody that the hub names: not to another port or name of the
// same machine, and not by way of an unrelated redirect chain that comes back.
func TestTokenStaysHome(t *testing.T) {
	g := newRig(t)
	var strangers atomic.Int32
	stranger := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		strangers.Add(1)
		for name, values := range r.Header {
			if strings.Contains(strings.Join(values, " "), canary) {
				t.Errorf("the stranger was told the token in %s", name)
			}
		}
		if strings.Contains(r.URL.String(), canary) {
			t.Error("the stranger was told the token in the address")
		}
		http.Redirect(w, r, g.Other.URL+r.URL.Path, http.StatusFound)
	}))
	defer stranger.Close()
	byName := strings.Replace(stranger.URL, "127.0.0.1", "localhost", 1)
	g.Handle(func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
		switch {
		case c.Kind == hubtest.Storage && c.Auth != "":
			t.Errorf("the storage was told %q", c.Auth)
		case c.Kind != hubtest.Storage && c.Auth != "Bearer "+canary:
			t.Errorf("the hub was told %q for %s %s", c.Auth, c.Kind, c.Name)
		case c.Kind == hubtest.Get && c.Name == weightsFile:
			http.Redirect(w, r, byName+"/"+weightsFile, http.StatusTemporaryRedirect)
			return true
		case c.Kind == hubtest.List && c.Nth == 0:
			http.Redirect(w, r, r.URL.Path+"?again", http.StatusTemporaryRedirect) // a renamed repository
			return true
		}
		return false
	})
	if _, err := g.pull(t, Options{}); err != nil {
		t.Fatal(err)
	}
	if strangers.Load() == 0 {
		t.Error("the stranger was not asked")
	}
}

// TestHeadElsewhere: a small file that the hub moved within its own origin, as it does for cached answers.
func TestHeadElsewhere(t *testing.T) {
	g := newRig(t)
	moved := "moved/config.json"
	g.Files[moved] = g.Files["config.json"]
	g.Handle(func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
		if c.Name == "config.json" && (c.Kind == hubtest.Head || c.Kind == hubtest.Get) {
			w.Header().Set("Location", strings.Replace(r.URL.Path, "config.json", moved, 1))
			w.WriteHeader(http.StatusTemporaryRedirect)
			return true
		}
		return false
	})
	s, err := g.pull(t, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(s.Dir, "config.json")); err != nil || string(data) != `{"a": 1}` {
		t.Errorf("%q, %v", data, err)
	}
}

// TestEcho: a server that repeats the token cannot bring it into an error.
func TestEcho(t *testing.T) {
	tests := map[string]struct {
		kind   hubtest.Kind
		answer func(w http.ResponseWriter, r *http.Request)
	}{
		"etag":   {hubtest.Head, func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Linked-Etag", canary) }},
		"commit": {hubtest.Head, func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Repo-Commit", canary) }},
		"name":   {hubtest.Head, func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-"+canary, "x") }},
		"location": {hubtest.Get, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://["+canary)
			w.WriteHeader(http.StatusFound)
		}},
		"range": {hubtest.Storage, func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Content-Encoding", canary) }},
		"error code": {hubtest.List, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Error-Code", canary)
			w.WriteHeader(http.StatusNotFound)
		}},
		"error text": {hubtest.List, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, canary)
		}},
		"file names": {hubtest.List, func(w http.ResponseWriter, r *http.Request) {
			hubtest.WriteListing(w, repo, hubtest.Commit, []string{"../" + canary})
		}},
		"sha":         {hubtest.List, func(w http.ResponseWriter, r *http.Request) { hubtest.WriteListing(w, repo, canary, nil) }},
		"broken JSON": {hubtest.List, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, `{"sha": `+canary) }},
		"no HTTP": {hubtest.List, func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(conn, canary+" is no HTTP\r\n\r\n")
				conn.Close()
			}
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			g.Handle(func(c hubtest.Call, w http.ResponseWriter, r *http.Request) bool {
				if c.Kind != tt.kind || c.Name != weightsFile && c.Name != "" {
					return false
				}
				tt.answer(w, r)
				return true
			})
			_, err := g.pull(t, Options{}) // looks for the token
			if err == nil {
				t.Error("no error")
			}
			tree(t, g.cache) // looks for the token
		})
	}
}
