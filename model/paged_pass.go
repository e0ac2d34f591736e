package model

import (
	"slices"

	"apr/device"
)

// each is a pass over further positions of several sequences.
type each struct {
	cache *Paged
	slots []int // of the first rows; further rows are padding
}

// sameClass reports whether all sequences are in one class of frequencies.
func (e *each) sameClass() bool {
	return !slices.ContainsFunc(e.slots, func(slot int) bool { return e.cache.class[slot] != e.class() })
}

// class is that of the first sequence, of a pass of padding the first there is.
func (e *each) class() int {
	if len(e.slots) == 0 {
		return 0
	}
	return e.cache.class[e.slots[0]]
}

// alike reports whether the pass writes k and v of several sequences to their pages, by rows, in one class of
// frequencies.
func (p *pass) alike() bool {
	return p.each != nil && p.each.cache.gathered.IsZero() && p.each.sameClass()
}

// ExtendEach runs the body over further positions of the sequences in the given slots, a row of ids and of dst [n,
// h] each, and writes their final hidden states. A slot that occurs several times, at most PageRows, is extended
// by as many positions, in the order of rows. Rows behind those of slots are padding: they give a pass its shape,
// they write where nobody reads, and nothing of them reaches another row. A sequence must not outgrow its pages,
// or the frequencies of its rotary embeddings (see Recomputes).
//
// The operations of a pass, and of behind, are those of every other pass of n rows but for what is in one buffer,
// which is uploaded before them, and for the bucket of the longest sequence: a device.Replayer gives the device
// all of them as one launch, and needs to be told them once.
func (m *Model) ExtendEach(s device.Stream, dst device.Tensor, c *Paged, ids []int32, slots []int, behind Behind) {
	n := len(ids)
	c.place(s, ids, slots)
	t := Tokens{IDs: c.places.RowRange(0, n), Rows: n, SeqLen: 1, Positions: c.places.RowRange(n, 2*n)}
	p := &pass{m: m, s: s, t: t, act: dst.DType, each: &each{c, slots}}
	p.extend(dst, func(w *workspace, body func()) {
		all := func() {
			body()
			if behind.Run != nil {
				behind.Run()
			}
		}
		r, ok := s.(device.Replayer)
		switch {
		case !ok:
			all()
		case c.uniform(slots):
			r.ReplayAs(device.ReplayKey{
				Of:      c,
				Numbers: append(c.buckets(n, slots), behind.Numbers...),
				Tensors: slices.Concat(w.all, []device.Tensor{dst}, behind.Tensors),
			}, all)
		default:
			r.Replay(all)
		}
	})
}

// Behind is what follows a pass in one launch with it: Run, whose operations follow from Numbers and Tensors.
type Behind struct {
	Run     func()
	Numbers []int
	Tensors []device.Tensor
}

// uniform reports whether a pass has the same operations whichever slots take part.
func (p *Paged) uniform(slots []int) bool {
	if !p.gathered.IsZero() || slices.ContainsFunc(p.layers, func(l pagedLayer) bool { return l.states != nil }) {
		return false
	}
	return !slices.ContainsFunc(slots, func(slot int) bool { return p.class[slot] != p.class[slots[0]] })
}

// buckets returns on what numbers the operations of a pass of n rows depend: rows, class of frequencies, and the
// bucket of each pool.
func (p *Paged) buckets(n int, slots []int) []int {
	all := []int{n, 0}
	if len(slots) > 0 {
		all[1] = p.class[slots[0]]
	}
	for k := range p.pools {
		_, keys := p.placed(k, n, ofKeys)
		all = append(all, bucketOf(slices.Max(keys)))
	}
	return all
}

// Replaying says how the operations of the latest pass ran; empty: the device knows one way only.
func (p *Paged) Replaying(s device.Stream) string {
	if r, ok := s.(device.Replayer); ok {
		return r.Replaying()
	}
	return ""
}

// TakesPrompt reports whether ExtendEach can read a prompt of n positions, row by row, at the price of as many
// rows of a text that is written. It cannot where frequencies change on the way; a DeltaNet, and keys that are
// gathered, take operations for each row.
func (p *Paged) TakesPrompt(n int) bool {
	linear := slices.ContainsFunc(p.layers, func(l pagedLayer) bool { return l.states != nil })
	return !linear && p.gathered.IsZero() && p.m.Recomputes(0, n) == 0
}

// What places has before the parts of each pool, and of each pool.
const (
	ofRows = 2 // ids and positions

	ofNew    = 0
	ofFirst  = 1
	ofKeys   = 2
	placesOf = 3
)

