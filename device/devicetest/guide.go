package devicetest

import (
	"fmt"
	"math"

	"apr/device"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// guideCases are those of several teachers and of hidden states.
func guideCases() []Case {
	var all []Case
	for _, g := range logitShapes {
		for _, temperature := range []float64{1, .5, 4} {
			all = append(all, Case{Name: fmt.Sprintf("mix/%s, T %g", g.name, temperature), check: func(l *lab) { checkMix(l, g, temperature) }})
		}
	}
	for _, s := range append(sizes, [2]int{3, 2049}) {
		all = append(all, both(fmt.Sprintf("squared/%dx%d", s[0], s[1]), func(l *lab) { checkSquared(l, s[0], s[1]) })...)
	}
	return append(all, Case{Name: "squared/judged with the loss", check: checkObjective})
}

// checkMix mixes three distributions, and compares logarithms: an error of a logarithm is one of the probability, in parts of it.
func checkMix(l *lab, g logits, temperature float64) {
	a, b := g.make(l)
	c := l.random(g.rows, g.cols, g.scale)
	weights := []float64{.6, .3, .1}
	wide := l.out(tensor.F32, g.rows, g.cols+3) // rows with gaps
	y := wide.ColRange(0, g.cols)
	var want ref.Mat
	for i, t := range []ref.Mat{a, b, c} {
		tt := l.in(tensor.F32, t)
		l.s.Mix(y, tt, weights[i], temperature, i > 0)
		want = ref.Mix(want, t, weights[i], temperature)
		l.compareLogs(fmt.Sprintf("%d distributions", i+1), y, want, t, temperature)
	}
	for r := range want.Rows {
		sum := 0.0
		for _, v := range want.Row(r) {
			sum += math.Exp(v / temperature)
		}
		l.note(near.Abs("mass of the mixture", []float64{sum}, []float64{1}, 1e-9))
	}
	over := l.inout(tensor.F32, a)
	l.s.Mix(over, over, .6, temperature, false)
	l.compareLogs("in place", over, ref.Mix(ref.Mat{}, a, .6, temperature), a, temperature)
}

// compareLogs compares T·ln p. Errors are those of t less its maximum and of a few logarithms; −∞ must be −∞.
func (l *lab) compareLogs(name string, y device.Tensor, want, t ref.Mat, temperature float64) {
	got := l.get(y)
	for r := range want.Rows {
		g, w := []float64{0}, []float64{0}
		spread, top := 0.0, math.Inf(-1)
		for _, v := range t.Row(r) {
			top = max(top, v)
		}
		for c, v := range want.Row(r) {
			if math.IsInf(v, -1) || v < -3e38 {
				if !(got.Row(r)[c] < -1e38) {
					l.errorf("%s: row %d, column %d: %g, want −∞", name, r, c, got.Row(r)[c])
				}
				continue
			}
			spread = max(spread, math.Abs(v), min(top-t.Row(r)[c], 1e5))
			g, w = append(g, got.Row(r)[c]), append(w, v)
		}
		allowed := 16 * unitF32 * (spread + temperature*(1+math.Log(float64(want.Cols))))
		if err := near.Abs(fmt.Sprintf("%s, row %d", name, r), g, w, allowed); err != nil {
			l.note(err)
			return
		}
	}
}

// checkSquared tests SquaredError into other memory and over u, with targets of both types.
func checkSquared(l *lab, rows, cols int) {
	if cols == 0 {
		return
	}
	u := l.random(rows, cols, 1)
	for _, d := range []tensor.DType{tensor.F32, l.act} {
		tt := l.in(d, l.random(rows, cols, 1))
		t := l.get(tt)
		ut, grad, over := l.in(tensor.F32, u), l.out(l.act, rows, cols), l.inout(tensor.F32, u)
		sum, want := ref.SquaredError(u, t, .7, invN)
		for _, g := range []device.Tensor{grad, over} {
			from := ut
			if g == over {
				from = over
			}
			l.start()
			half := rows / 2 // two calls add to one record
			l.s.SquaredError(g.RowRange(0, half), from.RowRange(0, half), tt.RowRange(0, half), .7)
			l.s.SquaredError(g.RowRange(half, rows), from.RowRange(half, rows), tt.RowRange(half, rows), .7)
			l.note(near.Abs("sum", []float64{l.record().Sums[device.HiddenStates]}, []float64{sum}, sum*tol("add", tensor.F32, cols)))
			l.compare("gradient", "rmsnorm", g, want, 0)
		}
	}
}

// checkObjective: the verdict adds the weighted mean of an objective to the loss, and a sum that is not finite refuses the step.
func checkObjective(l *lab) {
	_, params := l.model(1)
	u, t := l.random(5, 33, 1), l.random(5, 33, 1)
	z, y := l.random(5, 17, 2), l.randomIDs(5, 17)
	sum, _ := ref.SquaredError(u, t, .7, invN)
	ce, _ := ref.Loss(z, ref.Mat{}, y, invN, device.LossSpec{Temperature: 1})
	for _, bad := range []bool{false, true} {
		s := device.Scalars{InvN: invN, BiasCorr1: 1, BiasCorr2: 1, CEWeight: .5}
		s.Weights[device.HiddenStates] = .7
		l.s.SetScalars(s)
		l.s.Loss(device.Tensor{}, l.in(tensor.F32, z), device.Tensor{}, l.ids(y), device.LossSpec{Temperature: 1})
		if bad {
			u.V[40] = math.NaN()
		}
		l.s.SquaredError(l.out(tensor.F32, 5, 33), l.in(tensor.F32, u), l.in(tensor.F32, t), .7)
		l.s.Verdict(params)
		got := l.record()
		if got.Weights != s.Weights {
			l.errorf("weights %v, want %v", got.Weights, s.Weights)
		}
		if bad {
			if got.Finite {
				l.errorf("a sum of %v is finite", got.Sums)
			}
			continue
		}
		want := invN * (.5*ce.CE + .7*sum)
		l.note(near.Abs("loss", []float64{got.Loss}, []float64{want}, lossTol(want)))
	}
}
