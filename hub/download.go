package hub

import (
	"context"
	"crypto/sha1" // git names contents by it
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"

	"apr/internal/fault"
)

// Bar shows the progress of one file. Add may be negative, when bytes are thrown away.
type Bar interface {
	Add(n int64)
	Resume(n int64) // n bytes were there before
	Close()
}

// advance is the number of bytes after which an attempt resets the count of failures.
const advance = 64 << 10

// buffer is how many bytes are read at a time.
const buffer = 256 << 10

// digest computes the hashes of a content.
type digest struct {
	sha256 hash.Hash
	git    hash.Hash // nil: the content is named by its SHA-256
}

// newDigest begins the hashes of a file.
func newDigest(f File) digest {
	d := digest{sha256: sha256.New()}
	if sha1Form.MatchString(f.etag) {
		d.git = sha1.New()
		d.git.Write(fmt.Appendf(nil, "blob %d\x00", f.Size))
	}
	return d
}

func (d digest) write(p []byte) {
	d.sha256.Write(p)
	if d.git != nil {
		d.git.Write(p)
	}
}

// sums returns the SHA-256 in hexadecimal, and the hash that the etag should be.
func (d digest) sums() (sum, etag string) {
	sum = hex.EncodeToString(d.sha256.Sum(nil))
	if d.git != nil {
		return sum, hex.EncodeToString(d.git.Sum(nil))
	}
	return sum, sum
}

// copyInto hashes a reader to its end.
func (d digest) copyInto(r io.Reader) (total int64, err error) {
	p := make([]byte, buffer)
	for {
		n, err := r.Read(p)
		d.write(p[:n])
		total += int64(n)
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// download is one content on its way into the cache.
type download struct {
	c    *Client
	r    *repository
	f    File
	from string // repository
	rev  string // commit
	what string // for messages
	bar  Bar

	file      *os.File
	have      int64 // bytes in file, all of them in digest
	digest    digest
	validator string // strong etag of the answer that the last bytes came from
	joined    bool   // the bytes are from several answers
}

// run downloads, checks, and gives the content its name. It returns the content's SHA-256. The lock is held.
func (d *download) run(ctx context.Context) (string, error) {
	if err := d.open(ctx); err != nil {
		return "", err
	}
	defer func() { d.file.Close() }() // closed before if all went well
	for {
		if err := d.c.retry(ctx, func() *problem { return d.attempt(ctx) }); err != nil {
			return "", err
		}
		sum, etag := d.digest.sums()
		if etag == d.f.etag {
			return sum, d.finish()
		}
		if !d.joined {
			d.discard()
			return "", fault.In(fault.Network, d.what, "the content has the hash %s, not %s as the server said: thrown away", etag, d.f.etag).WithID("E-HUB-029")
		}
		d.c.log.Warn("the pieces of a download do not fit together: starting again", "file", d.what)
		if err := d.restart(); err != nil {
			return "", err
		}
	}
}

// open opens the beginning of the content, and hashes what is there.
func (d *download) open(ctx context.Context) error {
	name := partName(d.f.etag)
	d.have = d.r.begun(d.f)
	if d.have == 0 { // also what is no regular file, or too long
		if err := d.r.root.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return d.r.fault(name, "cannot be removed", err)
		}
	}
	var err error
	if d.file, err = d.r.root.OpenFile(name, os.O_RDWR|os.O_CREATE, fileMode); err != nil {
		return d.r.fault(name, "cannot be opened", err)
	}
	d.digest = newDigest(d.f)
	if d.have == 0 {
		return nil
	}
	d.joined = true
	d.have, err = d.digest.copyInto(stopping{ctx, io.LimitReader(d.file, d.have)})
	if err != nil {
		d.file.Close()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return d.r.fault(name, "cannot be read", err)
	}
	d.bar.Resume(d.have)
	return nil
}

// restart throws the bytes away.
func (d *download) restart() error {
	if err := d.file.Truncate(0); err != nil {
		return d.r.fault(partName(d.f.etag), "cannot be cut", err)
	}
	if _, err := d.file.Seek(0, io.SeekStart); err != nil {
		return d.r.fault(partName(d.f.etag), "cannot be written", err)
	}
	d.bar.Add(-d.have)
	d.have, d.digest, d.validator, d.joined = 0, newDigest(d.f), "", false
	return nil
}

// discard removes the bytes for good.
func (d *download) discard() {
	_ = d.r.root.Remove(partName(d.f.etag)) // the failure that led here is reported
	d.bar.Add(-d.have)
}

// finish makes the content durable under its name.
func (d *download) finish() error {
	name := blobName(d.f.etag)
	if err := errors.Join(d.file.Sync(), d.file.Close()); err != nil {
		return d.r.fault(name, "cannot be written", err)
	}
	if err := d.r.root.Rename(partName(d.f.etag), name); err != nil {
		return d.r.fault(name, "cannot be renamed", err)
	}
	return d.r.syncDir("blobs")
}

// attempt asks for what is missing and appends it.
func (d *download) attempt(ctx context.Context) *problem {
	if d.have == d.f.Size {
		return nil
	}
	header := http.Header{}
	if d.have > 0 {
		header.Set("Range", fmt.Sprintf("bytes=%d-", d.have))
		if d.validator != "" {
			header.Set("If-Range", d.validator)
		}
	}
	x, p := d.c.send(ctx, http.MethodGet, d.c.fileURL(d.from, d.rev, d.f.Name), header, d.what)
	if p != nil {
		return p
	}
	defer x.close()
	if p := d.fits(x); p != nil {
		return p
	}
	return d.take(x)
}

// fits compares an answer with what was asked for. An answer with the whole content, or of another version, starts the
// download again.
func (d *download) fits(x *exchange) *problem {
	if e := x.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		d.discard()
		return &problem{err: fault.In(fault.Network, d.what, "the server sends it encoded (%q), asked for the bytes themselves", clip(e)).WithID("E-HUB-030")}
	}
	etag := x.Header.Get("ETag")
	if strings.HasPrefix(etag, "W/") {
		etag = ""
	}
	again := func(why string) *problem {
		if err := d.restart(); err != nil {
			return &problem{err: err}
		}
		return &problem{err: fault.In(fault.Network, d.what, "cannot be continued: %s", why).WithID("E-HUB-031"), again: true}
	}
	switch {
	case x.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return again("the server says that it is shorter")
	case x.StatusCode == http.StatusPartialContent && d.have == 0:
		return &problem{err: fault.In(fault.Network, d.what, "a part came, asked for the whole").WithID("E-HUB-031"), again: true}
	case x.StatusCode == http.StatusPartialContent:
		if got, want := x.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-%d/%d", d.have, d.f.Size-1, d.f.Size); got != want {
			return again(fmt.Sprintf("range %q came, asked for %q", clip(got), want))
		}
		if d.validator != "" && etag != d.validator {
			return again("it changed on the server")
		}
		d.joined = true
	case x.StatusCode != http.StatusOK:
		return &problem{err: fault.In(fault.Network, d.what, "unexpected answer (HTTP %d)", x.StatusCode).WithID("E-HUB-020")}
	case d.have > 0: // the range was ignored, or the version is another
		if err := d.restart(); err != nil {
			return &problem{err: err}
		}
	}
	if n := x.ContentLength; n >= 0 && n != d.f.Size-d.have {
		d.discard()
		return &problem{err: d.wrongLength(strconv.FormatInt(d.have+n, 10))}
	}
	d.validator = etag
	return nil
}

