package cuda

import (
	"apr/device"
	"apr/internal/fault"
)

// This device has no kernels for linear attention: the operations fail the stream by name.

// Conv fails the stream.
func (s *Stream) Conv(y, x, w, from, to device.Tensor, c device.Sequences) {
	device.CheckConv(y, x, w, from, to, c)
	s.lacks(device.OpConv, device.DeltaNet)
}

// ConvBackward fails the stream.
func (s *Stream) ConvBackward(dx, dw, dy, x, w device.Tensor, c device.Sequences) {
	device.CheckConvBackward(dx, dw, dy, x, w, c)
	s.lacks(device.OpConvBackward, device.DeltaNet)
}

// DeltaNet fails the stream.
func (s *Stream) DeltaNet(o, u, ba, logA, dt, from, to device.Tensor, d device.Delta) {
	device.CheckDeltaNet(o, u, ba, logA, dt, from, to, d)
	s.lacks(device.OpDeltaNet, device.DeltaNet)
}

// DeltaNetBackward fails the stream.
func (s *Stream) DeltaNetBackward(du, dba, dLogA, ddt, do, u, ba, logA, dt, states device.Tensor, d device.Delta) {
	device.CheckDeltaNetBackward(du, dba, dLogA, ddt, do, u, ba, logA, dt, states, d)
	s.lacks(device.OpDeltaNetBackward, device.DeltaNet)
}

// lacks fails the stream: an operation of a feature that this device does not compute.
func (s *Stream) lacks(op device.Op, f device.Feature) {
	s.fail(fault.New(fault.Unavailable, "%s: %s cannot be computed on cuda yet", op, f).WithHint("--device cpu").WithID("E-CUDA-070"))
}
