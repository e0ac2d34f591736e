package model

import (
	"slices"

	"apr/device"
	"apr/tensor"
)

// PageRows is how many positions a page of a Paged cache holds.
const PageRows = 64

// Paged holds the finished keys and the values of several sequences, one in each slot, in pages of PageRows positions. Which
// pages a sequence has changes no bit of what is computed: attention reads its keys in the order of positions, for all
// sequences at once where the device attends over pages (device.Pager), else for one after the other, gathered.
// A layer with a window holds the window only, in a ring of pages; a DeltaNet has its state in each slot.
//
// A sequence takes all pages that it may need when it is admitted, so that none has to give way to another later.
type Paged struct {
	m        *Model
	capacity int // positions of a sequence at most
	pools    []pool
	layers   []pagedLayer
	lengths  []int // positions, by slot
	class    []int // of the frequencies by which keys were turned, by slot: see Model.class
	// places, I32, are all that differs between two passes of n rows: n ids, n positions; then of each pool n rows for the
	// new keys, n first entries, and n numbers of keys. host is what was uploaded.
	places device.Tensor
	host   []int32
	// gathered, [capacity, widest 2·kv·d], are the keys and values of one sequence in order; zero where the device
	// attends over pages.
	gathered device.Tensor
}

// pool is the pages of all layers that hold equally many positions of a sequence.
type pool struct {
	window  int     // 0: all positions are held
	most    int     // pages of a sequence at most
	free    []int   // pages
	pages   [][]int // by slot
	idle    int     // the first row behind all pages: padding rows of a pass write there, and nobody reads it
	entries int     // of the table, of a slot
	// table, I32 [slots·entries, 1], is the row of each position; of a window's ring twice, so that every run of
	// positions is one piece.
	table device.Tensor
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
		l.rows = m.dev.Alloc("pages", device.KVCache, act, p.pools[at].idle+n.Rows, width)
		widest = max(widest, width)
	}
	p.places = m.dev.Alloc("places", device.Batch, tensor.I32, n.Rows*(ofRows+placesOf*len(p.pools)), 1)
	p.host = make([]int32, p.places.Rows)
	if widest > 0 && slices.Contains(m.dev.Info().Lacks, device.Pages) {
		p.gathered = m.dev.Alloc("gathered", device.Scratch, act, n.Capacity, widest)
	}
	return p
}

// newPool returns the pages of the layers with a window, or of those without.
func (m *Model) newPool(n PagedSizes, window int) pool {
	o := pool{window: window, most: pagesOf(n.Capacity), pages: make([][]int, n.Slots)}
	all, entries := max(pagesOf(n.Positions), o.most), o.most*PageRows
	if window > 0 {
		o.most = pagesOf(window + PageRows - 1) // a pass adds up to PageRows keys before the first of its rows attends
		all, entries = o.most*n.Slots, 2*o.most*PageRows
	}
	for i := range all {
		o.free = append(o.free, all-1-i)
	}
	o.idle = all * PageRows
	o.entries, o.table = entries, m.dev.Alloc("pages.table", device.Batch, tensor.I32, n.Slots*entries, 1)
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
		dev.Free(o.table)
	}
	dev.Free(p.places)
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
		s.UploadInts(o.table.RowRange(slot*o.entries, slot*o.entries+len(rows)), rows)
	}
	p.lengths[slot], p.class[slot] = 0, p.m.class(1)
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

// keys returns where the table has the rows of the positions that one of them sees, in order: n entries from the first
// on.
func (o *pool) keys(slot, position int) (first, n int) {
	n = position + 1
	if o.window > 0 && n > o.window {
		first, n = (n-o.window)%(len(o.pages[slot])*PageRows), o.window
	}
	return slot*o.entries + first, n
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
