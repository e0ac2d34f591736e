package model

import (
	"apr/device"
	"apr/tensor"
)

// PageRows is how many positions a page of a Paged cache holds.
const PageRows = 64

// Paged holds the finished keys and the values of several sequences, one in each slot, in pages of PageRows positions. Which
// pages a sequence has changes no bit of what is computed: attention reads its keys gathered in the order of positions.
// A layer with a window holds the window only, in a ring of pages; a DeltaNet has its state in each slot.
//
// A sequence takes all pages that it may need when it is admitted, so that none has to give way to another later.
type Paged struct {
	m         *Model
	capacity  int // positions of a sequence at most
	pools     []pool
	layers    []pagedLayer
	lengths   []int         // positions, by slot
	class     []int         // of the frequencies by which keys were turned, by slot: see Model.class
	positions device.Tensor // I32 [rows of a pass, 1]
	gathered  device.Tensor // [capacity, widest 2·kv·d]: the keys and values of one sequence in order
}

// pool is the pages of all layers that hold equally many positions of a sequence.
type pool struct {
	window int             // 0: all positions are held
	most   int             // pages of a sequence at most
	free   []int           // pages
	pages  [][]int         // by slot
	table  []device.Tensor // by slot, I32: the row of each position; of a window's ring twice, so that every run of positions is one piece
}

// pagedLayer is the part of a layer.
type pagedLayer struct {
	rows   device.Tensor  // [pages·PageRows, 2·kv·d]: a key, then its value; of a layer that reads another's, that one's
	pool   int            // in Paged.pools
	states []carriedState // of a DeltaNet, by slot
}

// PagedSizes bound a Paged cache.
type PagedSizes struct {
	Slots     int // sequences at a time
	Rows      int // of a pass: see ExtendEach
	Capacity  int // positions of a sequence at most
	Positions int // of all sequences together, in layers without a window; rounded up to whole pages
}

// pagesOf returns how many pages n positions take.
func pagesOf(n int) int { return (n + PageRows - 1) / PageRows }

// NewPaged reserves a cache.
func (m *Model) NewPaged(n PagedSizes) *Paged {
	p := &Paged{m: m, capacity: n.Capacity, layers: make([]pagedLayer, len(m.layers)), lengths: make([]int, n.Slots), class: make([]int, n.Slots)}
	act, widest, byWindow := m.dev.Info().Activations, 0, map[int]int{}
	for i := range m.layers {
		b, l := &m.layers[i], &p.layers[i]
		switch {
		case b.Linear():
			for range n.Slots {
				l.states = append(l.states, m.newState(b))
			}
			continue
		case !b.own:
			*l = p.layers[b.Attn.KVFrom]
			continue
		}
		window := b.Attn.Window
		if window >= n.Capacity {
			window = 0
		}
		at, ok := byWindow[window]
		if !ok {
			at = len(p.pools)
			byWindow[window] = at
			p.pools = append(p.pools, m.newPool(n, window))
		}
		l.pool = at
		width := 2 * b.Attn.KVDim()
		l.rows = m.dev.Alloc("pages", device.KVCache, act, len(p.pools[at].free)*PageRows, width)
		widest = max(widest, width)
	}
	p.positions = m.dev.Alloc("positions", device.Batch, tensor.I32, n.Rows, 1)
	if widest > 0 {
		p.gathered = m.dev.Alloc("gathered", device.Scratch, act, n.Capacity, widest)
	}
	return p
}

// newPool returns the pages of the layers with a window, or of those without.
func (m *Model) newPool(n PagedSizes, window int) pool {
	o := pool{window: window, most: pagesOf(n.Capacity), pages: make([][]int, n.Slots)}
	all, entries := max(pagesOf(n.Positions), o.most), o.most*PageRows
	if window > 0 {
		o.most = pagesOf(window)
		all, entries = o.most*n.Slots, 2*o.most*PageRows
	}
	for i := range all {
		o.free = append(o.free, all-1-i)
	}
	for range n.Slots {
		o.table = append(o.table, m.dev.Alloc("pages.table", device.Batch, tensor.I32, entries, 1))
	}
	return o
}

