package vec

import (
	"math"
	"testing"

	"apr/internal/near"
)

func TestMixture(t *testing.T) {
	forEach(t, func(t *testing.T, isa ISA, n int, r *arrays) {
		x, y := r.logits(n), r.logits(n)
		for _, invT := range []float32{1, .5, 2.5} {
			near.CheckRel(t, "ExpTotal", []float64{isa.ExpTotal(x, 11, invT)}, []float64{expTotal(x, 11, invT)}, 4e-6)
			got, want := r.copy(y), r.copy(y)
			isa.LogAddExp(got, x, 11, -.3, invT, 1/invT)
			logAddExp(want, x, 11, -.3, invT, 1/invT)
			near.Check(t, "LogAddExp", got, want, 3e-6)
		}
		got, want := r.normal(n), r.normal(n)
		isa.Shift(got, x, 11, -.3)
		shift(want, x, 11, -.3)
		near.Check(t, "Shift", got, want, 0)
	})
}

// TestLogAddExp compares the sum of two probabilities by their logarithms with float64, over distances and temperatures, and at the
// ends.
func TestLogAddExp(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, isa := range Available() {
		for _, temperature := range []float64{.25, 1, 3} {
			for i := range 4000 {
				d := float64(i) * .01
				y := []float32{float32(-d), 0}
				isa.LogAddExp(y, []float32{0, float32(-d)}, 0, 0, float32(1/temperature), float32(temperature))
				want := temperature * math.Log1p(math.Exp(-float64(float32(d))/temperature))
				for _, got := range y {
					if !(math.Abs(float64(got)-want) <= 2e-7*temperature) {
						t.Fatalf("%v: T %g, distance %g: %g, want %g", isa, temperature, d, got, want)
					}
				}
			}
		}
		y := []float32{-inf, -inf, 1, nan, 1, -inf, nan, -inf, -inf, 1, nan, 1, -inf, nan, 3, -3e38, -inf, nan}
		x := []float32{-inf, 2, -inf, 1, nan, nan, -inf, -inf, 2, -inf, 1, nan, nan, -inf, 3, -inf, -3e38, nan}
		isa.LogAddExp(y, x, 0, 0, 1, 1)
		for i, want := range []float32{-inf, 2, 1, nan, nan, nan, nan, -inf, 2, 1, nan, nan, nan, nan, float32(3 + math.Ln2), -3e38, -3e38, nan} {
			if y[i] != want && !(y[i] != y[i] && want != want) {
				t.Errorf("%v: %d: %g, want %g", isa, i, y[i], want)
			}
		}
	}
}
