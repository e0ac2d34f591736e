package cuda

import (
	"apr/device"
	"apr/device/cuda/blas"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
	"apr/device/cuda/kernel/manifest"
	"apr/device/dry"
)

var _ dry.Multiplier = (*Stream)(nil)

// Multiply runs a recorded product by the kernel that the step takes for it, over a matrix in one piece. A gated unit is
// computed where that kernel does so, and left out elsewhere; sums of columns for a bias are left out.
func (s *Stream) Multiply(o dry.Op, m dry.Operands) {
	form, ok := map[device.Op]blas.Op{
		device.OpMatMul: blas.NT, device.OpMatMulGLU: blas.NT, device.OpMatMulInputGrad: blas.NN, device.OpMatMulWeightGrad: blas.TN,
	}[o.Kind]
	if !ok {
		s.fail(dry.NotAlone(o))
		return
	}
	op := s.begin("Multiply", m.Out, m.In, m.Other, m.Gated) // not the bias: its copy in the type of Out stays good
	if op == nil {
		return
	}
	defer op.end()
	gated := o.Kind == device.OpMatMulGLU
	switch {
	case o.FP8:
		op.multiplyFP8(o, m, gated && o.Act == device.SiLU && !o.Keep)
	case gated && s.dev.fuses(mat(m.Gated), mat(m.Out), mat(m.In), mat(m.Other), o.Act):
		op.sized(o.M, o.N, o.K)
		s.dev.counts.products.Add(1)
		kernel.GemmGLU(op, mat(m.Gated), mat(m.Out), mat(m.In), mat(m.Other), o.Act, o.Keep)
	case o.Thin > 0 && op.multiplyThin(o, mat(m.Out), mat(m.In), mat(m.Other)):
	default:
		op.product(form, mat(m.Out), mat(m.In), mat(m.Other), m.Bias, o.Add)
	}
}

// multiplyFP8 is Multiply of numbers in e4m3.
func (o *operation) multiplyFP8(op dry.Op, m dry.Operands, gated bool) {
	bytes := func(t device.Tensor) kernel.Bytes {
		return kernel.Bytes{Ptr: mat(t).Ptr, Rows: t.Rows, Cols: op.K, Stride: op.K}
	}
	x, w, sx, sw := bytes(m.In), bytes(m.Other), mat(m.InScale), mat(m.OtherScale)
	d := o.dev
	if gated && d.target() == manifest.Hopper && op.M >= fusedRows && kernel.GemmSwiGLUE4M3Serves(mat(m.Gated), x, sx, w, sw) {
		o.sized(op.M, op.N, op.K)
		d.counts.products.Add(1)
		kernel.GemmSwiGLUE4M3(o, mat(m.Gated), x, sx, w, sw)
		return
	}
	o.productFP8(mat(m.Out), x, sx, w, sw, m.Bias, op.Add)
}

// PrepareProducts plans products as Multiply runs them: those that Prepare does not know are of matrices that the step expands in
// several pieces.
func (s *Stream) PrepareProducts(all []dry.Op) error {
	d, r := s.dev, &dry.Record{}
	for _, o := range all {
		o.Expands = false
		if o.In != d.act { // which the step rounds first
			o.In, o.InStride = d.act, o.K
			if o.Kind == device.OpMatMulWeightGrad {
				o.InStride = o.M
			}
		}
		r.Ops = append(r.Ops, dry.Count{Op: o, Times: 1})
	}
	return d.explain("PrepareProducts", d.ctx.Do(func(t *driver.Thread) error {
		_, err := d.planAll(t, d.shapes(r))
		return err
	}))
}
