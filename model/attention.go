package model

import (
	"apr/arch"
	"apr/device"
)

// attend computes k.att from the input of the mixer: project, normalise and turn q and k, attend, gate.
func (p *pass) attend(b *layer, k *acts, in *operand) {
	qkv := b.qkv.keeping(k.low.qkv)
	switch {
	case b.Attn.Gate:
		p.project(qkv, k.mixed, in)
	case b.finishes():
		p.project(qkv, k.proj, in)
	default:
		p.project(qkv, k.qkv, in)
	}
	finished := p.finishAtOnce(b, k)
	if !finished {
		if b.Attn.Gate {
			p.unmix(b, k)
		}
		p.finish(b, k)
	}
	if p.each != nil || p.lock != nil {
		if p.each != nil {
			if b.own && !finished {
				p.keepEach(b, k)
			}
			p.attendEach(b, k)
		} else {
			p.attendTogether(b, k)
		}
		p.gated(b, k)
		return
	}
	q, kk, v := b.read(k)
	lse, kept := k.lse, p.maps[b.index]
	if !kept.LSE.IsZero() {
		lse = kept.LSE
		p.s.Copy(kept.Q, q)
		p.s.Copy(kept.K, kk)
	}
	p.s.Attention(b.attended(k), lse, q, kk, v, p.attn(b))
	p.gated(b, k)
}

// unmix moves the heads of q and the gates, which take turns in the projections, apart.
func (p *pass) unmix(b *layer, k *acts) {
	n, d := b.Attn.QDim(), b.Attn.HeadDim
	p.s.Deinterleave(k.proj.ColRange(0, n), k.gate.ColRange(0, n), k.mixed.ColRange(0, 2*n), d)
	if b.own {
		p.s.Copy(k.proj.ColRange(n, k.proj.Cols), k.mixed.ColRange(2*n, k.mixed.Cols))
	}
}

// attended returns where attention writes: beside the gates, so that both are the operands of a gated unit, or what o reads.
func (b *layer) attended(k *acts) device.Tensor {
	if b.Attn.Gate {
		return k.gate.ColRange(b.Attn.QDim(), 2*b.Attn.QDim())
	}
	return k.att
}

// gated multiplies the attention by σ of its gates.
func (p *pass) gated(b *layer, k *acts) {
	if b.Attn.Gate {
		p.s.GLU(k.att, k.gate, device.Sigmoid)
	}
}

// raw returns the projections of q, k and v. v is k's where it has no projection of its own; a layer that reads another's
// keys has neither.
func (b *layer) raw(proj device.Tensor) (q, k, v device.Tensor) {
	n, kv := b.Attn.QDim(), b.Attn.KVDim()
	q = proj.ColRange(0, n)
	if !b.own {
		return q, k, v
	}
	k = proj.ColRange(n, n+kv)
	if b.Attn.VIsK {
		return q, k, k
	}
	return q, k, proj.ColRange(n+kv, n+2*kv)
}

// finish computes q, k and v from their projections: norms, rotary embeddings, and the place where others read k and v.
func (p *pass) finish(b *layer, k *acts) {
	n, kv := b.Attn.QDim(), b.Attn.KVDim()
	if b.finishes() {
		rawQ, rawK, rawV := b.raw(k.proj)
		p.headNorm(k.qkv.ColRange(0, n), k.rstdQ, rawQ, b.qNorm, b)
		if b.own {
			p.headNorm(k.qkv.ColRange(n, n+kv), k.rstdK, rawK, b.kNorm, b)
			if b.Attn.VNorm {
				p.s.HeadNorm(k.qkv.ColRange(n+kv, n+2*kv), k.rstdV, rawV, device.Tensor{}, b.Attn.HeadDim, p.m.Config.Eps)
			}
		}
	}
	p.rotate(b, k.qkv, false)
	if b.own && !k.kv.IsZero() {
		p.store(b, k)
	}
}

// finishAtOnce is unmix and finish of a few positions, whose k and v go to a cache or to pages, as one operation, if
// the device has it.
func (p *pass) finishAtOnce(b *layer, k *acts) bool {
	f, ok := p.s.(device.Finisher)
	a := b.Attn
	if !ok || p.cache == nil && !p.alike() || !b.own {
		return false
	}
	if a.VNorm || a.VIsK || a.QBeta != 0 || a.Rope < 0 || a.QKNorm == arch.RowNorm {
		return false
	}
	x, n := k.qkv, a.QDim()
	var gate device.Tensor
	switch {
	case a.Gate:
		x, gate = k.mixed, k.gate.ColRange(0, n)
	case b.finishes():
		x = k.proj
	}
	q := k.qkv.ColRange(0, n)
	r := device.Rotary{HeadDim: a.HeadDim, SeqLen: p.t.SeqLen}
	var kv, rows device.Tensor
	if c := p.cache; c != nil {
		held := c.layers[b.index].held
		r.Table, r.Offset, kv = p.m.table(a.Rope, c.class), c.length, k.kv.RowRange(held, held+p.t.n())
	} else {
		c := p.each.cache
		l := &c.layers[b.index]
		r.Table, r.Offset, r.Positions, kv = p.m.table(a.Rope, p.each.class()), c.capacity-1, p.t.Positions, l.rows
		rows, _ = c.placed(l.pool, x.Rows, ofNew)
	}
	x = x.ColRange(0, q.Cols+gate.Cols+kv.Cols)
	return f.FinishHeads(q, gate, kv, rows, x, b.qNorm.value, b.kNorm.value, p.m.Config.Eps, r)
}

