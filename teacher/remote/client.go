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
	"net"
	"sync"
	"time"

	"apr/internal/fault"
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

// link is the connection to one teacher.
type link struct {
	c      *Client
	to     Teacher
	w      *wire // nil: it is down
	unsent []cache.Key
	out    map[cache.Key]int // asked for and not received
	n      int               // rows of unsent and out
	last   time.Time         // a row came, or was asked for while none was due
	dead   bool
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
		return err
	}
	if h.sum != c.HeadSHA256 || h.size != c.HeadBytes {
		return fault.In(fault.Invalid, address, "has another head than the teacher before: %x…, not %x…", h.sum[:6],
			c.HeadSHA256[:6]).WithID("E-TEACH-012")
	}
	return nil
}

// connect opens a connection and shakes hands.
func (l *link) connect(ctx context.Context) (*wire, said, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", l.to.Address)
	if err != nil {
		return nil, said{}, unreachable(l.to.Address, err)
	}
	if l.to.TLS != nil {
		t := tls.Client(conn, l.to.TLS)
		if err := t.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, said{}, fault.In(fault.Network, l.to.Address,
				"the teacher's certificate is not trusted, or it speaks no TLS").
				Because(err).WithHint("--tls-ca FILE, or #sha256= and the fingerprint that apr teach prints").
				WithID("E-TEACH-002")
		}
		conn = t
	}
	w := newWire(conn, l.to.Address)
	h, err := w.introduce(l.c.o.Token)
	if err != nil {
		return nil, h, errors.Join(err, conn.Close())
	}
	return w, h, nil
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
			return maxHeader + sha256.Size + sizeBytes
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
	case len(b) < sha256.Size+sizeBytes:
		return h, garbage(w.peer, "sent a header of %d bytes", len(b))
	}
	h.sum = [sha256.Size]byte(b)
	h.size = int64(binary.LittleEndian.Uint64(b[sha256.Size:]))
	if h.size < 0 || h.size > 1<<40 {
		return h, garbage(w.peer, "says that its head has %d bytes", h.size)
	}
	h.header, err = cache.ParseHeader(w.peer, string(b[sha256.Size+sizeBytes:]))
	return h, err
}

// refused is the fault of a teacher that closes the connection.
func refused(peer string, why []byte) error {
	return fault.In(fault.Network, peer, "the teacher refuses: %q", why).
		WithHint("--token-file or %s: the token that apr teach was given", TokenVariable).WithID("E-TEACH-003")
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

// run serves a link until the client is closed.
func (l *link) run() {
	w := l.w
	for c := l.c; ; {
		err := l.talk(w)
		_ = w.Close() // it may be closed
		c.mu.Lock()
		l.lose()
		c.mu.Unlock()
		if c.ctx.Err() != nil {
			return
		}
		if f := (*fault.Error)(nil); errors.As(err, &f) {
			c.mu.Lock()
			c.fail(err)
			c.mu.Unlock()
			return
		}
		c.note("the teacher %s has left: %v", l.to.Address, err)
		if w = l.again(err); w == nil {
			return
		}
		c.note("the teacher %s is there again", l.to.Address)
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

// lose gives back what was asked for.
func (l *link) lose() {
	l.w = nil
	l.c.pending = append(l.unsent, l.c.pending...)
	for k, n := range l.out {
		for range n {
			l.c.pending = append([]cache.Key{k}, l.c.pending...)
		}
	}
	l.unsent, l.out, l.n = nil, map[cache.Key]int{}, 0
	l.c.assign()
}

// again connects once more, for as long as the client's patience; nil: it ended, which is an error of the client if no
// other teacher is left.
func (l *link) again(lost error) *wire {
	c, began := l.c, time.Now()
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		select {
		case <-c.ctx.Done():
			return nil
		case <-time.After(pause):
		}
		w, h, err := l.connect(c.ctx)
		if err == nil {
			if err = c.same(l.to.Address, h); err == nil {
				c.mu.Lock()
				l.w, l.last = w, time.Now()
				c.assign()
				c.mu.Unlock()
				return w
			}
			_ = w.Close()
		}
		final := fault.KindOf(err) != fault.Network || c.ctx.Err() != nil
		if !final && time.Since(began) < c.o.Patience {
			c.alive("the teacher " + l.to.Address + " is asked for again")
			continue
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		l.dead = true
		for _, other := range c.links {
			if !other.dead && !final {
				c.notes = append(c.notes, fmt.Sprintf("the teacher %s is given up, the others make its rows: %v", l.to.Address,
					err))
				return nil
			}
		}
		c.fail(fmt.Errorf("%w (it had left: %w)", err, lost))
		return nil
	}
}

// talk asks and listens on a connection until it breaks.
func (l *link) talk(w *wire) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = l.ask(w) // ends with its connection, whose error says why
	}()
	err := l.listen(w)
	_ = w.Close() // ends ask
	l.c.mu.Lock()
	if l.w == w {
		l.w = nil
	}
	l.c.wake.Broadcast()
	l.c.mu.Unlock()
	<-done
	return err
}

// ask sends the keys of rows that are given to the link.
func (l *link) ask(w *wire) error {
	c := l.c
	for {
		c.mu.Lock()
		for l.w == w && len(l.unsent) == 0 && c.ctx.Err() == nil {
			c.wake.Wait()
		}
		if l.w != w || c.ctx.Err() != nil {
			c.mu.Unlock()
			return net.ErrClosed
		}
		n := min(len(l.unsent), maxKeys)
		var b []byte
		for _, k := range l.unsent[:n] {
			b = append(b, k[:]...)
			l.out[k]++
		}
		l.unsent = l.unsent[n:]
		c.mu.Unlock()
		if err := w.write(kindAskRows, b); err != nil {
			_ = w.Close() // ends listen
			return err
		}
	}
}

// listen takes rows.
func (l *link) listen(w *wire) error {
	c := l.c
	for {
		kind, b, err := w.read(idleTime, func(kind byte) int64 {
			switch kind {
			case kindRow:
				return rowPrefix + c.Header.RowLimit()
			case kindPing:
				return 0
			case kindRefused:
				return maxText
			}
			return -1
		})
		if err != nil {
			return err
		}
		c.alive("waiting for rows of " + l.to.Address)
		switch kind {
		case kindRefused:
			return refused(w.peer, b)
		case kindPing:
			c.mu.Lock()
			late := l.n > 0 && time.Since(l.last) > stalled
			c.mu.Unlock()
			if late {
				return fault.In(fault.Network, w.peer, "the teacher is there, and has sent no row for %v", stalled).
					WithID("E-TEACH-004")
			}
		case kindRow:
			if err := l.take(w.peer, b); err != nil {
				return err
			}
		}
	}
}

// take takes a row that was asked for, and nothing else.
func (l *link) take(peer string, b []byte) error {
	if len(b) < rowPrefix {
		return garbage(peer, "sent a row of %d bytes", len(b))
	}
	k, data := cache.Key(b[:keyBytes]), b[rowPrefix:]
	if crc := crc32.Checksum(data, castagnoli); crc != binary.LittleEndian.Uint32(b[keyBytes:]) {
		return garbage(peer, "sent the row %s, which differs from its checksum", short(k))
	}
	c := l.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.out[k] == 0 {
		return garbage(peer, "sent the row %s, which was not asked for", short(k))
	}
	if l.out[k]--; l.out[k] == 0 {
		delete(l.out, k)
	}
	l.n--
	l.last = time.Now()
	c.here[k] = append(c.here[k], data)
	c.assign()
	return nil
}
