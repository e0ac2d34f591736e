package devicetest

import (
	"math"

	"apr/device"
	"apr/tensor"
)

// headNormed are the operands of HeadNorm and its backward.
type headNormed struct {
	y, rstd, x, w, dx, dw, dy device.Tensor
	dim                       int
}

func headNormRefusals() []Refusal {
	common := []wrong[headNormed]{
		{"half a head", "columns are not whole heads", func(_ *desk, a *headNormed) { a.dim = 8 }},
		{"no head size", "columns are not whole heads", func(_ *desk, a *headNormed) { a.dim = 0 }},
		{"rstd of one column", wrongShapes, func(k *desk, a *headNormed) { a.rstd = k.single(3, 1) }},
		{"rstd of another type", noFloat32, func(k *desk, a *headNormed) { a.rstd = k.narrow(3, 3) }},
		{"w of a row", noVector, func(k *desk, a *headNormed) { a.w = k.single(1, 12) }},
		{"w of another type", noFloat32, func(k *desk, a *headNormed) { a.w = k.narrow(1, 4) }},
		{"no x", noTensor, func(_ *desk, a *headNormed) { a.x = device.Tensor{} }},
		{"given back", given, func(k *desk, a *headNormed) { a.x = k.gone(k.act, 3, 12) }},
	}
	all := refusals(device.OpHeadNorm, func(k *desk) headNormed {
		return headNormed{y: k.acts(3, 12), rstd: k.single(3, 3), x: k.acts(3, 12), w: k.single(1, 4), dim: 4}
	}, func(s device.Stream, a headNormed) { s.HeadNorm(a.y, a.rstd, a.x, a.w, a.dim, 1e-6) }, append(common,
		wrong[headNormed]{"rows of y", wrongShapes, func(k *desk, a *headNormed) { a.y = k.acts(2, 12) }},
		wrong[headNormed]{"y of another type", wrongTypes, func(k *desk, a *headNormed) { a.y = k.others(3, 12) }},
		wrong[headNormed]{"no y", noTensor, func(_ *desk, a *headNormed) { a.y = device.Tensor{} }},
		wrong[headNormed]{"ids", noFloats, func(k *desk, a *headNormed) { a.x, a.y = k.of(tensor.I32, 3, 12), k.of(tensor.I32, 3, 12) }},
	)...)
	return append(all, refusals(device.OpHeadNormBackward, func(k *desk) headNormed {
		return headNormed{dx: k.acts(3, 12), dw: k.single(1, 4), dy: k.acts(3, 12), x: k.acts(3, 12), rstd: k.single(3, 3), w: k.single(1, 4), dim: 4}
	}, func(s device.Stream, a headNormed) { s.HeadNormBackward(a.dx, a.dw, a.dy, a.x, a.rstd, a.w, a.dim) }, append(common,
		wrong[headNormed]{"no rstd", noTensor, func(_ *desk, a *headNormed) { a.rstd = device.Tensor{} }},
		wrong[headNormed]{"dw without w", "dw and w come together", func(_ *desk, a *headNormed) { a.w = device.Tensor{} }},
		wrong[headNormed]{"w without dw", "dw and w come together", func(_ *desk, a *headNormed) { a.dw = device.Tensor{} }},
		wrong[headNormed]{"dw of a row", noVector, func(k *desk, a *headNormed) { a.dw = k.single(1, 12) }},
		wrong[headNormed]{"dw of another type", noFloat32, func(k *desk, a *headNormed) { a.dw = k.narrow(1, 4) }},
		wrong[headNormed]{"columns of dx", wrongShapes, func(k *desk, a *headNormed) { a.dx = k.acts(3, 8) }},
		wrong[headNormed]{"dy of another type", wrongTypes, func(k *desk, a *headNormed) { a.dy = k.others(3, 12) }},
	)...)...)
}

// mixed are the operands of Deinterleave and Interleave.
type mixed struct {
	x, a, b device.Tensor
	width   int
}