// headNorm writes the norm of q or k, or copies them.
func (p *pass) headNorm(y, rstd, x device.Tensor, w vector, b *layer) {
	switch b.Attn.QKNorm {
	case arch.NoQKNorm:
		p.s.Copy(y, x)
	case arch.RowNorm:
		p.s.HeadNorm(y, rstd, x, w.value, x.Cols, p.m.Config.Eps)
	default:
		p.s.HeadNorm(y, rstd, x, w.value, b.Attn.HeadDim, p.m.Config.Eps)
	}
}

// still is the table of a rotary embedding that turns nothing, for queries that only their positions scale.
var still = &device.Frequencies{Inv: []float64{0}}

// rotate turns q and k, the first columns of x, by their positions, or back, and scales q by them.
func (p *pass) rotate(b *layer, x device.Tensor, inverse bool) {
	r := device.Rotary{HeadDim: b.Attn.HeadDim, Table: still, SeqLen: p.t.SeqLen, Positions: p.t.Positions, Inverse: inverse}
	switch {
	case p.each != nil:
		p.rotateEach(b, x, r)
	case p.lock != nil:
		r.Offset = p.lock.length
		p.turn(b, x, r, 0) // of sequences short enough for one class: see InStep
	case p.cache != nil:
		r.Offset = p.cache.length
		p.turn(b, x, r, p.cache.class)
	default:
		p.turn(b, x, r, p.m.class(p.t.SeqLen))
	}
}

// turn is rotate with the frequencies of a class.
func (p *pass) turn(b *layer, x device.Tensor, r device.Rotary, class int) {
	a, n := b.Attn, b.Attn.QDim()
	both := n
	if a.Rope >= 0 {
		r.Table = p.m.table(a.Rope, class)
		if b.own {
			both += a.KVDim()
		}
	}
	if a.QBeta == 0 {
		if a.Rope >= 0 {
			p.s.Rotate(x.ColRange(0, both), r) // q and k are neighbours: one pass over both
		}
		return
	}
	if both > n {
		p.s.Rotate(x.ColRange(n, both), r)
	}
	r.QBeta, r.QLength = a.QBeta, a.QLength
	p.s.Rotate(x.ColRange(0, n), r)
}

// store copies the finished k and v to where other layers or later positions read them.
func (p *pass) store(b *layer, k *acts) {
	n, kv := b.Attn.QDim(), b.Attn.KVDim()
	at := 0
	if p.cache != nil {
		at = p.cache.layers[b.index].held
	}
	to := k.kv.RowRange(at, at+p.t.n())
	if !b.finishes() || b.Attn.VNorm { // k and v are neighbours
		p.s.Copy(to, k.qkv.ColRange(n, n+2*kv))
		return
	}
	_, _, v := b.raw(k.proj)
	p.s.Copy(to.ColRange(0, kv), k.qkv.ColRange(n, n+kv))
	p.s.Copy(to.ColRange(kv, 2*kv), v)
}

// read returns the finished q, k and v where attention reads them.
func (b *layer) read(k *acts) (q, kk, v device.Tensor) {
	n, kv := b.Attn.QDim(), b.Attn.KVDim()
	q = k.qkv.ColRange(0, n)
	switch {
	case !k.kv.IsZero():
		return q, k.kv.ColRange(0, kv), k.kv.ColRange(kv, 2*kv)
	case b.finishes() && !b.Attn.VNorm:
		_, _, v = b.raw(k.proj)
		return q, k.qkv.ColRange(n, n+kv), v
	}
	return q, k.qkv.ColRange(n, n+kv), k.qkv.ColRange(n+kv, n+2*kv)
}

// attn describes the attention of a layer. A window that hides nothing is none.
func (p *pass) attn(b *layer) device.Attn {
	a, t := b.Attn, p.t
	d := device.Attn{
		Batch: t.Rows, QLen: t.SeqLen, KLen: t.SeqLen, KStride: t.SeqLen,
		Heads: a.Heads, KVHeads: a.KVHeads, HeadDim: a.HeadDim, Scale: scoreScale(a.Scale, a.HeadDim), Cap: a.Cap,
		First: t.First,
		Sinks: b.sinks.value,
	}
	if p.cache != nil {
		c := &p.cache.layers[a.KVFrom]
		d.KLen, d.QOffset, d.KStride = c.held+t.SeqLen, c.held, c.rows.Rows
	}
	if a.Window < d.KLen {
		d.Window = a.Window
	}
	return d
}
