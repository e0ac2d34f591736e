package cuda

import (
	"apr/device"
	"apr/device/cuda/blas"
	"apr/device/cuda/kernel"
	"apr/device/cuda/kernel/manifest"
	"apr/device/dry"
	"apr/tensor"
)

// Adapters in bfloat16 whose ranks and columns are multiples of 8 have kernels of their own; others are products as any, in which u is
// scaled and rounded first.

// LowRank: u = x·Aᵀ, y += Scale·u·Bᵀ of each part, and m = act(g)·u' of y unless m is zero.
func (s *Stream) LowRank(y, m, u, x device.Tensor, l device.LowRank, act device.Activation) {
	device.CheckLowRank(y, m, u, x, l, act)
	limit(x.DType == s.dev.act, device.OpLowRank, "x is not of the type of activations")
	if s.failed() {
		return // tensors need not have a place
	}
	s.thinDown(u, x, l)
	if y.IsZero() {
		return
	}
	parts := thinParts(l)
	switch {
	case !m.IsZero() && kernel.ThinGLUServes(mat(m), mat(y), mat(u), parts, act):
		if o := s.begin("LowRankGLU", factors(l, y, m, u)...); o != nil {
			o.sized(y.Rows, y.Cols, u.Cols)
			kernel.ThinGLU(o, mat(m), mat(y), mat(u), parts, act)
			o.end()
		}
		return
	case kernel.ThinServes(mat(y), mat(u), parts):
		if o := s.begin("LowRankUp", factors(l, y, u)...); o != nil {
			o.sized(y.Rows, y.Cols, u.Cols)
			kernel.ThinUp(o, mat(y), mat(u), parts, false, true)
			o.end()
		}
	default:
		for _, p := range l.Parts {
			s.upAny(y.ColRange(p.Lo, p.Hi), u.ColRange(p.From, p.To), p)
		}
	}
	if !m.IsZero() {
		s.GLU(m, y, act)
	}
}

var _ device.GatedAdapters = (*Stream)(nil)

// ServesLowRankGLU reports whether one kernel makes the product of a gated layer with adapters: of SiLU, on compute
// capability 9.0, for so many rows that MatMulGLU would be one kernel too.
func (s *Stream) ServesLowRankGLU(
	m, gu, x, u device.Tensor, w device.Weight, l device.LowRank, act device.Activation,
) bool {
	device.CheckMatMulLowRankGLU(m, gu, x, u, w, l, act)
	wt := w.(*weight)
	if s.failed() || act != device.SiLU || wt.fp8 != nil || wt.reads(x.Rows) || x.Rows < fusedRows ||
		s.dev.target() != manifest.Hopper || wt.parts != nil && !s.expandsHere(wt) {
		return false
	}
	return s.dev.expandsWhole(wt) &&
		kernel.GemmSwiGLULowServes(mat(m), mat(gu), mat(x), s.readWhole(wt), mat(u), thinParts(l))
}

// readWhole returns where a product reads a matrix in one piece, into which it is expanded if it is in blocks.
func (s *Stream) readWhole(w *weight) kernel.Mat {
	read := mat(w.t)
	if w.parts != nil {
		at := s.dev.expansion.Load().place.address()
		read = kernel.Mat{Ptr: at, Rows: w.t.Rows, Cols: w.t.Cols, Stride: w.t.Cols, Type: w.t.DType}
	}
	return read
}

// MatMulLowRankGLU: gu = x·Wᵀ + Scale·u·Bᵀ of each part and m = act(g)·u' of gu in one product.
func (s *Stream) MatMulLowRankGLU(m, gu, x, u device.Tensor, w device.Weight, l device.LowRank, act device.Activation) {
	serves := s.failed() || s.ServesLowRankGLU(m, gu, x, u, w, l, act)
	limit(serves, device.OpLowRank, "a gated product that no one kernel serves")
	wt := w.(*weight)
	o := s.begin("MatMulLowRankGLU", factors(l, m, gu, x, u, wt.t)...)
	if o == nil {
		return
	}
	read := s.readWhole(wt)
	if wt.parts != nil {
		read = o.expand(wt, 0, wt.t.Rows)
	}
	o.sized(gu.Rows, gu.Cols, x.Cols)
	s.dev.counts.products.Add(1)
	kernel.GemmSwiGLULow(o, mat(m), mat(gu), mat(x), read, mat(u), thinParts(l))
	o.end()
}

