package cuda

import "apr/device"

// MatMulSwiGLU: gu = x·Wᵀ and m = silu(g)·u of gu as stored.
func (s *Stream) MatMulSwiGLU(m, gu, x device.Tensor, w device.Weight, keep bool) {
	t := w.(*weight).t
	need(x.Rows == gu.Rows && x.Cols == t.Cols && gu.Cols == t.Rows, "MatMulSwiGLU", "shapes differ")
	need(m.Rows == gu.Rows && 2*m.Cols == gu.Cols, "MatMulSwiGLU", "shapes differ")
	floats("MatMulSwiGLU", gu.DType, m)
	s.MatMul(gu, x, w, device.Tensor{}, false)
	s.SwiGLU(m, gu)
}
