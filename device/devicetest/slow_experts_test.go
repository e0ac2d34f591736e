package devicetest

import (
	"apr/device"
	"apr/internal/ref"
)

// expertOps are the operations of experts that a mutant may replace.
type expertOps struct {
	choose      func(z ref.Mat, k int) []int
	sort        func(chosen []int, experts, k int) ref.Routed
	route       func(z, scale ref.Mat, chosen []int, r device.Routing) ref.Mat
	routeBack   func(dw, z, scale ref.Mat, chosen []int, r device.Routing) (dz, dscale ref.Mat)
	grouped     func(x, w, bias ref.Mat, starts []int) ref.Mat
	groupedBack func(dy, x, w ref.Mat, starts []int) (dx, dw, dbias ref.Mat)
	combine     func(x, w ref.Mat, slots []int, k int) ref.Mat
	combineBack func(dy, x, w ref.Mat, slots []int, k int) (dx, dw ref.Mat)
	count       func(starts []int) ref.Mat
	balanceBack func(z, c ref.Mat, f float64) ref.Mat
}

func rightExperts() expertOps {
	return expertOps{ref.Choose, ref.Sort, ref.Route, ref.RouteBackward, ref.Grouped, ref.GroupedBackward, ref.Combine, ref.CombineBackward, ref.CountSlots, ref.BalanceBackward}
}

// writeInts writes ids to t.
func (s *slowStream) writeInts(t device.Tensor, ids []int) {
	m := ref.New(t.Rows, t.Cols)
	for i, id := range ids {
		m.V[i] = float64(id)
	}
	s.write(t, m)
}

func (s *slowStream) Route(w, z, scale device.Tensor, r device.Routing) {
	device.CheckRoute(w, z, scale, r)
	logits := s.read(z)
	all := s.ops.experts.sort(s.ops.experts.choose(logits, r.Active), r.Experts, r.Active)
	s.writeInts(r.Chosen, all.Chosen)
	s.writeInts(r.Slots, all.Slots)
	s.writeInts(r.Rows, all.Rows)
	s.writeInts(r.Starts, all.Starts)
	s.write(w, s.ops.experts.route(logits, s.optional(scale), all.Chosen, r))
}

func (s *slowStream) RouteBackward(dz, dscale, dw, z, scale device.Tensor, r device.Routing) {
	device.CheckRouteBackward(dz, dscale, dw, z, scale, r)
	a, b := s.ops.experts.routeBack(s.read(dw), s.read(z), s.optional(scale), s.ints(r.Chosen), r)
	s.write(dz, a)
	if !dscale.IsZero() {
		s.add(dscale, b)
	}
}

func (s *slowStream) GroupedMatMul(y, x device.Tensor, w device.Weight, bias device.Tensor, r device.Routing) {
	device.CheckGroupedMatMul(y, x, w, bias, r)
	s.write(y, s.ops.experts.grouped(s.read(x), w.(*slowWeight).m(), s.optional(bias), s.ints(r.Starts)))
}

func (s *slowStream) GroupedInputGrad(dx, dy device.Tensor, w device.Weight, r device.Routing, add bool) {
	device.CheckGroupedInputGrad(dx, dy, w, r)
	out, _, _ := s.ops.experts.groupedBack(s.read(dy), ref.New(dx.Rows, dx.Cols), w.(*slowWeight).m(), s.ints(r.Starts))
	if add {
		s.add(dx, out)
	} else {
		s.write(dx, out)
	}
}

func (s *slowStream) GroupedWeightGrad(dw, dbias, dy, x device.Tensor, r device.Routing) {
	device.CheckGroupedWeightGrad(dw, dbias, dy, x, r)
	_, a, b := s.ops.experts.groupedBack(s.read(dy), s.read(x), ref.New(dw.Rows, dw.Cols), s.ints(r.Starts))
	s.add(dw, a)
	if !dbias.IsZero() {
		s.add(dbias, b)
	}
}

func (s *slowStream) Combine(y, x, w device.Tensor, r device.Routing, add bool) {
	device.CheckCombine(y, x, w, r)
	out := s.ops.experts.combine(s.read(x), s.optional(w), s.ints(r.Slots), r.Active)
	if add {
		s.add(y, out)
	} else {
		s.write(y, out)
	}
}

func (s *slowStream) CombineBackward(dx, dw, dy, x, w device.Tensor, r device.Routing) {
	device.CheckCombineBackward(dx, dw, dy, x, w, r)
	a, b := s.ops.experts.combineBack(s.read(dy), s.read(x), s.read(w), s.ints(r.Slots), r.Active)
	s.write(dx, a)
	s.write(dw, b)
}

func (s *slowStream) CountSlots(c device.Tensor, r device.Routing) {
	device.CheckCountSlots(c, r)
	s.add(c, s.ops.experts.count(s.ints(r.Starts)))
}

func (s *slowStream) BalanceBackward(dz, z, c device.Tensor, f float64) {
	device.CheckBalanceBackward(dz, z, c, f)
	s.add(dz, s.ops.experts.balanceBack(s.read(z), s.read(c), f))
}
