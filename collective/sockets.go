package collective

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// sockets is a Comm of processes, over a link of all of them or of the first ones. Rank 0 has a connection to each of
// the others, through which everything goes: pieces come in from all ranks, rank 0 combines them, and sends each what
// it is to have.
type sockets struct {
	*link
	world int  // ranks of this Comm
	first bool // it is of First, and closes nothing
	parts [][]byte
}

// link is what a process has of its connections to the other ranks.
//
// Each side of a connection sends a beat every now and then, from a goroutine of its own, so that a rank that
// computes for long is told apart from one that is stopped or cut off. Whoever notices that a rank is lost tells rank
// 0, and rank 0 all others.
type link struct {
	rank, size int     // of how many ranks
	peers      []*peer // by rank; of ranks above 0 only peers[0], of rank 0 all but peers[0]
	silence    time.Duration
	mail       mailbox

	lost  atomic.Pointer[Lost]
	once  sync.Once
	done  chan struct{} // closed when the loss is known and has been passed on
	ended chan struct{} // closed by Close
}

// peer is the other end of a connection.
type peer struct {
	rank  int
	conn  net.Conn
	in    chan frame // of data; closed after a farewell
	mu    sync.Mutex // of writing
	out   []byte
	heard atomic.Int64 // when something came, in nanoseconds
	left  atomic.Bool
}

// window is how many pieces a rank may send before it has the first one's answer.
const window = 2

func newSockets(rank, world int, silence time.Duration, conns map[int]net.Conn) *sockets {
	s := &link{rank: rank, size: world, silence: silence, peers: make([]*peer, world), done: make(chan struct{}),
		ended: make(chan struct{})}
	s.mail.changed.L = &s.mail.mu
	for r, c := range conns {
		s.peers[r] = &peer{rank: r, conn: c, in: make(chan frame, 2*window)}
		s.peers[r].heard.Store(time.Now().UnixNano())
	}
	for _, p := range s.all() {
		go s.read(p)
		go s.beat(p)
	}
	go s.watch()
	return &sockets{link: s, world: world}
}

// First returns the Comm of ranks 0 to n−1, over the same connections.
func (s *sockets) First(n int) Comm {
	if n < 1 || n > s.world || s.rank >= n {
		panic("collective: First of ranks that this one is not among")
	}
	return &sockets{link: s.link, world: n, first: true}
}

// all returns the other ends.
func (s *link) all() (all []*peer) {
	for _, p := range s.peers {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// members returns the other ends that belong to this Comm.
func (s *sockets) members() (all []*peer) {
	for _, p := range s.peers[:s.world] {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

func (s *sockets) Rank() int  { return s.rank }
func (s *sockets) World() int { return s.world }

// send writes a frame.
func (p *peer) send(f frame) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out = f.append(p.out[:0])
	_, err := p.conn.Write(p.out)
	return err
}

// read takes what the other end sends, until it ends.
func (s *link) read(p *peer) {
	heard := func() { p.heard.Store(time.Now().UnixNano()) }
	for {
		f, err := readFrame(p.conn, heard)
		if err != nil {
			if !p.left.Load() {
				s.fail(s.broken(p, err))
			}
			return
		}
		switch f.kind {
		case frameData:
			select {
			case p.in <- f:
			case <-s.done:
				return
			}
		case framePost:
			s.pass(p, f)
		case frameBye:
			p.left.Store(true)
			close(p.in)
			s.mail.wake()
			return
		case frameAbort:
			l := &Lost{}
			if json.Unmarshal(f.payload, l) != nil || l.Rank < 0 || l.Rank >= s.size {
				l = &Lost{Rank: p.rank, World: s.size, How: Failed, Cause: "it ended the run"}
			}
			s.fail(l)
			return
		}
	}
}

// broken is the loss of the rank of whom err was read.
func (s *link) broken(p *peer, err error) *Lost {
	var d damage
	if errors.As(err, &d) {
		return &Lost{Rank: p.rank, World: s.size, How: Damaged, Cause: fmt.Sprintf("rank %d finds that %s", s.rank, d)}
	}
	return &Lost{Rank: p.rank, World: s.size, How: Gone, Cause: ending(err)}
}

// ending is the error of a connection in words that name no address.
func ending(err error) string {
	var op *net.OpError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "its connection was closed"
	case errors.As(err, &op):
		return "its connection failed: " + op.Err.Error()
	}
	return err.Error()
}

// pulse is the time between two beats.
func (s *link) pulse() time.Duration { return min(time.Second, s.silence/5) }

// beat says that this rank lives.
func (s *link) beat(p *peer) {
	t := time.NewTicker(s.pulse())
	defer t.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-s.ended:
			return
		case <-t.C:
			if p.left.Load() || p.send(frame{kind: frameBeat}) != nil {
				return // read finds out why
			}
		}
	}
}

