package cuda

import (
	"apr/device"
	"apr/device/cuda/kernel"
	"apr/device/cuda/kernel/manifest"
	"apr/device/dry"
	"apr/tensor"
)

// fusedRows is from how many rows on one kernel computes MatMulGLU: with fewer, most of a tile of 256 rows is empty,
// and cublasLt has smaller ones.
const fusedRows = 64

// fuses reports whether one kernel computes MatMulGLU of these operands. Otherwise it is MatMul, then GLU.
func (d *Device) fuses(m, gu, x, w kernel.Mat, act device.Activation) bool {
	return d.target() == manifest.Hopper && m.Rows >= fusedRows && kernel.GemmGLUServes(m, gu, x, w, act)
}

// fusesPlanned is fuses for a recorded operation, whose m and w are taken to have no gaps.
func (d *Device) fusesPlanned(o dry.Op) bool {
	mat := func(rows, cols, stride int) kernel.Mat {
		return kernel.Mat{Rows: rows, Cols: cols, Stride: stride, Type: o.Out}
	}
	f := o.N / 2
	return o.In == o.Out && d.fuses(mat(o.M, f, f), mat(o.M, o.N, o.OutStride), mat(o.M, o.K, o.InStride), mat(o.N, o.K, o.K), o.Act)
}

// MatMulGLU: gu = x·Wᵀ and m = act(g)·u of gu as stored. Without keep gu is not written by the one kernel that does
// both; that knows SiLU and GELUTanh. With a matrix in 8-bit floats only SiLU has one, and gu that is kept is computed
// by MatMul.
func (s *Stream) MatMulGLU(m, gu, x device.Tensor, w device.Weight, act device.Activation, keep bool) {
	device.CheckMatMulGLU(m, gu, x, w, act)
	wt := w.(*weight)
	if wt.host != nil && !s.failed() {
		s.withStack(wt, func(w *weight) { s.MatMulGLU(m, gu, x, w, act, keep) })
		return
	}
	t, silu := wt.t, act == device.SiLU
	if silu && (s.decodeGated(m, gu, x, wt, keep) || s.gatedTiles(m, gu, x, wt, keep)) {
		return
	}
	if kernel.GemmGLUModule(act) == "" || wt.reads(x.Rows) {
		s.MatMul(gu, x, w, device.Tensor{}, false)
		s.GLU(m, gu, act)
		return
	}
	if wt.parts != nil && !s.expandsHere(wt) {
		return
	}
	o := s.begin("MatMulGLU", m, gu, x, t)
	if o == nil {
		return
	}
	if silu && wt.fp8 != nil && !keep && s.dev.fusesFP8(mat(m), x.Cols, wt.parts != nil, s.dev.expansion.Load().bytes) {
		s.gatedFP8(m, x, wt)
		return
	}
	read := mat(t)
	if wt.parts != nil {
		read = kernel.Mat{Ptr: s.dev.expansion.Load().place.address(), Rows: t.Rows, Cols: t.Cols, Stride: t.Cols, Type: t.DType}
	}
	if wt.fp8 != nil || !s.dev.expandsWhole(wt) || !s.dev.fuses(mat(m), mat(gu), mat(x), read, act) {
		s.MatMul(gu, x, w, device.Tensor{}, false)
		s.GLU(m, gu, act)
		return
	}
	if wt.parts != nil {
		read = o.expand(wt, 0, t.Rows)
	}
	o.sized(gu.Rows, gu.Cols, x.Cols)
	s.dev.counts.products.Add(1)
	kernel.GemmGLU(o, mat(m), mat(gu), mat(x), read, act, keep)
	o.end()
}

// fusesFP8 reports whether the fused fp8 kernel applies to a matrix of h columns in 8-bit floats, or in blocks that
// are expanded to them whole in that much memory.
func (d *Device) fusesFP8(m kernel.Mat, h int, blocks bool, expansion int64) bool {
	f := m.Cols
	x, w := kernel.Bytes{Rows: m.Rows, Cols: h, Stride: h}, kernel.Bytes{Rows: 2 * f, Cols: h, Stride: h}
	scale := kernel.Mat{Cols: 1, Stride: 1, Type: tensor.F32}
	return d.target() == manifest.Hopper && m.Rows >= fusedRows && fp8Slab(2*f, h, blocks, expansion) == 2*f &&
		kernel.GemmSwiGLUE4M3Serves(m, x, scale, w, scale)
}

// fusesFP8Planned is fusesFP8 for a recorded operation.
func (d *Device) fusesFP8Planned(o dry.Op, expansion int64) bool {
	m := kernel.Mat{Rows: o.M, Cols: o.N / 2, Stride: o.N / 2, Type: o.Out}
	return o.Act == device.SiLU && !o.Keep && d.fusesFP8(m, o.K, o.Expands, expansion)
}

// gatedFP8 is MatMulGLU in 8-bit floats by one kernel.
func (s *Stream) gatedFP8(m, x device.Tensor, w *weight) {
	piece := fp8Piece(x.Rows, x.Cols)
	for first := 0; first < x.Rows; first += piece {
		end := min(first+piece, x.Rows)
		o := s.begin("MatMulGLU", m, x)
		if o == nil {
			return
		}
		o.sized(end-first, w.t.Rows, x.Cols)
		s.dev.counts.products.Add(1)
		x8, sx := o.roundRows(x.RowRange(first, end))
		kernel.GemmSwiGLUE4M3(o, mat(m.RowRange(first, end)), x8, sx, o.expandFP8(w, 0, w.t.Rows), w.fp8.scale)
		o.end()
	}
}

// expandsWhole reports whether w can be multiplied in one piece.
func (d *Device) expandsWhole(w *weight) bool {
	return w.parts == nil || int64(w.t.Rows)*d.act.RowBytes(w.t.Cols) <= d.expansion.Load().bytes
}
