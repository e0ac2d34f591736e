package cpu

import (
	"math"

	"apr/device"
)

type normOp struct {
	s                      *Stream
	y, rstd, sum, x, delta mat
	w                      []float32
	eps                    float64
	run                    func(worker, lo, hi int)
}

// RMSNorm: with delta, sum = x + delta and v = sum, else v = x; rstd = (mean(v²)+eps)^−½ and y = v·rstd·w by row.
func (s *Stream) RMSNorm(y, rstd, sum, x, delta, w device.Tensor, eps float64) {
	device.CheckRMSNorm(y, rstd, sum, x, delta, w)
	if !s.begin() {
		return
	}
	o := &s.ops.norm
	o.y, o.rstd, o.sum, o.x, o.delta = optional(y), optional(rstd), optional(sum), floats(x), optional(delta)
	o.w, o.eps = nil, eps
	if !y.IsZero() {
		m := floats(w)
		o.w = m.row(0)
	}
	s.split(o.x.rows, rowGrain(o.x.cols), o.run)
	s.end(device.OpRMSNorm, 0)
}

func (o *normOp) rows(_, lo, hi int) {
	isa := o.s.isa
	for r := lo; r < hi; r++ {
		v, squares := o.x.row(r), 0.0
		if o.delta.cols > 0 {
			squares = isa.AddSumSquares(o.sum.row(r), v, o.delta.row(r))
			v = o.sum.row(r)
		} else {
			squares = isa.SumSquares(v)
		}
		rstd := float32(1 / math.Sqrt(squares/float64(len(v))+o.eps))
		if o.rstd.cols > 0 {
			o.rstd.row(r)[0] = rstd
		}
		if o.y.cols > 0 {
			isa.NormScale(o.y.row(r), v, o.w, rstd)
		}
	}
}

// normBlock is how many rows share one partial sum of dw.
const normBlock = 64

type normBackwardOp struct {
	s               *Stream
	dx, dy, x, rstd mat
	w               []float32
	part            mat // [blocks, h] partial sums of dw
	dw              []float32
	run, sum        func(worker, lo, hi int)
}

// RMSNormBackward: with x̂ = x·rstd, dx += rstd·(dy·w − x̂·mean(dy·w·x̂)) and dw += Σ_rows dy·x̂. The sum runs over
// blocks of 64 rows, then over the blocks, in ascending order.
func (s *Stream) RMSNormBackward(dx, dw, dy, x, rstd, w device.Tensor) {
	device.CheckRMSNormBackward(dx, dw, dy, x, rstd, w)
	if !s.begin() {
		return
	}
	o := &s.ops.normBackward
	o.dx, o.dy, o.x, o.rstd = floats(dx), floats(dy), floats(x), floats(rstd)
	mw, mdw := floats(w), floats(dw)
	h := o.x.cols
	o.w, o.dw = mw.row(0), mdw.row(0)
	blocks := (o.x.rows + normBlock - 1) / normBlock
	o.part = mat{d: grow(o.part.d, blocks*h), rows: blocks, cols: h, stride: h}
	s.split(o.x.rows, normBlock, o.run)
	s.split(h, columnGrain, o.sum)
	s.end(device.OpRMSNormBackward, 0)
}

func (o *normBackwardOp) rows(_, lo, hi int) {
	isa := o.s.isa
	dw := o.part.row(lo / normBlock)
	clear(dw)
	for r := lo; r < hi; r++ {
		x, dy, rstd := o.x.row(r), o.dy.row(r), o.rstd.row(r)[0]
		c := isa.Dot3(dy, o.w, x) * float64(rstd) / float64(len(x))
		isa.NormGrad(o.dx.row(r), dw, dy, x, o.w, rstd, float32(c))
	}
}

func (o *normBackwardOp) strip(_, lo, hi int) {
	for b := range o.part.rows {
		o.s.isa.Add(o.dw[lo:hi], o.part.row(b)[lo:hi])
	}
}

// grow returns a slice of n elements with undefined content, s itself if it is large enough.
func grow(s []float32, n int) []float32 {
	if cap(s) >= n {
		return s[:n]
	}
	return alignedFloats(n)
}
