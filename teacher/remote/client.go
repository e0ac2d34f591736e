package remote

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"strings"
	"sync"
	"time"

	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/teacher/cache"
)

// Teacher is a server that a client asks.
type Teacher struct {
	Address string      // host:port
	TLS     *tls.Config // nil: the connection stays on this machine, and is not encrypted
}

// Options of a Client.
type Options struct {
	Teachers []Teacher
	Token    string
	Patience time.Duration     // for which a teacher that has left is asked for again; 0: one minute
	Alive    func(what string) // told of every sign of life; nil: nobody is
}

// stalled is how long a server that is alive may take for a row.
const stalled = 10 * time.Minute

// Client asks teachers for rows. Its rows may be read by one goroutine at a time.
type Client struct {
	Header     cache.Header
	HeadSHA256 [sha256.Size]byte
	HeadBytes  int64

	o     Options
	ctx   context.Context
	close context.CancelFunc
	wait  sync.WaitGroup

	mu      sync.Mutex
	wake    *sync.Cond
	links   []*link
	next    func() (cache.Key, error) // of the rows to come; nil: not known yet
	pending []cache.Key               // no teacher is asked for them yet
	asked   map[cache.Key]int         // rows that are pending, asked for, or here
	here    map[cache.Key][][]byte
	ahead   int // rows of asked
	notes   []string
	err     error
}

// Dial connects to all teachers, which have to say the same of every field of the header.
func Dial(ctx context.Context, o Options) (*Client, error) {
	if o.Patience == 0 {
		o.Patience = time.Minute
	}
	c := &Client{o: o, asked: map[cache.Key]int{}, here: map[cache.Key][][]byte{}}
	c.wake = sync.NewCond(&c.mu)
	c.ctx, c.close = context.WithCancel(context.WithoutCancel(ctx))
	for i, t := range o.Teachers {
		l := &link{c: c, to: t, out: map[cache.Key]int{}}
		w, h, err := l.connect(ctx)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		if l.w = w; i == 0 {
			c.Header, c.HeadSHA256, c.HeadBytes = h.header, h.sum, h.size
		} else if err := c.same(t.Address, h); err != nil {
			return nil, errors.Join(err, w.Close(), c.Close())
		}
		c.links = append(c.links, l)
	}
	return c, nil
}

// said is what a teacher says of itself.
type said struct {
	header cache.Header
	sum    [sha256.Size]byte
	size   int64
}

// same refuses a teacher that says other rows than the first one.
func (c *Client) same(address string, h said) error {
	if err := h.header.Same(address, c.Header); err != nil {
		if f := (*fault.Error)(nil); errors.As(err, &f) {
			return f.WithHint("start all teachers with the same options: each makes a part of the same rows")
		}
		return err
	}
	if h.sum != c.HeadSHA256 || h.size != c.HeadBytes {
		return fault.In(fault.Invalid, address, "has another head than the teacher before: %x…, not %x…", h.sum[:6],
			c.HeadSHA256[:6]).WithID("E-TEACH-012")
	}
	return nil
}

// unreachable is the fault of a teacher without an answer.
func unreachable(address string, err error) error {
	return fault.In(fault.Network, address, "the teacher cannot be reached").Because(err).
		WithHint("is apr teach running there? It prints its address").WithID("E-TEACH-001")
}

// introduce sends the token and reads who answers.
func (w *wire) introduce(token string) (h said, err error) {
	if err := w.SetWriteDeadline(time.Now().Add(handshakeTime)); err != nil {
		return h, unreachable(w.peer, err)
	}
	hello := binary.LittleEndian.AppendUint32([]byte(greeting), version)
	if _, err := w.Conn.Write(hello); err != nil {
		return h, unreachable(w.peer, err)
	}
	if err := w.write(kindToken, []byte(token)); err != nil {
		return h, unreachable(w.peer, err)
	}
	kind, b, err := w.read(handshakeTime, func(kind byte) int64 {
		switch kind {
		case kindHeader:
			return maxHeader + headPrefix + crcBytes
		case kindRefused:
			return maxText
		}
		return -1
	})
	switch {
	case errors.Is(err, errGarbage):
		return h, err
	case err != nil:
		return h, unreachable(w.peer, err)
	case kind == kindRefused:
		return h, refused(w.peer, b)
	}
	return parseSaid(w.peer, b)
}

