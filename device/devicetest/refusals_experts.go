package devicetest

import (
	"apr/device"
	"apr/tensor"
)

const (
	noRouting = "experts and choices do not fit the logits"
	noExperts = "the weight has not the same number of rows for each expert"
)

// routeOf makes the routing of n tokens, all to the first experts.
func (k *desk) routeOf(n, experts, active int) device.Routing {
	return device.Routing{Experts: experts, Active: active, Chosen: k.ids(n * active), Slots: k.ids(n * active), Rows: k.ids(n * active), Starts: k.ids(experts + 1)}
}

// chosen are the operands of Route and its backward.
type chosen struct {
	w, z, scale, dz, dscale, dw device.Tensor
	r                           device.Routing
}

// expertProduct are the operands of grouped products.
type expertProduct struct {
	y, x, bias, dw device.Tensor
	w              device.Weight
	r              device.Routing
}

func expertRefusals() []Refusal { return append(routingRefusals(), groupedRefusals()...) }

// routingRefusals are those of the operations that choose experts, and count and balance the choices.
func routingRefusals() []Refusal {
	all := refusals(device.OpRoute, func(k *desk) chosen {
		return chosen{w: k.single(3, 2), z: k.single(3, 4), scale: k.single(1, 4), r: k.routeOf(3, 4, 2)}
	},
		func(s device.Stream, a chosen) { s.Route(a.w, a.z, a.scale, a.r) },
		wrong[chosen]{"more choices than experts", noRouting, func(k *desk, a *chosen) { a.r.Active = 5 }},
		wrong[chosen]{"no choice", noRouting, func(_ *desk, a *chosen) { a.r.Active = 0 }},
		wrong[chosen]{"columns of logits", noRouting, func(k *desk, a *chosen) { a.z = k.single(3, 5) }},
		wrong[chosen]{"logits of another type", noFloat32, func(k *desk, a *chosen) { a.z = k.narrow(3, 4) }},
		wrong[chosen]{"weights", wrongShapes, func(k *desk, a *chosen) { a.w = k.single(3, 3) }},
		wrong[chosen]{"scale", noVector, func(k *desk, a *chosen) { a.scale = k.single(1, 3) }},
		wrong[chosen]{"starts", wrongShapes, func(k *desk, a *chosen) { a.r.Starts = k.ids(4) }},
		wrong[chosen]{"slots of floats", noIDs, func(k *desk, a *chosen) { a.r.Slots = k.single(6, 1) }},
		wrong[chosen]{"no rows", noTensor, func(_ *desk, a *chosen) { a.r.Rows = device.Tensor{} }},
	)
	all = append(all, refusals(device.OpRouteBackward,
		func(k *desk) chosen {
			return chosen{dz: k.acts(3, 4), dw: k.single(3, 2), z: k.single(3, 4), scale: k.single(1, 4), dscale: k.single(1, 4), r: k.routeOf(3, 4, 2)}
		},
		func(s device.Stream, a chosen) { s.RouteBackward(a.dz, a.dscale, a.dw, a.z, a.scale, a.r) },
		wrong[chosen]{"scale alone", "dscale and scale come together", func(_ *desk, a *chosen) { a.dscale = device.Tensor{} }},
		wrong[chosen]{"dz", wrongShapes, func(k *desk, a *chosen) { a.dz = k.acts(3, 5) }},
		wrong[chosen]{"dz of ids", noFloats, func(k *desk, a *chosen) { a.dz = k.of(tensor.I32, 3, 4) }},
		wrong[chosen]{"dw of another type", noFloat32, func(k *desk, a *chosen) { a.dw = k.narrow(3, 2) }},
		wrong[chosen]{"experts", noRouting, func(k *desk, a *chosen) { a.z = k.single(3, 3) }},
	)...)
	all = append(all, refusals(device.OpCountSlots, func(k *desk) chosen { return chosen{w: k.single(1, 4), r: k.routeOf(3, 4, 2)} },
		func(s device.Stream, a chosen) { s.CountSlots(a.w, a.r) },
		wrong[chosen]{"counts", noVector, func(k *desk, a *chosen) { a.w = k.single(1, 5) }},
		wrong[chosen]{"counts of another type", noFloat32, func(k *desk, a *chosen) { a.w = k.narrow(1, 4) }},
		wrong[chosen]{"starts", wrongShapes, func(k *desk, a *chosen) { a.r.Starts = k.ids(4) }},
		wrong[chosen]{"no experts", noRouting, func(_ *desk, a *chosen) { a.r.Experts = 0 }},
	)...)
	return append(all, refusals(device.OpBalanceBackward,
		func(k *desk) chosen { return chosen{dz: k.acts(3, 4), z: k.single(3, 4), scale: k.single(1, 4)} },
		func(s device.Stream, a chosen) { s.BalanceBackward(a.dz, a.z, a.scale, 1) },
		wrong[chosen]{"dz", wrongShapes, func(k *desk, a *chosen) { a.dz = k.acts(3, 5) }},
		wrong[chosen]{"dz of ids", noFloats, func(k *desk, a *chosen) { a.dz = k.of(tensor.I32, 3, 4) }},
		wrong[chosen]{"counts", noVector, func(k *desk, a *chosen) { a.scale = k.single(1, 5) }},
		wrong[chosen]{"logits of another type", noFloat32, func(k *desk, a *chosen) { a.z = k.narrow(3, 4) }},
		wrong[chosen]{"no expert", noRouting, func(k *desk, a *chosen) { a.dz, a.z = k.acts(3, 0), k.single(3, 0) }},
	)...)
}

