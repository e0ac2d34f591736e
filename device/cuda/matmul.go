package cuda

import (
	"errors"

	"apr/device"
	"apr/device/cuda/blas"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
	"apr/tensor"
)

// MatMul: y = x·Wᵀ (+ bias) or, with add, y += x·Wᵀ (+ bias), over the first y.Cols rows of W. cublasLt takes the bias in
// the type of y, to which it is rounded.
func (s *Stream) MatMul(y, x device.Tensor, w device.Weight, bias device.Tensor, add bool) {
	device.CheckMatMul(y, x, w, bias)
	m := w.(*weight)
	t := m.t
	switch {
	case s.failed(): // tensors need not have a place
		return
	case m.host != nil:
		s.withStack(m, func(w *weight) { s.MatMul(y, x, w, bias, add) })
		return
	case m.tiled && x.Rows <= kernel.TileProductRows:
		s.matMulTiles(y, x, m, bias, add)
		return
	case m.reads(x.Rows):
		s.decode(y, x, m, bias, add)
		return
	case m.fp8 != nil:
		s.matMulFP8(y, x, m, bias, add)
		return
	case m.parts != nil:
		s.matMulBlocks(y, x, m, bias, add)
		return
	case x.DType == tensor.BF16 && y.DType == tensor.F32 && kernel.GemvWideServes(mat(x), y.Cols):
		s.matMulRows(kernel.GemvPlain, y, x, t.RowRange(0, y.Cols), bias, add)
		return
	case s.dev.readsAhead(y, x, m):
		s.matMulRows(kernel.GemvStaged, y, x, t.RowRange(0, y.Cols), bias, add)
		return
	}
	s.eachNarrow(x, func(lo, hi int) {
		y, x := y.RowRange(lo, hi), x.RowRange(lo, hi)
		o := s.begin("MatMul", y, x, t, bias)
		if o == nil {
			return
		}
		o.product(blas.NT, mat(y), o.narrow(x), o.narrow(t.RowRange(0, y.Cols)), bias, add)
		o.end()
	})
}

// readsAhead reports whether the kernel for one row and frozen matrices computes y.
func (d *Device) readsAhead(y, x device.Tensor, m *weight) bool {
	w := mat(m.t.RowRange(0, y.Cols))
	return m.frozen && d.decodesLayers() && kernel.GemvStagedServes(mat(y), mat(x), w, d.desc.Multiprocessors)
}

// matMulRows is MatMul of few rows with a matrix whose values are read as they are.
func (s *Stream) matMulRows(
	product func(q kernel.Queue, y, x, w, bias kernel.Mat, add bool), y, x, w, bias device.Tensor, add bool,
) {
	if o := s.begin("MatMul", y, x, w, bias); o != nil {
		o.sized(y.Rows, y.Cols, x.Cols)
		s.dev.counts.products.Add(1)
		product(o, mat(y), mat(x), mat(w), mat(bias), add)
		o.end()
	}
}

// MatMulInputGrad: dx = dy·W, or dx += dy·W with add, over the first dy.Cols rows of W.
func (s *Stream) MatMulInputGrad(dx, dy device.Tensor, w device.Weight, add bool) {
	device.CheckMatMulInputGrad(dx, dy, w)
	m := w.(*weight)
	t := m.t
	if m.host != nil && !s.failed() {
		s.withStack(m, func(w *weight) { s.MatMulInputGrad(dx, dy, w, add) })
		return
	}
	limit(m.fp8 == nil, device.OpMatMulInputGrad, "no gradient comes through a matrix in 8-bit floats")
	if m.parts != nil {
		s.inputGradBlocks(dx, dy, m, add)
		return
	}
	s.eachNarrow(dy, func(lo, hi int) {
		dx, dy := dx.RowRange(lo, hi), dy.RowRange(lo, hi)
		if o := s.begin("MatMulInputGrad", dx, dy, t); o != nil {
			o.product(blas.NN, mat(dx), o.narrow(dy), o.narrow(t.RowRange(0, dy.Cols)), device.Tensor{}, add)
			o.end()
		}
	})
}

// MatMulWeightGrad: dw += dyᵀ·x, and dbias += Σ_rows dy unless dbias is zero.
func (s *Stream) MatMulWeightGrad(dw, dbias, dy, x device.Tensor) {
	device.CheckMatMulWeightGrad(dw, dbias, dy, x)
	s.eachNarrow(dy, func(lo, hi int) {
		dy, x := dy.RowRange(lo, hi), x.RowRange(lo, hi)
		add := !s.overwrites(dw)
		if o := s.begin("MatMulWeightGrad", dw, dy, x); o != nil {
			o.product(blas.TN, mat(dw), o.narrow(dy), o.narrow(x), device.Tensor{}, add)
			o.end()
		}
	})
	if dbias.IsZero() {
		return
	}
	if o := s.begin("MatMulWeightGrad", dbias, dy); o != nil {
		kernel.BiasGrad(o, mat(dbias), mat(dy))
		o.end()
	}
}

