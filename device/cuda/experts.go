package cuda

import (
	"apr/device"
	"apr/device/cuda/kernel"
)

// Which experts are chosen, and how many slots each has, stays on the device: grids are those of the worst split, and blocks read from
// Starts what is theirs. Matrices in blocks are decoded on their way to the products, which take no memory of expansion; products of many slots on
// compute capability 9.0 are in experts_many.go, and take it.

// routing is where a routing stands.
func routing(r device.Routing) kernel.Routing {
	return kernel.Routing{
		Experts: r.Experts, Active: r.Active, Renorm: r.Renorm,
		Chosen: mat(r.Chosen), Slots: mat(r.Slots), Rows: mat(r.Rows), Starts: mat(r.Starts),
	}
}

// stack is the matrices of all experts.
func (o *operation) stack(w *weight) kernel.Experts {
	if w.parts == nil {
		return kernel.Experts{Plain: o.narrow(w.t)}
	}
	return kernel.Experts{Blocks: w.parts[0].blocks}
}

// Route chooses experts by the logits z, and writes the tensors of r and the weights w.
func (s *Stream) Route(w, z, scale device.Tensor, r device.Routing) {
	device.CheckRoute(w, z, scale, r)
	o := s.begin("Route", w, z, scale, r.Chosen, r.Slots, r.Rows, r.Starts)
	if o == nil {
		return
	}
	for _, t := range []device.Tensor{r.Chosen, r.Slots, r.Rows, r.Starts} {
		t.Buf.(*buffer).ids = nil // only the device knows them
	}
	o.sized(z.Rows, r.Experts, r.Active)
	kernel.Route(o, mat(w), mat(z), mat(scale), routing(r))
	o.end()
}

// RouteBackward writes dz and adds to dscale: see device.Stream.
func (s *Stream) RouteBackward(dz, dscale, dw, z, scale device.Tensor, r device.Routing) {
	device.CheckRouteBackward(dz, dscale, dw, z, scale, r)
	if o := s.begin("RouteBackward", dz, dscale, dw, z, scale, r.Chosen, r.Slots, r.Starts); o != nil {
		o.sized(z.Rows, r.Experts, r.Active)
		kernel.RouteBackward(o, mat(dz), mat(dscale), mat(dw), mat(z), mat(scale), routing(r))
		o.end()
	}
}

// GroupedMatMul: y[j] = W_e·x[j] (+ bias[e]) for the slots j of each expert e. Up to kernel.ExpertRowTokens tokens of bfloat16 read their experts'
// matrices once for each slot; the sums of more are of another order.
func (s *Stream) GroupedMatMul(y, x device.Tensor, w device.Weight, bias device.Tensor, r device.Routing) {
	device.CheckGroupedMatMul(y, x, w, bias, r)
	s.withStack(w.(*weight), func(m *weight) { s.groupedMatMul(y, x, m, bias, r) })
}

func (s *Stream) groupedMatMul(y, x device.Tensor, m *weight, bias device.Tensor, r device.Routing) {
	if many := s.dev.manySlots(y, x, m, r); many && m.fp8 != nil {
		s.groupedFP8(y, x, x.Cols, m, bias, r, func(o *operation, lo, hi int) (kernel.Bytes, kernel.Mat) {
			return o.roundRows(x.RowRange(lo, hi))
		})
		return
	} else if many {
		s.groupedMany("GroupedMatMul", kernel.GemmNT, y, x, m, bias, false, r)
		return
	}
	s.rows(m)
	s.eachNarrow(x, func(lo, hi int) {
		y, x := y.RowRange(lo, hi), x.RowRange(lo, hi)
		if o := s.begin("GroupedMatMul", y, x, m.t, bias, r.Starts); o != nil {
			o.sized(x.Rows, y.Cols, x.Cols, r.Experts)
			s.dev.counts.products.Add(1)
			kernel.ExpertsNT(o, mat(y), o.narrow(x), o.stack(m), mat(bias), routing(r), lo)
			o.end()
		}
	})
}

// GroupedInputGrad: dx[j] = W_eᵀ·dy[j], or with add dx[j] += it, for the slots j of each expert e.
func (s *Stream) GroupedInputGrad(dx, dy device.Tensor, w device.Weight, r device.Routing, add bool) {
	device.CheckGroupedInputGrad(dx, dy, w, r)
	s.withStack(w.(*weight), func(m *weight) { s.groupedInputGrad(dx, dy, m, r, add) })
}

func (s *Stream) groupedInputGrad(dx, dy device.Tensor, m *weight, r device.Routing, add bool) {
	limit(m.fp8 == nil, device.OpGroupedInputGrad, "no gradient comes through experts in 8-bit floats")
	if s.dev.manySlots(dx, dy, m, r) {
		s.groupedMany("GroupedInputGrad", kernel.GemmNN, dx, dy, m, device.Tensor{}, add, r)
		return
	}
	s.rows(m)
	s.eachNarrow(dy, func(lo, hi int) {
		dx, dy := dx.RowRange(lo, hi), dy.RowRange(lo, hi)
		if o := s.begin("GroupedInputGrad", dx, dy, m.t, r.Starts); o != nil {
			o.sized(dy.Rows, dx.Cols, dy.Cols, r.Experts)
			s.dev.counts.products.Add(1)
			kernel.ExpertsNN(o, mat(dx), o.narrow(dy), o.stack(m), add, routing(r), lo)
			o.end()
		}
	})
}

