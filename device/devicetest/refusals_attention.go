package devicetest

import (
	"math"

	"apr/device"
	"apr/tensor"
)

// turned are the operands of Rotate.
type turned struct {
	x device.Tensor
	r device.Rotary
}

// attended are the operands of attention.
type attended struct {
	o, lse, q, k, v, dq, dk, dv, do device.Tensor
	a                               device.Attn
}

func rotaryRefusals() []Refusal {
	const (
		odd       = "columns are not whole heads of even size"
		positions = "there are no such positions"
		table     = "the table of frequencies is missing, or of more pairs than a head has"
		byPlace   = "the scale of positions is not finite, or has no length"
	)
	return refusals(device.OpRotate, func(k *desk) turned {
		return turned{k.acts(6, 12), device.Rotary{HeadDim: 4, Table: frequencies(1e4, 4), SeqLen: 3}}
	}, func(s device.Stream, a turned) { s.Rotate(a.x, a.r) },
		wrong[turned]{"odd head size", odd, func(_ *desk, a *turned) { a.r.HeadDim = 3 }},
		wrong[turned]{"no head size", odd, func(_ *desk, a *turned) { a.r.HeadDim = 0 }},
		wrong[turned]{"half a head", odd, func(_ *desk, a *turned) { a.r.HeadDim = 8 }},
		wrong[turned]{"no sequence", positions, func(_ *desk, a *turned) { a.r.SeqLen = 0 }},
		wrong[turned]{"negative offset", positions, func(_ *desk, a *turned) { a.r.Offset = -1 }},
		wrong[turned]{"no table", table, func(_ *desk, a *turned) { a.r.Table = nil }},
		wrong[turned]{"a table of no pairs", table, func(_ *desk, a *turned) { a.r.Table = &device.Frequencies{} }},
		wrong[turned]{"a table of more pairs", table, func(_ *desk, a *turned) { a.r.Table = frequencies(1e4, 6) }},
		wrong[turned]{"factor NaN", noFactor, func(_ *desk, a *turned) { a.r.Table = &device.Frequencies{Inv: []float64{1}, Factor: math.NaN()} }},
		wrong[turned]{"a scale without length", byPlace, func(_ *desk, a *turned) { a.r.QBeta = .1 }},
		wrong[turned]{"a negative scale", byPlace, func(_ *desk, a *turned) { a.r.QBeta, a.r.QLength = -.1, 3 }},
		wrong[turned]{"fewer positions", wrongShapes, func(k *desk, a *turned) { a.r.Positions = k.ids(5) }},
		wrong[turned]{"positions of floats", noIDs, func(k *desk, a *turned) { a.r.Positions = k.single(6, 1) }},
		wrong[turned]{"ids", noFloats, func(k *desk, a *turned) { a.x = k.of(tensor.I32, 6, 12) }},
	)
}

