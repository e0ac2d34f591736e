// Package openai answers the requests of OpenAI's chat and completions endpoints with a generate.Engine.
//
// What it trusts: nothing. Host and Origin have to be its own exactly, so that no page of another site and no name that was made to
// point here reaches it; bodies are application/json of bounded size; a key, if there is one, is compared in constant time. Special
// tokens in messages and prompts are text. A parameter that would do nothing is refused by name.
//
// Caveats. One model is served. Tools, images and audio are refused. A text is the same whatever else is asked at the same time.
package openai

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"apr/generate"
	"apr/internal/fault"
	"apr/tokenizer"
)

// Limits bound what a client may ask for, and how long it may take.
type Limits struct {
	Body      int64         // bytes of a request
	Context   int           // tokens of a prompt and its answer
	MaxTokens int           // of an answer
	Choices   int           // texts of a request
	Idle      time.Duration // without a byte of the request, or of room for the answer
}

// Config is what a Server serves.
type Config struct {
	Engine *generate.Engine
	Tok    *tokenizer.Tokenizer
	Chat   *tokenizer.Chat // nil: the model has no template, and NoChat says why
	NoChat error
	Stop   []int32 // ids that end a text
	Model  string  // its name
	Hosts  []string
	TLS    bool
	Key    string // empty: none is asked for
	Limits Limits
	Now    func() time.Time
	Seed   func() uint64 // of a request that has none
}

// Server answers requests. Make one with New.
type Server struct {
	c        Config
	created  int64
	key      [sha256.Size]byte
	requests [600]atomic.Int64 // by status
	ids      atomic.Int64
}

// New returns a server.
func New(c Config) *Server {
	return &Server{c: c, created: c.Now().Unix(), key: sha256.Sum256([]byte(c.Key))}
}

// Handler checks where a request comes from and who asks before it looks at anything else.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", s.body(s.chat))
	mux.HandleFunc("POST /v1/completions", s.body(s.completions))
	mux.HandleFunc("GET /v1/models", s.models)
	mux.HandleFunc("GET /v1/models/{id}", s.model)
	mux.HandleFunc("GET /metrics", s.metrics)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w, refuse(http.StatusNotFound, "", "there is no %s %s: POST /v1/chat/completions, POST /v1/completions, GET /v1/models, GET /metrics", r.Method, r.URL.Path))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		if err := s.admitted(r); err != nil {
			s.fail(w, err)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// admitted says what is wrong with where a request comes from, or with its key.
func (s *Server) admitted(r *http.Request) *Error {
	if !slices.Contains(s.c.Hosts, r.Host) {
		return refuse(http.StatusForbidden, "", "wrong host")
	}
	for _, origin := range r.Header.Values("Origin") {
		u, err := url.Parse(origin)
		if err != nil || u.Host != r.Host || u.Scheme != s.scheme() {
			return refuse(http.StatusForbidden, "", "wrong origin")
		}
	}
	for _, site := range r.Header.Values("Sec-Fetch-Site") {
		if site != "same-origin" && site != "none" {
			return refuse(http.StatusForbidden, "", "asked for by another site")
		}
	}
	if s.c.Key == "" {
		return nil
	}
	bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	sum := sha256.Sum256([]byte(bearer))
	if subtle.ConstantTimeCompare(sum[:], s.key[:]) != 1 || !ok {
		e := refuse(http.StatusUnauthorized, "", "the key is missing or wrong: Authorization: Bearer KEY")
		e.Code = "invalid_api_key"
		return e
	}
	return nil
}

func (s *Server) scheme() string {
	if s.c.TLS {
		return "https"
	}
	return "http"
}

// Error is an error as clients of OpenAI read it.
type Error struct {
	Message string `json:"message"`
	Type    string `json:"type"`
	Param   string `json:"param,omitempty"`
	Code    string `json:"code,omitempty"`
	status  int
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// refuse makes the error of a status.
func refuse(status int, param, format string, args ...any) *Error {
	kind := "invalid_request_error"
	switch {
	case status == http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case status >= 500:
		kind = "server_error"
	}
	return &Error{Message: fmt.Sprintf(format, args...), Type: kind, Param: param, status: status}
}

// fail answers with an error.
func (s *Server) fail(w http.ResponseWriter, err *Error) {
	if err.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	s.answer(w, err.status, map[string]any{"error": err})
}

// answer sends an object.
func (s *Server) answer(w http.ResponseWriter, status int, v any) {
	s.requests[status].Add(1)
	w.Header().Set("Content-Type", "application/json")
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.c.Limits.Idle))
	w.WriteHeader(status)
	_, _ = w.Write(encode(v)) // the client may have gone
}

