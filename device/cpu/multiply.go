package cpu

import (
	"apr/device"
	"apr/device/dry"
)

var _ dry.Multiplier = (*Stream)(nil)

// PrepareProducts does nothing: a CPU has no plans of products.
func (s *Stream) PrepareProducts([]dry.Op) error { return nil }

// Multiply runs a recorded product over float32 operands. A matrix that the step decodes while it multiplies is dense here, and the
// gated unit after a product is left out: both are passes of their own on a CPU.
func (s *Stream) Multiply(o dry.Op, m dry.Operands) {
	switch o.Kind {
	case device.OpMatMul, device.OpMatMulGLU:
		s.MatMul(m.Out, m.In, s.dev.Frozen(m.Other), m.Bias, o.Add)
	case device.OpMatMulInputGrad:
		s.MatMulInputGrad(m.Out, m.In, s.dev.Frozen(m.Other), o.Add)
	case device.OpMatMulWeightGrad:
		s.MatMulWeightGrad(m.Out, device.Tensor{}, m.In, m.Other)
	default:
		s.fail(dry.NotAlone(o))
	}
}
