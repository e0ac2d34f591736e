package vulkan

import "apr/device"

// The operations of experts and of linear attention are not there: each fails the stream by the feature's name.

// Route is not there.
func (s *Stream) Route(w, z, scale device.Tensor, r device.Routing) {
	device.CheckRoute(w, z, scale, r)
	s.lacks(device.Experts)
}

// RouteBackward is not there.
func (s *Stream) RouteBackward(dz, dscale, dw, z, scale device.Tensor, r device.Routing) {
	device.CheckRouteBackward(dz, dscale, dw, z, scale, r)
	s.lacks(device.Experts)
}

// GroupedMatMul is not there.
func (s *Stream) GroupedMatMul(y, x device.Tensor, w device.Weight, bias device.Tensor, r device.Routing) {
	device.CheckGroupedMatMul(y, x, w, bias, r)
	s.lacks(device.Experts)
}

// GroupedInputGrad is not there.
func (s *Stream) GroupedInputGrad(dx, dy device.Tensor, w device.Weight, r device.Routing, _ bool) {
	device.CheckGroupedInputGrad(dx, dy, w, r)
	s.lacks(device.Experts)
}

// GroupedWeightGrad is not there.
func (s *Stream) GroupedWeightGrad(dw, dbias, dy, x device.Tensor, r device.Routing) {
	device.CheckGroupedWeightGrad(dw, dbias, dy, x, r)
	s.lacks(device.Experts)
}

// Combine is not there.
func (s *Stream) Combine(y, x, w device.Tensor, r device.Routing, _ bool) {
	device.CheckCombine(y, x, w, r)
	s.lacks(device.Experts)
}

// CombineBackward is not there.
func (s *Stream) CombineBackward(dx, dw, dy, x, w device.Tensor, r device.Routing) {
	device.CheckCombineBackward(dx, dw, dy, x, w, r)
	s.lacks(device.Experts)
}

// CountSlots is not there.
func (s *Stream) CountSlots(c device.Tensor, r device.Routing) {
	device.CheckCountSlots(c, r)
	s.lacks(device.Experts)
}

// BalanceBackward is not there.
func (s *Stream) BalanceBackward(dz, z, c device.Tensor, f float64) {
	device.CheckBalanceBackward(dz, z, c, f)
	s.lacks(device.Experts)
}

// Conv is not there.
func (s *Stream) Conv(y, x, w, from, to device.Tensor, c device.Sequences) {
	device.CheckConv(y, x, w, from, to, c)
	s.lacks(device.DeltaNet)
}

// ConvBackward is not there.
func (s *Stream) ConvBackward(dx, dw, dy, x, w device.Tensor, c device.Sequences) {
	device.CheckConvBackward(dx, dw, dy, x, w, c)
	s.lacks(device.DeltaNet)
}

// DeltaNet is not there.
func (s *Stream) DeltaNet(o, u, ba, logA, dt, from, to device.Tensor, d device.Delta) {
	device.CheckDeltaNet(o, u, ba, logA, dt, from, to, d)
	s.lacks(device.DeltaNet)
}

// DeltaNetBackward is not there.
func (s *Stream) DeltaNetBackward(du, dba, dLogA, ddt, do, u, ba, logA, dt, states device.Tensor, d device.Delta) {
	device.CheckDeltaNetBackward(du, dba, dLogA, ddt, do, u, ba, logA, dt, states, d)
	s.lacks(device.DeltaNet)
}
