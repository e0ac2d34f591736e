package model

import (
	"apr/arch"
	"apr/device"
)

// Tokens is what a forward pass reads: ids of Rows sequences of SeqLen positions each, I32 [Rows·SeqLen, 1].
type Tokens struct {
	IDs          device.Tensor
	Rows, SeqLen int
}

// n returns the number of positions.
func (t Tokens) n() int { return t.Rows * t.SeqLen }

// Slice returns sequences [lo,hi).
func (t Tokens) Slice(lo, hi int) Tokens {
	return Tokens{IDs: t.IDs.RowRange(lo*t.SeqLen, hi*t.SeqLen), Rows: hi - lo, SeqLen: t.SeqLen}
}

func (t Tokens) attn(a arch.Attention) device.Attn {
	return device.Attn{
		Batch: t.Rows, QLen: t.SeqLen, KLen: t.SeqLen, KStride: t.SeqLen,
		Heads: a.Heads, KVHeads: a.KVHeads, HeadDim: a.HeadDim,
	}
}

// rotary is the rotary embedding, which all layers share.
func (m *Model) rotary(seqLen, offset int, inverse bool) device.Rotary {
	r := m.Config.Ropes[0]
	return device.Rotary{HeadDim: r.HeadDim, Theta: r.Theta, SeqLen: seqLen, Offset: offset, Inverse: inverse}
}

// Hidden writes the final normalised hidden states of every position to dst [n, h], keeping nothing:
//
//	x = embed(ids); per layer x += o(attention(rope(qkv(norm(x))))), x += down(swiglu(gateUp(norm(x)))); norm(x)
//
// It is the body of a teacher and of an evaluation.
func (m *Model) Hidden(s device.Stream, dst device.Tensor, t Tokens) {
	n, h := t.n(), m.Config.Hidden
	a, width := m.shape()
	temp := func(name string, cols int) device.Tensor {
		return s.Temp(name, device.Scratch, dst.DType, n, cols)
	}
	x, y, delta := temp("x", h), temp("y", h), temp("delta", h)
	qkv, att := temp("qkv", qkvDim(a)), temp("attention", a.QDim())
	gu, prod := temp("gate_up", 2*width), temp("swiglu", width)

	s.Embed(x, m.embed, t.IDs)
	var none device.Tensor
	pending := none // what the previous block adds to x; the next norm does the adding
	for i := range m.layers {
		l := &m.layers[i]
		m.normed(s, y, none, x, pending, l.inputNorm)
		m.attend(s, l, att, none, qkv, y, t)
		s.MatMul(delta, att, l.o, none, false)
		m.normed(s, y, none, x, delta, l.postNorm)
		s.MatMulSwiGLU(prod, gu, y, l.gateUp, false)
		s.MatMul(delta, prod, l.down, none, false)
		pending = delta
	}
	m.normed(s, dst, none, x, pending, m.norm)
	s.Release(prod, gu, att, qkv, delta, y, x)
}

// normed adds delta to x (if there is one) and writes the norm of the sum to y.
func (m *Model) normed(s device.Stream, y, rstd, x, delta, w device.Tensor) {
	sum := x
	if delta.IsZero() {
		sum = delta
	}
	s.RMSNorm(y, rstd, sum, x, delta, w, m.Config.Eps)
}

// attend computes qkv = rope(y·Wᵀ+b) and att = attention(q, k, v), keeping lse if it is given.
func (m *Model) attend(s device.Stream, l *layer, att, lse, qkv, y device.Tensor, t Tokens) {
	a, _ := m.shape()
	q, kv := a.QDim(), a.KVDim()
	s.MatMul(qkv, y, l.qkv, l.qkvBias, false)
	s.Rotate(qkv.ColRange(0, q+kv), m.rotary(t.SeqLen, 0, false)) // q and k are neighbours: one pass over both
	s.Attention(att, lse, qkv.ColRange(0, q), qkv.ColRange(q, q+kv), qkv.ColRange(q+kv, q+2*kv), t.attn(a))
}

// Logits writes the logits of hidden rows x [c, h] over the first dst.Cols ids to dst [c, V] float32.
func (m *Model) Logits(s device.Stream, dst, x device.Tensor) {
	s.MatMul(dst, x, m.head, device.Tensor{}, false)
}
