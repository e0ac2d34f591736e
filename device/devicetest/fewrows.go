package devicetest

import (
	"fmt"

	"apr/device"
	"apr/internal/ref"
	"apr/tensor"
)

// fewRows are numbers of rows of x beside the sizes of tiles: products of so few rows may read a matrix in blocks as it is.
var fewRows = []int{1, 2, 3, 7, 8, 9, 16, 31, 33, 63, 64, 65}

// fewRowCases are products with frozen matrices whose rows fill tiles.
func fewRowCases() []Case {
	var all []Case
	add := func(name string, cols int, parts ...part) {
		all = append(all, Case{Name: "few rows/" + name, check: func(l *lab) { checkFewRows(l, cols, parts) }})
	}
	for _, d := range storedTypes {
		if d.IsQuantized() {
			add(fmt.Sprintf("%v", d), 768, part{d, 48, 48})
		}
		if d.IsQuantized() && d.BlockLen() < 256 {
			add(fmt.Sprintf("%v of 96 columns", d), 96, part{d, 16, 16})
		}
	}
	add("stacked q4_k, q4_k and q6_k", 512, part{tensor.Q4_K, 64, 64}, part{tensor.Q4_K, 16, 16}, part{tensor.Q6_K, 16, 16})
	add("stacked q8_0 and q5_k", 256, part{tensor.Q8_0, 32, 32}, part{tensor.Q5_K, 48, 48})
	add("stacked q4_k and bf16", 256, part{tensor.Q4_K, 32, 32}, part{tensor.BF16, 16, 16})
	add("gate and up of q4_k", 256, part{tensor.Q4_K, 48, 48}, part{tensor.Q4_K, 48, 48})
	add("gate and up of q6_k in one", 512, part{tensor.Q6_K, 64, 64})
	add("five parts", 256, part{tensor.Q4_K, 16, 16}, part{tensor.Q6_K, 16, 16}, part{tensor.Q4_K, 16, 16}, part{tensor.Q6_K, 16, 16}, part{tensor.Q5_K, 16, 16})
	return all
}

// checkFewRows multiplies with a stacked matrix: all of its rows with bias, some of them added to what was there, both halves gated.
func checkFewRows(l *lab, cols int, parts []part) {
	spec := device.WeightSpec{Name: "stacked", Component: device.TeacherWeights}
	var used []ref.Mat
	for i, p := range parts {
		s, m := l.store(fmt.Sprintf("part%d", i), l.random(p.rows, cols, 0.1), p.d)
		spec.Parts, used = append(spec.Parts, s), append(used, m)
	}
	weight, err := l.weight(spec)
	if err != nil {
		l.errorf("Weight: %v", err)
		return
	}
	w := ref.Stack(used...)
	bias := l.random(1, w.Rows, 1)
	bt := l.in(tensor.F32, bias)
	for _, n := range fewRows {
		x := l.random(n, cols, 1)
		xt := l.in(l.act, x)
		name := func(what string) string { return fmt.Sprintf("%s of %d rows", what, n) }
		y := l.out(l.act, n, w.Rows)
		l.s.MatMul(y, xt, weight, bt, false)
		l.compare(name("product"), "matmul", y, ref.Linear(x, w, bias), cols)

		some := w.Rows - 5
		want := l.random(n, some, 1)
		added := l.inout(l.act, want)
		l.s.MatMul(added, xt, weight, device.Tensor{}, true)
		want.Add(ref.Linear(x, w.RowRange(0, some), ref.Mat{}))
		l.compare(name("added product"), "matmul", added, want, cols)

		gu, m := l.out(l.act, n, w.Rows), l.out(l.act, n, w.Rows/2)
		l.s.MatMulGLU(m, gu, xt, weight, device.SiLU, true)
		l.compare(name("gate and up"), "matmul", gu, ref.Linear(x, w, ref.Mat{}), cols)
		l.compare(name("gated product"), gluTol(device.SiLU), m, ref.GLU(l.get(gu), device.SiLU), 1)
	}
}