// watch looks for ranks that are silent. A watcher that was stopped itself begins anew.
func (s *link) watch() {
	pulse := s.pulse()
	t := time.NewTicker(pulse)
	defer t.Stop()
	last := time.Now()
	for {
		select {
		case <-s.done:
			return
		case <-s.ended:
			return
		case <-t.C:
		}
		now := time.Now()
		if now.Sub(last) > 3*pulse {
			for _, p := range s.all() {
				p.heard.Store(now.UnixNano())
			}
		}
		last = now
		for _, p := range s.all() {
			if idle := time.Duration(now.UnixNano() - p.heard.Load()); idle > s.silence && !p.left.Load() {
				s.fail(&Lost{Rank: p.rank, World: s.size, How: Silent, After: idle})
				return
			}
		}
	}
}

// farewell is how long telling the others may take.
const farewell = 2 * time.Second

// fail ends the group and tells all others why; done is closed when they know, or cannot be told.
func (s *link) fail(l *Lost) {
	select {
	case <-s.ended:
		return
	default:
	}
	s.once.Do(func() {
		s.lost.Store(l)
		text, err := json.Marshal(l)
		if err != nil {
			panic(err) // of numbers and texts
		}
		var wg sync.WaitGroup
		for _, p := range s.all() {
			if p.left.Load() || p.rank == l.Rank && l.How == Gone {
				continue
			}
			_ = p.conn.SetWriteDeadline(time.Now().Add(farewell)) // a write in progress ends by then, too
			wg.Go(func() { _ = p.send(frame{kind: frameAbort, payload: text}) })
		}
		wg.Wait()
		close(s.done)
		s.mail.wake()
		for _, p := range s.all() {
			_ = p.conn.Close()
		}
	})
}

// failed returns why the group has ended, once the others know.
func (s *link) failed() error {
	<-s.done
	return s.lost.Load()
}

// give sends a piece to p.
func (s *link) give(p *peer, f frame) error {
	if s.lost.Load() != nil {
		return s.failed()
	}
	if p.left.Load() {
		s.fail(&Lost{Rank: p.rank, World: s.size, How: Gone, Cause: "it has left the group"})
		return s.failed()
	}
	err := p.send(f)
	if err == nil {
		return nil
	}
	select {
	case <-s.done: // read has found out why, from what p said before it closed the connection
	case <-time.After(farewell):
		s.fail(&Lost{Rank: p.rank, World: s.size, How: Gone, Cause: ending(err)})
	}
	return s.failed()
}

// take waits for the piece of p that belongs to want.
func (s *link) take(p *peer, want frame) ([]byte, error) {
	var f frame
	ok := true
	select {
	case f, ok = <-p.in:
	case <-s.done:
		return nil, s.lost.Load()
	}
	switch {
	case !ok:
		s.fail(&Lost{Rank: p.rank, World: s.size, How: Gone, Cause: "it has left the group"})
		return nil, s.failed()
	case f.op != want.op || f.n != want.n || f.at != want.at:
		is, than, rank := operation{opNames[f.op%byte(len(opNames))], int(f.n)}, operation{opNames[want.op], int(want.n)},
			p.rank
		if s.rank > 0 {
			is, than, rank = than, is, s.rank
		}
		s.fail(&Lost{Rank: rank, World: s.size, How: Failed, Cause: differ(rank, is, than)})
		return nil, s.failed()
	}
	return f.payload, nil
}

// opNames are the operations by their number on the wire.
var opNames = [...]string{"", opSum32, opSum64, opScatter, opGather, opBroadcast, opBarrier}

const (
	wireSum32 byte = iota + 1
	wireSum64
	wireScatter
	wireGather
	wireBroadcast
	wireBarrier
)

// steps are what an operation does with elements [lo,hi) of n.
type steps struct {
	op      byte
	n, size int
	up      func(lo, hi int) []byte                // what a rank sends to rank 0; nil: nothing
	combine func(lo, hi int, parts [][]byte) error // at rank 0: parts by rank, without its own
	down    func(rank, lo, hi int) []byte          // what rank 0 sends to a rank
	keep    func(lo, hi int, got []byte) error     // what a rank does with it
}

// run does an operation piece by piece.
func (s *sockets) run(o steps) error {
	if s.lost.Load() != nil {
		return s.failed()
	}
	per := chunk
	if o.size > 0 {
		per = chunk / o.size
	}
	piece := func(i int) (frame, int, int) {
		lo := i * per
		return frame{kind: frameData, op: o.op, n: uint64(o.n), at: uint64(lo)}, lo, min(o.n, lo+per)
	}
	pieces := max(1, (o.n+per-1)/per)
	if s.rank == 0 {
		for i := range pieces {
			if err := s.combine(o, piece, i); err != nil {
				return err
			}
		}
		return nil
	}
	zero := s.peers[0]
	for i := range pieces + window - 1 {
		if i < pieces {
			f, lo, hi := piece(i)
			if o.up != nil {
				f.payload = o.up(lo, hi)
			}
			if err := s.give(zero, f); err != nil {
				return err
			}
		}
		if k := i - window + 1; k >= 0 {
			f, lo, hi := piece(k)
			got, err := s.take(zero, f)
			if err != nil {
				return err
			}
			if o.keep != nil {
				if err := o.keep(lo, hi, got); err != nil {
					return s.garbled(zero, err)
				}
			}
		}
	}
	return nil
}

