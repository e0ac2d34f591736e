package cpu

import "apr/device"

// MatMul: y = x·Wᵀ (+ bias) or, with add, y += x·Wᵀ (+ bias), over the first y.Cols rows of W.
func (s *Stream) MatMul(y, x device.Tensor, dw device.Weight, bias device.Tensor, add bool) {
	device.CheckMatMul(y, x, dw, bias)
	if !s.begin() {
		return
	}
	w, c, a := dw.(*weight), floats(y), floats(x)
	var b []float32
	if !bias.IsZero() {
		m := floats(bias)
		b = m.row(0)
	}
	switch {
	case w.packed != nil:
		s.q8.Multiply(w.packed, c.rows, c.cols, a.d, a.stride, b, c.d, c.stride, add)
	case w.f32.d != nil:
		s.gemm.NT(c.rows, c.cols, a.cols, a.d, a.stride, w.f32.d, w.f32.stride, b, c.d, c.stride, add)
	default:
		s.gemm.NTRows(c.rows, c.cols, a.cols, a.d, a.stride, w, b, c.d, c.stride, add)
	}
	s.end(device.OpMatMul, 2*int64(c.rows)*int64(c.cols)*int64(a.cols))
}

// MatMulInputGrad: dx = dy·W, or dx += dy·W with add, over the first dy.Cols rows of W.
func (s *Stream) MatMulInputGrad(dx, dy device.Tensor, dw device.Weight, add bool) {
	device.CheckMatMulInputGrad(dx, dy, dw)
	if !s.begin() {
		return
	}
	w, c, a := dw.(*weight), floats(dx), floats(dy)
	if w.f32.d != nil {
		s.gemm.NN(c.rows, c.cols, a.cols, a.d, a.stride, w.f32.d, w.f32.stride, c.d, c.stride, add)
	} else {
		s.inputGradDecoded(c, a, w, add)
	}
	s.end(device.OpMatMulInputGrad, 2*int64(c.rows)*int64(c.cols)*int64(a.cols))
}

// gradRows is how many rows of a stored weight are decoded at a time for the gradient of its input.
const gradRows = 512

// inputGradDecoded adds up dx over slices of the rows of a weight that is not float32.
func (s *Stream) inputGradDecoded(c, a mat, w *weight, add bool) {
	if c.cols == 0 {
		return // rows of nothing are not stored
	}
	o := &s.ops.decode
	o.w = w
	o.dst = grow(o.dst, min(gradRows, a.cols)*w.cols)
	if a.cols == 0 && !add {
		s.ops.zero.m = c
		s.split(c.rows, rowGrain(c.cols), s.ops.zero.run)
	}
	for lo := 0; lo < a.cols; lo += gradRows {
		o.lo = lo
		n := min(gradRows, a.cols-lo)
		s.split(n, rowGrain(w.cols), o.run)
		s.gemm.NN(c.rows, c.cols, n, a.d[lo:], a.stride, o.dst, w.cols, c.d, c.stride, add || lo > 0)
	}
}

type decodeOp struct {
	w   *weight
	lo  int
	dst []float32
	run func(worker, lo, hi int)
}

func (o *decodeOp) rows(_, lo, hi int) {
	for r := lo; r < hi; r++ {
		o.w.DecodeRow(o.dst[r*o.w.cols:], o.lo+r, 0, o.w.cols)
	}
}

// MatMulWeightGrad: dw += dyᵀ·x, and dbias += Σ_rows dy unless dbias is zero.
func (s *Stream) MatMulWeightGrad(dw, dbias, dy, x device.Tensor) {
	device.CheckMatMulWeightGrad(dw, dbias, dy, x)
	if !s.begin() {
		return
	}
	c, a, b := floats(dw), floats(dy), floats(x)
	if a.rows > 0 {
		s.gemm.TN(c.rows, c.cols, a.rows, a.d, a.stride, b.d, b.stride, c.d, c.stride, true)
	}
	if !dbias.IsZero() {
		o := &s.ops.columns
		o.sum, o.x = floats(dbias), a
		s.split(a.cols, columnGrain, o.run)
	}
	s.end(device.OpMatMulWeightGrad, 2*int64(c.rows)*int64(c.cols)*int64(a.rows))
}

// columnGrain is the width of the strips that column sums are cut into: four cache lines.
const columnGrain = 64

// columnsOp adds the rows of x to sum, in ascending order.
type columnsOp struct {
	s      *Stream
	sum, x mat
	run    func(worker, lo, hi int)
}

func (o *columnsOp) strip(_, lo, hi int) {
	sum := o.sum.row(0)[lo:hi]
	for r := range o.x.rows {
		o.s.isa.Add(sum, o.x.row(r)[lo:hi])
	}
}