func turnRefusals() []Refusal {
	const groups = "columns are not whole groups"
	operands := func(k *desk) mixed { return mixed{x: k.acts(3, 24), a: k.acts(3, 12), b: k.acts(3, 12), width: 4} }
	common := []wrong[mixed]{
		{"half a group", groups, func(_ *desk, a *mixed) { a.width = 8 }},
		{"no group", groups, func(_ *desk, a *mixed) { a.width = 0 }},
		{"a negative group", groups, func(_ *desk, a *mixed) { a.width = -4 }},
		{"columns of x", wrongShapes, func(k *desk, a *mixed) { a.x = k.acts(3, 20) }},
		{"rows of a", wrongShapes, func(k *desk, a *mixed) { a.a = k.acts(2, 12) }},
		{"columns of b", wrongShapes, func(k *desk, a *mixed) { a.b = k.acts(3, 8) }},
		{"b of another type", wrongTypes, func(k *desk, a *mixed) { a.b = k.others(3, 12) }},
		{"ids", noFloats, func(k *desk, a *mixed) {
			a.x, a.a, a.b = k.of(tensor.I32, 3, 24), k.of(tensor.I32, 3, 12), k.of(tensor.I32, 3, 12)
		}},
		{"no x", noTensor, func(_ *desk, a *mixed) { a.x = device.Tensor{} }},
		{"given back", given, func(k *desk, a *mixed) { a.a = k.gone(k.act, 3, 12) }},
	}
	all := refusals(device.OpDeinterleave, operands, func(s device.Stream, a mixed) { s.Deinterleave(a.a, a.b, a.x, a.width) }, common...)
	return append(all, refusals(device.OpInterleave, operands, func(s device.Stream, a mixed) { s.Interleave(a.x, a.a, a.b, a.width) }, common...)...)
}

// changed are the operands of Add, Scale and SoftCap.
type changed struct {
	y, x device.Tensor
	f    float64
}

func elementRefusals() []Refusal {
	operands := func(k *desk) changed { return changed{y: k.acts(3, 4), x: k.acts(3, 4), f: 2} }
	common := []wrong[changed]{
		{"rows", wrongShapes, func(k *desk, a *changed) { a.x = k.acts(2, 4) }},
		{"columns", wrongShapes, func(k *desk, a *changed) { a.x = k.acts(3, 5) }},
		{"types", wrongTypes, func(k *desk, a *changed) { a.y = k.others(3, 4) }},
		{"ids", noFloats, func(k *desk, a *changed) { a.x, a.y = k.of(tensor.I32, 3, 4), k.of(tensor.I32, 3, 4) }},
		{"no tensor", noTensor, func(_ *desk, a *changed) { a.y = device.Tensor{} }},
		{"given back", given, func(k *desk, a *changed) { a.x = k.gone(k.act, 3, 4) }},
	}
	all := refusals(device.OpAdd, operands, func(s device.Stream, a changed) { s.Add(a.y, a.x) }, common...)
	all = append(all, refusals(device.OpScale, operands, func(s device.Stream, a changed) { s.Scale(a.y, a.x, a.f) }, append(common,
		wrong[changed]{"factor NaN", noFactor, func(_ *desk, a *changed) { a.f = math.NaN() }})...)...)
	type dropping struct {
		y, x device.Tensor
		d    device.Drop
	}
	all = append(all, refusals(device.OpDropout, func(k *desk) dropping { return dropping{k.acts(3, 4), k.acts(3, 4), device.Drop{Rate: .5}} },
		func(s device.Stream, a dropping) { s.Dropout(a.y, a.x, a.d) },
		wrong[dropping]{"rows", wrongShapes, func(k *desk, a *dropping) { a.x = k.acts(2, 4) }},
		wrong[dropping]{"types", wrongTypes, func(k *desk, a *dropping) { a.y = k.others(3, 4) }},
		wrong[dropping]{"rows before the first", wrongShapes, func(_ *desk, a *dropping) { a.d.First = -1 }},
		wrong[dropping]{"all dropped", noRate, func(_ *desk, a *dropping) { a.d.Rate = 1 }},
		wrong[dropping]{"a rate NaN", noRate, func(_ *desk, a *dropping) { a.d.Rate = math.NaN() }},
		wrong[dropping]{"no tensor", noTensor, func(_ *desk, a *dropping) { a.y = device.Tensor{} }},
		wrong[dropping]{"given back", given, func(k *desk, a *dropping) { a.x = k.gone(k.act, 3, 4) }})...)
	return append(all, refusals(device.OpSoftCap, operands, func(s device.Stream, a changed) { s.SoftCap(a.y, a.x, a.f) }, append(common,
		wrong[changed]{"no cap", noCap, func(_ *desk, a *changed) { a.f = 0 }},
		wrong[changed]{"cap NaN", noCap, func(_ *desk, a *changed) { a.f = math.NaN() }},
		wrong[changed]{"an infinite cap", noCap, func(_ *desk, a *changed) { a.f = math.Inf(1) }})...)...)
}
