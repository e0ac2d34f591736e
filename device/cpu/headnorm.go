package cpu

import (
	"math"

	"apr/device"
)

// headNormOp is the norm of each group of dim columns, and its backward.
type headNormOp struct {
	s             *Stream
	y, rstd, x    mat
	dx, dy        mat
	w, dw         []float32 // nil: none
	ones          []float32 // what stands for w where there is none
	dim           int
	eps           float64
	part          mat // [blocks, dim] partial sums of dw
	fwd, bwd, sum func(worker, lo, hi int)
}

// HeadNorm: rstd = (mean(x²)+eps)^−½ and y = x·rstd·w over each group of headDim columns.
func (s *Stream) HeadNorm(y, rstd, x, w device.Tensor, headDim int, eps float64) {
	device.CheckHeadNorm(y, rstd, x, w, headDim)
	if !s.begin() {
		return
	}
	o := &s.ops.headNorm
	o.y, o.rstd, o.x, o.w, o.dim, o.eps = floats(y), optional(rstd), floats(x), vector(w), headDim, eps
	s.split(o.x.rows, rowGrain(o.x.cols), o.fwd)
	s.end(device.OpHeadNorm, 0)
}

// vector returns the row of t, nil for the zero tensor.
func vector(t device.Tensor) []float32 {
	if t.IsZero() {
		return nil
	}
	m := floats(t)
	return m.row(0)
}

func (o *headNormOp) forward(_, lo, hi int) {
	isa := o.s.isa
	for r := lo; r < hi; r++ {
		xs, ys := o.x.row(r), o.y.row(r)
		for h := range len(xs) / o.dim {
			x, y := xs[h*o.dim:(h+1)*o.dim], ys[h*o.dim:(h+1)*o.dim]
			rstd := float32(1 / math.Sqrt(isa.SumSquares(x)/float64(o.dim)+o.eps))
			if o.rstd.cols > 0 {
				o.rstd.row(r)[h] = rstd
			}
			if o.w != nil {
				isa.NormScale(y, x, o.w, rstd)
			} else {
				copy(y, x)
				isa.Scale(y, rstd)
			}
		}
	}
}

// HeadNormBackward writes dx: with x̂ = x·rstd, dx = rstd·(dy·w − x̂·mean(dy·w·x̂)), and adds dw += Σ dy·x̂. The sum runs over
// the heads of 64 rows, then over the blocks of rows, in ascending order.
func (s *Stream) HeadNormBackward(dx, dw, dy, x, rstd, w device.Tensor, headDim int) {
	device.CheckHeadNormBackward(dx, dw, dy, x, rstd, w, headDim)
	if !s.begin() {
		return
	}
	o := &s.ops.headNorm
	o.dx, o.dy, o.x, o.rstd, o.w, o.dw, o.dim = floats(dx), floats(dy), floats(x), floats(rstd), vector(w), vector(dw), headDim
	if o.w == nil {
		o.ones = grow(o.ones, headDim)
		for i := range o.ones {
			o.ones[i] = 1
		}
		o.w = o.ones
	}
	blocks := (o.x.rows + normBlock - 1) / normBlock
	o.part = mat{d: grow(o.part.d, blocks*headDim), rows: blocks, cols: headDim, stride: headDim}
	s.split(o.x.rows, normBlock, o.bwd)
	if o.dw != nil {
		s.split(headDim, columnGrain, o.sum)
	}
	s.end(device.OpHeadNormBackward, 0)
}

func (o *headNormOp) backward(worker, lo, hi int) {
	l, isa, d := &o.s.local[worker], o.s.isa, o.dim
	l.row = grow(l.row, d)
	dw := o.part.row(lo / normBlock)
	clear(dw)
	for r := lo; r < hi; r++ {
		for h := range o.x.cols / d {
			x, dx, rstd := o.x.row(r)[h*d:(h+1)*d], o.dx.row(r)[h*d:(h+1)*d], o.rstd.row(r)[h]
			copy(l.row, o.dy.row(r)[h*d:(h+1)*d])
			c := isa.Dot3(l.row, o.w, x) * float64(rstd) / float64(d)
			clear(dx) // which may be dy
			isa.NormGrad(dx, dw, l.row, x, o.w, rstd, float32(c))
		}
	}
}

func (o *headNormOp) strip(_, lo, hi int) {
	for b := range o.part.rows {
		o.s.isa.Add(o.dw[lo:hi], o.part.row(b)[lo:hi])
	}
}