// Free gives the cache's memory back; it must not be used afterwards.
func (p *Paged) Free() {
	dev := p.m.dev
	for i, l := range p.layers {
		for _, s := range l.states {
			dev.Free(s.state, s.inputs)
		}
		if b := &p.m.layers[i]; b.own && !b.Linear() {
			dev.Free(l.rows)
		}
	}
	for _, o := range p.pools {
		dev.Free(o.table...)
	}
	dev.Free(p.positions)
	if !p.gathered.IsZero() {
		dev.Free(p.gathered)
	}
}

// Admits reports whether there are free pages for a sequence of n positions.
func (p *Paged) Admits(n int) bool {
	for _, o := range p.pools {
		if min(pagesOf(n), o.most) > len(o.free) {
			return false
		}
	}
	return n <= p.capacity
}

// Admit gives an empty slot the pages of a sequence of at most n positions, which Admits allows.
func (p *Paged) Admit(s device.Stream, slot, n int) {
	if !p.Admits(n) {
		panic("model: no pages for a sequence")
	}
	for i := range p.pools {
		o := &p.pools[i]
		take := min(pagesOf(n), o.most)
		rest := len(o.free) - take
		o.pages[slot] = append(o.pages[slot][:0], o.free[rest:]...)
		o.free = o.free[:rest]
		var rows []int32
		for range o.turns() {
			for _, page := range o.pages[slot] {
				for r := range PageRows {
					rows = append(rows, int32(page*PageRows+r))
				}
			}
		}
		s.UploadInts(o.table[slot].RowRange(0, len(rows)), rows)
	}
	p.lengths[slot] = 0
}

// turns is how often a table lists the rows of a sequence.
func (o *pool) turns() int {
	if o.window > 0 {
		return 2
	}
	return 1
}

// Leave empties a slot.
func (p *Paged) Leave(slot int) {
	for i := range p.pools {
		o := &p.pools[i]
		o.free = append(o.free, o.pages[slot]...)
		o.pages[slot] = o.pages[slot][:0]
	}
	p.lengths[slot] = 0
}

// Len returns the positions of the sequence in a slot.
func (p *Paged) Len(slot int) int { return p.lengths[slot] }

// row returns where a position of the sequence in a slot is.
func (o *pool) row(slot, position int) int {
	pages := o.pages[slot]
	at := position % (len(pages) * PageRows)
	return pages[at/PageRows]*PageRows + at%PageRows
}

// keys returns the rows of the positions that one of them sees, in order: entries of the table.
func (o *pool) keys(slot, position int) device.Tensor {
	first, n := 0, position+1
	if o.window > 0 && n > o.window {
		first, n = (n-o.window)%(len(o.pages[slot])*PageRows), o.window
	}
	return o.table[slot].RowRange(first, first+n)
}

// Load copies the sequence of c to a slot that has pages for it.
func (p *Paged) Load(s device.Stream, slot int, c *Cache) {
	for i := range p.layers {
		l, from := &p.layers[i], &c.layers[i]
		if l.states != nil {
			s.Copy(l.states[slot].state, from.delta.now.state)
			s.Copy(l.states[slot].inputs, from.delta.now.inputs)
			continue
		}
		if !p.m.layers[i].own {
			continue
		}
		o := &p.pools[l.pool]
		n := from.held
		if o.window > 0 {
			n = min(n, o.window-1)
		}
		for n > 0 {
			position := c.length - n
			rows := min(n, PageRows-position%PageRows)
			to := o.row(slot, position)
			s.Copy(l.rows.RowRange(to, to+rows), from.rows.RowRange(from.held-n, from.held-n+rows))
			n -= rows
		}
	}
	p.lengths[slot], p.class[slot] = c.length, c.class
}

// each is a pass over one further position of each of several sequences.
type each struct {
	cache *Paged
	slots []int // of the first rows; further rows are padding
}

