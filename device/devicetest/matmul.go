package devicetest

import (
	"fmt"
	"math"

	"apr/device"
	"apr/internal/ref"
	"apr/tensor"
)

// products are shapes of y[n,out] = x[n,in]·W[out,in]ᵀ.
var products = []struct{ n, in, out int }{
	{1, 1, 1}, {1, 33, 2}, {2, 31, 65}, {3, 63, 64}, {17, 64, 33}, {64, 127, 32}, {65, 256, 31}, {257, 65, 127},
	{17, 640, 256}, {65, 256, 640}, {1, 256, 640}, {2, 640, 33}, {0, 33, 7}, {3, 32, 2}, {3, 0, 5},
}

func matmulCases() []Case {
	var all []Case
	for _, s := range products {
		name := fmt.Sprintf("matmul/%dx%dx%d", s.n, s.in, s.out)
		all = append(all, both(name, func(l *lab) { checkMatMul(l, s.n, s.in, s.out) })...)
		all = append(all, both(name+" input gradient", func(l *lab) { checkInputGrad(l, s.n, s.in, s.out) })...)
		all = append(all, both(name+" weight gradient", func(l *lab) { checkWeightGrad(l, s.n, s.in, s.out) })...)
	}
	for _, s := range []struct{ n, in, f int }{
		{1, 1, 1}, {1, 33, 2}, {3, 64, 8}, {65, 31, 33}, {64, 128, 40}, {65, 136, 200}, {130, 896, 136}, {257, 72, 264}, {0, 33, 7}, {3, 0, 8},
	} {
		name := fmt.Sprintf("matmulglu/%dx%dx%d", s.n, s.in, s.f)
		all = append(all, both(name, func(l *lab) { checkMatMulGLU(l, s.n, s.in, s.f, device.SiLU) })...)
		all = append(all, both(name+" "+device.GELUTanh.String(), func(l *lab) { checkMatMulGLU(l, s.n, s.in, s.f, device.GELUTanh) })...)
	}
	all = append(all, Case{Name: "matmul/of a parameter", check: checkParamMatMul})
	return all
}

// checkMatMul goes through all combinations of bias, add, output type and part of the rows of W.
func checkMatMul(l *lab, n, in, out int) {
	x, w, bias := l.random(n, in, 1), l.random(out, in, 1), l.random(1, out, 1)
	weight := l.frozen(w)
	xt, bt := l.in(l.act, x), l.in(tensor.F32, bias)
	full := ref.Linear(x, w, ref.Mat{})
	for i, part := range []int{out, (out + 1) / 2} {
		for _, withBias := range []bool{false, true} {
			for _, add := range []bool{false, true} {
				for _, d := range []tensor.DType{l.act, tensor.F32} {
					if i > 0 && (withBias != add || d != tensor.F32) || l.act == tensor.F32 && d == l.act && withBias && !add {
						continue // enough of these
					}
					before := l.random(n, part, 1)
					y := l.out(d, n, part)
					want := full.ColRange(0, part)
					var b device.Tensor
					if withBias {
						b = bt.ColRange(0, part)
						for r := range n {
							for c := range part {
								want.Row(r)[c] += bias.V[c]
							}
						}
					}
					if add {
						y = l.inout(d, before)
						want.Add(before)
					}
					l.s.MatMul(y, xt, weight, b, add)
					l.compare(fmt.Sprintf("y, %d columns, %v, bias %v, add %v", part, d, withBias, add), "matmul", y, want, in)
				}
			}
		}
	}
}

func checkInputGrad(l *lab, n, in, out int) {
	w := l.random(out, in, 1)
	weight := l.frozen(w)
	for _, part := range []int{out, (out + 1) / 2} {
		dy := l.random(n, part, 1)
		dyt := l.in(l.act, dy)
		want := ref.New(n, in)
		if n > 0 {
			want, _, _ = ref.LinearBackward(dy, ref.New(n, in), w.RowRange(0, part))
		}
		before := l.random(n, in, 1)
		dx, added := l.out(l.act, n, in), l.inout(l.act, before)
		l.s.MatMulInputGrad(dx, dyt, weight, false)
		l.s.MatMulInputGrad(added, dyt, weight, true)
		l.compare(fmt.Sprintf("dx of %d columns", part), "matmul", dx, want, part)
		want.Add(before)
		l.compare(fmt.Sprintf("dx of %d columns, added", part), "matmul", added, want, part)
	}
}

func checkWeightGrad(l *lab, n, in, out int) {
	x, dy := l.random(n, in, 1), l.random(n, out, 1)
	dw, dbias := l.random(out, in, 1), l.random(1, out, 1)
	xt, dyt := l.in(l.act, x), l.in(l.act, dy)
	dwt, only, dbt := l.inout(tensor.F32, dw), l.inout(tensor.F32, dw), l.inout(tensor.F32, dbias)
	l.s.MatMulWeightGrad(dwt, dbt, dyt, xt)
	l.s.MatMulWeightGrad(only, device.Tensor{}, dyt, xt)
	_, wantW, wantB := ref.LinearBackward(dy, x, ref.New(out, in))
	dw.Add(wantW)
	dbias.Add(wantB)
	l.compare("dw", "matmul", dwt, dw, n)
	l.compare("dw without dbias", "matmul", only, dw, n)
	l.compare("dbias", "matmul", dbt, dbias, n)
}

// checkMatMulGLU: the product is that of MatMul, and what comes of it GLU of it as stored, bit for bit.
func checkMatMulGLU(l *lab, n, in, f int, act device.Activation) {
	x, w := l.random(n, in, 1), l.random(2*f, in, 1/math.Sqrt(float64(in)))
	weight := l.frozen(w)
	xt := l.in(l.act, x)
	kept, m := l.out(l.act, n, 2*f), l.out(l.act, n, f)
	l.s.MatMulGLU(m, kept, xt, weight, act, true)
	l.compare("gu", "matmul", kept, ref.Linear(x, w, ref.Mat{}), in)
	l.compare("m", gluTol(act), m, ref.GLU(l.get(kept), act), 1)

	again := l.out(l.act, n, f)
	l.s.GLU(again, kept, act)
	l.compare("GLU of gu", "move", again, l.get(m), 0)
	lost, only := l.out(l.act, n, 2*f), l.out(l.act, n, f)
	l.s.MatMulGLU(only, lost, xt, weight, act, false)
	l.compare("m without gu", "move", only, l.get(m), 0)
}

// checkParamMatMul: a parameter's weight follows its value.
func checkParamMatMul(l *lab) {
	const n, in, out = 5, 32, 33
	x := l.random(n, in, 1)
	xt := l.in(l.act, x)
	w := l.random(out, in, 1)
	p := l.param("w", w, true)
	for range 2 {
		y := l.out(l.act, n, out)
		l.s.MatMul(y, xt, p.Weight, device.Tensor{}, false)
		l.compare("y", "matmul", y, ref.Linear(x, w, ref.Mat{}), in)
		w = l.random(out, in, 1)
		round(w, l.act)
		l.s.Upload(p.Value, singles(w))
		l.s.RefreshWeight(p)
	}
}