func attentionRefusals() []Refusal {
	const (
		heads = "heads do not divide"
		sees  = "queries see keys that are not there"
	)
	operands := func(k *desk) attended {
		return attended{
			o: k.acts(6, 8), lse: k.single(6, 2), q: k.acts(6, 8), k: k.acts(8, 4), v: k.acts(8, 4),
			dq: k.acts(6, 8), dk: k.acts(8, 4), dv: k.acts(8, 4), do: k.acts(6, 8),
			a: device.Attn{Batch: 2, QLen: 3, KLen: 4, QOffset: 1, KStride: 4, Heads: 2, KVHeads: 1, HeadDim: 4},
		}
	}
	common := []wrong[attended]{
		{"heads that do not divide", heads, func(_ *desk, a *attended) { a.a.KVHeads = 3 }},
		{"no heads", heads, func(_ *desk, a *attended) { a.a.Heads, a.a.KVHeads = 0, 0 }},
		{"no head size", heads, func(_ *desk, a *attended) { a.a.HeadDim = 0 }},
		{"negative batch", "a number of rows is negative", func(_ *desk, a *attended) { a.a.Batch, a.a.QLen = -2, -3 }},
		{"queries after the last key", sees, func(_ *desk, a *attended) { a.a.QOffset = 2 }},
		{"negative offset", sees, func(_ *desk, a *attended) { a.a.QOffset = -1 }},
		{"keys of two rows overlap", sees, func(_ *desk, a *attended) { a.a.KStride = 3 }},
		{"rows of q", wrongShapes, func(k *desk, a *attended) { a.q = k.acts(5, 8) }},
		{"columns of o", wrongShapes, func(k *desk, a *attended) { a.o = k.acts(6, 4) }},
		{"fewer keys", wrongShapes, func(k *desk, a *attended) { a.k = k.acts(7, 4) }},
		{"columns of v", wrongShapes, func(k *desk, a *attended) { a.v = k.acts(8, 8) }},
		{"columns of lse", wrongShapes, func(k *desk, a *attended) { a.lse = k.single(6, 1) }},
		{"lse of another type", noFloat32, func(k *desk, a *attended) { a.lse = k.narrow(6, 2) }},
		{"k of another type", wrongTypes, func(k *desk, a *attended) { a.k = k.others(8, 4) }},
		{"a negative window", "the window is negative", func(_ *desk, a *attended) { a.a.Window = -1 }},
		{"an infinite scale", noFactor, func(_ *desk, a *attended) { a.a.Scale = math.Inf(1) }},
		{"a negative soft-cap", noCap, func(_ *desk, a *attended) { a.a.Cap = -1 }},
		{"soft-cap NaN", noCap, func(_ *desk, a *attended) { a.a.Cap = math.NaN() }},
		{"fewer first keys", wrongShapes, func(k *desk, a *attended) { a.a.First = k.ids(5) }},
		{"first keys of floats", noIDs, func(k *desk, a *attended) { a.a.First = k.single(6, 1) }},
		{"heads of 514 values", "heads have more than 512 values", func(k *desk, a *attended) {
			a.a.HeadDim, a.q, a.o, a.k, a.v = 514, k.acts(6, 1028), k.acts(6, 1028), k.acts(8, 514), k.acts(8, 514)
		}},
		{"sinks of fewer heads", noVector, func(k *desk, a *attended) { a.a.Sinks = k.single(1, 1) }},
		{"sinks of two rows", noVector, func(k *desk, a *attended) { a.a.Sinks = k.single(2, 2) }},
		{"sinks of another type", noFloat32, func(k *desk, a *attended) { a.a.Sinks = k.narrow(1, 2) }},
		{"sinks given back", given, func(k *desk, a *attended) { a.a.Sinks = k.gone(tensor.F32, 1, 2) }},
		{"no q", noTensor, func(_ *desk, a *attended) { a.q = device.Tensor{} }},
		{"given back", given, func(k *desk, a *attended) { a.v = k.gone(k.act, 8, 4) }},
	}
	all := refusals(device.OpAttention, operands,
		func(s device.Stream, a attended) { s.Attention(a.o, a.lse, a.q, a.k, a.v, a.a) }, append(common,
			wrong[attended]{"a gradient of sinks", "a gradient of sinks without a backward", func(k *desk, a *attended) {
				a.a.Sinks, a.a.DSinks = k.single(1, 2), k.single(1, 2)
			}},
		)...)
	return append(all, refusals(device.OpAttentionBackward, operands,
		func(s device.Stream, a attended) {
			s.AttentionBackward(a.dq, a.dk, a.dv, a.do, a.o, a.lse, a.q, a.k, a.v, a.a)
		}, append(common,
			wrong[attended]{"no lse", noTensor, func(_ *desk, a *attended) { a.lse = device.Tensor{} }},
			wrong[attended]{"a gradient without sinks", "a gradient of sinks that are not there", func(k *desk, a *attended) { a.a.DSinks = k.single(1, 2) }},
			wrong[attended]{"a gradient of fewer sinks", noVector, func(k *desk, a *attended) { a.a.Sinks, a.a.DSinks = k.single(1, 2), k.single(1, 1) }},
			wrong[attended]{"a gradient of sinks of another type", noFloat32, func(k *desk, a *attended) { a.a.Sinks, a.a.DSinks = k.single(1, 2), k.narrow(1, 2) }},
			wrong[attended]{"rows of dk", wrongShapes, func(k *desk, a *attended) { a.dk = k.acts(7, 4) }},
			wrong[attended]{"columns of do", wrongShapes, func(k *desk, a *attended) { a.do = k.acts(6, 4) }},
			wrong[attended]{"dq of another type", wrongTypes, func(k *desk, a *attended) { a.dq = k.others(6, 8) }},
		)...)...)
}

