package cuda

import (
	"apr/device"
	"apr/internal/fault"
)

// lacksExperts fails the stream: this device has no kernels for mixtures of experts.
func (s *Stream) lacksExperts(op device.Op) {
	s.fail(fault.New(fault.Unavailable, "%s: this device does not compute %s", op, device.Experts).WithHint("--device cpu").WithID("E-CUDA-063"))
}

// Route is not computed here: see device.Experts.
func (s *Stream) Route(w, z, scale device.Tensor, r device.Routing) {
	device.CheckRoute(w, z, scale, r)
	s.lacksExperts(device.OpRoute)
}

// RouteBackward is not computed here.
func (s *Stream) RouteBackward(dz, dscale, dw, z, scale device.Tensor, r device.Routing) {
	device.CheckRouteBackward(dz, dscale, dw, z, scale, r)
	s.lacksExperts(device.OpRouteBackward)
}

// GroupedMatMul is not computed here.
func (s *Stream) GroupedMatMul(y, x device.Tensor, w device.Weight, bias device.Tensor, r device.Routing) {
	device.CheckGroupedMatMul(y, x, w, bias, r)
	s.lacksExperts(device.OpGroupedMatMul)
}

// GroupedInputGrad is not computed here.
func (s *Stream) GroupedInputGrad(dx, dy device.Tensor, w device.Weight, r device.Routing, _ bool) {
	device.CheckGroupedInputGrad(dx, dy, w, r)
	s.lacksExperts(device.OpGroupedInputGrad)
}

// GroupedWeightGrad is not computed here.
func (s *Stream) GroupedWeightGrad(dw, dbias, dy, x device.Tensor, r device.Routing) {
	device.CheckGroupedWeightGrad(dw, dbias, dy, x, r)
	s.lacksExperts(device.OpGroupedWeightGrad)
}

// Combine is not computed here.
func (s *Stream) Combine(y, x, w device.Tensor, r device.Routing, _ bool) {
	device.CheckCombine(y, x, w, r)
	s.lacksExperts(device.OpCombine)
}

// CombineBackward is not computed here.
func (s *Stream) CombineBackward(dx, dw, dy, x, w device.Tensor, r device.Routing) {
	device.CheckCombineBackward(dx, dw, dy, x, w, r)
	s.lacksExperts(device.OpCombineBackward)
}
