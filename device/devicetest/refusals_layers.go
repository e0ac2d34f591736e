package devicetest

import (
	"apr/device"
	"apr/tensor"
)

// normed are the operands of RMSNorm and its backward.
type normed struct{ y, rstd, sum, x, delta, w, dx, dw, dy device.Tensor }

func normRefusals() []Refusal {
	all := refusals(device.OpRMSNorm, func(k *desk) normed {
		return normed{y: k.acts(3, 4), rstd: k.single(3, 1), sum: k.acts(3, 4), x: k.acts(3, 4), delta: k.acts(3, 4), w: k.single(1, 4)}
	}, func(s device.Stream, a normed) { s.RMSNorm(a.y, a.rstd, a.sum, a.x, a.delta, a.w, 1e-6) },
		wrong[normed]{"delta without sum", "sum and delta come together", func(_ *desk, a *normed) { a.sum = device.Tensor{} }},
		wrong[normed]{"sum without delta", "sum and delta come together", func(_ *desk, a *normed) { a.delta = device.Tensor{} }},
		wrong[normed]{"rows of y", wrongShapes, func(k *desk, a *normed) { a.y = k.acts(2, 4) }},
		wrong[normed]{"columns of delta", wrongShapes, func(k *desk, a *normed) { a.delta = k.acts(3, 5) }},
		wrong[normed]{"rstd of two columns", wrongShapes, func(k *desk, a *normed) { a.rstd = k.single(3, 2) }},
		wrong[normed]{"rstd of fewer rows", wrongShapes, func(k *desk, a *normed) { a.rstd = k.single(2, 1) }},
		wrong[normed]{"w of another length", noVector, func(k *desk, a *normed) { a.w = k.single(1, 5) }},
		wrong[normed]{"w of two rows", noVector, func(k *desk, a *normed) { a.w = k.single(2, 4) }},
		wrong[normed]{"y without w", noTensor, func(_ *desk, a *normed) { a.w = device.Tensor{} }},
		wrong[normed]{"w of another type", noFloat32, func(k *desk, a *normed) { a.w = k.narrow(1, 4) }},
		wrong[normed]{"y of another type", wrongTypes, func(k *desk, a *normed) { a.y = k.others(3, 4) }},
		wrong[normed]{"x of ids", noFloats, func(k *desk, a *normed) { a.x = k.of(tensor.I32, 3, 4) }},
		wrong[normed]{"no x", noTensor, func(_ *desk, a *normed) { a.x = device.Tensor{} }},
	)
	return append(all, refusals(device.OpRMSNormBackward, func(k *desk) normed {
		return normed{dx: k.acts(3, 4), dw: k.single(1, 4), dy: k.acts(3, 4), x: k.acts(3, 4), rstd: k.single(3, 1), w: k.single(1, 4)}
	}, func(s device.Stream, a normed) { s.RMSNormBackward(a.dx, a.dw, a.dy, a.x, a.rstd, a.w) },
		wrong[normed]{"rows of dx", wrongShapes, func(k *desk, a *normed) { a.dx = k.acts(2, 4) }},
		wrong[normed]{"columns of dy", wrongShapes, func(k *desk, a *normed) { a.dy = k.acts(3, 5) }},
		wrong[normed]{"rstd of fewer rows", wrongShapes, func(k *desk, a *normed) { a.rstd = k.single(2, 1) }},
		wrong[normed]{"dw of two rows", noVector, func(k *desk, a *normed) { a.dw = k.single(2, 4) }},
		wrong[normed]{"dw of another type", noFloat32, func(k *desk, a *normed) { a.dw = k.narrow(1, 4) }},
		wrong[normed]{"dx of another type", wrongTypes, func(k *desk, a *normed) { a.dx = k.others(3, 4) }},
		wrong[normed]{"no rstd", noTensor, func(_ *desk, a *normed) { a.rstd = device.Tensor{} }},
	)...)
}

// multiplied are the operands of products.
type multiplied struct {
	y, x, bias device.Tensor
	w          device.Weight
}

