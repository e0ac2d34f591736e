package cuda

import (
	"apr/device"
	"apr/device/cuda/kernel"
	"apr/device/dry"
)

// fusedRows is from how many rows on one kernel computes MatMulSwiGLU: with fewer, most of a tile of 256 rows is empty,
// and cublasLt has smaller ones.
const fusedRows = 64

// fuses reports whether one kernel computes MatMulSwiGLU of these operands. Otherwise it is MatMul, then SwiGLU.
func (d *Device) fuses(m, gu, x, w kernel.Mat) bool {
	return d.target() == "sm_90a" && m.Rows >= fusedRows && kernel.GemmSwiGLUServes(m, gu, x, w)
}

// fusesPlanned is fuses for a recorded operation, whose m and w are taken to have no gaps.
func (d *Device) fusesPlanned(o dry.Op) bool {
	mat := func(rows, cols, stride int) kernel.Mat {
		return kernel.Mat{Rows: rows, Cols: cols, Stride: stride, Type: o.Out}
	}
	f := o.N / 2
	return o.In == o.Out && d.fuses(mat(o.M, f, f), mat(o.M, o.N, o.OutStride), mat(o.M, o.K, o.InStride), mat(o.N, o.K, o.K))
}

// MatMulSwiGLU: gu = x·Wᵀ and m = silu(g)·u of gu as stored. Without keep gu is not written by the one kernel that does
// both.
func (s *Stream) MatMulSwiGLU(m, gu, x device.Tensor, w device.Weight, keep bool) {
	wt := w.(*weight)
	t := wt.t
	need(x.Rows == gu.Rows && x.Cols == t.Cols && gu.Cols == t.Rows, "MatMulSwiGLU", "shapes differ")
	need(m.Rows == gu.Rows && 2*m.Cols == gu.Cols, "MatMulSwiGLU", "shapes differ")
	floats("MatMulSwiGLU", gu.DType, m)
	if s.decodeGated(m, gu, x, wt, keep) {
		return
	}
	o := s.begin("MatMulSwiGLU", m, gu, x, t)
	if o == nil {
		return
	}
	read := mat(t)
	if wt.parts != nil {
		read = kernel.Mat{Ptr: s.dev.expansion.place.address(), Rows: t.Rows, Cols: t.Cols, Stride: t.Cols, Type: t.DType}
	}
	if wt.eighth != nil || !s.dev.expandsWhole(wt) || !s.dev.fuses(mat(m), mat(gu), mat(x), read) {
		s.MatMul(gu, x, w, device.Tensor{}, false)
		s.SwiGLU(m, gu)
		return
	}
	if wt.parts != nil {
		read = o.expand(wt, 0, t.Rows)
	}
	o.sized(gu.Rows, gu.Cols, x.Cols)
	s.dev.counts.products.Add(1)
	kernel.GemmSwiGLU(o, mat(m), mat(gu), mat(x), read, keep)
	o.end()
}

// expandsWhole reports whether w can be multiplied in one piece.
func (d *Device) expandsWhole(w *weight) bool {
	return w.parts == nil || int64(w.t.Rows)*d.act.RowBytes(w.t.Cols) <= d.expansion.bytes
}
