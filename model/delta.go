package model

import (
	"apr/arch"
	"apr/device"
	"apr/tensor"
)

// deltaTensors are the tensors of a Gated DeltaNet, but for out_proj.
//
//	[q|k|v|z] = in(x);  [b|a] = ba(x);  u = silu(conv([q|k|v]));  o = rule(u, b, a)
//	y = out_proj(norm(o)·silu(z))
type deltaTensors struct {
	in, ba    linear // [c+i, h]: q, k, v and z stacked; [2·heads, h]: b and a stacked
	conv      vector // [c, taps]
	logA, dt  vector // [1, heads]
	normValue vector // [1, width of a value head]
}

// place returns the tensor of a slot, nil if it is no tensor of a DeltaNet.
func (d *deltaTensors) place(name string) (*linear, *vector) {
	switch name {
	case "linear_attn.in_proj_qkv.weight":
		return &d.in, nil
	case "linear_attn.in_proj_b.weight":
		return &d.ba, nil
	case "linear_attn.conv1d.weight":
		return nil, &d.conv
	case "linear_attn.A_log":
		return nil, &d.logA
	case "linear_attn.dt_bias":
		return nil, &d.dt
	case "linear_attn.norm.weight":
		return nil, &d.normValue
	}
	return nil, nil
}

// deltaActs are the intermediate tensors of a DeltaNet. All projections lie side by side, so that one operation may
// write them, and the normed output of the rule beside z, so that both are the operands of a gated unit.
type deltaActs struct {
	in   device.Tensor // [n, 2·heads+c+2i]: b, a; q, k, v; z; norm(o)
	u    device.Tensor // [n, c]: q, k, v behind the convolution
	o    device.Tensor // [n, i]
	rstd device.Tensor // [n, heads]: 1/σ of o
}

// deltaColumns returns the columns of deltaActs.in.
func deltaColumns(d arch.DeltaNet) int { return 2*d.ValueHeads + d.QKV() + 2*d.Inner() }

// deltaParts are parts of a tensor like deltaActs.in.
type deltaParts struct {
	projected, ba, qkvz, qkv, z device.Tensor
	gated, normed               device.Tensor // z beside norm(o)
}

// cut returns the parts of a tensor like deltaActs.in.
func (b *layer) cut(in device.Tensor) deltaParts {
	q := 2 * b.Delta.ValueHeads
	z := q + b.Delta.QKV()
	o := z + b.Delta.Inner()
	end := o + b.Delta.Inner()
	return deltaParts{
		projected: in.ColRange(0, o), ba: in.ColRange(0, q), qkvz: in.ColRange(q, o), qkv: in.ColRange(q, z),
		z: in.ColRange(z, o), gated: in.ColRange(z, end), normed: in.ColRange(o, end),
	}
}

// sequences describes the rows of a pass.
func (p *pass) sequences() device.Sequences {
	return device.Sequences{Batch: p.t.Rows, Len: p.t.SeqLen, First: p.t.First}
}

// rule describes the delta rule of a layer.
func (p *pass) rule(b *layer) device.Delta {
	d := b.Delta
	return device.Delta{Sequences: p.sequences(), KeyHeads: d.KeyHeads, ValueHeads: d.ValueHeads, KeyDim: d.KeyDim, ValueDim: d.ValueDim}
}

// linear computes k.att, what out_proj reads, from the input of the mixer.
func (p *pass) linear(b *layer, k *acts, in *operand) {
	d, s, t := &k.delta, p.s, &b.delta
	x := b.cut(d.in)
	p.projectAll(t, x, in)
	if p.stepAtOnce(b, k, x) {
		return
	}
	if p.each != nil {
		p.ruleEach(b, d, x)
	} else {
		var old, next carriedState
		if p.cache != nil {
			old, next = p.cache.carried(b.index)
		}
		s.Conv(d.u, x.qkv, t.conv.value, old.inputs, next.inputs, p.sequences())
		s.DeltaNet(d.o, d.u, x.ba, t.logA.value, t.dt.value, old.state, next.state, p.rule(b))
	}
	s.HeadNorm(x.normed, d.rstd, d.o, t.normValue.value, b.Delta.ValueDim, p.m.Config.Eps)
	s.GLU(k.att, x.gated, device.SiLU)
}

// projectAll computes the projections, as one operation if the device has it.
func (p *pass) projectAll(t *deltaTensors, x deltaParts, in *operand) {
	s, n := p.reader(in)
	if s != nil && t.ba.lora == nil && t.in.lora == nil &&
		s.NormMatMul(x.projected, n, device.Tensor{}, t.ba.weight, t.in.weight) {
		in.w = device.Tensor{}
		return
	}
	p.project(t.in, x.qkvz, in)
	p.project(t.ba, x.ba, in)
}

// stepAtOnce is all that follows the projections, of one position behind a cache, as one operation, if the device has
// it.
func (p *pass) stepAtOnce(b *layer, k *acts, x deltaParts) bool {
	s, ok := p.s.(device.DeltaStepper)
	if !ok || p.cache == nil || p.t.n() != 1 {
		return false
	}
	t := &b.delta
	old, next := p.cache.carried(b.index)
	return s.DeltaStep(k.att, device.DeltaStep{
		Delta: p.rule(b), X: x.qkv, Z: x.z, BA: x.ba, Taps: t.conv.value,
		LogA: t.logA.value, DT: t.dt.value, Norm: t.normValue.value, From: old.state, To: next.state,
		FromInputs: old.inputs, Inputs: next.inputs, Eps: p.m.Config.Eps,
	})
}

// carriedState is what a DeltaNet carries from one position to the next.
type carriedState struct {
	state  device.Tensor // F32 [heads, dk·dv]
	inputs device.Tensor // [taps−1, c]: the latest inputs of the convolution
}

// carried are the states of a layer behind the last call of Extend, and before it, so that the call can be undone.
type carried struct{ now, before carriedState }

// newCarried reserves the states of a layer.
func (m *Model) newCarried(b *layer) carried {
	return carried{m.newState(b), m.newState(b)}
}

// newState reserves one state of a layer.
func (m *Model) newState(b *layer) carriedState {
	d, act := b.Delta, m.dev.Info().Activations
	return carriedState{
		state:  m.dev.Alloc("cache.state", device.KVCache, tensor.F32, d.ValueHeads, d.KeyDim*d.ValueDim),
		inputs: m.dev.Alloc("cache.inputs", device.KVCache, act, d.Conv-1, d.QKV()),
	}
}

func (c *carried) exists() bool { return !c.now.state.IsZero() }

func (c *carried) swap() { c.now, c.before = c.before, c.now }

func (c *carried) free(dev device.Device) {
	if c.exists() {
		dev.Free(c.now.state, c.now.inputs, c.before.state, c.before.inputs)
	}
}

// carried returns what a layer reads, none at the begin of the sequence, and what it writes. Only the first piece of a call
// of Extend reads what was there before it.
func (c *Cache) carried(layer int) (old, next carriedState) {
	l := &c.layers[layer].delta
	switch {
	case c.length == 0:
		return carriedState{}, l.now
	case c.inCall:
		return l.now, l.now
	}
	return l.before, l.now
}