// place uploads ids and where the rows of a pass stand, in one piece, and makes the sequences longer. Padding has
// position 0, no keys, and rows of its own for what it writes.
func (p *Paged) place(s device.Stream, ids []int32, slots []int) {
	n := len(ids)
	host := p.host[:n*(ofRows+placesOf*len(p.pools))]
	clear(host)
	copy(host, ids)
	for i, slot := range slots {
		position := p.lengths[slot]
		if p.m.class(position+1) != p.class[slot] {
			panic("model: a sequence has outgrown its frequencies")
		}
		host[n+i] = int32(position)
		for k := range p.pools {
			o, part := &p.pools[k], host[n*(ofRows+placesOf*k):]
			first, keys := o.keys(slot, position)
			part[n*ofNew+i], part[n*ofFirst+i], part[n*ofKeys+i] = int32(o.row(slot, position)), int32(first), int32(keys)
		}
		p.lengths[slot]++
	}
	for k := range p.pools {
		part := host[n*(ofRows+placesOf*k+ofNew):]
		for i := len(slots); i < n; i++ {
			part[i] = int32(p.pools[k].idle + i)
		}
	}
	s.UploadInts(p.places.RowRange(0, len(host)), host)
}

// placed returns a part of what place uploaded of a pool, for n rows, and its values.
func (p *Paged) placed(pool, n, part int) (device.Tensor, []int32) {
	at := n * (ofRows + placesOf*pool + part)
	return p.places.RowRange(at, at+n), p.host[at : at+n]
}

// leastBucket is the least bucket of the number of keys of a pass.
const leastBucket = 256

// bucketOf rounds a number of keys up to a power of two: what depends on it stays the same for many passes.
func bucketOf(keys int32) int {
	b := leastBucket
	for b < int(keys) {
		b *= 2
	}
	return b
}

// attendEach attends to all keys that the new position of each sequence sees.
func (p *pass) attendEach(b *layer, k *acts) {
	c := p.each.cache
	l := &c.layers[b.Attn.KVFrom]
	q, out := k.qkv.ColRange(0, b.Attn.QDim()), b.attended(k)
	if !c.gathered.IsZero() {
		p.attendGathered(b, l, q, out)
		return
	}
	o, n, kv, a := &c.pools[l.pool], q.Rows, b.Attn.KVDim(), b.Attn
	first, _ := c.placed(l.pool, n, ofFirst)
	keys, numbers := c.placed(l.pool, n, ofKeys)
	p.s.(device.Pager).AttendPages(out, q, l.rows.ColRange(0, kv), l.rows.ColRange(kv, 2*kv), device.Paged{
		Heads: a.Heads, KVHeads: a.KVHeads, HeadDim: a.HeadDim, Scale: scoreScale(a.Scale, a.HeadDim), Cap: a.Cap,
		Sinks: b.sinks.value,
		Table: o.table, First: first, Keys: keys, Most: bucketOf(slices.Max(numbers)),
	})
}

// keepEach adds the finished k and v of each sequence to its pages.
func (p *pass) keepEach(b *layer, x *acts) {
	_, k, v := b.read(x)
	c, kv := p.each.cache, b.Attn.KVDim()
	l := &c.layers[b.Attn.KVFrom]
	rows, numbers := c.placed(l.pool, k.Rows, ofNew)
	if !c.gathered.IsZero() {
		for i := range p.each.slots {
			to := int(numbers[i])
			p.s.Copy(l.rows.RowRange(to, to+1).ColRange(0, kv), k.RowRange(i, i+1))
			p.s.Copy(l.rows.RowRange(to, to+1).ColRange(kv, 2*kv), v.RowRange(i, i+1))
		}
		return
	}
	s := p.s.(device.Pager)
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
	_, firsts := c.placed(l.pool, q.Rows, ofFirst)
	_, numbers := c.placed(l.pool, q.Rows, ofKeys)
	for i := range p.each.slots {
		first, n := int(firsts[i]), int(numbers[i])
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
func (p *pass) ruleEach(b *layer, d *deltaActs, in deltaParts) {
	t, rule := &b.delta, p.rule(b)
	rule.Sequences = device.Sequences{Batch: 1, Len: 1}
	for i, slot := range p.each.slots {
		at := p.each.cache.layers[b.index].states[slot]
		row := func(x device.Tensor) device.Tensor { return x.RowRange(i, i+1) }
		p.s.Conv(row(d.u), row(in.qkv), t.conv.value, at.inputs, at.inputs, rule.Sequences)
		p.s.DeltaNet(row(d.o), row(d.u), row(in.ba), t.logA.value, t.dt.value, at.state, at.state, rule)
	}
	p.inert(d.o)
}

// rotateEach turns q and k of each sequence by its position; those of one class of frequencies at a time.
func (p *pass) rotateEach(b *layer, x device.Tensor, r device.Rotary) {
	e := p.each
	r.SeqLen, r.Offset = 1, e.cache.capacity-1 // positions of a table: as many as there may be
	if e.sameClass() {
		p.turn(b, x, r, e.class())
		return
	}
	for i, slot := range e.slots {
		r.Positions = p.t.Positions.RowRange(i, i+1)
		p.turn(b, x.RowRange(i, i+1), r, e.cache.class[slot])
	}
}