func productRefusals() []Refusal {
	all := refusals(device.OpMatMul, func(k *desk) multiplied {
		return multiplied{y: k.acts(3, 8), x: k.acts(3, 16), bias: k.single(1, 8), w: k.weight(8, 16)}
	}, func(s device.Stream, a multiplied) { s.MatMul(a.y, a.x, a.w, a.bias, false) },
		wrong[multiplied]{"rows", wrongShapes, func(k *desk, a *multiplied) { a.y = k.acts(2, 8) }},
		wrong[multiplied]{"inner dimension", wrongShapes, func(k *desk, a *multiplied) { a.x = k.acts(3, 15) }},
		wrong[multiplied]{"more columns than the weight has rows", wrongShapes, func(k *desk, a *multiplied) { a.y = k.acts(3, 9) }},
		wrong[multiplied]{"bias of another length", noVector, func(k *desk, a *multiplied) { a.bias = k.single(1, 7) }},
		wrong[multiplied]{"bias of two rows", noVector, func(k *desk, a *multiplied) { a.bias = k.single(2, 8) }},
		wrong[multiplied]{"bias of another type", noFloat32, func(k *desk, a *multiplied) { a.bias = k.narrow(1, 8) }},
		wrong[multiplied]{"x of ids", noFloats, func(k *desk, a *multiplied) { a.x = k.of(tensor.I32, 3, 16) }},
		wrong[multiplied]{"no weight", noWeight, func(_ *desk, a *multiplied) { a.w = nil }},
		wrong[multiplied]{"given back", given, func(k *desk, a *multiplied) { a.x = k.gone(k.act, 3, 16) }},
	)
	all = append(all, refusals(device.OpMatMulInputGrad, func(k *desk) multiplied {
		return multiplied{y: k.acts(3, 8), x: k.acts(3, 16), w: k.weight(8, 16)}
	}, func(s device.Stream, a multiplied) { s.MatMulInputGrad(a.x, a.y, a.w, false) },
		wrong[multiplied]{"rows", wrongShapes, func(k *desk, a *multiplied) { a.y = k.acts(2, 8) }},
		wrong[multiplied]{"columns", wrongShapes, func(k *desk, a *multiplied) { a.x = k.acts(3, 15) }},
		wrong[multiplied]{"more columns than the weight has rows", wrongShapes, func(k *desk, a *multiplied) { a.y = k.acts(3, 9) }},
		wrong[multiplied]{"no weight", noWeight, func(_ *desk, a *multiplied) { a.w = nil }},
	)...)
	// y is dy, w of no use: the matrix is in dw.
	type grads struct{ dw, dbias, dy, x device.Tensor }
	return append(all, refusals(device.OpMatMulWeightGrad, func(k *desk) grads {
		return grads{dw: k.single(8, 16), dbias: k.single(1, 8), dy: k.acts(3, 8), x: k.acts(3, 16)}
	}, func(s device.Stream, a grads) { s.MatMulWeightGrad(a.dw, a.dbias, a.dy, a.x) },
		wrong[grads]{"rows", wrongShapes, func(k *desk, a *grads) { a.x = k.acts(2, 16) }},
		wrong[grads]{"rows of dw", wrongShapes, func(k *desk, a *grads) { a.dw = k.single(9, 16) }},
		wrong[grads]{"dbias of another length", noVector, func(k *desk, a *grads) { a.dbias = k.single(1, 9) }},
		wrong[grads]{"dbias of two rows", noVector, func(k *desk, a *grads) { a.dbias = k.single(2, 8) }},
		wrong[grads]{"dw of another type", noFloat32, func(k *desk, a *grads) { a.dw = k.narrow(8, 16) }},
	)...)
}

// gates are the operands of GLU.
type gates struct {
	act           device.Activation
	m, gu, x, dgu device.Tensor
	w             device.Weight
}

func gatedRefusals() []Refusal {
	unknown := wrong[gates]{"unknown activation", "there is no such activation", func(_ *desk, a *gates) { a.act = device.Sigmoid + 1 }}
	all := refusals(device.OpGLU, func(k *desk) gates { return gates{m: k.acts(3, 4), gu: k.acts(3, 8)} },
		func(s device.Stream, a gates) { s.GLU(a.m, a.gu, a.act) },
		wrong[gates]{"rows", wrongShapes, func(k *desk, a *gates) { a.gu = k.acts(2, 8) }},
		wrong[gates]{"columns", wrongShapes, func(k *desk, a *gates) { a.gu = k.acts(3, 9) }},
		wrong[gates]{"types", wrongTypes, func(k *desk, a *gates) { a.m = k.others(3, 4) }},
		unknown,
	)
	all = append(all, refusals(device.OpMatMulGLU, func(k *desk) gates {
		return gates{m: k.acts(3, 4), gu: k.acts(3, 8), x: k.acts(3, 16), w: k.weight(8, 16)}
	}, func(s device.Stream, a gates) { s.MatMulGLU(a.m, a.gu, a.x, a.w, a.act, true) },
		wrong[gates]{"fewer columns than the weight has rows", wrongShapes, func(k *desk, a *gates) { a.m, a.gu = k.acts(3, 3), k.acts(3, 6) }},
		wrong[gates]{"inner dimension", wrongShapes, func(k *desk, a *gates) { a.x = k.acts(3, 15) }},
		wrong[gates]{"rows of x", wrongShapes, func(k *desk, a *gates) { a.x = k.acts(2, 16) }},
		wrong[gates]{"columns of m", wrongShapes, func(k *desk, a *gates) { a.m = k.acts(3, 5) }},
		wrong[gates]{"types", wrongTypes, func(k *desk, a *gates) { a.m = k.others(3, 4) }},
		wrong[gates]{"no weight", noWeight, func(_ *desk, a *gates) { a.w = nil }},
		unknown,
	)...)
	return append(all, refusals(device.OpGLUBackward, func(k *desk) gates { return gates{dgu: k.acts(3, 8), m: k.acts(3, 4), gu: k.acts(3, 8)} },
		func(s device.Stream, a gates) { s.GLUBackward(a.dgu, a.m, a.gu, a.act) },
		wrong[gates]{"columns of dgu", wrongShapes, func(k *desk, a *gates) { a.dgu = k.acts(3, 7) }},
		wrong[gates]{"columns of dm", wrongShapes, func(k *desk, a *gates) { a.m = k.acts(3, 3) }},
		wrong[gates]{"types", wrongTypes, func(k *desk, a *gates) { a.dgu = k.others(3, 8) }},
		unknown,
	)...)
}
