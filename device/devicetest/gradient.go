package devicetest

import (
	"apr/device"
	"apr/internal/ref"
	"apr/tensor"
)

// gradientCases are about what lives longer than an operation: a device may put off writing zeros to a gradient, and
// keep a copy of a bias in another type, as long as nobody can tell.
func gradientCases() []Case {
	return []Case{
		{Name: "gradient/product after zero", check: func(l *lab) { checkZeroed(l, span{0, 9}, span{0, 24}) }},
		{Name: "gradient/product with some rows after zero", check: func(l *lab) { checkZeroed(l, span{0, 6}, span{0, 24}) }},
		{Name: "gradient/product with later rows after zero", check: func(l *lab) { checkZeroed(l, span{2, 9}, span{0, 24}) }},
		{Name: "gradient/product with some columns after zero", check: func(l *lab) { checkZeroed(l, span{0, 9}, span{0, 16}) }},
		{Name: "gradient/zero of a part", check: checkZeroedPart},
		{Name: "gradient/zero between products", check: checkZeroedBetween},
		{Name: "gradient/zero alone", check: checkZeroedAlone},
		{Name: "gradient/zero before the optimizer", check: checkZeroedSteps},
		{Name: "gradient/bias that changes", check: checkBiasChanges},
		{Name: "gradient/bias in parts", check: checkBiasParts},
		{Name: "gradient/bias that a product writes", check: checkBiasProduct},
	}
}

// spoil writes values to a tensor that an operation must not leave there.
func (l *lab) spoil(t device.Tensor) { l.s.Upload(t, singles(l.random(t.Rows, t.Cols, 1e3))) }

// product makes operands of dw = dyᵀ·x and the float64 product.
func (l *lab) product(n, out, in int) (dy, x device.Tensor, want ref.Mat) {
	dyM, xM := l.random(n, out, 1), l.random(n, in, 1)
	dy, x = l.in(l.act, dyM), l.in(l.act, xM)
	_, want, _ = ref.LinearBackward(dyM, xM, ref.New(out, in))
	return dy, x, want
}

// span is the rows or columns [lo,hi).
type span struct{ lo, hi int }

// checkZeroed: what no product writes of a zeroed gradient is zero, and products add up.
func checkZeroed(l *lab, rows, cols span) {
	const n, out, in = 21, 9, 24
	p := l.param("w", l.random(out, in, 1), true)
	for range 2 { // the second round begins with what the first one left
		l.spoil(p.Grad)
		l.s.Zero(p.Grad)
		want := ref.New(out, in)
		for range 2 {
			dy, x, add := l.product(n, rows.hi-rows.lo, cols.hi-cols.lo)
			l.s.MatMulWeightGrad(p.Grad.RowRange(rows.lo, rows.hi).ColRange(cols.lo, cols.hi), device.Tensor{}, dy, x)
			for r := range add.Rows {
				for c, v := range add.Row(r) {
					want.Row(rows.lo + r)[cols.lo+c] += v
				}
			}
		}
		l.compare("dw", "matmul", p.Grad, want, 2*n)
	}
}

// checkZeroedPart: zero in some rows leaves the others.
func checkZeroedPart(l *lab) {
	const rows, cols = 6, 32
	p := l.param("w", l.random(rows, cols, 1), true)
	for _, part := range []span{{0, 4}, {2, 6}, {2, 3}} {
		l.spoil(p.Grad)
		want := l.get(p.Grad)
		l.s.Zero(p.Grad.RowRange(part.lo, part.hi))
		for r := part.lo; r < part.hi; r++ {
			clear(want.Row(r))
		}
		l.compare("grad", "move", p.Grad, want, 0)
	}
}

// checkZeroedBetween: what was added before the zero is gone.
func checkZeroedBetween(l *lab) {
	const n, out, in = 17, 8, 16
	p := l.param("w", l.random(out, in, 1), true)
	l.s.Zero(p.Grad)
	dy, x, _ := l.product(n, out, in)
	l.s.MatMulWeightGrad(p.Grad, device.Tensor{}, dy, x)
	l.s.Zero(p.Grad)
	dy, x, want := l.product(n, out, in)
	l.s.MatMulWeightGrad(p.Grad, device.Tensor{}, dy, x)
	l.compare("dw", "matmul", p.Grad, want, n)
}

// checkZeroedAlone: a zeroed gradient is zero, whole and in views, for copies and for rows that are added.
func checkZeroedAlone(l *lab) {
	const rows, cols = 7, 16
	p := l.param("w", l.random(rows, cols, 1), true)
	zero := ref.New(rows, cols)
	l.spoil(p.Grad)
	l.s.Zero(p.Grad)
	l.compare("grad", "move", p.Grad, zero, 0)
	l.spoil(p.Grad)
	l.s.Zero(p.Grad)
	l.compare("row of grad", "move", p.Grad.RowRange(3, 4), ref.New(1, cols), 0)
	l.spoil(p.Grad)
	l.s.Zero(p.Grad)
	c := l.out(tensor.F32, rows, cols)
	l.s.Copy(c, p.Grad)
	l.compare("copy of grad", "move", c, zero, 0)
	l.spoil(p.Grad)
	l.s.Zero(p.Grad)
	y := l.out(l.act, rows, 4)
	l.s.MatMul(y, p.Grad, l.frozen(l.random(4, cols, 1)), device.Tensor{}, false)
	l.compare("product of grad", "move", y, ref.New(rows, 4), 0)
	l.spoil(p.Grad)
	l.s.Zero(p.Grad)
	dx := l.random(1, cols, 1)
	l.s.EmbedBackward(p.Grad, l.ids([]int{2}), l.in(l.act, dx))
	copy(zero.Row(2), dx.Row(0))
	l.compare("row added to grad", "add", p.Grad, zero, 1)
}