// thinDown: u = x·Aᵀ.
func (s *Stream) thinDown(u, x device.Tensor, l device.LowRank) {
	a := l.A.(*weight).t
	whole := []kernel.ThinPart{{W: mat(a), Hi: x.Cols, To: u.Cols, Scale: 1}}
	if !kernel.ThinServes(mat(x), mat(u), whole) {
		s.MatMul(u, x, l.A, device.Tensor{}, false)
		return
	}
	if o := s.begin("LowRankDown", u, x, a); o != nil {
		o.sized(x.Rows, u.Cols, x.Cols)
		kernel.ThinDown(o, mat(u), mat(x), whole, true)
		o.end()
	}
}

// upAny: y += Scale·u·Bᵀ of operands of any kind.
func (s *Stream) upAny(y, u device.Tensor, p device.LowRankPart) {
	b := p.B.(*weight).t.RowRange(0, y.Cols)
	s.eachScaled(u, 0, p.Scale, func(lo, hi int) {
		y, u := y.RowRange(lo, hi), u.RowRange(lo, hi)
		if o := s.begin("LowRank", y, u, b); o != nil {
			o.product(blas.NT, mat(y), o.times(u, p.Scale), mat(b), device.Tensor{}, true)
			o.end()
		}
	})
}

// LowRankWeightGrad: dB += Scale·dyᵀ·u, du = Scale·dy·B of each part, then dA += duᵀ·x.
func (s *Stream) LowRankWeightGrad(du, dy, x, u device.Tensor, l device.LowRank) {
	device.CheckLowRankWeightGrad(du, dy, x, u, l)
	limit(x.DType == s.dev.act, device.OpLowRankWeightGrad, "x is not of the type of activations")
	if s.failed() {
		return // tensors need not have a place
	}
	parts := thinParts(l)
	if kernel.ThinServes(mat(dy), mat(du), parts) && kernel.ThinServes(mat(dy), mat(u), parts) {
		for i, p := range l.Parts {
			parts[i].D, parts[i].Add = mat(p.GradB), !s.overwrites(p.GradB)
		}
		s.thinGrad("LowRankGradB", dy, u, parts, l, false)
		if o := s.begin("LowRankGradU", factors(l, du, dy)...); o != nil {
			o.sized(dy.Rows, du.Cols, dy.Cols)
			kernel.ThinDown(o, mat(du), mat(dy), parts, false)
			o.end()
		}
	} else {
		for _, p := range l.Parts {
			s.weightGradAny(du.ColRange(p.From, p.To), dy.ColRange(p.Lo, p.Hi), u.ColRange(p.From, p.To), p)
		}
	}
	whole := []kernel.ThinPart{{W: mat(x), D: mat(l.GradA), Hi: x.Cols, To: du.Cols, Scale: 1}}
	if !kernel.ThinServes(mat(x), mat(du), whole) {
		s.MatMulWeightGrad(l.GradA, device.Tensor{}, du, x)
		return
	}
	whole[0].Add = !s.overwrites(l.GradA)
	s.thinGrad("LowRankGradA", x, du, whole, device.LowRank{GradA: l.GradA}, true)
}

// thinGrad adds the gradients of parts, which are those of B, or of A.
func (s *Stream) thinGrad(name string, wide, thin device.Tensor, parts []kernel.ThinPart, l device.LowRank, ofA bool) {
	written := []device.Tensor{wide, thin}
	for _, p := range l.Parts {
		written = append(written, p.GradB)
	}
	if ofA {
		written = append(written, l.GradA)
	}
	if o := s.begin(name, written...); o != nil {
		o.sized(wide.Rows, wide.Cols, thin.Cols)
		kernel.ThinGrad(o, mat(wide), mat(thin), parts, ofA)
		o.end()
	}
}

// weightGradAny: dB += Scale·dyᵀ·u and du = Scale·dy·B of operands of any kind.
func (s *Stream) weightGradAny(du, dy, u device.Tensor, p device.LowRankPart) {
	s.eachScaled(u, dy.Cols, p.Scale, func(lo, hi int) {
		dy, u := dy.RowRange(lo, hi), u.RowRange(lo, hi)
		add := !s.overwrites(p.GradB)
		if o := s.begin("LowRankWeightGrad", p.GradB, dy, u); o != nil {
			o.product(blas.TN, mat(p.GradB), o.narrow(dy), o.times(u, p.Scale), device.Tensor{}, add)
			o.end()
		}
	})
	s.MatMulInputGrad(du, dy, p.B, false)
	if p.Scale != 1 {
		s.Scale(du, du, p.Scale)
	}
}