// taught are the operands of Loss.
type taught struct {
	grad, z, t, targets device.Tensor
	spec                device.LossSpec
}

func trainRefusals() []Refusal {
	all := refusals(device.OpLoss, func(k *desk) taught {
		return taught{k.single(3, 7), k.single(3, 7), k.single(3, 7), k.ids(3), device.LossSpec{Alpha: .5, Temperature: 2}}
	}, func(s device.Stream, a taught) { s.Loss(a.grad, a.z, a.t, a.targets, a.spec) },
		wrong[taught]{"targets", wrongShapes, func(k *desk, a *taught) { a.targets = k.ids(2) }},
		wrong[taught]{"columns of t", wrongShapes, func(k *desk, a *taught) { a.t = k.single(3, 8) }},
		wrong[taught]{"rows of the gradient", wrongShapes, func(k *desk, a *taught) { a.grad = k.single(2, 7) }},
		wrong[taught]{"z of another type", noFloat32, func(k *desk, a *taught) { a.z = k.narrow(3, 7) }},
		wrong[taught]{"gradient of ids", noFloats, func(k *desk, a *taught) { a.grad = k.of(tensor.I32, 3, 7) }},
		wrong[taught]{"targets of floats", noIDs, func(k *desk, a *taught) { a.targets = k.single(3, 1) }},
		wrong[taught]{"no teacher", "a divergence without a teacher", func(_ *desk, a *taught) { a.t = device.Tensor{} }},
		wrong[taught]{"no temperature", "temperature is not positive", func(_ *desk, a *taught) { a.spec.Temperature = 0 }},
		wrong[taught]{"temperature NaN", "temperature is not positive", func(_ *desk, a *taught) { a.spec.Temperature = math.NaN() }},
		wrong[taught]{"soft-cap NaN", noCap, func(_ *desk, a *taught) { a.spec.Cap = math.NaN() }},
		wrong[taught]{"unknown divergence", "there is no such divergence", func(_ *desk, a *taught) { a.spec.Divergence = device.SkewReverse + 1 }},
	)
	params := func(k *desk) *device.Param { return k.param(3, 4) }
	const gaps = "a tensor of a parameter has gaps between its rows"
	all = append(all, refusals(device.OpVerdict, params, func(s device.Stream, p *device.Param) { s.Verdict([]*device.Param{p}) },
		wrong[*device.Param]{"gradient of another shape", wrongShapes, func(k *desk, p **device.Param) { (*p).Grad = k.single(3, 5) }},
		wrong[*device.Param]{"gradient of another type", noFloat32, func(k *desk, p **device.Param) { (*p).Grad = k.narrow(3, 4) }},
		wrong[*device.Param]{"gradient with gaps", gaps, func(k *desk, p **device.Param) { (*p).Grad = k.single(3, 5).ColRange(0, 4) }},
	)...)
	return append(all, refusals(device.OpAdamW, params, func(s device.Stream, p *device.Param) {
		s.AdamW([]*device.Param{p}, device.AdamW{Beta1: .9, Beta2: .99, Eps: 1e-8})
	},
		wrong[*device.Param]{"moment of another shape", wrongShapes, func(k *desk, p **device.Param) { (*p).M = k.single(4, 3) }},
		wrong[*device.Param]{"value of another type", noFloat32, func(k *desk, p **device.Param) { (*p).Value = k.narrow(3, 4) }},
		wrong[*device.Param]{"moment with gaps", gaps, func(k *desk, p **device.Param) { (*p).V = k.single(3, 5).ColRange(0, 4) }},
		wrong[*device.Param]{"no weight", noWeight, func(_ *desk, p **device.Param) { (*p).Weight = nil }},
	)...)
}
