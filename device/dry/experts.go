package dry

import "apr/device"

// chosen returns the bytes of the tensors of a routing.
func chosen(op device.Op, r device.Routing) float64 {
	return use(op, r.Chosen, r.Slots, r.Rows, r.Starts)
}

// Route records the operation.
func (s *Stream) Route(w, z, scale device.Tensor, r device.Routing) {
	device.CheckRoute(w, z, scale, r)
	n := use(device.OpRoute, w, z, scale) + chosen(device.OpRoute, r)
	s.count(Op{Kind: device.OpRoute, In: z.DType, Out: w.DType, Rows: z.Rows, Cols: z.Cols, Experts: r.Experts, Active: r.Active}, 0, n)
}

// RouteBackward records the operation.
func (s *Stream) RouteBackward(dz, dscale, dw, z, scale device.Tensor, r device.Routing) {
	device.CheckRouteBackward(dz, dscale, dw, z, scale, r)
	n := use(device.OpRouteBackward, dz, dscale, dw, z, scale, r.Chosen)
	s.count(Op{Kind: device.OpRouteBackward, In: z.DType, Out: dz.DType, Rows: z.Rows, Cols: z.Cols, Experts: r.Experts, Active: r.Active}, 0, n)
}

// GroupedMatMul records the operation. M is the slots of all experts; weights are moved of as many experts as slots can have.
func (s *Stream) GroupedMatMul(y, x device.Tensor, w device.Weight, bias device.Tensor, r device.Routing) {
	device.CheckGroupedMatMul(y, x, w, bias, r)
	m := w.(*weight)
	s.grouped(device.OpGroupedMatMul, y, x, bias, false, s.stack(m, Op{M: x.Rows, N: y.Cols, K: x.Cols}), m.served(r, x.Rows), r)
}

// GroupedInputGrad records the operation.
func (s *Stream) GroupedInputGrad(dx, dy device.Tensor, w device.Weight, r device.Routing, add bool) {
	device.CheckGroupedInputGrad(dx, dy, w, r)
	m := w.(*weight)
	s.grouped(device.OpGroupedInputGrad, dx, dy, device.Tensor{}, add, s.stack(m, Op{M: dy.Rows, N: dx.Cols, K: dy.Cols}), m.served(r, dy.Rows), r)
}

// GroupedWeightGrad records the operation. K is the slots of all experts.
func (s *Stream) GroupedWeightGrad(dw, dbias, dy, x device.Tensor, r device.Routing) {
	device.CheckGroupedWeightGrad(dw, dbias, dy, x, r)
	s.grouped(device.OpGroupedWeightGrad, dw, dy, dbias, true, Op{Weight: x.DType.String(), M: dy.Cols, N: x.Cols, K: x.Rows}, use(device.OpGroupedWeightGrad, x), r)
}

// stack says of a product of o.M slots how the matrices of its experts are kept, and counts the memory that they are expanded in. Expands
// is of this product: one of fewer slots reads blocks on the way.
func (s *Stream) stack(m *weight, o Op) Op {
	o.Host = s.dev.fetches(m)
	o.Weight, o.FP8, o.Expands = m.Types, m.FP8, m.Expands && !m.reads(o.M)
	if o.Expands {
		s.dev.expands(m)
	}
	return o
}

// grouped records the products of experts.
func (s *Stream) grouped(op device.Op, y, in, bias device.Tensor, add bool, o Op, otherBytes float64, r device.Routing) {
	o.Experts, o.Active = r.Experts, r.Active
	s.product(op, y, in, bias, add, o, otherBytes+use(op, r.Starts))
}

// served returns the bytes of the matrices of as many experts as slots can have.
func (w *weight) served(r device.Routing, slots int) float64 {
	return w.moved(w.rows / r.Experts * min(r.Experts, slots))
}

// Combine records the operation.
func (s *Stream) Combine(y, x, w device.Tensor, r device.Routing, add bool) {
	device.CheckCombine(y, x, w, r)
	n := use(device.OpCombine, y, x, w, r.Slots)
	if add {
		n += use(device.OpCombine, y)
	}
	s.count(Op{Kind: device.OpCombine, In: x.DType, Out: y.DType, Add: add, Rows: y.Rows, Cols: y.Cols, Active: r.Active}, 0, n)
}

// CombineBackward records the operation.
func (s *Stream) CombineBackward(dx, dw, dy, x, w device.Tensor, r device.Routing) {
	device.CheckCombineBackward(dx, dw, dy, x, w, r)
	n := use(device.OpCombineBackward, dx, dw, dy, x, w, r.Slots)
	s.count(Op{Kind: device.OpCombineBackward, In: x.DType, Out: dx.DType, Rows: dy.Rows, Cols: dy.Cols, Active: r.Active}, 0, n)
}

// CountSlots records the operation.
func (s *Stream) CountSlots(c device.Tensor, r device.Routing) {
	device.CheckCountSlots(c, r)
	n := 2*use(device.OpCountSlots, c) + use(device.OpCountSlots, r.Starts)
	s.count(Op{Kind: device.OpCountSlots, Out: c.DType, Rows: 1, Cols: c.Cols, Experts: r.Experts}, 0, n)
}

// BalanceBackward records the operation.
func (s *Stream) BalanceBackward(dz, z, c device.Tensor, f float64) {
	device.CheckBalanceBackward(dz, z, c, f)
	n := 2*use(device.OpBalanceBackward, dz) + use(device.OpBalanceBackward, z, c)
	s.count(Op{Kind: device.OpBalanceBackward, In: z.DType, Out: dz.DType, Add: true, Rows: z.Rows, Cols: z.Cols, Experts: z.Cols}, 0, n)
}
