package devicetest

import (
	"math"

	"apr/device"
	"apr/tensor"
)

// adapting are the operands of LowRank and its backwards.
type adapting struct {
	y, m, u, x, du device.Tensor
	l              device.LowRank
	act            device.Activation
}

func lowRankRefusals() []Refusal {
	operands := func(k *desk) adapting {
		return adapting{
			y: k.acts(3, 14), m: k.acts(3, 7), u: k.acts(3, 2), x: k.acts(3, 5), du: k.acts(3, 2),
			l: device.LowRank{A: k.weight(2, 5), GradA: k.single(2, 5), Parts: []device.LowRankPart{
				{Lo: 4, Hi: 14, To: 2, Scale: 2, B: k.weight(10, 2), GradB: k.single(10, 2)},
			}},
		}
	}
	const noPart = "there is no part"
	parts := []wrong[adapting]{
		{"no part", noPart, func(_ *desk, a *adapting) { a.l.Parts = nil }},
		{"no B", noWeight, func(_ *desk, a *adapting) { a.l.Parts[0].B = nil }},
		{"columns beyond y", wrongShapes, func(_ *desk, a *adapting) { a.l.Parts[0].Hi = 15 }},
		{"columns beyond u", wrongShapes, func(_ *desk, a *adapting) { a.l.Parts[0].To = 3 }},
		{"rows of B", wrongShapes, func(k *desk, a *adapting) { a.l.Parts[0].B = k.weight(9, 2) }},
		{"rank of B", wrongShapes, func(k *desk, a *adapting) { a.l.Parts[0].B = k.weight(10, 3) }},
		{"scale NaN", noFactor, func(_ *desk, a *adapting) { a.l.Parts[0].Scale = math.NaN() }},
	}
	forward := append([]wrong[adapting]{
		{"no A", noWeight, func(_ *desk, a *adapting) { a.l.A = nil }},
		{"columns of x", wrongShapes, func(k *desk, a *adapting) { a.x = k.acts(3, 6) }},
		{"rows of y", wrongShapes, func(k *desk, a *adapting) { a.y = k.acts(2, 14) }},
		{"u of another type", wrongTypes, func(k *desk, a *adapting) { a.u = k.others(3, 2) }},
		{"no u", noTensor, func(_ *desk, a *adapting) { a.u = device.Tensor{} }},
		{"a gated unit of nothing", noTensor, func(_ *desk, a *adapting) { a.y = device.Tensor{} }},
		{"columns of the gated unit", wrongShapes, func(k *desk, a *adapting) { a.m = k.acts(3, 6) }},
		{"x given back", given, func(k *desk, a *adapting) { a.x = k.gone(k.act, 3, 5) }},
	}, parts...)
	backward := append([]wrong[adapting]{
		{"rows of du", wrongShapes, func(k *desk, a *adapting) { a.du = k.acts(2, 2) }},
		{"columns of u", wrongShapes, func(k *desk, a *adapting) { a.u = k.acts(3, 3) }},
		{"gradient of A", wrongShapes, func(k *desk, a *adapting) { a.l.GradA = k.single(2, 6) }},
		{"gradient of A of another type", noFloat32, func(k *desk, a *adapting) { a.l.GradA = k.narrow(2, 5) }},
		{"gradient of B", wrongShapes, func(k *desk, a *adapting) { a.l.Parts[0].GradB = k.single(9, 2) }},
		{"no gradient of B", noTensor, func(_ *desk, a *adapting) { a.l.Parts[0].GradB = device.Tensor{} }},
		{"ids", noFloats, func(k *desk, a *adapting) { a.y = k.of(tensor.I32, 3, 14) }},
	}, parts...)
	all := refusals(device.OpLowRank, operands, func(s device.Stream, a adapting) { s.LowRank(a.y, a.m, a.u, a.x, a.l, a.act) }, forward...)
	all = append(all, refusals(device.OpLowRankWeightGrad, operands, func(s device.Stream, a adapting) { s.LowRankWeightGrad(a.du, a.y, a.x, a.u, a.l) }, backward...)...)
	return append(all, refusals(device.OpLowRankInputGrad, operands, func(s device.Stream, a adapting) { s.LowRankInputGrad(a.x, a.du, a.l, true) },
		wrong[adapting]{"no A", noWeight, func(_ *desk, a *adapting) { a.l.A = nil }},
		wrong[adapting]{"columns of dx", wrongShapes, func(k *desk, a *adapting) { a.x = k.acts(3, 6) }},
		wrong[adapting]{"columns of du", wrongShapes, func(k *desk, a *adapting) { a.du = k.acts(3, 3) }},
		wrong[adapting]{"no dx", noTensor, func(_ *desk, a *adapting) { a.x = device.Tensor{} }})...)
}
