package hub

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"apr/internal/fault"
)

// Patience with a server.
const (
	tries     = 5                      // attempts in a row that bring nothing
	firstWait = 500 * time.Millisecond // before the second attempt; doubles
	maxWait   = 5 * time.Minute        // longest wait that a server may ask for
	stall     = 30 * time.Second       // a server that sends nothing for so long is given up
	redirects = 10
)

// Client speaks to one hub. It is safe for concurrent use.
type Client struct {
	cfg  Config
	log  *slog.Logger
	http *http.Client

	stall     time.Duration
	sleep     func(ctx context.Context, d time.Duration) error
	contacted atomic.Bool // the server has answered before
}

// New makes a client; log may be nil.
func New(cfg Config, log *slog.Logger) *Client {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.DisableCompression = true // lengths and hashes are of the bytes themselves
	base.MaxIdleConnsPerHost = 8
	return &Client{
		cfg: cfg, log: log, stall: stall, sleep: sleep,
		http: &http.Client{
			Transport:     sender{base: base, origin: origin(cfg.Endpoint), token: cfg.Token, agent: cfg.Agent},
			CheckRedirect: checkRedirect,
		},
	}
}

// sender adds the token to requests to one origin and removes it from all others. It sees every request, also those that
// a redirect makes, so nothing else has to think of the token.
type sender struct {
	base   http.RoundTripper
	origin string
	token  Token
	agent  string
}

// RoundTrip implements http.RoundTripper.
func (s sender) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Del("Authorization")
	req.Header.Del("Referer") // may hold a signature
	if s.token.IsSet() && origin(req.URL) == s.origin {
		req.Header.Set("Authorization", "Bearer "+*s.token.secret)
	}
	req.Header.Set("User-Agent", s.agent)
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := s.base.RoundTrip(req)
	if s.token.IsSet() && s.repeats(resp, err) {
		if resp != nil {
			resp.Body.Close() // it is not read
		}
		return nil, errEcho
	}
	return resp, err
}

// errEcho is an answer that holds the token, so that it could get into an error or a log.
var errEcho = errors.New("the server repeats the token in its answer")

// repeats reports whether the head of an answer, or the error about a malformed one, holds the token.
func (s sender) repeats(resp *http.Response, err error) bool {
	secret := *s.token.secret
	if err != nil {
		return strings.Contains(err.Error(), secret)
	}
	for name, values := range resp.Header {
		if strings.Contains(strings.ToLower(name), strings.ToLower(secret)) || strings.Contains(strings.Join(values, "\n"), secret) {
			return true
		}
	}
	return strings.Contains(resp.Status, secret)
}

// origin is scheme, host and port.
func origin(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + strings.ToLower(u.Hostname()) + ":" + port
}

// Redirects that are not followed.
var (
	errDowngrade = errors.New("redirect from https to http")
	errRedirects = fmt.Errorf("more than %d redirects", redirects)
)

// stayKey marks a request that must not leave its origin; a redirect elsewhere is then its answer.
type stayKey struct{}

func checkRedirect(req *http.Request, via []*http.Request) error {
	switch {
	case len(via) > redirects:
		return errRedirects
	case via[0].URL.Scheme == "https" && req.URL.Scheme != "https":
		return errDowngrade
	case req.Context().Value(stayKey{}) != nil && (origin(req.URL) != origin(via[0].URL) || req.Response.Header.Get("X-Linked-Etag") != ""):
		return http.ErrUseLastResponse
	}
	return nil
}

// problem is a failed attempt.
type problem struct {
	err      error
	again    bool          // another attempt may succeed
	after    time.Duration // the server asked for this wait
	advanced bool          // the attempt brought something
}