// parseSaid reads the payload of a header. Nothing but its checksum tells that a bit of it has changed on the way: a
// connection on one machine has no TLS, and what the header names goes into the run's records.
func parseSaid(peer string, b []byte) (h said, err error) {
	const from = headPrefix + crcBytes
	if len(b) < from {
		return h, garbage(peer, "sent a header of %d bytes", len(b))
	}
	if binary.LittleEndian.Uint32(b[headPrefix:]) != sumOfHeader(b[:headPrefix], b[from:]) {
		return h, garbage(peer, "sent a header that differs from its checksum")
	}
	h.sum = [sha256.Size]byte(b)
	h.size = int64(binary.LittleEndian.Uint64(b[sha256.Size:]))
	if h.size < 0 || h.size > 1<<40 {
		return h, garbage(peer, "says that its head has %d bytes", h.size)
	}
	if h.header, err = cache.ParseHeader(peer, string(b[from:])); err != nil {
		return h, err
	}
	return h, checkHashes(peer, h.header)
}

// sumOfHeader is the checksum of a header: of the head's hash and length, and of header.json.
func sumOfHeader(prefix, json []byte) uint32 {
	return crc32.Update(crc32.Checksum(prefix, castagnoli), castagnoli, json)
}

// checkHashes refuses a header whose hashes are none: a run records them as those of its teacher and data.
func checkHashes(peer string, h cache.Header) error {
	const none = "none" // no conversation was read
	for _, f := range []struct {
		name, is string
		may      bool // be no hash
	}{
		{"teacher", h.Teacher, false}, {"teacher_config", h.TeacherConfig, false}, {"rows_sha256", h.RowsSHA256, false},
		{"tokenizer", h.Tokenizer, h.Tokenizer == ""}, {"template", h.Template, h.Template == none},
	} {
		if !f.may && !readfile.IsSHA256(f.is) {
			return garbage(peer, "sent a header whose %s is %q, not a SHA-256 of 64 digits 0-9a-f", f.name, clip(f.is))
		}
	}
	return nil
}

// refused is the fault of a teacher that closes the connection.
func refused(peer string, why []byte) error {
	f := fault.In(fault.Network, peer, "the teacher refuses: %q", why).WithID("E-TEACH-003")
	if strings.HasPrefix(string(why), speaksVersion) {
		return f.WithHint("teacher and student need one version of apr")
	}
	return f.WithHint("--token-file or %s: the token that apr teach was given", TokenVariable)
}

// TokenVariable holds the token, where no file does.
const TokenVariable = "APR_TEACH_TOKEN"

// ReadHead copies the head of the teacher, and compares it with its hash.
func (c *Client) ReadHead(to io.Writer) error {
	w := c.links[0].w
	if err := w.write(kindAskHead); err != nil {
		return unreachable(w.peer, err)
	}
	sum := sha256.New()
	for left := c.HeadBytes; left > 0; {
		kind, b, err := w.read(idleTime, func(kind byte) int64 {
			switch kind {
			case kindHead:
				return min(partBytes, left)
			case kindPing:
				return 0
			}
			return -1
		})
		switch {
		case errors.Is(err, errGarbage):
			return err
		case err != nil:
			return unreachable(w.peer, err)
		case kind == kindPing:
			continue
		case len(b) == 0:
			return garbage(w.peer, "sent an empty part of its head")
		}
		left -= int64(len(b))
		if _, err := io.Copy(io.MultiWriter(to, sum), &once{b: b}); err != nil {
			return err
		}
	}
	return c.checkHead(w.peer, sum)
}

