package model

import (
	"fmt"

	"apr/device"
	"apr/tensor"
)

// Recompute says what a training forward does not keep for its backward, which then computes it again. The gradients
// are the same bits: the same operations on the same values. Per position and layer Forward keeps, in values of the
// activation type with d = head dimension, h hidden and f intermediate width (and 2 + heads float32):
//
//	RecomputeNone    4h + (2·heads + 2·kv)·d + 3f
//	RecomputeNorms   2h + (2·heads + 2·kv)·d + 2f
//	RecomputeBlocks   h
type Recompute int

// The policies, from the fastest to the smallest.
const (
	RecomputeNone   Recompute = iota // keep all
	RecomputeNorms                   // all but what norms and SwiGLU write: no product is computed twice
	RecomputeBlocks                  // a block's input only: its forward runs again before its backward
)

var recomputes = []string{"none", "norms", "blocks"}

// String returns the name as in options.
func (r Recompute) String() string { return recomputes[r] }

// ParseRecompute returns the policy of that name.
func ParseRecompute(s string) (Recompute, error) {
	for r, name := range recomputes {
		if s == name {
			return Recompute(r), nil
		}
	}
	return 0, fmt.Errorf("no recomputation is called %q; there are none, norms and blocks", s)
}

// Saved holds what a training forward keeps for its backward. Release gives the memory back to the stream.
type Saved struct {
	tokens    Tokens
	recompute Recompute
	layers    []savedLayer
	x, rstd   device.Tensor // input of the final norm
	Hidden    device.Tensor // its output [n, h]: the input of the head
	allocated []device.Tensor
}

// savedLayer is what the backward of one layer reads. Tensors that are not kept are zero.
type savedLayer struct {
	x, rstd1, y1   device.Tensor // residual before the attention block, 1/σ, normed
	qkv, att, lse  device.Tensor // rotated q, k, v, the attention, its log-sum-exp
	x2, rstd2, y2  device.Tensor // residual before the MLP, 1/σ, normed
	gateUp, swiglu device.Tensor // gate and up, their product
}

// ReleaseTo gives the kept activations back.
func (v *Saved) ReleaseTo(s device.Stream) { s.Release(v.allocated...) }

// allocator takes a temp of n rows.
type allocator func(name string, d tensor.DType, cols int) device.Tensor

// fill takes those tensors of k, but x, that r keeps and k lacks.
func (m *Model) fill(k *savedLayer, r Recompute, take allocator) {
	act, h := m.dev.Info().Activations, m.Config.Hidden
	a, f := m.shape()
	for _, e := range []struct {
		t    *device.Tensor
		last Recompute // that keeps it
		name string
		d    tensor.DType
		cols int
	}{
		{&k.rstd1, RecomputeNorms, "rstd1", tensor.F32, 1},
		{&k.y1, RecomputeNone, "y1", act, h},
		{&k.qkv, RecomputeNorms, "qkv", act, qkvDim(a)},
		{&k.att, RecomputeNorms, "attention", act, a.QDim()},
		{&k.lse, RecomputeNorms, "lse", tensor.F32, a.Heads},
		{&k.x2, RecomputeNorms, "x2", act, h},
		{&k.rstd2, RecomputeNorms, "rstd2", tensor.F32, 1},
		{&k.y2, RecomputeNone, "y2", act, h},
		{&k.gateUp, RecomputeNorms, "gate_up", act, 2 * f},
		{&k.swiglu, RecomputeNone, "swiglu", act, f},
	} {
		if r <= e.last && e.t.IsZero() {
			*e.t = take(e.name, e.d, e.cols)
		}
	}
}

// workspace is one set of the tensors that are not kept; all layers use it in turn.
type workspace struct {
	s      device.Stream
	n      int
	byName map[string]device.Tensor
	all    []device.Tensor
}

func newWorkspace(s device.Stream, n int) *workspace {
	return &workspace{s: s, n: n, byName: map[string]device.Tensor{}}
}