// combine is rank 0's part of a piece.
func (s *sockets) combine(o steps, piece func(int) (frame, int, int), i int) error {
	f, lo, hi := piece(i)
	if s.parts == nil {
		s.parts = make([][]byte, s.world)
	}
	for _, p := range s.members() {
		var err error
		if s.parts[p.rank], err = s.take(p, f); err != nil {
			return err
		}
	}
	if o.combine != nil {
		if err := o.combine(lo, hi, s.parts); err != nil {
			return s.garbled(s.members()[0], err)
		}
	}
	for _, p := range s.members() {
		f.payload = nil
		if o.down != nil {
			f.payload = o.down(p.rank, lo, hi)
		}
		if err := s.give(p, f); err != nil {
			return err
		}
	}
	return nil
}

// garbled ends the group because of a piece that has not the size it should have.
func (s *link) garbled(p *peer, err error) error {
	s.fail(&Lost{Rank: p.rank, World: s.size, How: Gone, Cause: err.Error()})
	return s.failed()
}

func (s *sockets) Sum32(x []float32) error { return sum(s, wireSum32, x, true) }
func (s *sockets) Sum64(x []float64) error { return sum(s, wireSum64, x, true) }

func (s *sockets) ReduceScatter(x []float32) error { return sum(s, wireScatter, x, false) }

// sum is the sum of both types, of which a rank gets all or its shard.
func sum[T number](s *sockets, op byte, x []T, all bool) error {
	parts := make([][]T, s.world)
	var out []byte
	cut := func(rank, lo, hi int) (int, int) { // what of [lo,hi) the rank gets
		if all {
			return lo, hi
		}
		from, to := Shard(len(x), rank, s.world)
		lo, hi = max(lo, from), min(hi, to)
		return lo, max(lo, hi)
	}
	return s.run(steps{op: op, n: len(x), size: sizeOf[T](),
		up: func(lo, hi int) []byte { out = encode(out[:0], x[lo:hi]); return out },
		combine: func(lo, hi int, got [][]byte) error {
			for r := range parts {
				if len(parts[r]) < hi-lo {
					parts[r] = make([]T, hi-lo)
				}
				parts[r] = parts[r][:hi-lo]
				if r == 0 {
					copy(parts[0], x[lo:hi])
				} else if err := decode(parts[r], got[r]); err != nil {
					return err
				}
			}
			tree(parts)
			copy(x[lo:hi], parts[0])
			return nil
		},
		down: func(rank, lo, hi int) []byte {
			lo, hi = cut(rank, lo, hi)
			out = encode(out[:0], x[lo:hi])
			return out
		},
		keep: func(lo, hi int, got []byte) error {
			lo, hi = cut(s.rank, lo, hi)
			return decode(x[lo:hi], got)
		},
	})
}

func (s *sockets) AllGather(x []float32) error {
	var out []byte
	cut := func(rank, lo, hi int) []float32 {
		from, to := Shard(len(x), rank, s.world)
		lo, hi = max(lo, from), min(hi, to)
		return x[lo:max(lo, hi)]
	}
	return s.run(steps{op: wireGather, n: len(x), size: 4,
		up: func(lo, hi int) []byte { out = encode(out[:0], cut(s.rank, lo, hi)); return out },
		combine: func(lo, hi int, got [][]byte) error {
			for r := 1; r < s.world; r++ {
				if err := decode(cut(r, lo, hi), got[r]); err != nil {
					return err
				}
			}
			return nil
		},
		down: func(_, lo, hi int) []byte { out = encode(out[:0], x[lo:hi]); return out },
		keep: func(lo, hi int, got []byte) error { return decode(x[lo:hi], got) },
	})
}

func (s *sockets) Broadcast(x []byte) error {
	return s.run(steps{op: wireBroadcast, n: len(x), size: 1,
		down: func(_, lo, hi int) []byte { return x[lo:hi] },
		keep: func(lo, hi int, got []byte) error {
			if len(got) != hi-lo {
				return errSize
			}
			copy(x[lo:hi], got)
			return nil
		},
	})
}

func (s *sockets) Barrier() error { return s.run(steps{op: wireBarrier}) }

func (s *sockets) Abort(cause error) { s.fail(because(cause, s.rank, s.size)) }

func (s *sockets) OnLost(f func(*Lost)) {
	go func() {
		select {
		case <-s.done:
			f(s.lost.Load())
		case <-s.ended:
		}
	}()
}

func (s *sockets) Close() error {
	if s.lost.Load() != nil || s.first {
		return nil
	}
	select {
	case <-s.ended:
		return nil
	default:
	}
	close(s.ended)
	for _, p := range s.all() {
		_ = p.conn.SetWriteDeadline(time.Now().Add(farewell))
		if !p.left.Load() {
			_ = p.send(frame{kind: frameBye}) // who has gone already needs no farewell
		}
		_ = p.conn.Close()
	}
	return nil
}
