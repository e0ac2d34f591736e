//go:build emulate

package kernel

import (
	"math"
	"testing"

	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

func TestPointwise(t *testing.T) {
	eachCase(t, append([][2]int{{5, 4864}, {3, 1001}}, shapes...), func(t *testing.T, l *lab, d tensor.DType, rows, cols int) {
		const f, limit = -1.7, 3.0
		mx, my := l.random(rows, cols, 4), l.random(rows, cols, 4)
		x := l.apart().in(d, mx)
		for name, c := range map[string]struct {
			run  func(y, x Mat)
			want func(x, y float64) float64
		}{
			"scale": {func(y, x Mat) { Scale(l.op(), y, x, f) }, func(x, _ float64) float64 { return f * x }},
			"add":   {func(y, x Mat) { Add(l.op(), y, x) }, func(x, y float64) float64 { return y + x }},
			"cap":   {func(y, x Mat) { SoftCap(l.op(), y, x, limit) }, func(x, _ float64) float64 { return limit * math.Tanh(x/limit) }},
		} {
			y, same := l.apart().inout(d, my), l.apart().inout(d, mx)
			c.run(y, x)
			c.run(same, same)
			want, over := ref.New(rows, cols), ref.New(rows, cols)
			for i := range want.V {
				want.V[i], over.V[i] = c.want(mx.V[i], my.V[i]), c.want(mx.V[i], mx.V[i])
			}
			near.CheckRel(t, name, l.get(y).V, want.V, tolerance(d, 1, 4, 1))
			near.CheckRel(t, name+" over x", l.get(same).V, over.V, tolerance(d, 1, 4, 1))
		}
	})
}

// TestSoftCapAccuracy: every value to a few units in its last place, at the edges of the two formulas and beyond.
func TestSoftCapAccuracy(t *testing.T) {
	l, n := newLab(t), 4000
	mx := ref.New(1, n)
	for i := range mx.V {
		mx.V[i] = math.Exp(float64(i)/float64(n)*60-40) * []float64{1, -1}[i%2] // 10⁻¹⁷ to 5·10⁸
	}
	x, y := l.in(tensor.F32, mx), l.out(tensor.F32, 1, n)
	SoftCap(l.op(), y, x, 30)
	for i, got := range l.get(y).V {
		want := 30 * math.Tanh(mx.V[i]/30)
		if !(math.Abs(got-want) <= 6*0x1p-24*math.Abs(want)) {
			t.Fatalf("soft-cap of %g is %g, want %g", mx.V[i], got, want)
		}
	}
}
