package remote

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"time"

	"apr/internal/fault"
	"apr/teacher/cache"
)

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
