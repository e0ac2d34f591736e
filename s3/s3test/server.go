// Package s3test is a store that speaks as much of S3 as a teacher's cache needs, and misbehaves on demand: for tests.
package s3test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// The keys that the server accepts.
const (
	KeyID  = "AKIDEXAMPLE"
	Secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
	Token  = "session-token-of-the-test"
	Bucket = "bucket"
)

// Fault is a way to misbehave.
type Fault string

// The faults. Those that end a request are met by a share of all requests.
const (
	Busy    Fault = "busy"    // 503 SlowDown
	Lost    Fault = "lost"    // the request is done, the answer does not come
	CutGet  Fault = "cut"     // half of a body, then the connection ends
	CutPut  Fault = "refuse"  // half of a body is read, then the connection ends
	Flip    Fault = "flip"    // a byte of a body is another
	Slow    Fault = "slow"    // 20 ms before each answer
	Hang    Fault = "hang"    // half of a body, then nothing
	Deny    Fault = "deny"    // 403 AccessDenied, with the keys in the message
	Ignore  Fault = "ignore"  // If-None-Match is ignored
	Unknown Fault = "unknown" // If-None-Match is not implemented
	Moved   Fault = "moved"   // 301 to another region
	Echo    Fault = "echo"    // a header that is none, and holds the keys
)

// Server is the store.
type Server struct {
	*httptest.Server

	mu       sync.Mutex
	random   *rand.Rand
	objects  map[string][]byte // by bucket/key
	share    map[Fault]float64
	requests int
	made     map[string]int // how often a PUT made an object
	gone     chan struct{}
}

// New starts a server, which the caller closes.
func New(seed uint64) *Server {
	s := &Server{random: rand.New(rand.NewPCG(seed, 0)), objects: map[string][]byte{}, share: map[Fault]float64{}, made: map[string]int{}, gone: make(chan struct{})}
	s.Server = httptest.NewUnstartedServer(s)
	// A client that stops reading, or sends nothing more, does not keep the server.
	s.Config.ReadTimeout, s.Config.WriteTimeout = 20*time.Second, 20*time.Second
	s.Start()
	return s
}

// Close ends the server.
func (s *Server) Close() {
	close(s.gone)
	s.Server.CloseClientConnections()
	s.Server.Close()
}

// Misbehave lets a share of all requests meet a fault; 0 ends it.
func (s *Server) Misbehave(f Fault, share float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.share[f] = share
}

// Environ are the variables by which a client finds the server.
func (s *Server) Environ() []string {
	return []string{"AWS_ENDPOINT_URL=" + s.URL, "AWS_ACCESS_KEY_ID=" + KeyID, "AWS_SECRET_ACCESS_KEY=" + Secret, "AWS_SESSION_TOKEN=" + Token, "AWS_REGION=eu-test-1"}
}

// Getenv returns one of them.
func (s *Server) Getenv(name string) string {
	for _, kv := range s.Environ() {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

// Object returns an object by its key, nil if there is none.
func (s *Server) Object(key string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.objects[Bucket+"/"+key]
}

// Set makes an object; nil removes it.
func (s *Server) Set(key string, b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b == nil {
		delete(s.objects, Bucket+"/"+key)
		return
	}
	s.objects[Bucket+"/"+key] = b
}

// Keys returns all keys.
func (s *Server) Keys() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.objects {
		all = append(all, strings.TrimPrefix(key, Bucket+"/"))
	}
	return all
}

// Made is how often a PUT made each object.
func (s *Server) Made() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]int{}
	for key, n := range s.made {
		all[strings.TrimPrefix(key, Bucket+"/")] = n
	}
	return all
}

// Requests is how many requests came.
func (s *Server) Requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// meets reports whether this request meets a fault.
func (s *Server) meets(f Fault) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.share[f] > 0 && s.random.Float64() < s.share[f]
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests++
	s.mu.Unlock()
	if s.meets(Slow) {
		time.Sleep(20 * time.Millisecond)
	}
	switch why := signature(r); {
	case s.meets(Echo):
		s.garble(w)
	case s.meets(Deny):
		fail(w, http.StatusForbidden, "AccessDenied", KeyID+" with "+Secret+" and "+Token+" may not")
	case s.meets(Moved):
		fail(w, http.StatusMovedPermanently, "PermanentRedirect", "elsewhere")
	case s.meets(Busy):
		fail(w, http.StatusServiceUnavailable, "SlowDown", "later")
	case why != "":
		fail(w, http.StatusForbidden, "SignatureDoesNotMatch", why)
	case !strings.HasPrefix(r.URL.Path, "/"+Bucket+"/"):
		fail(w, http.StatusNotFound, "NoSuchBucket", "no bucket")
	case r.Method == http.MethodPut:
		s.put(w, r)
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		s.get(w, r)
	default:
		fail(w, http.StatusNotImplemented, "NotImplemented", "not here")
	}
}

