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
	s.multiply(c, a, w, 0, b, add)
	s.end(device.OpMatMul, 2*int64(c.rows)*int64(c.cols)*int64(a.cols))
}

// multiply is the product of a with the c.cols rows of w from row first on: those of one expert, or the first of all.
func (s *Stream) multiply(c, a mat, w *weight, first int, bias []float32, add bool) {
	switch {
	case w.packed != nil:
		s.q8.Multiply(w.packedFrom(first), c.rows, c.cols, a.d, a.stride, bias, c.d, c.stride, add)
	case w.f32.d != nil:
		s.gemm.NT(c.rows, c.cols, a.cols, a.d, a.stride, w.f32.d[first*w.f32.stride:], w.f32.stride, bias, c.d, c.stride, add)
	default:
		from := &s.ops.from
		from.w, from.first = w, first
		s.gemm.NTRows(c.rows, c.cols, a.cols, a.d, a.stride, from, bias, c.d, c.stride, add)
	}
}

// MatMulInputGrad: dx = dy·W, or dx += dy·W with add, over the first dy.Cols rows of W.
func (s *Stream) MatMulInputGrad(dx, dy device.Tensor, dw device.Weight, add bool) {
	device.CheckMatMulInputGrad(dx, dy, dw)
	if !s.begin() {
		return
	}
	c, a := floats(dx), floats(dy)
	s.inputGrad(c, a, dw.(*weight), 0, add)
	s.end(device.OpMatMulInputGrad, 2*int64(c.rows)*int64(c.cols)*int64(a.cols))
}

// inputGrad is the product of a with the transpose of the a.cols rows of w from row first on.
func (s *Stream) inputGrad(c, a mat, w *weight, first int, add bool) {
	if w.f32.d != nil {
		s.gemm.NN(c.rows, c.cols, a.cols, a.d, a.stride, w.f32.d[first*w.f32.stride:], w.f32.stride, c.d, c.stride, add)
	} else {
		s.inputGradDecoded(c, a, w, first, add)
	}
}

// gradRows is how many rows of a stored weight are decoded at a time for the gradient of its input.
const gradRows = 512

// inputGradDecoded adds up dx over slices of the rows of a weight that is not float32.
func (s *Stream) inputGradDecoded(c, a mat, w *weight, first int, add bool) {
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
		o.lo = first + lo
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
	c, a := floats(dw), floats(dy)
	s.weightGrad(c, optional(dbias), a, floats(x))
	s.end(device.OpMatMulWeightGrad, 2*int64(c.rows)*int64(c.cols)*int64(a.rows))
}

// weightGrad adds aᵀ·b to c, and the rows of a to bias unless that is none.
func (s *Stream) weightGrad(c, bias, a, b mat) {
	if a.rows > 0 {
		s.gemm.TN(c.rows, c.cols, a.rows, a.d, a.stride, b.d, b.stride, c.d, c.stride, true)
	}
	if bias.rows > 0 {
		o := &s.ops.columns
		o.sum, o.x = bias, a
		s.split(a.cols, columnGrain, o.run)
	}
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
