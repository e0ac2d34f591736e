package s3

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path"
	"time"

	"apr/internal/fault"
	"apr/teacher/cache"
)

// Patience with a store.
const (
	tries     = 7                      // attempts at one request
	firstWait = 200 * time.Millisecond // before the second attempt; doubles
	maxWait   = 20 * time.Second
	stall     = 60 * time.Second // a store through which no byte goes for so long is given up
)

// Store is a prefix of a bucket as a store of a cache. It is safe for concurrent use.
type Store struct {
	ctx   context.Context // of the command: its end ends all requests
	where Where
	log   *slog.Logger
	http  *http.Client

	stall time.Duration
	wait  func(context.Context, time.Duration) error
}

var _ cache.Store = (*Store)(nil)

// Open makes a store; nothing is asked yet. log may be nil.
func Open(ctx context.Context, w Where, log *slog.Logger) *Store {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.DisableCompression = true // lengths and hashes are of the bytes themselves
	base.MaxIdleConnsPerHost = 16
	return &Store{ctx: ctx, where: w, log: log, stall: stall, wait: sleep, http: &http.Client{
		Transport: base, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// Path implements cache.Store.
func (s *Store) Path(name string) string {
	if name == "" {
		return s.where.String()
	}
	return s.where.String() + "/" + name
}

// Size implements cache.Store.
func (s *Store) Size(name string) (size int64, err error) {
	err = s.retry(name, func() *problem {
		x, p := s.send(request{method: http.MethodHead, name: name})
		if p != nil {
			return p
		}
		defer x.close()
		if size = x.ContentLength; x.StatusCode != http.StatusOK || size < 0 {
			return s.judge(x, name)
		}
		return nil
	})
	return size, err
}

// Open implements cache.Store: the object is downloaded into a temporary file.
func (s *Store) Open(name string) (cache.File, int64, error) {
	f, err := os.CreateTemp("", "apr-s3-*")
	if err != nil {
		return nil, 0, fault.In(fault.IO, os.TempDir(), "no temporary file can be made").Because(err).WithID("E-S3-010")
	}
	t := temporary{f, os.Remove(f.Name()) == nil} // where the system allows it: nothing is left of a killed process
	var size int64
	err = s.retry(name, func() *problem {
		x, p := s.send(request{method: http.MethodGet, name: name})
		if p != nil {
			return p
		}
		defer x.close()
		if x.StatusCode != http.StatusOK || x.ContentLength < 0 {
			return s.judge(x, name)
		}
		size, p = s.download(f, x, name)
		return p
	})
	if err != nil {
		return nil, 0, errors.Join(err, t.Close())
	}
	return t, size, nil
}

// download writes the body of an answer to a file, from its start.
func (s *Store) download(f *os.File, x *exchange, name string) (int64, *problem) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, &problem{err: fault.In(fault.IO, f.Name(), "cannot be written").Because(err)}
	}
	if err := f.Truncate(0); err != nil {
		return 0, &problem{err: fault.In(fault.IO, f.Name(), "cannot be written").Because(err)}
	}
	w := &failing{w: f}
	n, err := io.Copy(w, x)
	switch {
	case w.err != nil:
		return n, &problem{err: fault.In(fault.IO, f.Name(), "cannot be written: %d bytes are needed", x.ContentLength).Because(w.err).WithID("E-S3-010")}
	case err == nil && n != x.ContentLength:
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return n, &problem{err: fault.In(fault.Network, s.Path(name), "the download broke off after %d of %d bytes", n, x.ContentLength).Because(x.why(err)).WithID("E-S3-011"), again: true}
	}
	return n, nil
}

// failing remembers that the fault was the writer's.
type failing struct {
	w   io.Writer
	err error
}

func (f *failing) Write(p []byte) (n int, err error) {
	n, err = f.w.Write(p)
	f.err = err
	return n, err
}

// temporary is a file that is gone when it is closed, or before.
type temporary struct {
	*os.File
	gone bool
}

func (t temporary) Close() error {
	err := t.File.Close()
	if !t.gone {
		err = errors.Join(err, os.Remove(t.Name()))
	}
	return err
}

// Put implements cache.Store by If-None-Match: *.
func (s *Store) Put(name string, body io.ReaderAt, size int64) (made bool, err error) {
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(body, 0, size)); err != nil {
		return false, fault.In(fault.IO, s.Path(name), "what is to be written cannot be read").Because(err).WithID("E-S3-012")
	}
	put := request{method: http.MethodPut, name: name, body: body, size: size, sha256: hex.EncodeToString(h.Sum(nil)), ifNone: true}
	err = s.retry(name, func() *problem {
		x, p := s.send(put)
		if p != nil {
			return p
		}
		defer x.close()
		switch x.StatusCode {
		case http.StatusOK, http.StatusCreated, http.StatusNoContent:
			made = true
			return nil
		case http.StatusPreconditionFailed: // another writer was faster, or this one, whose answer was lost
			made = false
			return nil
		}
		return s.judge(x, name)
	})
	return made, err
}

// key is the path of an object.
func (s *Store) key(name string) string { return path.Join(s.where.Prefix, name) }