// take returns the tensor of that name, the same each time.
func (w *workspace) take(name string, d tensor.DType, cols int) device.Tensor {
	t, ok := w.byName[name]
	if !ok {
		t = w.s.Temp(name, device.Scratch, d, w.n, cols)
		w.byName[name] = t
		w.all = append(w.all, t)
	}
	return t
}

func (w *workspace) release() { w.s.Release(w.all...) }

// keep takes everything that a forward of t keeps, before anything that it uses in passing: what is left when that is
// released has no holes.
func (m *Model) keep(s device.Stream, t Tokens, r Recompute) *Saved {
	act, h := m.dev.Info().Activations, m.Config.Hidden
	v := &Saved{tokens: t, recompute: r, layers: make([]savedLayer, len(m.layers))}
	take := func(name string, d tensor.DType, cols int) device.Tensor {
		x := s.Temp(name, device.Activations, d, t.n(), cols)
		v.allocated = append(v.allocated, x)
		return x
	}
	for i := range v.layers {
		v.layers[i].x = take("x", act, h)
		m.fill(&v.layers[i], r, take)
	}
	v.x, v.rstd, v.Hidden = take("x", act, h), take("rstd", tensor.F32, 1), take("hidden", act, h)
	return v
}

// Forward computes the final hidden states of a trainable model and keeps what Backward needs beyond what r says will be
// computed again.
func (m *Model) Forward(s device.Stream, t Tokens, r Recompute) *Saved {
	v, w := m.keep(s, t, r), newWorkspace(s, t.n())
	delta := w.take("delta", m.dev.Info().Activations, m.Config.Hidden)
	var none, before, pending device.Tensor // the residual before a layer is before + pending
	for i := range m.layers {
		l, k := &m.layers[i], v.layers[i]
		m.fill(&k, RecomputeNone, w.take)
		if i == 0 {
			s.Embed(k.x, m.embed, t.IDs)
			before = k.x
		}
		m.sumNorm(s, k.y1, k.rstd1, k.x, before, pending, l.inputNorm)
		m.afterNorm(s, l, &k, delta, t, r < RecomputeBlocks)
		s.MatMul(delta, k.swiglu, l.down, none, false)
		before, pending = k.x2, delta
	}
	m.sumNorm(s, v.Hidden, v.rstd, v.x, before, pending, m.norm)
	w.release()
	return v
}

// afterNorm fills k from y1 and x on: qkv, att, lse, x2, rstd2, y2, gateUp and swiglu. delta [n, h] is overwritten.
// Without keep gateUp is undefined.
func (m *Model) afterNorm(s device.Stream, l *layer, k *savedLayer, delta device.Tensor, t Tokens, keep bool) {
	var none device.Tensor
	m.attend(s, l, k.att, k.lse, k.qkv, k.y1, t)
	s.MatMul(delta, k.att, l.o, none, false)
	m.sumNorm(s, k.y2, k.rstd2, k.x2, k.x, delta, l.postNorm)
	s.MatMulSwiGLU(k.swiglu, k.gateUp, k.y2, l.gateUp, keep)
}

// sumNorm writes sum = x + delta and y = norm(sum); without delta it norms x itself.
func (m *Model) sumNorm(s device.Stream, y, rstd, sum, x, delta, w device.Tensor) {
	if delta.IsZero() {
		s.RMSNorm(y, rstd, delta, x, delta, w, m.Config.Eps)
		return
	}
	s.RMSNorm(y, rstd, sum, x, delta, w, m.Config.Eps)
}

