package model

import (
	"apr/device"
	"apr/tensor"
)

// deltaGrads are the gradients of a DeltaNet's intermediate tensors, and scratch.
type deltaGrads struct{ in, u, o, states device.Tensor }

// deltaGrads takes them; layers of one shape use the same.
func (g *backward) deltaGrads(b *layer) deltaGrads {
	d, w := b.Delta, g.w
	return deltaGrads{
		in: w.take("ddelta.in", g.act, deltaColumns(d)), u: w.take("ddelta.u", g.act, d.QKV()),
		o: w.take("dattention", g.act, d.Inner()), states: g.deltaStates(b),
	}
}

// deltaStates takes room for the states at the begin of all chunks.
func (g *backward) deltaStates(b *layer) device.Tensor {
	r := g.rule(b)
	return g.w.takeRows("delta.states", tensor.F32, r.Batch*r.ValueHeads*r.Chunks(), r.KeyDim*r.ValueDim)
}

// linearAgain computes what RecomputeNorms does not keep.
func (g *backward) linearAgain(b *layer, k *acts) {
	var none device.Tensor
	in := b.cut(k.delta.in)
	g.s.Conv(k.delta.u, in.qkv, b.delta.conv.value, none, none, g.sequences())
	g.s.GLU(k.att, in.gated, device.SiLU)
}

// linearGrad goes back through a DeltaNet and the norm before it, given the gradient of what out_proj reads.
func (g *backward) linearGrad(b *layer, k *acts, datt device.Tensor) {
	s, t, d, grads := g.s, &b.delta, &k.delta, g.deltaGrads(b)
	in, din := b.cut(d.in), b.cut(grads.in)
	s.GLUBackward(din.gated, datt, in.gated, device.SiLU)
	do := grads.o // datt, which is not needed any more
	s.HeadNormBackward(do, t.normValue.grad(), din.normed, d.o, d.rstd, t.normValue.value, b.Delta.ValueDim)
	s.DeltaNetBackward(
		grads.u, din.ba, t.logA.grad(), t.dt.grad(), do, d.u, in.ba, t.logA.value, t.dt.value, grads.states, g.rule(b),
	)
	s.ConvBackward(din.qkv, t.conv.grad(), grads.u, in.qkv, t.conv.value, g.sequences())
	y := input(k.y1, k.x)
	t.in.weightGrad(s, din.qkvz, y)
	t.ba.weightGrad(s, din.ba, y)
	if b.preMixer.value.IsZero() {
		t.ba.inputGrad(s, g.dx, din.ba, true)
		t.in.inputGrad(s, g.dx, din.qkvz, true)
		return
	}
	t.in.inputGrad(s, g.dy, din.qkvz, false)
	t.ba.inputGrad(s, g.dy, din.ba, true)
	s.RMSNormBackward(g.dx, b.preMixer.grad(), g.dy, k.x, k.rstd1, b.preMixer.value)
}