// wrongLength is the error of a content that is not as long as the server said first.
func (d *download) wrongLength(got string) error {
	return fault.In(fault.Network, d.what, "the server said %d bytes, and sends %s", d.f.Size, got).WithID("E-HUB-032")
}

// take appends the body of an answer.
func (d *download) take(x *exchange) *problem {
	p, before := make([]byte, buffer), d.have
	for {
		n, err := x.Read(p)
		if d.have+int64(n) > d.f.Size {
			d.discard()
			return &problem{err: d.wrongLength("more")}
		}
		if n > 0 {
			if _, err := d.file.Write(p[:n]); err != nil {
				return &problem{err: d.full(err)}
			}
			d.digest.write(p[:n])
			d.have += int64(n)
			d.bar.Add(int64(n))
		}
		switch {
		case err == nil:
		case d.have == d.f.Size:
			return nil
		default:
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			broken := x.broken(err)
			broken.err = fault.In(fault.Network, d.what, "broke off after %d of %d bytes", d.have, d.f.Size).Because(broken.err.(*fault.Error).Err).
				WithHint("repeat the command: it goes on from there").WithID("E-HUB-015")
			broken.advanced = d.have-before >= advance
			return broken
		}
	}
}

// full says how many bytes are missing when a write failed.
func (d *download) full(err error) error {
	out := d.r.fault(partName(d.f.etag), "cannot be written", err)
	if f, ok := out.(*fault.Error); ok && f.ID == "E-HUB-027" {
		f.Msg = fmt.Sprintf("no space left: %d bytes more needed", d.f.Size-d.have)
	}
	return out
}

// stopping is a reader that ends with its context.
type stopping struct {
	ctx context.Context
	r   io.Reader
}

func (s stopping) Read(p []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	return s.r.Read(p)
}