// Backward adds the gradients of all body parameters, given dHidden [n, h], the gradient of the loss over Hidden.
// The head's gradient is the loss's business; a tied head and the embedding share one gradient buffer. What was kept
// is used up: gradients are written over gate, up and their product.
func (m *Model) Backward(s device.Stream, v *Saved, dHidden device.Tensor) {
	act, h := m.dev.Info().Activations, m.Config.Hidden
	g := backward{m: m, s: s, v: v, w: newWorkspace(s, v.tokens.n())}
	a, _ := m.shape()
	g.dx, g.dy = g.w.take("dx", act, h), g.w.take("dy", act, h)
	g.dqkv, g.datt = g.w.take("dqkv", act, qkvDim(a)), g.w.take("dattention", act, a.QDim())
	s.Zero(g.dx)
	s.RMSNormBackward(g.dx, m.normParam.Grad, dHidden, v.x, v.rstd, m.norm)
	for i := len(m.layers) - 1; i >= 0; i-- {
		k := g.restore(i)
		g.mlp(i, &k)
		g.attention(i, &k)
	}
	s.EmbedBackward(m.embedParam.Grad, v.tokens.IDs, g.dx)
	g.w.release()
}

// backward carries the gradient of the residual stream, dx, downwards.
type backward struct {
	m                  *Model
	s                  device.Stream
	v                  *Saved
	w                  *workspace
	dx, dy, dqkv, datt device.Tensor
}

// restore returns all tensors of layer i: those kept, and the others computed again.
func (g *backward) restore(i int) savedLayer {
	m, s, l, k := g.m, g.s, &g.m.layers[i], g.v.layers[i]
	m.fill(&k, RecomputeNone, g.w.take)
	var none device.Tensor
	switch g.v.recompute {
	case RecomputeNorms:
		m.sumNorm(s, k.y1, none, none, k.x, none, l.inputNorm)
		m.sumNorm(s, k.y2, none, none, k.x2, none, l.postNorm)
		s.SwiGLU(k.swiglu, k.gateUp)
	case RecomputeBlocks:
		m.sumNorm(s, k.y1, k.rstd1, none, k.x, none, l.inputNorm)
		m.afterNorm(s, l, &k, g.dy, g.v.tokens, true)
	}
	return k
}

// mlp goes back through x3 = x2 + down(swiglu(gateUp(norm(x2)))).
func (g *backward) mlp(i int, k *savedLayer) {
	s, l, p := g.s, &g.m.layers[i], &g.m.trainableLayers[i]
	var none device.Tensor
	s.MatMulWeightGrad(p.down.Grad, none, g.dx, k.swiglu)
	dprod, dgu := k.swiglu, k.gateUp // written over what is not needed again
	s.MatMulInputGrad(dprod, g.dx, l.down, false)
	s.SwiGLUBackward(dgu, dprod, k.gateUp)
	s.MatMulWeightGrad(p.gateUp.Grad, none, dgu, k.y2)
	s.MatMulInputGrad(g.dy, dgu, l.gateUp, false)
	s.RMSNormBackward(g.dx, p.postNorm.Grad, g.dy, k.x2, k.rstd2, l.postNorm)
}

// attention goes back through x2 = x + o(attention(rope(qkv(norm(x))))).
func (g *backward) attention(i int, k *savedLayer) {
	m, s, l, p := g.m, g.s, &g.m.layers[i], &g.m.trainableLayers[i]
	a, _ := m.shape()
	t, q, kv := g.v.tokens, a.QDim(), a.KVDim()
	var none device.Tensor
	s.MatMulWeightGrad(p.o.Grad, none, g.dx, k.att)
	s.MatMulInputGrad(g.datt, g.dx, l.o, false)
	split := func(x device.Tensor) (dq, dk, dv device.Tensor) {
		return x.ColRange(0, q), x.ColRange(q, q+kv), x.ColRange(q+kv, q+2*kv)
	}
	dq, dk, dv := split(g.dqkv)
	sq, sk, sv := split(k.qkv)
	s.AttentionBackward(dq, dk, dv, g.datt, k.att, k.lse, sq, sk, sv, t.attn(a))
	s.Rotate(g.dqkv.ColRange(0, q+kv), m.rotary(t.SeqLen, 0, true))
	s.MatMulWeightGrad(p.qkv.Grad, p.qkvBias.Grad, g.dqkv, k.y1)
	s.MatMulInputGrad(g.dy, g.dqkv, l.qkv, false)
	s.RMSNormBackward(g.dx, p.inputNorm.Grad, g.dy, k.x, k.rstd1, l.inputNorm)
}