// retry calls f until it succeeds, fails for good, or has brought nothing several times in a row.
func (c *Client) retry(ctx context.Context, f func() *problem) error {
	for try := 0; ; try++ {
		p := f()
		if p == nil {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if p.advanced {
			try = 0
		}
		if !p.again || try+1 >= tries {
			return p.err
		}
		wait := max(p.after, firstWait<<try)
		if wait > maxWait {
			return fault.New(fault.Network, "the server asks to wait for %s", p.after.Round(time.Second)).Because(p.err).WithID("E-HUB-014")
		}
		c.log.Debug("trying again", "wait", wait, "because", p.err)
		if err := c.sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// sleep waits for d or until ctx is done.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errStalled is the cause of a context that the watch of an exchange cancelled.
var errStalled = errors.New("the server sent nothing for too long")

// exchange is one request and its answer, under a watch that every byte resets.
type exchange struct {
	*http.Response
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	stall  time.Duration
	token  Token
	what   string
}

// Read reads the body.
func (x *exchange) Read(p []byte) (int, error) {
	x.timer.Reset(x.stall)
	return x.Body.Read(p)
}

// close ends the exchange.
func (x *exchange) close() {
	x.timer.Stop()
	x.cancel(nil)
	x.Body.Close() // it was only read
}

// broken is the problem of a transfer that failed.
func (x *exchange) broken(err error) *problem {
	if context.Cause(x.ctx) == errStalled {
		err = fmt.Errorf("nothing came for %s", x.stall)
	}
	return &problem{err: fault.In(fault.Network, x.what, "the transfer broke off").Because(plain(err)).WithID("E-HUB-015"), again: true}
}

// send makes one request. The answer has a status of success, or of a redirect if the request must stay. The caller
// closes it.
func (c *Client) send(ctx context.Context, method string, u *url.URL, header http.Header, what string) (*exchange, *problem) {
	watched, cancel := context.WithCancelCause(ctx)
	x := &exchange{ctx: watched, cancel: cancel, stall: c.stall, token: c.cfg.Token, what: what, timer: time.AfterFunc(c.stall, func() { cancel(errStalled) })}
	req, err := http.NewRequestWithContext(watched, method, u.String(), http.NoBody)
	if err != nil {
		cancel(nil)
		return nil, &problem{err: fault.In(fault.Network, what, "cannot be asked for").Because(plain(err)).WithID("E-HUB-016")}
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := c.http.Do(req) //nolint:bodyclose // close of the exchange does it
	if err != nil {
		defer cancel(nil)
		if context.Cause(watched) == errStalled {
			err = fmt.Errorf("no answer within %s", c.stall)
		}
		return nil, &problem{
			err:   fault.In(fault.Network, what, "%s cannot be reached", c.cfg.Endpoint.Host).Because(plain(err)).WithHint("--offline uses what is in the cache").WithID("E-HUB-016"),
			again: !hopeless(err, c.contacted.Load()),
		}
	}
	c.contacted.Store(true)
	x.Response = resp
	if p := c.judge(resp, what); p != nil {
		x.close()
		return nil, p
	}
	return x, nil
}

// hopeless reports whether a request failed in a way that time will not mend: in its answer or certificate, or, if the
// server never answered before, in its address.
func hopeless(err error, contacted bool) bool {
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	switch {
	case errors.Is(err, errDowngrade), errors.Is(err, errRedirects), errors.Is(err, errEcho):
		return true
	case errors.As(err, &certificate), errors.As(err, &record):
		return true
	}
	return !contacted && (errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &dns) && dns.IsNotFound)
}

// plain takes from an error of net/http the URL, which may hold a signature.
func plain(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// hubErrors are the words of the header X-Error-Code.
var hubErrors = map[string]string{
	"RepoNotFound": "no such repository, or a private one", "RevisionNotFound": "no such revision",
	"EntryNotFound": "no such file", "GatedRepo": "the repository is gated: its owner grants access",
}

// judge turns a status that is no success into a problem.
func (c *Client) judge(resp *http.Response, what string) *problem {
	why, known := hubErrors[resp.Header.Get("X-Error-Code")]
	switch s := resp.StatusCode; {
	case s >= 200 && s < 400 || s == http.StatusRequestedRangeNotSatisfiable:
		return nil
	case s == http.StatusUnauthorized || s == http.StatusForbidden:
		if !known {
			why = "access denied"
		}
		hint := "set HF_TOKEN to a token that may read it"
		if c.cfg.Token.IsSet() {
			hint = "the token in use may not read it: check its rights, and the repository's page for conditions"
		}
		return &problem{err: fault.In(fault.Network, what, "%s (HTTP %d)", why, s).WithHint("%s", hint).WithID("E-HUB-017")}
	case s == http.StatusNotFound:
		if !known {
			why = "not found"
		}
		return &problem{err: fault.In(fault.HTTP404, what, "%s (HTTP 404)", why).WithID("E-HUB-018")}
	case s == http.StatusTooManyRequests || s == http.StatusRequestTimeout || s >= 500 && s != http.StatusNotImplemented:
		p := &problem{err: fault.In(fault.Network, what, "the server failed (HTTP %d)", s).WithID("E-HUB-019"), again: true}
		p.after = retryAfter(resp.Header.Get("Retry-After"), time.Now())
		return p
	default:
		return &problem{err: fault.In(fault.Network, what, "unexpected answer (HTTP %d)", s).WithID("E-HUB-020")}
	}
}

// retryAfter reads a header of seconds or a date; nonsense is no wait.
func retryAfter(s string, now time.Time) time.Duration {
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if t, err := http.ParseTime(s); err == nil {
		return max(0, t.Sub(now))
	}
	return 0
}

// url returns the address of a path below the endpoint; parts are escaped as wholes.
func (c *Client) url(parts ...string) *url.URL {
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return c.cfg.Endpoint.JoinPath(parts...)
}

// readAll reads a body of at most limit bytes.
func (x *exchange) readAll(limit int64) (string, *problem) {
	var b strings.Builder
	n, err := io.Copy(&b, io.LimitReader(x, limit+1))
	if err != nil {
		return "", x.broken(err)
	}
	if c := x.token; c.IsSet() && strings.Contains(b.String(), *c.secret) {
		return "", &problem{err: fault.In(fault.Network, x.what, "the answer is refused").Because(errEcho).WithID("E-HUB-021")}
	}
	if n > limit {
		return "", &problem{err: fault.In(fault.Network, x.what, "the answer is over the limit of %d bytes", limit).WithID("E-HUB-021")}
	}
	return b.String(), nil
}
