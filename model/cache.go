package model

import (
	"apr/device"
	"apr/tensor"
)

// Cache holds the finished keys and the values of one sequence, so that a position is computed once. A layer with a window
// holds the latest positions only.
type Cache struct {
	layers   []store
	capacity int
	length   int
	class    int           // of the frequencies by which keys were turned: see Model.class
	inCall   bool          // a later piece of a call of Extend
	latest   int           // positions of the last call of Extend, which Forget can undo where layers carry states
	ids      device.Tensor // I32 [capacity, 1], where frequencies depend on the length of the sequence
	decoding string
	replayer device.Replayer // of the stream that ran single positions operation by operation
}

// store is the part of a layer.
type store struct {
	rows   device.Tensor // [positions, 2·kv·d]: a key, then its value; of a layer that reads another's, that one's
	held   int           // rows in use: the latest positions
	window int           // 0: all positions are held
	delta  carried       // of a DeltaNet, which has no rows
}

// slack is how many positions a window's rows have room for beyond the window: only when these are used up are rows moved.
// More positions at a time go through the layers in pieces.
const slack = 512

// NewCache reserves a cache of capacity positions.
func (m *Model) NewCache(capacity int) *Cache {
	c := &Cache{layers: make([]store, len(m.layers)), capacity: capacity}
	act := m.dev.Info().Activations
	for i := range m.layers {
		b, l := &m.layers[i], &c.layers[i]
		if b.Linear() {
			l.delta = m.newCarried(b)
			continue
		}
		if !b.own {
			*l = store{rows: c.layers[b.Attn.KVFrom].rows}
			continue
		}
		rows := capacity
		if w := b.Attn.Window; w > 0 && w-1+slack < capacity {
			rows, l.window = w-1+slack, w
		}
		l.rows = m.dev.Alloc("cache", device.KVCache, act, rows, 2*b.Attn.KVDim())
	}
	if m.ages() {
		c.ids = m.dev.Alloc("cache.ids", device.KVCache, tensor.I32, capacity, 1)
	}
	return c
}

// Free gives the cache's memory back; it must not be used afterwards.
func (c *Cache) Free(dev device.Device) {
	seen := map[device.Buffer]bool{}
	for _, l := range c.layers {
		l.delta.free(dev)
		if !l.rows.IsZero() && !seen[l.rows.Buf] { // layers share
			seen[l.rows.Buf] = true
			dev.Free(l.rows)
		}
	}
	if !c.ids.IsZero() {
		dev.Free(c.ids)
	}
}

// Len returns the number of positions of the sequence.
func (c *Cache) Len() int { return c.length }

// Decoding says how the layers of a single position ran: "one launch", or "operation by operation" and why. It is empty on a device
// that knows one way only, or before there was such a position.
func (c *Cache) Decoding() string {
	if c.replayer != nil {
		if how := c.replayer.Replaying(); how != "" {
			return c.decoding + "; " + how
		}
	}
	return c.decoding
}

// Reset forgets all positions.
func (c *Cache) Reset() {
	c.length, c.latest = 0, 0
	for i := range c.layers {
		c.layers[i].held = 0
	}
}

// Forgets reports whether Forget can drop the latest n positions. Of a window that dropped earlier positions only as many can be
// forgotten as leave it whole: those of the last call of Extend. The state of a DeltaNet can forget those alone, all of them.
func (c *Cache) Forgets(n int) bool {
	for i := range c.layers {
		l := &c.layers[i]
		if n > 0 && (l.delta.exists() && n != c.latest || l.window > 0 && l.held-n < min(l.window-1, c.length-n)) {
			return false
		}
	}
	return true
}

// Forget drops the latest n positions, which Forgets allows.
func (c *Cache) Forget(n int) {
	if n == 0 {
		return
	}
	if !c.Forgets(n) {
		panic("model: a windowed cache or a state cannot forget so many positions")
	}
	c.length -= n
	for i := range c.layers {
		l := &c.layers[i]
		l.held -= n
		if l.delta.exists() {
			l.delta.swap()
		}
	}
	c.latest = 0
}

// Assume makes c hold n positions of undefined content: for a dry run of what comes after them.
func (c *Cache) Assume(n int) {
	c.Reset()
	c.length = n
	for i := range c.layers {
		c.layers[i].held = min(n, c.layers[i].rows.Rows)
	}
}

// Recomputes returns the longest of the sequences of more than from and at most to positions with which Extend computes all
// positions of a cache again; 0: there is none.
func (m *Model) Recomputes(from, to int) int {
	longest := 0
	for _, r := range m.ropes {
		if n := r.original + 1; r.original > 0 && n > from && n <= to {
			longest = max(longest, n)
		}
	}
	return longest
}