// ExtendEach runs the body over one further position of the sequences in the given slots, a row of ids (I32 [n,1]) and of dst
// [n, h] each, and writes their final hidden states. Rows behind those of slots are padding: they give a pass its shape, and nothing
// of them reaches another row. A sequence must not outgrow its pages, or the frequencies of its rotary embeddings (see Recomputes).
func (m *Model) ExtendEach(s device.Stream, dst device.Tensor, c *Paged, ids device.Tensor, slots []int) {
	n := ids.Rows
	host := make([]int32, n)
	for i, slot := range slots {
		host[i] = int32(c.lengths[slot])
		if m.class(c.lengths[slot]+1) != c.class[slot] {
			panic("model: a sequence has outgrown its frequencies")
		}
	}
	positions := c.positions.RowRange(0, n)
	s.UploadInts(positions, host)
	m.arrange(s, n)
	w := newWorkspace(s, n)
	p := &pass{m: m, s: s, t: Tokens{IDs: ids, Rows: n, SeqLen: 1, Positions: positions}, act: dst.DType, each: &each{c, slots}}
	x := p.inference(w)
	v := p.embed(x)
	p.perLayer(w, &perLayerActs{}, x)
	for i := range m.layers {
		v = p.layer(&m.layers[i], p.reused(&m.layers[i]), v, false)
	}
	p.last(dst, device.Tensor{}, x, v)
	w.release()
	for _, slot := range slots {
		c.lengths[slot]++
	}
}

// attendEach adds the finished k and v of each sequence to its pages, and attends to all keys that its new position sees.
func (p *pass) attendEach(b *layer, k *acts) {
	q := k.qkv.ColRange(0, b.Attn.QDim())
	var kk, v device.Tensor
	if b.own {
		_, kk, v = b.read(k)
	}
	out, c := b.attended(k), p.each.cache
	l := &c.layers[b.Attn.KVFrom]
	o, kv := &c.pools[l.pool], b.Attn.KVDim()
	for i, slot := range p.each.slots {
		position := c.lengths[slot]
		if b.own {
			to := o.row(slot, position)
			p.s.Copy(l.rows.RowRange(to, to+1).ColRange(0, kv), kk.RowRange(i, i+1))
			p.s.Copy(l.rows.RowRange(to, to+1).ColRange(kv, 2*kv), v.RowRange(i, i+1))
		}
		rows := o.keys(slot, position)
		g := c.gathered.RowRange(0, rows.Rows).ColRange(0, 2*kv)
		p.s.Gather(g, l.rows, rows)
		a := b.Attn
		p.s.Attention(out.RowRange(i, i+1), device.Tensor{}, q.RowRange(i, i+1), g.ColRange(0, kv), g.ColRange(kv, 2*kv), device.Attn{
			Batch: 1, QLen: 1, KLen: rows.Rows, QOffset: rows.Rows - 1, KStride: rows.Rows,
			Heads: a.Heads, KVHeads: a.KVHeads, HeadDim: a.HeadDim, Scale: scoreScale(a.Scale, a.HeadDim), Cap: a.Cap, Sinks: b.sinks.value,
		})
	}
	p.inert(out)
}

// inert makes the padding rows of what a mixer writes zero: what was in memory must not decide which experts are busy.
func (p *pass) inert(t device.Tensor) {
	if n := len(p.each.slots); n < t.Rows {
		p.s.Zero(t.RowRange(n, t.Rows))
	}
}

// ruleEach is the convolution and the delta rule for one position of each sequence.
func (p *pass) ruleEach(b *layer, d *deltaActs, qkv device.Tensor) {
	t, rule := &b.delta, p.rule(b)
	rule.Sequences = device.Sequences{Batch: 1, Len: 1}
	for i, slot := range p.each.slots {
		at := p.each.cache.layers[b.index].states[slot]
		row := func(x device.Tensor) device.Tensor { return x.RowRange(i, i+1) }
		p.s.Conv(row(d.u), row(qkv), t.conv.value, at.inputs, at.inputs, rule.Sequences)
		p.s.DeltaNet(row(d.o), row(d.u), row(d.ba), t.logA.value, t.dt.value, at.state, at.state, rule)
	}
	p.inert(d.o)
}

// rotateEach turns q and k of each sequence by its position; those of one class of frequencies at a time.
func (p *pass) rotateEach(b *layer, x device.Tensor, r device.Rotary) {
	e := p.each
	r.SeqLen, r.Offset = 1, e.cache.capacity-1 // positions of a table: as many as there may be
	first := 0
	for i := range e.slots {
		if e.cache.class[e.slots[i]] != e.cache.class[e.slots[0]] {
			first = -1
		}
	}
	if first == 0 {
		class := 0
		if len(e.slots) > 0 {
			class = e.cache.class[e.slots[0]]
		}
		p.turn(b, x, r, class)
		return
	}
	for i, slot := range e.slots {
		r.Positions = p.t.Positions.RowRange(i, i+1)
		p.turn(b, x.RowRange(i, i+1), r, e.cache.class[slot])
	}
}