func fail(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>%s</Code><Message>%s</Message></Error>", code, message)
}

// hangUp ends the connection.
func hangUp(w http.ResponseWriter) { panic(http.ErrAbortHandler) }

// garble answers with what is no HTTP.
func (s *Server) garble(w http.ResponseWriter) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	fmt.Fprintf(conn, "HTTP/1.1 %s %s\r\n%s\r\n\r\n", Secret, Token, KeyID)
}

func (s *Server) put(w http.ResponseWriter, r *http.Request) {
	if s.meets(CutPut) {
		_, _ = io.CopyN(io.Discard, r.Body, r.ContentLength/2) // the client's other half is lost
		hangUp(w)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || int64(len(body)) != r.ContentLength {
		fail(w, http.StatusBadRequest, "IncompleteBody", "cut")
		return
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != r.Header.Get("X-Amz-Content-Sha256") {
		fail(w, http.StatusBadRequest, "XAmzContentSHA256Mismatch", "another body")
		return
	}
	if s.meets(Unknown) {
		fail(w, http.StatusNotImplemented, "NotImplemented", "If-None-Match")
		return
	}
	ignored := s.meets(Ignore)
	s.mu.Lock()
	_, there := s.objects[r.URL.Path[1:]]
	refused := there && r.Header.Get("If-None-Match") == "*" && !ignored
	if !refused {
		s.objects[r.URL.Path[1:]] = body
		s.made[r.URL.Path[1:]]++
	}
	s.mu.Unlock()
	switch {
	case s.meets(Lost):
		hangUp(w)
	case refused:
		fail(w, http.StatusPreconditionFailed, "PreconditionFailed", "there is one")
	default:
		w.WriteHeader(http.StatusOK)
	}
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	body, there := s.objects[r.URL.Path[1:]]
	s.mu.Unlock()
	if !there {
		fail(w, http.StatusNotFound, "NoSuchKey", "no object")
		return
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	if r.Method == http.MethodHead {
		return
	}
	if len(body) > 0 && s.meets(Flip) {
		body = append([]byte{}, body...)
		body[len(body)-1] ^= 1
	}
	hang := s.meets(Hang)
	if hang || s.meets(CutGet) {
		_, _ = w.Write(body[:len(body)/2])
		w.(http.Flusher).Flush()
		if hang {
			select {
			case <-s.gone:
			case <-r.Context().Done():
			}
		}
		hangUp(w)
	}
	_, _ = w.Write(body) // a client that has gone is no concern of the server's
}

// signature says why a request is not signed by the server's keys; empty: it is.
func signature(r *http.Request) string {
	_, rest, ok := strings.Cut(r.Header.Get("Authorization"), "SignedHeaders=")
	names, _, ok2 := strings.Cut(rest, ",")
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if !ok || !ok2 || err != nil {
		return "not signed"
	}
	again, err := http.NewRequest(r.Method, "http://"+r.Host+r.URL.EscapedPath(), http.NoBody)
	if err != nil {
		return err.Error()
	}
	for name := range strings.SplitSeq(names, ";") {
		switch name {
		case "host":
		case "content-length":
			again.ContentLength = r.ContentLength
		default:
			again.Header[http.CanonicalHeaderKey(name)] = r.Header.Values(name)
		}
	}
	if r.Method == http.MethodPut && !strings.Contains(names, "if-none-match") {
		return "the condition is not signed"
	}
	again.Header.Del("X-Amz-Date")
	again.Header.Del("X-Amz-Security-Token")
	keys := aws.Credentials{AccessKeyID: KeyID, SecretAccessKey: Secret, SessionToken: Token}
	err = v4.NewSigner().SignHTTP(r.Context(), keys, again, r.Header.Get("X-Amz-Content-Sha256"), "s3", "eu-test-1", at, func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	if err != nil || again.Header.Get("Authorization") != r.Header.Get("Authorization") {
		return "another signature"
	}
	return ""
}