// eachScaled calls f for all rows, for as many at a time as scratch memory holds of u and of cols further columns.
func (s *Stream) eachScaled(u device.Tensor, cols int, scale float64, f func(lo, hi int)) {
	step := max(1, kernel.MaxScratch/2/max(1, (u.Cols+cols)*s.dev.act.BlockBytes()))
	for lo := 0; lo < u.Rows; lo += step {
		f(lo, min(lo+step, u.Rows))
	}
}

// times returns f·u: rounded once, in scratch, unless f is 1.
func (o *operation) times(u device.Tensor, f float64) kernel.Mat {
	m := mat(u)
	if f == 1 {
		return m
	}
	c := kernel.Mat{Rows: m.Rows, Cols: m.Cols, Stride: m.Cols, Type: m.Type}
	c.Ptr = o.Scratch(m.Rows * m.Cols * m.Type.BlockBytes())
	kernel.Scale(o, c, m, f)
	return c
}

// LowRankInputGrad: dx = du·A, or dx += du·A with add.
func (s *Stream) LowRankInputGrad(dx, du device.Tensor, l device.LowRank, add bool) {
	device.CheckLowRankInputGrad(dx, du, l)
	a := l.A.(*weight).t
	whole := []kernel.ThinPart{{W: mat(a), Hi: dx.Cols, To: du.Cols, Scale: 1}}
	if !kernel.ThinServes(mat(dx), mat(du), whole) {
		s.MatMulInputGrad(dx, du, l.A, add)
		return
	}
	if o := s.begin("LowRankInputGrad", dx, du, a); o != nil {
		o.sized(dx.Rows, dx.Cols, du.Cols)
		kernel.ThinUp(o, mat(dx), mat(du), whole, true, add)
		o.end()
	}
}

// thinParts are the parts of l as kernels take them, without their gradients.
func thinParts(l device.LowRank) []kernel.ThinPart {
	all := make([]kernel.ThinPart, len(l.Parts))
	for i, p := range l.Parts {
		all[i] = kernel.ThinPart{W: mat(p.B.(*weight).t), Lo: p.Lo, Hi: p.Hi, From: p.From, To: p.To, Scale: p.Scale}
	}
	return all
}

// factors are ts and the B of l: what an operation is begun with.
func factors(l device.LowRank, ts ...device.Tensor) []device.Tensor {
	for _, p := range l.Parts {
		ts = append(ts, p.B.(*weight).t)
	}
	return ts
}

// servesThin reports whether the kernels of adapters compute all recorded products of a step's adapters whose types they know. Operands are
// taken to lie well.
func (d *Device) servesThin(r *dry.Record) bool {
	for _, o := range r.Ops {
		if o.Thin > 0 && (!kernel.ThinRank(o.Thin) || wideOf(o.Op)%8 != 0) {
			return false
		}
	}
	return d.act == tensor.BF16
}

// thinTypes reports whether they know the types of a recorded product.
func thinTypes(o dry.Op) bool {
	return o.In == tensor.BF16 && (o.Out == tensor.BF16 || o.Kind == device.OpMatMulWeightGrad)
}

// wideOf returns the columns of the wide matrix of a product with Thin.
func wideOf(o dry.Op) int {
	if o.Kind == device.OpMatMulWeightGrad {
		return o.M + o.N - o.Thin
	}
	return o.N + o.K - o.Thin
}

// multiplyThin is Multiply of a product with Thin, if kernels of adapters compute it.
func (o *operation) multiplyThin(op dry.Op, out, in, other kernel.Mat) bool {
	wide, thin := out, in
	p := kernel.ThinPart{W: other, Hi: wideOf(op), To: op.Thin, Scale: 1}
	down := op.K == p.Hi && op.N == op.Thin // else the product makes the wide matrix, or a gradient of A or B
	ofA := op.Kind == device.OpMatMulInputGrad != down
	switch {
	case op.Kind == device.OpMatMulWeightGrad:
		p.D, p.Add = out, true
		if ofA = op.M == op.Thin; ofA {
			wide, thin = other, in
		} else {
			wide, thin = in, other
		}
	case down:
		wide, thin = in, out
	}
	parts := []kernel.ThinPart{p}
	if !kernel.ThinServes(wide, thin, parts) {
		return false
	}
	o.sized(op.M, op.N, op.K)
	switch {
	case op.Kind == device.OpMatMulWeightGrad:
		kernel.ThinGrad(o, wide, thin, parts, ofA)
	case down:
		kernel.ThinDown(o, thin, wide, parts, ofA)
	default:
		kernel.ThinUp(o, wide, thin, parts, ofA, op.Add)
	}
	return true
}