func (c *Client) checkHead(peer string, sum hash.Hash) error {
	if is := [sha256.Size]byte(sum.Sum(nil)); is != c.HeadSHA256 {
		return fault.In(fault.Format, peer, "its head has the SHA-256 %x…, said was %x…", is[:6], c.HeadSHA256[:6]).
			WithID("E-TEACH-013")
	}
	return nil
}

// once reads bytes.
type once struct{ b []byte }

func (o *once) Read(p []byte) (int, error) {
	if len(o.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, o.b)
	o.b = o.b[n:]
	return n, nil
}

// Start begins to ask for rows, in the order of next, which ends with io.EOF. Rows that are read in another order come
// too, later.
func (c *Client) Start(next func() (cache.Key, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = next
	for _, l := range c.links {
		l.last = time.Now()
		c.wait.Go(l.run)
	}
	c.fill()
}

// Close ends all connections.
func (c *Client) Close() error {
	c.close()
	c.mu.Lock()
	for _, l := range c.links {
		if l.w != nil {
			_ = l.w.Close() // it may be closed
		}
	}
	c.wake.Broadcast()
	c.mu.Unlock()
	c.wait.Wait()
	return nil
}

// window is how many rows are asked for ahead of their use: as many as one teacher allows, and two passes of each.
func (c *Client) window() int { return max(Lead(c.Header), 2*c.Header.PassRows*len(c.links)) }

// fill asks for rows to come while there is room for them.
func (c *Client) fill() {
	for c.next != nil && c.ahead < c.window() {
		k, err := c.next()
		if errors.Is(err, io.EOF) {
			c.next = nil
			break
		}
		if err != nil {
			c.fail(err)
			return
		}
		c.want(k)
	}
	c.assign()
}

// want notes a row that is to be asked for.
func (c *Client) want(k cache.Key) {
	c.asked[k]++
	c.ahead++
	c.pending = append(c.pending, k)
}

// assign gives pending rows to the teachers that have the fewest to make.
func (c *Client) assign() {
	for len(c.pending) > 0 {
		var to *link
		for _, l := range c.links {
			if l.w != nil && l.n < Lead(c.Header) && (to == nil || l.n < to.n) {
				to = l
			}
		}
		if to == nil {
			break
		}
		if to.n == 0 {
			to.last = time.Now()
		}
		to.unsent = append(to.unsent, c.pending[0])
		to.n++
		c.pending = c.pending[1:]
	}
	c.wake.Broadcast()
}

func (c *Client) fail(err error) {
	if c.err == nil {
		c.err = err
	}
	c.wake.Broadcast()
}

// Row returns the bytes of a row, once for each time that it was asked for, when a teacher has sent them.
func (c *Client) Row(ctx context.Context, k cache.Key) ([]byte, error) {
	stop := context.AfterFunc(ctx, c.wake.Broadcast)
	defer stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked[k] == 0 {
		c.asked[k]++
		c.ahead++
		c.pending = append([]cache.Key{k}, c.pending...)
		c.assign()
	}
	for {
		if all := c.here[k]; len(all) > 0 {
			if c.here[k] = all[1:]; len(all) == 1 {
				delete(c.here, k)
			}
			if c.asked[k]--; c.asked[k] == 0 {
				delete(c.asked, k)
			}
			c.ahead--
			c.fill()
			return all[0], nil
		}
		if c.err != nil {
			return nil, c.err
		}
		if ctx.Err() != nil {
			return nil, fault.New(fault.Stopped, "stopped while the teacher's rows were waited for")
		}
		c.wake.Wait()
	}
}

// note keeps what a user should know.
func (c *Client) note(format string, args ...any) {
	c.mu.Lock()
	c.notes = append(c.notes, fmt.Sprintf(format, args...))
	c.mu.Unlock()
}

// Notes returns what has happened to connections since it was called last.
func (c *Client) Notes() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.notes
	c.notes = nil
	return all
}

func (c *Client) alive(what string) {
	if c.o.Alive != nil {
		c.o.Alive(what)
	}
}