// groupedRefusals are those of the products of experts, and of the sums over a token's slots.
func groupedRefusals() []Refusal {
	product := func(k *desk) expertProduct {
		return expertProduct{y: k.acts(6, 5), x: k.acts(6, 3), w: k.weight(20, 3), bias: k.single(4, 5), r: k.routeOf(3, 4, 2)}
	}
	all := refusals(device.OpGroupedMatMul, product, func(s device.Stream, a expertProduct) { s.GroupedMatMul(a.y, a.x, a.w, a.bias, a.r) },
		wrong[expertProduct]{"rows of an expert", noExperts, func(k *desk, a *expertProduct) { a.w = k.weight(19, 3) }},
		wrong[expertProduct]{"columns", wrongShapes, func(k *desk, a *expertProduct) { a.x = k.acts(6, 4) }},
		wrong[expertProduct]{"slots", wrongShapes, func(k *desk, a *expertProduct) { a.y = k.acts(5, 5) }},
		wrong[expertProduct]{"slots of a token", wrongShapes, func(k *desk, a *expertProduct) { a.y, a.x = k.acts(7, 5), k.acts(7, 3) }},
		wrong[expertProduct]{"bias", wrongShapes, func(k *desk, a *expertProduct) { a.bias = k.single(1, 5) }},
		wrong[expertProduct]{"no weight", noWeight, func(_ *desk, a *expertProduct) { a.w = nil }},
		wrong[expertProduct]{"more choices than experts", noRouting, func(k *desk, a *expertProduct) { a.r = k.routeOf(1, 4, 2); a.r.Active = 6 }},
	)
	all = append(all, refusals(device.OpGroupedInputGrad, product, func(s device.Stream, a expertProduct) { s.GroupedInputGrad(a.x, a.y, a.w, a.r, false) },
		wrong[expertProduct]{"rows of an expert", noExperts, func(k *desk, a *expertProduct) { a.w = k.weight(24, 3) }},
		wrong[expertProduct]{"columns", wrongShapes, func(k *desk, a *expertProduct) { a.x = k.acts(6, 4) }},
		wrong[expertProduct]{"no weight", noWeight, func(_ *desk, a *expertProduct) { a.w = nil }},
	)...)
	all = append(all, refusals(device.OpGroupedWeightGrad,
		func(k *desk) expertProduct {
			return expertProduct{dw: k.single(20, 3), bias: k.single(4, 5), y: k.acts(6, 5), x: k.acts(6, 3), r: k.routeOf(3, 4, 2)}
		},
		func(s device.Stream, a expertProduct) { s.GroupedWeightGrad(a.dw, a.bias, a.y, a.x, a.r) },
		wrong[expertProduct]{"gradient", wrongShapes, func(k *desk, a *expertProduct) { a.dw = k.single(5, 3) }},
		wrong[expertProduct]{"gradient of another type", noFloat32, func(k *desk, a *expertProduct) { a.dw = k.narrow(20, 3) }},
		wrong[expertProduct]{"bias", wrongShapes, func(k *desk, a *expertProduct) { a.bias = k.single(1, 5) }},
		wrong[expertProduct]{"slots", wrongShapes, func(k *desk, a *expertProduct) { a.x = k.acts(5, 3) }},
	)...)
	all = append(all, refusals(device.OpCombine, func(k *desk) expertProduct {
		return expertProduct{y: k.acts(3, 5), x: k.acts(6, 5), bias: k.single(3, 2), r: k.routeOf(3, 4, 2)}
	},
		func(s device.Stream, a expertProduct) { s.Combine(a.y, a.x, a.bias, a.r, false) },
		wrong[expertProduct]{"slots", wrongShapes, func(k *desk, a *expertProduct) { a.x = k.acts(5, 5) }},
		wrong[expertProduct]{"weights", wrongShapes, func(k *desk, a *expertProduct) { a.bias = k.single(3, 3) }},
		wrong[expertProduct]{"weights of another type", noFloat32, func(k *desk, a *expertProduct) { a.bias = k.narrow(3, 2) }},
		wrong[expertProduct]{"types", wrongTypes, func(k *desk, a *expertProduct) { a.y = k.others(3, 5) }},
	)...)
	return append(all, refusals(device.OpCombineBackward,
		func(k *desk) expertProduct {
			return expertProduct{dw: k.single(3, 2), y: k.acts(3, 5), x: k.acts(6, 5), bias: k.single(3, 2), r: k.routeOf(3, 4, 2)}
		},
		func(s device.Stream, a expertProduct) { s.CombineBackward(a.x, a.dw, a.y, a.x, a.bias, a.r) },
		wrong[expertProduct]{"dw", wrongShapes, func(k *desk, a *expertProduct) { a.dw = k.single(3, 1) }},
		wrong[expertProduct]{"no weights", noTensor, func(_ *desk, a *expertProduct) { a.bias = device.Tensor{} }},
		wrong[expertProduct]{"types", wrongTypes, func(k *desk, a *expertProduct) { a.y = k.others(3, 5) }},
	)...)
}
