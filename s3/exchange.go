package s3

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"apr/internal/fault"
)

// emptySHA256 is the hash of no bytes.
const emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// waitFor is the size of a body that is only sent when the store has looked at the request: it may refuse it, or have the
// object.
const waitFor = 1 << 20

// request is what is asked of the store.
type request struct {
	method, name string
	body         io.ReaderAt // nil: none
	size         int64
	sha256       string // of the body
	ifNone       bool   // If-None-Match: *
}

// problem is a failed attempt.
type problem struct {
	err   error
	again bool          // another attempt may succeed
	after time.Duration // the store asked for this wait
}

// retry calls f until it succeeds, fails for good, or has failed several times. The waits double, and are random by
// half, so that many clients that were refused together do not come back together.
func (s *Store) retry(name string, f func() *problem) error {
	for try := 1; ; try++ {
		p := f()
		if p == nil {
			return nil
		}
		if s.ctx.Err() != nil {
			return fault.In(fault.Stopped, s.Path(name), "stopped while the store was asked").WithID("E-S3-013")
		}
		if !p.again || try == tries {
			return p.err
		}
		wait := max(p.after, firstWait<<(try-1))
		if wait = min(wait, maxWait); p.after == 0 {
			wait = wait/2 + rand.N(wait/2+1)
		}
		s.log.Debug("trying again", "wait", wait, "because", p.err)
		if err := s.wait(s.ctx, wait); err != nil {
			return fault.In(fault.Stopped, s.Path(name), "stopped while the store was asked").WithID("E-S3-013")
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
var errStalled = errors.New("nothing was sent or received for too long")

// exchange is a request and its answer, under a watch that every byte of either resets.
type exchange struct {
	*http.Response
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	stall  time.Duration
	keys   credentials
}

// Read reads the body of the answer.
func (x *exchange) Read(p []byte) (int, error) {
	x.timer.Reset(x.stall)
	return x.Body.Read(p)
}

// why is the reason of a broken exchange.
func (x *exchange) why(err error) error {
	if context.Cause(x.ctx) == errStalled {
		return fmt.Errorf("nothing came or went for %s", x.stall)
	}
	if err = plain(err); x.keys.in(err.Error()) {
		return errEcho
	}
	return err
}

// errEcho is in place of an error about an answer that is no HTTP and holds what was sent.
var errEcho = errors.New("the answer repeats credentials")

// close ends the exchange.
func (x *exchange) close() {
	x.timer.Stop()
	x.cancel(nil)
	x.Body.Close() // it was only read
}

// sending is the body of a request; every byte that goes resets the watch.
type sending struct {
	io.Reader
	x *exchange
}

func (s sending) Read(p []byte) (int, error) {
	s.x.timer.Reset(s.x.stall)
	return s.Reader.Read(p)
}

// send makes one signed request. The caller closes the answer, of whatever status.
func (s *Store) send(r request) (*exchange, *problem) {
	ctx, cancel := context.WithCancelCause(s.ctx)
	x := &exchange{ctx: ctx, cancel: cancel, stall: s.stall, keys: s.where.keys, timer: time.AfterFunc(s.stall, func() { cancel(errStalled) })}
	req, err := s.request(ctx, r, x)
	if err == nil {
		x.Response, err = s.http.Do(req) //nolint:bodyclose // close of the exchange does it
	}
	if err == nil {
		return x, nil
	}
	x.timer.Stop()
	err = x.why(err)
	cancel(nil)
	return nil, &problem{again: !errors.As(err, new(*tls.CertificateVerificationError)),
		err: fault.In(fault.Network, s.Path(r.name), "%s cannot be reached", s.where.endpoint.Host).Because(err).WithID("E-S3-014")}
}

// request makes and signs a request.
func (s *Store) request(ctx context.Context, r request, x *exchange) (*http.Request, error) {
	u := *s.where.endpoint
	u.Path += s.key(r.name)
	u.RawPath = escaped(u.Path)
	var body io.Reader = http.NoBody
	if r.body != nil && r.size > 0 {
		body = sending{io.NewSectionReader(r.body, 0, r.size), x}
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), body)
	if err != nil {
		return nil, err
	}
	req.ContentLength = r.size
	req.Header.Set("User-Agent", "apr")
	if r.ifNone {
		req.Header.Set("If-None-Match", "*")
	}
	if r.size > waitFor {
		req.Header.Set("Expect", "100-continue")
	}
	sum := r.sha256
	if sum == "" {
		sum = emptySHA256
	}
	return req, sign(ctx, req, s.where, sum, time.Now())
}

// sign signs a request, if there are keys. S3 escapes a path once, other services of AWS twice.
func sign(ctx context.Context, req *http.Request, w Where, sha256 string, now time.Time) error {
	req.Header.Set("X-Amz-Content-Sha256", sha256)
	if w.keys.secret == nil {
		return nil
	}
	return v4.NewSigner().SignHTTP(ctx, *w.keys.secret, req, sha256, "s3", w.region, now, func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
}

// escaped is a path as S3 signs it: all but letters, digits, - _ . ~ and / in percents.
func escaped(path string) string {
	var b strings.Builder
	for i := range len(path) {
		if c := path[i]; c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_.~/", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// judge is the problem of an answer that is not the one that was hoped for.
func (s *Store) judge(x *exchange, name string) *problem {
	code := s.code(x)
	what := strconv.Itoa(x.StatusCode) + " " + http.StatusText(x.StatusCode)
	if code != "" {
		what += ", " + code
	}
	p := &problem{err: fault.In(fault.Network, s.Path(name), "%s answered %s", s.where.endpoint.Host, what).WithID("E-S3-015")}
	switch status := x.StatusCode; {
	case status == http.StatusNotFound && code == "NoSuchBucket":
		p.err = fault.In(fault.HTTP404, s.Path(name), "there is no bucket %s at %s", s.where.Bucket, s.where.endpoint.Host).WithID("E-S3-016")
	case status == http.StatusNotFound:
		p.err = fault.In(fault.NotFound, s.Path(name), "there is no such object").WithID("E-S3-017")
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		p.err = fault.In(fault.Network, s.Path(name), "%s refuses access: %s", s.where.endpoint.Host, what).
			WithHint("AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN need the right to read and write here; without the right to list, a missing object is refused too").WithID("E-S3-018")
	case status == http.StatusNotImplemented:
		p.err = fault.In(fault.Unavailable, s.Path(name), "%s does not know conditional writes: %s", s.where.endpoint.Host, what).
			WithHint("two writers could replace each other's shards: use a store that has If-None-Match").WithID("E-S3-019")
	case status/100 == 3 || code == "AuthorizationHeaderMalformed":
		p.err = fault.In(fault.Network, s.Path(name), "the bucket is not in region %s: %s", s.where.region, what).WithHint("set AWS_REGION, or AWS_ENDPOINT_URL").WithID("E-S3-020")
	case status >= 500, status == http.StatusTooManyRequests, status == http.StatusRequestTimeout, status == http.StatusConflict, code == "RequestTimeout", code == "SlowDown":
		p.again = true
		if n, err := strconv.Atoi(x.Header.Get("Retry-After")); err == nil && n > 0 {
			p.after = time.Duration(min(n, 3600)) * time.Second
		}
	}
	return p
}

// code is the name of the error in an answer: letters and digits alone, so that nothing else of the answer is shown.
func (s *Store) code(x *exchange) string {
	b, err := io.ReadAll(io.LimitReader(x, 64<<10))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(b), "<Code>")
	code, _, ok := strings.Cut(rest, "</Code>")
	if !ok || len(code) > 64 || strings.IndexFunc(code, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.')
	}) >= 0 || s.where.keys.in(code) {
		return ""
	}
	return code
}

// plain is the error of a request without its method and address.
func plain(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	return err
}