// checkZeroedSteps: the norm of a zeroed gradient is 0, and AdamW without decay changes nothing.
func checkZeroedSteps(l *lab) {
	w := l.random(5, 12, 1)
	p := l.param("w", w, false)
	for range 2 {
		l.spoil(p.Grad)
		l.s.Zero(p.Grad)
		l.s.SetScalars(device.Scalars{LR: .1, InvN: 1, BiasCorr1: .1, BiasCorr2: .1, MaxNorm: 1})
		l.s.Verdict([]*device.Param{p})
		l.s.AdamW([]*device.Param{p}, device.AdamW{Beta1: .9, Beta2: .9, Eps: 1e-8})
		if r := l.record(); r.GradNorm != 0 || !r.Finite {
			l.errorf("norm %g of a zero gradient, finite %v", r.GradNorm, r.Finite)
		}
		l.compare("w", "move", p.Value, w, 0)
	}
}

// checkBiasChanges: a product adds the bias as it is now, whoever wrote it.
func checkBiasChanges(l *lab) {
	const n, out, in = 3, 16, 8
	w, x := l.random(out, in, 1), l.random(n, in, 1)
	wt, xt := l.frozen(w), l.in(l.act, x)
	p := l.param("bias", l.random(1, out, 1), false)
	product := func() device.Tensor {
		y := l.out(l.act, n, out)
		l.s.MatMul(y, xt, wt, p.Value, false)
		return y
	}
	check := func(name string, b ref.Mat) {
		round(b, l.act)
		l.compare(name, "matmul", product(), ref.Linear(x, w, b), in+1)
	}
	upload := func(name string, b ref.Mat) {
		round(b, l.act)
		l.s.Upload(p.Value, singles(b))
		check(name, b)
	}
	upload("after an upload", l.random(1, out, 4))
	upload("after another upload", l.random(1, out, 4))
	b := l.random(1, out, 4)
	l.s.Copy(p.Value, l.in(tensor.F32, b))
	l.s.RefreshWeight(p)
	check("after a copy", b)
	l.s.Zero(p.Value)
	check("after zero", ref.New(1, out))
	l.s.Upload(p.Grad, singles(l.random(1, out, 1)))
	for range 2 {
		l.s.SetScalars(device.Scalars{LR: 2, InvN: 1, BiasCorr1: .1, BiasCorr2: .1})
		l.s.Verdict([]*device.Param{p})
		product()                                                                    // with the bias before
		l.s.AdamW([]*device.Param{p}, device.AdamW{Beta1: .9, Beta2: .9, Eps: 1e-8}) // by 2, against the gradient's sign

		y := product() // before anybody else looks at the bias
		b := l.get(p.Value)
		round(b, l.act)
		l.compare("after AdamW", "matmul", y, ref.Linear(x, w, b), in+1)
	}
}

// checkBiasParts: a part of a vector is a bias as well as all of it, and each part its own.
func checkBiasParts(l *lab) {
	const n, out, in = 3, 24, 8
	w, x, b := l.random(out, in, 1), l.random(n, in, 1), l.random(1, 2*out, 4)
	wt, xt, p := l.frozen(w), l.in(l.act, x), l.param("bias", b, false)
	for _, at := range []int{0, 8, 13, out} {
		y := l.out(l.act, n, out)
		l.s.MatMul(y, xt, wt, p.Value.ColRange(at, at+out), false)
		l.compare("y", "matmul", y, ref.Linear(x, w, ref.Mat{Rows: 1, Cols: out, V: b.V[at : at+out]}), in+1)
	}
}

// checkBiasProduct: a bias may be the result of a product.
func checkBiasProduct(l *lab) {
	const n, out, in = 3, 64, 8
	w, x := l.random(out, in, 1), l.random(n, in, 1)
	wt, xt, bias := l.frozen(w), l.in(l.act, x), l.dev.Alloc("bias", device.StudentWeights, tensor.F32, 1, out)
	for range 2 {
		v := l.integers(1, in)
		l.s.MatMul(bias, l.in(l.act, v), wt, device.Tensor{}, false)
		y := l.out(l.act, n, out)
		l.s.MatMul(y, xt, wt, bias, false)
		b := ref.Linear(v, w, ref.Mat{})
		round(b, l.act)
		l.compare("y", "matmul", y, ref.Linear(x, w, b), in+1)
	}
}