// GroupedWeightGrad: dW_e += Σ_j dy[j]ᵀ·x[j] over the slots j of each expert e, and dbias[e] += Σ_j dy[j] unless dbias is zero.
func (s *Stream) GroupedWeightGrad(dw, dbias, dy, x device.Tensor, r device.Routing) {
	device.CheckGroupedWeightGrad(dw, dbias, dy, x, r)
	product := kernel.ExpertsWeightGrad
	if s.dev.manySlotsGrad(dw, dy, x, r) {
		product = kernel.ExpertsWeightGradSM90
	}
	s.eachNarrow(dy, func(lo, hi int) {
		dy, x := dy.RowRange(lo, hi), x.RowRange(lo, hi)
		add := !s.overwrites(dw)
		if o := s.begin("GroupedWeightGrad", dw, dy, x, r.Starts); o != nil {
			o.sized(dy.Cols, x.Cols, dy.Rows, r.Experts)
			s.dev.counts.products.Add(1)
			product(o, mat(dw), o.narrow(dy), o.narrow(x), add, routing(r), lo)
			o.end()
		}
	})
	if dbias.IsZero() {
		return
	}
	if o := s.begin("GroupedWeightGrad", dbias, dy, r.Starts); o != nil {
		kernel.ExpertsBias(o, mat(dbias), mat(dy), routing(r), 0)
		o.end()
	}
}

// Combine: y[t] (=|+=) Σ_s w[t,s]·x[Slots[t·Active+s]], in the order of s.
func (s *Stream) Combine(y, x, w device.Tensor, r device.Routing, add bool) {
	device.CheckCombine(y, x, w, r)
	if o := s.begin("Combine", y, x, w, r.Slots); o != nil && s.known("Combine", r.Slots, x.Rows) {
		o.sized(y.Rows, y.Cols, r.Active)
		kernel.Combine(o, mat(y), mat(x), mat(w), routing(r), add)
		o.end()
	}
}

// CombineBackward writes dx[j] = w[t,s]·dy[t] and dw[t,s] = dy[t]·x[j], j = Slots[t·Active+s]; dx may be x.
func (s *Stream) CombineBackward(dx, dw, dy, x, w device.Tensor, r device.Routing) {
	device.CheckCombineBackward(dx, dw, dy, x, w, r)
	if o := s.begin("CombineBackward", dx, dw, dy, x, w, r.Slots); o != nil && s.known("CombineBackward", r.Slots, x.Rows) {
		o.sized(dy.Rows, dy.Cols, r.Active)
		kernel.CombineBackward(o, mat(dx), mat(dw), mat(dy), mat(x), mat(w), routing(r))
		o.end()
	}
}

var _ device.Mixer = (*Stream)(nil)

// MixExperts computes the experts of a few tokens in bfloat16 by two kernels: see device.Mixer.
func (s *Stream) MixExperts(dst, glu, y, w device.Tensor, e device.ExpertNets, r device.Routing, add bool) bool {
	device.CheckMixExperts(dst, glu, y, w, e, r)
	gate, up, down := e.Gate.(*weight), e.Up.(*weight), e.Down.(*weight)
	for _, m := range []*weight{gate, up, down} {
		if m.parts == nil && m.t.DType != s.dev.act || m.host != nil {
			return false
		}
	}
	s.rows(gate, up, down)
	o := s.begin("Experts", dst, glu, y, w, e.GateBias, e.UpBias, e.DownBias, r.Chosen, r.Slots, r.Rows, r.Starts, gate.t, up.t, down.t)
	if o == nil {
		return true // nothing is done after an error
	}
	if !kernel.ExpertsFewServes(mat(dst), mat(y), mat(glu), o.stack(gate), o.stack(up), o.stack(down), e.Act, routing(r)) {
		return false
	}
	o.sized(y.Rows, glu.Cols, y.Cols, r.Experts)
	s.dev.counts.products.Add(3)
	kernel.ExpertsGatedRows(o, mat(glu), mat(y), o.stack(gate), o.stack(up), mat(e.GateBias), mat(e.UpBias), e.Act, routing(r))
	kernel.ExpertsMixRows(o, mat(dst), mat(glu), o.stack(down), mat(e.DownBias), mat(w), routing(r), add)
	o.end()
	return true
}

// CountSlots: c[e] += the slots of expert e.
func (s *Stream) CountSlots(c device.Tensor, r device.Routing) {
	device.CheckCountSlots(c, r)
	if o := s.begin("CountSlots", c, r.Starts); o != nil {
		kernel.CountSlots(o, mat(c), routing(r))
		o.end()
	}
}

// BalanceBackward: dz[t,e] += f·p[t,e]·(c[e] − Σ_j p[t,j]·c[j]), p[t] the softmax of z[t].
func (s *Stream) BalanceBackward(dz, z, c device.Tensor, f float64) {
	device.CheckBalanceBackward(dz, z, c, f)
	if o := s.begin("BalanceBackward", dz, z, c); o != nil {
		o.sized(z.Rows, z.Cols)
		kernel.BalanceBackward(o, mat(dz), mat(z), mat(c), f)
		o.end()
	}
}
