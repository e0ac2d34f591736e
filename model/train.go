package model

import (
	"apr/device"
	"apr/tensor"
)

// Saved holds what a training forward keeps for its backward: per layer the residual stream before each norm with its
// 1/σ, the normed inputs of the matrices, the rotated q, k, v, the attention with its log-sum-exp, gate and up, and
// their product. Release gives the memory back to the stream.
type Saved struct {
	tokens    Tokens
	layers    []savedLayer
	x, rstd   device.Tensor // input of the final norm
	Hidden    device.Tensor // its output [n, h]: the input of the head
	allocated []device.Tensor
}

type savedLayer struct {
	x, rstd1, y1   device.Tensor // residual before the attention block, 1/σ, normed
	qkv, att, lse  device.Tensor
	x2, rstd2, y2  device.Tensor // residual before the MLP, 1/σ, normed
	gateUp, swiglu device.Tensor
}

// ReleaseTo gives the kept activations back.
func (v *Saved) ReleaseTo(s device.Stream) { s.Release(v.allocated...) }

// Forward computes the final hidden states of a trainable model and keeps what Backward needs.
func (m *Model) Forward(s device.Stream, t Tokens) *Saved {
	n, act := t.n(), m.dev.Info().Activations
	v := &Saved{tokens: t, layers: make([]savedLayer, len(m.layers))}
	keep := func(name string, d tensor.DType, cols int) device.Tensor {
		x := s.Temp(name, device.Activations, d, n, cols)
		v.allocated = append(v.allocated, x)
		return x
	}
	h, f := m.HiddenSize, m.IntermediateSize
	delta := s.Temp("delta", device.Scratch, act, n, h)

	x := keep("x", act, h)
	s.Embed(x, m.embed, t.IDs)
	var none, pending device.Tensor
	for i := range m.layers {
		l, k := &m.layers[i], &v.layers[i]
		k.rstd1, k.y1 = keep("rstd1", tensor.F32, 1), keep("y1", act, h)
		k.x = x
		if !pending.IsZero() {
			k.x = keep("x", act, h)
		}
		m.sumNorm(s, k.y1, k.rstd1, k.x, x, pending, l.inputNorm)

		k.qkv, k.att, k.lse = keep("qkv", act, m.qkvDim()), keep("attention", act, m.qDim()), keep("lse", tensor.F32, m.Heads)
		m.attend(s, l, k.att, k.lse, k.qkv, k.y1, t)
		s.MatMul(delta, k.att, l.o, none, false)

		k.x2, k.rstd2, k.y2 = keep("x2", act, h), keep("rstd2", tensor.F32, 1), keep("y2", act, h)
		m.sumNorm(s, k.y2, k.rstd2, k.x2, k.x, delta, l.postNorm)
		k.gateUp, k.swiglu = keep("gate_up", act, 2*f), keep("swiglu", act, f)
		s.MatMul(k.gateUp, k.y2, l.gateUp, none, false)
		s.SwiGLU(k.swiglu, k.gateUp)
		s.MatMul(delta, k.swiglu, l.down, none, false)
		x, pending = k.x2, delta
	}
	v.x, v.rstd, v.Hidden = keep("x", act, h), keep("rstd", tensor.F32, 1), keep("hidden", act, h)
	m.sumNorm(s, v.Hidden, v.rstd, v.x, x, pending, m.norm)
	s.Release(delta)
	return v
}

// sumNorm writes sum = x + delta and y = norm(sum); without delta it norms x itself.
func (m *Model) sumNorm(s device.Stream, y, rstd, sum, x, delta, w device.Tensor) {
	if delta.IsZero() {
		s.RMSNorm(y, rstd, delta, x, delta, w, m.RMSNormEps)
		return
	}
	s.RMSNorm(y, rstd, sum, x, delta, w, m.RMSNormEps)
}

// Backward adds the gradients of all body parameters, given dHidden [n, h], the gradient of the loss over Hidden.
// The head's gradient is the loss's business; a tied head and the embedding share one gradient buffer.
func (m *Model) Backward(s device.Stream, v *Saved, dHidden device.Tensor) {
	n, act := v.tokens.n(), m.dev.Info().Activations
	temp := func(name string, cols int) device.Tensor { return s.Temp(name, device.Scratch, act, n, cols) }
	h, f := m.HiddenSize, m.IntermediateSize
	g := backward{
		m: m, s: s, v: v,
		dx: temp("dx", h), dy: temp("dy", h),
		dqkv: temp("dqkv", m.qkvDim()), datt: temp("dattention", m.qDim()),
		dgu: temp("dgate_up", 2*f), dprod: temp("dswiglu", f),
	}
	s.Zero(g.dx)
	s.RMSNormBackward(g.dx, m.normParam.Grad, dHidden, v.x, v.rstd, m.norm)
	for i := len(m.layers) - 1; i >= 0; i-- {
		g.mlp(i)
		g.attention(i)
	}
	s.EmbedBackward(m.embedParam.Grad, v.tokens.IDs, g.dx)
	s.Release(g.dprod, g.dgu, g.datt, g.dqkv, g.dy, g.dx)
}

// backward carries the gradient of the residual stream, dx, downwards.
type backward struct {
	m                              *Model
	s                              device.Stream
	v                              *Saved
	dx, dy, dqkv, datt, dgu, dprod device.Tensor
}

// mlp goes back through x3 = x2 + down(swiglu(gateUp(norm(x2)))).
func (g *backward) mlp(i int) {
	s, l, p, k := g.s, &g.m.layers[i], &g.m.trainableLayers[i], &g.v.layers[i]
	var none device.Tensor
	s.MatMulWeightGrad(p.down.Grad, none, g.dx, k.swiglu)
	s.MatMulInputGrad(g.dprod, g.dx, l.down, false)
	s.SwiGLUBackward(g.dgu, g.dprod, k.gateUp)
	s.MatMulWeightGrad(p.gateUp.Grad, none, g.dgu, k.y2)
	s.MatMulInputGrad(g.dy, g.dgu, l.gateUp, false)
	s.RMSNormBackward(g.dx, p.postNorm.Grad, g.dy, k.x2, k.rstd2, l.postNorm)
}

// attention goes back through x2 = x + o(attention(rope(qkv(norm(x))))).
func (g *backward) attention(i int) {
	m, s, l, p, k := g.m, g.s, &g.m.layers[i], &g.m.trainableLayers[i], &g.v.layers[i]
	t, q, kv := g.v.tokens, m.qDim(), m.kvDim()
	var none device.Tensor
	s.MatMulWeightGrad(p.o.Grad, none, g.dx, k.att)
	s.MatMulInputGrad(g.datt, g.dx, l.o, false)
	split := func(x device.Tensor) (dq, dk, dv device.Tensor) {
		return x.ColRange(0, q), x.ColRange(q, q+kv), x.ColRange(q+kv, q+2*kv)
	}
	dq, dk, dv := split(g.dqkv)
	sq, sk, sv := split(k.qkv)
	s.AttentionBackward(dq, dk, dv, g.datt, k.att, k.lse, sq, sk, sv, t.attn(m.Config))
	s.Rotate(g.dqkv.ColRange(0, q+kv), m.rotary(t.SeqLen, 0, true))
	s.MatMulWeightGrad(p.qkv.Grad, p.qkvBias.Grad, g.dqkv, k.y1)
	s.MatMulInputGrad(g.dy, g.dqkv, l.qkv, false)
	s.RMSNormBackward(g.dx, p.inputNorm.Grad, g.dy, k.x, k.rstd1, l.inputNorm)
}
