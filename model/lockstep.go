package model

import (
	"apr/device"
	"apr/tensor"
)

// Lockstep holds the finished keys and the values of sequences that all are at one position. Every layer then attends
// with one operation, where a Paged cache needs four for each sequence: that is what many short texts of one length
// want.
type Lockstep struct {
	m                      *Model
	rows, capacity, length int
	layers                 []device.Tensor // [rows·capacity, 2·kv·d]: of row r from r·capacity on, a key and its value
	fresh                  []bool          // layers that have memory of their own
	replays                bool            // a pass is one launch, where the device can: see NewLockstep
}

// together says which sequences of a Lockstep a pass extends: first, first+group and so on. What is kept for each of
// them is kept for the group sequences that begin with it.
type together struct {
	*Lockstep
	first, group int
}

// PromptPositions are how many positions of each sequence a pass of ReadTogether takes.
const PromptPositions = 16

// InStep says why sequences of up to capacity positions cannot be extended in lock-step; "": they can.
func (m *Model) InStep(capacity int) string { return m.Rewinds(capacity) }

// NewLockstep reserves the keys and values of rows sequences of up to capacity positions. InStep allows it.
//
// Where another stream's launches stand beside its own, a pass is given to a device.Replayer as one launch, which waits
// for those of the other once. Alone it is not: to set the arguments that differ takes longer than launches do.
func (m *Model) NewLockstep(rows, capacity int) *Lockstep {
	if why := m.InStep(capacity); why != "" {
		panic("model: no lock-step with " + why)
	}
	c := &Lockstep{m: m, rows: rows, capacity: capacity, replays: m.beside}
	act := m.dev.Info().Activations
	for i := range m.layers {
		b := &m.layers[i]
		if !b.own {
			c.layers, c.fresh = append(c.layers, c.layers[b.Attn.KVFrom]), append(c.fresh, false)
			continue
		}
		t := m.dev.Alloc("lockstep", device.KVCache, act, rows*capacity, 2*b.Attn.KVDim())
		c.layers, c.fresh = append(c.layers, t), append(c.fresh, true)
	}
	return c
}

// Free gives the memory back; the cache must not be used afterwards.
func (c *Lockstep) Free() {
	for i, t := range c.layers {
		if c.fresh[i] {
			c.m.dev.Free(t)
		}
	}
}

// Rows returns the number of sequences.
func (c *Lockstep) Rows() int { return c.rows }

// Capacity returns the positions that a sequence may have.
func (c *Lockstep) Capacity() int { return c.capacity }

// Len returns the positions that every sequence has.
func (c *Lockstep) Len() int { return c.length }

// Reset forgets all positions.
func (c *Lockstep) Reset() { c.length = 0 }

// Assume makes a dry device take the cache as filled up to n positions.
func (c *Lockstep) Assume(n int) { c.length = n }

// ExtendTogether runs the body over one further position of every sequence, a row of ids (I32 [rows, 1]) each, and
// writes their final hidden states to dst [rows, h].
func (m *Model) ExtendTogether(s device.Stream, dst device.Tensor, c *Lockstep, ids device.Tensor) {
	if ids.Rows != c.rows || c.length >= c.capacity {
		panic("model: a lock-step over other rows, or beyond its capacity")
	}
	t := Tokens{IDs: ids, Rows: c.rows, SeqLen: 1}
	(&pass{m: m, s: s, t: t, act: dst.DType, lock: &together{c, 0, 1}}).extend(dst, func(_ *workspace, body func()) {
		if r, ok := s.(device.Replayer); ok && c.replays {
			r.Replay(body)
			return
		}
		body()
	})
	c.length++
}

// ReadTogether runs the body over the next PromptPositions positions of the sequences first, first+group and so on, as
// many as ids (I32 [n·PromptPositions, 1]) are of, position after position of each. It keeps their keys and values for
// the group sequences that begin with each of them and have the same ids there, and computes nothing else. Advance has
// to follow when all sequences were read.
func (m *Model) ReadTogether(s device.Stream, c *Lockstep, ids device.Tensor, first, group int) {
	n := ids.Rows / PromptPositions
	if ids.Rows != n*PromptPositions || n == 0 || first < 0 || first+n*group > c.rows ||
		c.length+PromptPositions > c.capacity {
		panic("model: positions of a lock-step that it has no room for")
	}
	t := Tokens{IDs: ids, Rows: n, SeqLen: PromptPositions}
	p := &pass{m: m, s: s, t: t, act: m.dev.Info().Activations, lock: &together{c, first, group}}
	m.arrange(s, ids.Rows)
	w := newWorkspace(s, ids.Rows)
	x := p.inference(w)
	v := p.embed(x)
	p.perLayer(w, &perLayerActs{}, x)
	for i := range m.layers {
		v = p.layer(&m.layers[i], p.reused(&m.layers[i]), v, false)
	}
	w.release()
}

