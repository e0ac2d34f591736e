// Package hubtest is a hub on this machine, for tests: it answers as a Hugging Face hub does, and misbehaves where a test
// asks for it.
//
// Small files come from the hub itself, named by git's hash. Weights come from a second server, on another port and so
// another origin, to which the hub redirects, named by their SHA-256.
package hubtest

import (
	"bytes"
	"crypto/sha1" // git names contents by it
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// Commit is the only commit of a Server.
const Commit = "0123456789abcdef0123456789abcdef01234567"

// revisions are its names in addresses: branch, tag, pull request, and itself.
var revisions = []string{"main", "v1", "refs%2Fpr%2F1", Commit}

// Kind is what a request asks for.
type Kind string

// The kinds of requests.
const (
	List    Kind = "list"    // the description of the repository
	Head    Kind = "head"    // hash and size of a file
	Get     Kind = "get"     // content, from the hub
	Storage Kind = "storage" // content, from the other server
)

// Call is one request.
type Call struct {
	Kind Kind
	Name string // of the file
	Nth  int    // how many of this kind and name came before
	Auth string // what its Authorization said
	From int64  // first byte that its Range asked for
}

// Handler may answer a request itself; it then returns true.
type Handler func(c Call, w http.ResponseWriter, r *http.Request) bool

// Server is a hub with one repository.
type Server struct {
	Hub, Other *httptest.Server
	Repo       string
	Files      map[string][]byte
	Dataset    bool // the repository is one of data

	mu     sync.Mutex
	calls  []Call
	sent   int64
	handle Handler
}

// New starts a hub. Close it.
func New(repo string, files map[string][]byte) *Server {
	s := &Server{Repo: repo, Files: files}
	s.Hub = httptest.NewServer(http.HandlerFunc(s.hub))
	s.Other = httptest.NewServer(http.HandlerFunc(s.storage))
	return s
}

// Close stops both servers.
func (s *Server) Close() {
	s.Hub.CloseClientConnections()
	s.Other.CloseClientConnections()
	s.Hub.Close()
	s.Other.Close()
}

// Handle asks h first from now on; nil asks nobody.
func (s *Server) Handle(h Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handle = h
}

// Calls returns the requests of a kind so far, or all for the empty kind.
func (s *Server) Calls(kind Kind) []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.calls), func(c Call) bool { return kind != "" && c.Kind != kind })
}

// Sent returns the bytes of content sent so far.
func (s *Server) Sent() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent
}

// Reset forgets the requests and bytes so far.
func (s *Server) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls, s.sent = nil, 0
}

// ETag is the name of a file's content: SHA-256 for weights, git's SHA-1 for others.
func ETag(name string, content []byte) string {
	if Large(name) {
		return fmt.Sprintf("%x", sha256.Sum256(content))
	}
	return fmt.Sprintf("%x", sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(content)), content...)))
}

// Large reports whether a file is kept in large file storage.
func Large(name string) bool {
	return strings.HasSuffix(name, ".safetensors") || strings.HasSuffix(name, ".gguf") || strings.HasSuffix(name, ".bin") || strings.HasSuffix(name, ".parquet")
}

// call records a request and lets the test answer it.
func (s *Server) call(kind Kind, name string, w http.ResponseWriter, r *http.Request) bool {
	c := Call{Kind: kind, Name: name, Auth: r.Header.Get("Authorization")}
	_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &c.From) // none is 0
	s.mu.Lock()
	for _, old := range s.calls {
		if old.Kind == kind && old.Name == name {
			c.Nth++
		}
	}
	s.calls = append(s.calls, c)
	handle := s.handle
	s.mu.Unlock()
	return handle != nil && handle(c, w, r)
}

