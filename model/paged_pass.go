package model

import "apr/device"

// each is a pass over one further position of each of several sequences.
type each struct {
	cache *Paged
	slots []int // of the first rows; further rows are padding
}

// ExtendEach runs the body over one further position of the sequences in the given slots, a row of ids (I32 [n,1]) and
// of dst [n, h] each, and writes their final hidden states. Rows behind those of slots are padding: they give a pass
// its shape, and nothing of them reaches another row. A sequence must not outgrow its pages, or the frequencies of its
// rotary embeddings (see Recomputes).
func (m *Model) ExtendEach(s device.Stream, dst device.Tensor, c *Paged, ids device.Tensor, slots []int) {
	n := ids.Rows
	for _, slot := range slots {
		if m.class(c.lengths[slot]+1) != c.class[slot] {
			panic("model: a sequence has outgrown its frequencies")
		}
	}
	c.place(s, n, slots)
	t := Tokens{IDs: ids, Rows: n, SeqLen: 1, Positions: c.places.RowRange(0, n)}
	(&pass{m: m, s: s, t: t, act: dst.DType, each: &each{c, slots}}).extend(dst)
	for _, slot := range slots {
		c.lengths[slot]++
	}
}

// What places has of each pool.
const (
	ofNew = iota
	ofFirst
	ofKeys
	placesOf
)

// place uploads where the rows of a pass stand, in one piece. Padding has position 0 and no keys.
func (p *Paged) place(s device.Stream, n int, slots []int) {
	host := p.host[:n*(1+placesOf*len(p.pools))]
	clear(host)
	for i, slot := range slots {
		host[i] = int32(p.lengths[slot])
	}
	for k := range p.pools {
		o, part := &p.pools[k], host[n*(1+placesOf*k):]
		for i, slot := range slots {
			position := p.lengths[slot]
			first, keys := o.keys(slot, position)
			part[n*ofNew+i], part[n*ofFirst+i], part[n*ofKeys+i] = int32(o.row(slot, position)), int32(first), int32(keys)
		}
	}
	s.UploadInts(p.places.RowRange(0, len(host)), host)
}

// placed returns a part of what place uploaded of a pool, for n rows.
func (p *Paged) placed(pool, n, part int) device.Tensor {
	at := n * (1 + placesOf*pool + part)
	return p.places.RowRange(at, at+n)
}

// attendEach adds the finished k and v of each sequence to its pages, and attends to all keys that its new position
// sees.
func (p *pass) attendEach(b *layer, k *acts) {
	c := p.each.cache
	l := &c.layers[b.Attn.KVFrom]
	if b.own {
		_, kk, v := b.read(k)
		p.keepEach(b, l, kk, v)
	}
	q, out := k.qkv.ColRange(0, b.Attn.QDim()), b.attended(k)
	if !c.gathered.IsZero() {
		p.attendGathered(b, l, q, out)
		return
	}
	o, n, kv, a := &c.pools[l.pool], q.Rows, b.Attn.KVDim(), b.Attn
	most := 1
	for _, keys := range c.host[n*(1+placesOf*l.pool+ofKeys):][:n] {
		most = max(most, int(keys))
	}
	p.s.(device.Pager).AttendPages(out, q, l.rows.ColRange(0, kv), l.rows.ColRange(kv, 2*kv), device.Paged{
		Heads: a.Heads, KVHeads: a.KVHeads, HeadDim: a.HeadDim, Scale: scoreScale(a.Scale, a.HeadDim), Cap: a.Cap,
		Sinks: b.sinks.value,
		Table: o.table, First: c.placed(l.pool, n, ofFirst), Keys: c.placed(l.pool, n, ofKeys), Most: most,
	})
}

// keepEach adds the finished k and v of each sequence to its pages.
func (p *pass) keepEach(b *layer, l *pagedLayer, k, v device.Tensor) {
	c, kv, n := p.each.cache, b.Attn.KVDim(), len(p.each.slots)
	if !c.gathered.IsZero() {
		for i, slot := range p.each.slots {
			to := c.pools[l.pool].row(slot, c.lengths[slot])
			p.s.Copy(l.rows.RowRange(to, to+1).ColRange(0, kv), k.RowRange(i, i+1))
			p.s.Copy(l.rows.RowRange(to, to+1).ColRange(kv, 2*kv), v.RowRange(i, i+1))
		}
		return
	}
	s, rows := p.s.(device.Pager), c.placed(l.pool, k.Rows, ofNew).RowRange(0, n)
	k, v = k.RowRange(0, n), v.RowRange(0, n)
	if b.finishes() {
		s.PutRows(l.rows.ColRange(0, kv), k, rows)
		s.PutRows(l.rows.ColRange(kv, 2*kv), v, rows)
		return
	}
	k.Cols = 2 * kv // they stand side by side
	s.PutRows(l.rows, k, rows)
}

// attendGathered attends for one sequence after the other.
func (p *pass) attendGathered(b *layer, l *pagedLayer, q, out device.Tensor) {
	c, a, kv := p.each.cache, b.Attn, b.Attn.KVDim()
	o := &c.pools[l.pool]
	for i, slot := range p.each.slots {
		first, n := o.keys(slot, c.lengths[slot])
		g := c.gathered.RowRange(0, n).ColRange(0, 2*kv)
		p.s.Gather(g, l.rows, o.table.RowRange(first, first+n))
		at := device.Attn{
			Batch: 1, QLen: 1, KLen: n, QOffset: n - 1, KStride: n, Heads: a.Heads, KVHeads: a.KVHeads, HeadDim: a.HeadDim,
			Scale: scoreScale(a.Scale, a.HeadDim), Cap: a.Cap, Sinks: b.sinks.value,
		}
		one := q.RowRange(i, i+1)
		p.s.Attention(out.RowRange(i, i+1), device.Tensor{}, one, g.ColRange(0, kv), g.ColRange(kv, 2*kv), at)
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