// Advance makes every sequence n positions longer, which ReadTogether has read.
func (c *Lockstep) Advance(n int) { c.length += n }

// extend runs the body over further positions of several sequences, and writes their final hidden states to
// dst [t.Rows, h]. It gives run its operations, and the tensors that they take in turn.
func (p *pass) extend(dst device.Tensor, run func(w *workspace, body func())) {
	p.m.arrange(p.s, p.t.Rows)
	w := newWorkspace(p.s, p.t.Rows)
	x := p.inference(w)
	run(w, func() {
		v := p.embed(x)
		p.perLayer(w, &perLayerActs{}, x)
		for i := range p.m.layers {
			v = p.layer(&p.m.layers[i], p.reused(&p.m.layers[i]), v, false)
		}
		p.last(dst, device.Tensor{}, x, v)
	})
	w.release()
}

// attendTogether adds the finished k and v of the positions of every sequence to the cache, and attends.
func (p *pass) attendTogether(b *layer, k *acts) {
	c, kv, n := p.lock, b.Attn.KVDim(), p.t.SeqLen
	q, all := k.qkv.ColRange(0, b.Attn.QDim()), c.layers[b.index]
	if b.own {
		p.keepTogether(b, k, all)
	}
	a := b.Attn
	d := device.Attn{
		Batch: p.t.Rows, QLen: n, KLen: c.length + n, QOffset: c.length, KStride: c.group * c.capacity,
		Heads: a.Heads, KVHeads: a.KVHeads, HeadDim: a.HeadDim, Scale: scoreScale(a.Scale, a.HeadDim), Cap: a.Cap,
		Sinks: b.sinks.value,
	}
	if a.Window > 0 && a.Window < d.KLen {
		d.Window = a.Window
	}
	all = all.RowRange(c.first*c.capacity, all.Rows)
	p.s.Attention(b.attended(k), device.Tensor{}, q, all.ColRange(0, kv), all.ColRange(kv, 2*kv), d)
}

// keepTogether writes the finished k and v of the positions to the rows of a layer, for all sequences of each group.
func (p *pass) keepTogether(b *layer, k *acts, all device.Tensor) {
	c, kv, n := p.lock, b.Attn.KVDim(), p.t.SeqLen
	_, kk, v := b.read(k)
	put := func(at device.Tensor) {
		if b.finishes() {
			p.s.Copy(at.ColRange(0, kv), kk)
			p.s.Copy(at.ColRange(kv, 2*kv), v)
			return
		}
		kk.Cols = 2 * kv // they stand side by side
		p.s.Copy(at, kk)
	}
	// at are the rows of one position of a sequence of each group, or those of several as one long row each.
	at := func(i int) device.Tensor {
		t := all.RowRange((c.first+i)*c.capacity+c.length, all.Rows)
		t.Rows, t.Cols, t.Stride = p.t.Rows, n*all.Cols, c.group*c.capacity*all.Stride
		return t
	}
	if n == 1 && c.group == 1 {
		put(at(0))
		return
	}
	dense := p.s.Temp("lockstep", device.Scratch, p.act, p.t.n(), 2*kv)
	put(dense)
	rows := dense
	rows.Rows, rows.Cols, rows.Stride = p.t.Rows, n*dense.Cols, n*dense.Cols
	for i := range c.group {
		p.s.Copy(at(i), rows)
	}
	p.s.Release(dense)
}

// lockstepBytes returns the bytes of a position of one sequence.
func (m *Model) lockstepBytes(act tensor.DType) int64 {
	n := int64(0)
	for i := range m.layers {
		if b := &m.layers[i]; b.own {
			n += int64(2*b.Attn.KVDim()) * int64(act.BlockBytes())
		}
	}
	return n
}

// LockstepRows returns how many of rows sequences of capacity positions are extended at a time, so that their keys and
// values take at most limit bytes, but no fewer than least.
func (m *Model) LockstepRows(rows, capacity, least int, limit int64) int {
	each := m.lockstepBytes(m.dev.Info().Activations) * int64(capacity)
	return min(rows, max(least, int(limit/max(1, each))))
}
