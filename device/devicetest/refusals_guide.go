package devicetest

import (
	"math"

	"apr/device"
	"apr/tensor"
)

// mixture are the operands of Mix.
type mixture struct {
	y, t           device.Tensor
	w, temperature float64
}

// squares are the operands of SquaredError.
type squares struct {
	grad, u, t device.Tensor
	weight     float64
}

func guideRefusals() []Refusal {
	const noWeight, noTemperature = "a weight is not positive and finite", "temperature is not positive"
	all := refusals(device.OpMix, func(k *desk) mixture { return mixture{k.single(3, 7), k.single(3, 7), .5, 2} },
		func(s device.Stream, a mixture) { s.Mix(a.y, a.t, a.w, a.temperature, true) },
		wrong[mixture]{"columns of y", wrongShapes, func(k *desk, a *mixture) { a.y = k.single(3, 8) }},
		wrong[mixture]{"y of another type", noFloat32, func(k *desk, a *mixture) { a.y = k.narrow(3, 7) }},
		wrong[mixture]{"no t", noTensor, func(_ *desk, a *mixture) { a.t = device.Tensor{} }},
		wrong[mixture]{"t given back", given, func(k *desk, a *mixture) { a.t = k.gone(tensor.F32, 3, 7) }},
		wrong[mixture]{"no weight", noWeight, func(_ *desk, a *mixture) { a.w = 0 }},
		wrong[mixture]{"weight NaN", noWeight, func(_ *desk, a *mixture) { a.w = math.NaN() }},
		wrong[mixture]{"no temperature", noTemperature, func(_ *desk, a *mixture) { a.temperature = 0 }},
		wrong[mixture]{"temperature infinite", noTemperature, func(_ *desk, a *mixture) { a.temperature = math.Inf(1) }},
	)
	return append(all, refusals(device.OpSquaredError, func(k *desk) squares { return squares{k.acts(3, 7), k.single(3, 7), k.acts(3, 7), .5} },
		func(s device.Stream, a squares) { s.SquaredError(a.grad, a.u, a.t, a.weight) },
		wrong[squares]{"columns of t", wrongShapes, func(k *desk, a *squares) { a.t = k.acts(3, 8) }},
		wrong[squares]{"rows of the gradient", wrongShapes, func(k *desk, a *squares) { a.grad = k.acts(2, 7) }},
		wrong[squares]{"u of another type", noFloat32, func(k *desk, a *squares) { a.u = k.narrow(3, 7) }},
		wrong[squares]{"gradient of ids", noFloats, func(k *desk, a *squares) { a.grad = k.of(tensor.I32, 3, 7) }},
		wrong[squares]{"no gradient", noTensor, func(_ *desk, a *squares) { a.grad = device.Tensor{} }},
		wrong[squares]{"weight NaN", noFactor, func(_ *desk, a *squares) { a.weight = math.NaN() }},
	)...)
}