// eachNarrow calls f for all rows of x; if x is wider than the operands of products, for as many at a time as fit the
// scratch memory after narrow, twice.
func (s *Stream) eachNarrow(x device.Tensor, f func(lo, hi int)) {
	step := x.Rows
	if x.DType != s.dev.act {
		step = max(1, kernel.MaxScratch/2/max(1, x.Cols*s.dev.act.BlockBytes()))
	}
	for lo := 0; lo < x.Rows; lo += step {
		f(lo, min(lo+step, x.Rows))
	}
}

// narrow returns t in the device's activation type: rounded once, in scratch, if it is another.
func (o *operation) narrow(t device.Tensor) kernel.Mat {
	m := mat(t)
	if t.DType == o.dev.act {
		return m
	}
	return o.rounded(m, o.dev.act)
}

// rounded copies m to scratch as type d.
func (o *operation) rounded(m kernel.Mat, d tensor.DType) kernel.Mat {
	c := kernel.Mat{Rows: m.Rows, Cols: m.Cols, Stride: m.Cols, Type: d}
	c.Ptr = o.Scratch(m.Rows * m.Cols * d.BlockBytes())
	kernel.Copy(o, c, m)
	return c
}

// product adds c = op(a)·op(b) (+ bias) (+ c), the bias float32, to the operation: through cublasLt or, where that is
// missing or declines, through the kernels of gemm.cu.
func (o *operation) product(op blas.Op, c, a, b kernel.Mat, bias device.Tensor, add bool) {
	k := a.Cols
	if op == blas.TN {
		k = a.Rows
	}
	if c.Rows == 0 || c.Cols == 0 {
		return
	}
	o.sized(c.Rows, c.Cols, k)
	d := o.dev
	own := func(q kernel.Queue) { kernel.Gemm(q, forms[op], c, a, b, mat(bias), add, d.opts.Compute == TF32) }
	d.counts.products.Add(1)
	if d.gemm == nil || k == 0 { // a sum of nothing is 0, which cublasLt declines
		own(o)
		return
	}
	given := mat(bias)
	if !bias.IsZero() && c.Type != tensor.F32 {
		given = o.narrowBias(bias, c.Type)
	}
	shape := blas.Shape{
		Op: op, M: c.Rows, N: c.Cols, K: k, LDA: a.Stride, LDB: b.Stride, LDC: c.Stride, In: a.Type, Out: c.Type,
		Compute: d.opts.Compute.products(), Bias: !bias.IsZero(), Add: add, Aligned: blas.AlignedAt(c.Ptr, a.Ptr, b.Ptr, given.Ptr),
	}
	o.callKeyed(productKey{shape, c.Ptr, a.Ptr, b.Ptr, given.Ptr, mat(bias).Ptr, o.used}, func(t *driver.Thread) error {
		p, err := d.plan(t, shape)
		if errors.Is(err, blas.ErrUnsupported) {
			return o.inside(t, own)
		}
		if err != nil {
			return err
		}
		return p.Run(t, d.stream, c.Ptr, a.Ptr, b.Ptr, given.Ptr)
	})
}

// productKey is all that a product depends on.
type productKey struct {
	shape                blas.Shape
	c, a, b, given, bias uint64
	scratch              int
}

// forms are the forms of products in the words of package kernel.
var forms = [...]kernel.GemmForm{blas.NT: kernel.GemmNT, blas.NN: kernel.GemmNN, blas.TN: kernel.GemmTN}

// inside performs launches at once, from within a call of the operation.
func (o *operation) inside(t *driver.Thread, launch func(kernel.Queue)) error {
	sub := operation{dev: o.dev, stream: o.stream, name: o.name, used: o.used}
	launch(&sub)
	return sub.perform(t)
}

// products returns the arithmetic in the words of package blas.
func (c Compute) products() blas.Compute {
	return [...]blas.Compute{BF16: blas.BF16, TF32: blas.TF32, F32: blas.F32}[c]
}

// plan returns a product's plan; one that was not prewarmed is made, and counted as a load.
func (d *Device) plan(t *driver.Thread, s blas.Shape) (*blas.Plan, error) {
	before := d.gemm.Plans()
	if d.unplanned[s] {
		return nil, blas.ErrUnsupported
	}
	p, err := d.gemm.Plan(t, s)
	if errors.Is(err, blas.ErrUnsupported) {
		d.unplanned[s] = true
		return nil, err
	}
	if err == nil && d.gemm.Plans() != before {
		_, err = d.kernels.count(s.Key())
	}
	return p, err
}