// hub answers on the hub's own origin.
func (s *Server) hub(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	kind, place := "models", "/"
	if s.Dataset {
		kind, place = "datasets", "/datasets/"
	}
	if rev, ok := strings.CutPrefix(path, "/api/"+kind+"/"+s.Repo+"/revision/"); ok {
		s.list(w, r, rev)
		return
	}
	rest, ok := strings.CutPrefix(path, place+s.Repo+"/resolve/")
	revision, name, named := strings.Cut(rest, "/")
	name, err := url.PathUnescape(name)
	if !ok || !named || err != nil || !slices.Contains(revisions, revision) {
		w.Header().Set("X-Error-Code", "RepoNotFound")
		http.Error(w, "no such repository", http.StatusNotFound)
		return
	}
	s.file(w, r, name)
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, revision string) {
	if s.call(List, "", w, r) {
		return
	}
	if !slices.Contains(revisions, revision) {
		w.Header().Set("X-Error-Code", "RevisionNotFound")
		http.Error(w, "no such revision", http.StatusNotFound)
		return
	}
	WriteListing(w, s.Repo, Commit, slices.Sorted(maps.Keys(s.Files)))
}

// WriteListing writes the description of a repository.
func WriteListing(w http.ResponseWriter, repo, commit string, names []string) {
	siblings := make([]map[string]string, len(names))
	for i, name := range names {
		siblings[i] = map[string]string{"rfilename": name}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{ // a client that went away is the test's wish
		"id": repo, "sha": commit, "private": false, "tags": []string{"safetensors"}, "siblings": siblings,
	})
}

// file answers for a file: its content, or where it is.
func (s *Server) file(w http.ResponseWriter, r *http.Request, name string) {
	kind := Get
	if r.Method == http.MethodHead {
		kind = Head
	}
	if s.call(kind, name, w, r) {
		return
	}
	content, ok := s.Files[name]
	w.Header().Set("X-Repo-Commit", Commit)
	if !ok {
		w.Header().Set("X-Error-Code", "EntryNotFound")
		http.Error(w, "no such file", http.StatusNotFound)
		return
	}
	if Large(name) {
		w.Header().Set("X-Linked-Etag", `"`+ETag(name, content)+`"`)
		w.Header().Set("X-Linked-Size", fmt.Sprint(len(content)))
		http.Redirect(w, r, s.Other.URL+"/"+name+"?signature=secret", http.StatusFound)
		return
	}
	w.Header().Set("ETag", `"`+ETag(name, content)+`"`)
	s.Serve(w, r, content)
}

// storage answers on the other origin.
func (s *Server) storage(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/")
	if s.call(Storage, name, w, r) {
		return
	}
	content, ok := s.Files[name]
	if !ok {
		http.Error(w, "no such object", http.StatusForbidden)
		return
	}
	w.Header().Set("ETag", fmt.Sprintf(`"storage-%s"`, name))
	s.Serve(w, r, content)
}

// Serve sends a content, or the range of it that is asked for, and counts its bytes.
func (s *Server) Serve(w http.ResponseWriter, r *http.Request, content []byte) {
	http.ServeContent(&counter{w, s}, r, "", time.Time{}, bytes.NewReader(content))
}

// Cut sends the answer to r as Serve does, but closes the connection after n bytes of its body.
func (s *Server) Cut(w http.ResponseWriter, r *http.Request, content []byte, n int) {
	http.ServeContent(&cutter{w, s, n}, r, "", time.Time{}, bytes.NewReader(content))
}

// counter counts the bytes of bodies.
type counter struct {
	http.ResponseWriter
	s *Server
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.s.count(n)
	return n, err
}

func (s *Server) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent += int64(n)
}

// cutter breaks the connection after left bytes.
type cutter struct {
	http.ResponseWriter
	s    *Server
	left int
}

func (c *cutter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p[:min(len(p), c.left)])
	c.s.count(n)
	if c.left -= n; c.left == 0 && err == nil {
		_ = http.NewResponseController(c.ResponseWriter).Flush() // what fails is cut as well
		panic(http.ErrAbortHandler)
	}
	return n, err
}