// room makes room for n further positions: where there is none, the last of a window are moved to the front.
func (c *Cache) room(s device.Stream, n int) {
	for i := range c.layers {
		l := &c.layers[i]
		if l.window == 0 || l.held+n <= l.rows.Rows {
			continue
		}
		keep := l.window - 1
		by := l.held - keep
		for at := 0; at < keep; at += by { // pieces that do not overlap with where they come from
			end := min(at+by, keep)
			s.Copy(l.rows.RowRange(at, end), l.rows.RowRange(at+by, end+by))
		}
		l.held = keep
	}
}

// piece returns how many of n positions may go through the layers at one time.
func (c *Cache) piece(n int) int {
	for _, l := range c.layers {
		if l.window > 0 {
			return min(n, slack)
		}
	}
	return n
}

// Extend runs the body over n further positions of the cached sequence (ids I32 [n,1]) and writes the final hidden
// states of the last ones to dst [r, h]: of the last position, or of r ≤ n of a model whose positions go through the
// layers at one time (see Rewinds). It is the forward of Hidden with keys and values kept. Where the sequence becomes
// so
// long that its rotary embeddings have other frequencies, all positions are computed again.
// More positions than fit are a broken precondition.
func (m *Model) Extend(s device.Stream, dst device.Tensor, c *Cache, ids device.Tensor) {
	n := ids.Rows
	if c.length+n > c.capacity {
		panic("model: cache is full")
	}
	if !c.ids.IsZero() {
		s.Copy(c.ids.RowRange(c.length, c.length+n), ids)
	}
	piece := c.piece(n)
	if class := m.class(c.length + n); class != c.class {
		if c.length > 0 {
			ids = c.ids.RowRange(0, c.length+n)
			n, piece = ids.Rows, min(ids.Rows, slack)
			c.Reset()
		}
		c.class = class
	}
	c.latest = n
	for i := range c.layers {
		c.layers[i].delta.swap() // what is there stays as it is until the next call
	}
	for lo := 0; lo < n; lo += piece {
		hi := min(lo+piece, n)
		c.inCall = lo > 0
		m.extend(s, dst, c, ids.RowRange(lo, hi), hi == n)
	}
}

// extend is Extend for as many positions as have room at one time. Only the last of all needs dst.
func (m *Model) extend(s device.Stream, dst device.Tensor, c *Cache, ids device.Tensor, last bool) {
	n := ids.Rows
	c.room(s, n)
	m.arrange(s, n)
	w := newWorkspace(s, n)
	p := &pass{m: m, s: s, t: Tokens{IDs: ids, Rows: 1, SeqLen: n}, act: dst.DType, cache: c}
	p.adds = n == 1 && m.dev.Info().Adds
	x := p.inference(w)
	v := p.embed(x)
	p.perLayer(w, &perLayerActs{}, x)
	if !(last && p.atOnce(dst, x)) {
		c.replay(s, n, func() {
			for i := range m.layers {
				v = p.layer(&m.layers[i], p.reused(&m.layers[i]), v, false)
			}
			if last {
				p.last(dst, device.Tensor{}, x.RowRange(n-dst.Rows, n), v.latest(dst.Rows))
			}
		})
	}
	w.release()
	c.length += n
	for i := range c.layers {
		c.layers[i].held += n
	}
}

// replay runs the layers of a single position as one launch, if the device can.
func (c *Cache) replay(s device.Stream, n int, layers func()) {
	r, ok := s.(device.Replayer)
	if !ok || n > 1 {
		layers()
		return
	}
	c.replayer = r
	r.Replay(layers)
}

// arrange lets the device put the layers' matrices into an order in which passes of n positions read them as they are.
func (m *Model) arrange(s device.Stream, n int) {
	a, ok := s.(device.Arranger)
	if !ok || n == 1 {
		return
	}
	for i := range m.layers {
		b := &m.layers[i]
		all := []*linear{&b.qkv, &b.o, &b.gateUp, &b.down}
		if b.Linear() {
			all = append(all, &b.delta.in, &b.delta.ba)
		}
		for _, l := range all {
			if l.weight != nil { // of a layer with experts only, or with linear attention, there are fewer
				a.Arrange(n, l.weight)
			}
		}
	}
}

// latest returns the last n rows of v.
func (v stream) latest(n int) stream {
	v.x = v.x.RowRange(v.x.Rows-n, v.x.Rows)
	if !v.delta.IsZero() {
		v.delta = v.delta.RowRange(v.delta.Rows-n, v.delta.Rows)
	}
	return v
}

// Rewinds says why a cache of so many positions cannot forget any number of its latest ones; empty: it can.
func (m *Model) Rewinds(capacity int) string {
	for i := range m.layers {
		b := &m.layers[i]
		switch {
		case b.Linear():
			return "layers with a state instead of keys"
		case b.Attn.Window > 0 && b.Attn.Window-1+slack < capacity:
			return "attention in a window"
		}
	}
	if m.Recomputes(0, capacity) > 0 {
		return "rotary frequencies that depend on the length"
	}
	return ""
}