// errorOf turns what the engine says into an answer.
func errorOf(err error) *Error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, generate.ErrBusy):
		return refuse(http.StatusTooManyRequests, "", "too many requests wait: try again later")
	case errors.Is(err, generate.ErrClosed), errors.Is(err, context.Canceled):
		return refuse(http.StatusServiceUnavailable, "", "the server is ending")
	case fault.KindOf(err) == fault.Usage, fault.KindOf(err) == fault.Inference, fault.KindOf(err) == fault.Invalid:
		return refuse(http.StatusBadRequest, "", "%s", err)
	}
	return refuse(http.StatusInternalServerError, "", "%s", err)
}

// body reads the JSON of a request, whose bytes and time are bounded.
func (s *Server) body(h func(http.ResponseWriter, *http.Request, []byte) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
			s.fail(w, refuse(http.StatusUnsupportedMediaType, "", "the Content-Type has to be application/json"))
			return
		}
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Now().Add(s.c.Limits.Idle))
		raw, err := readAll(http.MaxBytesReader(w, r.Body, s.c.Limits.Body), control, s.c.Limits.Idle)
		var large *http.MaxBytesError
		switch {
		case errors.As(err, &large):
			s.fail(w, refuse(http.StatusRequestEntityTooLarge, "", "the request is larger than %d bytes", s.c.Limits.Body))
			return
		case errors.Is(err, os.ErrDeadlineExceeded):
			w.Header().Set("Connection", "close")
			s.fail(w, refuse(http.StatusRequestTimeout, "", "the request did not come within %v", s.c.Limits.Idle))
			return
		case err != nil:
			return // the client has gone
		}
		_ = control.SetReadDeadline(time.Time{})
		if err := h(w, r, raw); err != nil {
			s.fail(w, errorOf(err))
		}
	}
}

// modelObject is an entry of /v1/models.
type modelObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Owner   string `json:"owned_by"`
}

func (s *Server) object() modelObject { return modelObject{s.c.Model, "model", s.created, "apr"} }

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	s.answer(w, http.StatusOK, map[string]any{"object": "list", "data": []modelObject{s.object()}})
}

func (s *Server) model(w http.ResponseWriter, r *http.Request) {
	if err := s.serves(r.PathValue("id")); err != nil {
		s.fail(w, err)
		return
	}
	s.answer(w, http.StatusOK, s.object())
}

// serves refuses other models.
func (s *Server) serves(name string) *Error {
	if name == s.c.Model {
		return nil
	}
	e := refuse(http.StatusNotFound, "model", "the model %q is not served here: %q is", name, s.c.Model)
	e.Code = "model_not_found"
	return e
}

// metrics answers Prometheus.
func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	var b strings.Builder
	e := s.c.Engine.Stats()
	for _, m := range []struct {
		name, kind, help string
		value            int64
	}{
		{"apr_serve_active_sequences", "gauge", "Texts that are being written.", int64(e.Active)},
		{"apr_serve_waiting_sequences", "gauge", "Texts that wait for a slot.", int64(e.Waiting)},
		{"apr_serve_sequences_total", "counter", "Texts asked for.", e.Requests},
		{"apr_serve_finished_sequences_total", "counter", "Texts that ended by themselves.", e.Finished},
		{"apr_serve_failed_sequences_total", "counter", "Texts that were given up.", e.Failed},
		{"apr_serve_prompt_tokens_total", "counter", "Tokens of prompts read.", e.PromptTokens},
		{"apr_serve_tokens_total", "counter", "Tokens written.", e.Tokens},
		{"apr_serve_passes_total", "counter", "Passes over one token of each text.", e.Passes},
	} {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n%s %d\n", m.name, m.help, m.name, m.kind, m.name, m.value)
	}
	b.WriteString("# HELP apr_serve_requests_total Requests answered.\n# TYPE apr_serve_requests_total counter\n")
	for code := range s.requests {
		if n := s.requests[code].Load(); n > 0 {
			fmt.Fprintf(&b, "apr_serve_requests_total{code=\"%d\"} %d\n", code, n)
		}
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(b.String()))
}
