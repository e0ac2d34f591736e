// Package near compares computed numbers with expected ones in tests.
//
// Every comparison rejects NaN and infinities on either side, is written so that it fails when in doubt, !(diff <= tol),
// and names the worst element. Three measures are offered, and the test says which one it means:
//
//	Abs   |got−want| ≤ tol for each element
//	Rel   |got−want| ≤ tol·max(|want|, rms(want)) for each element: relative where the value is large, and relative
//	      to the size of the whole where it is small, which is what rounding in a sum of products can promise
//	L2    ‖got−want‖₂ ≤ tol·‖want‖₂
//
// Caveats. With Rel and L2 an expectation of all zeros is met by zeros only. Rel judges one scale: rows of very
// different size are compared row by row.
package near

import (
	"fmt"
	"math"
	"testing"
)

// Float is what can be compared.
type Float interface{ ~float32 | ~float64 }

// Check fails t unless |got−want| ≤ tol for each element.
func Check[G, W Float](t testing.TB, name string, got []G, want []W, tol float64) {
	t.Helper()
	report(t, Abs(name, got, want, tol))
}

// CheckRel fails t unless |got−want| ≤ tol·max(|want|, rms(want)) for each element.
func CheckRel[G, W Float](t testing.TB, name string, got []G, want []W, tol float64) {
	t.Helper()
	report(t, Rel(name, got, want, tol))
}

// CheckL2 fails t unless ‖got−want‖₂ ≤ tol·‖want‖₂.
func CheckL2[G, W Float](t testing.TB, name string, got []G, want []W, tol float64) {
	t.Helper()
	report(t, L2(name, got, want, tol))
}

// Row logs how far something measured may go, as a line that the table of `make gpu-test` shows, and fails t unless
// measured ≤ tol.
func Row(t testing.TB, name string, measured, tol float64) {
	t.Helper()
	t.Logf("row %q measured %.3g tolerance %.3g", name, measured, tol)
	if !(measured <= tol) || !(tol >= 0) || math.IsInf(tol, 0) {
		t.Errorf("%s: %g, allowed %g", name, measured, tol)
	}
}

// report fails t with err, if any, and lets the test go on: the next comparison may tell more.
func report(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// Abs returns an error unless |got−want| ≤ tol for each element.
func Abs[G, W Float](name string, got []G, want []W, tol float64) error {
	return each(name, got, want, tol, func(float64) float64 { return 1 })
}

// Rel returns an error unless |got−want| ≤ tol·max(|want|, rms(want)) for each element.
func Rel[G, W Float](name string, got []G, want []W, tol float64) error {
	rms := norm(want) / math.Sqrt(math.Max(1, float64(len(want))))
	return each(name, got, want, tol, func(w float64) float64 { return math.Max(math.Abs(w), rms) })
}

// L2 returns an error unless ‖got−want‖₂ ≤ tol·‖want‖₂.
func L2[G, W Float](name string, got []G, want []W, tol float64) error {
	if err := check(name, got, want, tol); err != nil {
		return err
	}
	diff := make([]float64, len(got))
	worst := 0
	for i := range got {
		diff[i] = float64(got[i]) - float64(want[i])
		if math.Abs(diff[i]) > math.Abs(diff[worst]) {
			worst = i
		}
	}
	d, n := norm(diff), norm(want)
	if d <= tol*n {
		return nil
	}
	return fmt.Errorf("%s: relative L2 difference %.3g, tolerance %.3g; worst at [%d]: got %.9g, want %.9g",
		name, d/n, tol, worst, got[worst], want[worst])
}

// each judges every element against tol·scale(want).
func each[G, W Float](name string, got []G, want []W, tol float64, scale func(want float64) float64) error {
	if err := check(name, got, want, tol); err != nil {
		return err
	}
	worst, excess := -1, 0.0 // excess is the difference over what is allowed
	for i := range got {
		diff, allowed := math.Abs(float64(got[i])-float64(want[i])), tol*scale(float64(want[i]))
		if diff <= allowed {
			continue
		}
		if e := diff / allowed; worst < 0 || e > excess {
			worst, excess = i, e
		}
	}
	if worst < 0 {
		return nil
	}
	g, w := float64(got[worst]), float64(want[worst])
	return fmt.Errorf("%s: [%d] of %d: got %.9g, want %.9g, difference %.3g, allowed %.3g",
		name, worst, len(got), g, w, g-w, tol*scale(w))
}

// check makes sure of what every measure needs: equal lengths, finite values, a tolerance that can be kept and missed.
func check[G, W Float](name string, got []G, want []W, tol float64) error {
	if len(got) != len(want) {
		return fmt.Errorf("%s: %d values, want %d", name, len(got), len(want))
	}
	if !(tol >= 0) || math.IsInf(tol, 0) {
		return fmt.Errorf("%s: tolerance %g is no tolerance", name, tol)
	}
	for i := range got {
		if !finite(float64(got[i])) || !finite(float64(want[i])) {
			return fmt.Errorf("%s: [%d] of %d: got %g, want %g: not finite", name, i, len(got), got[i], want[i])
		}
	}
	return nil
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// norm returns ‖x‖₂ without overflow for any finite float64.
func norm[F Float](x []F) float64 {
	sum := 0.0
	for _, v := range x {
		sum = math.Hypot(sum, float64(v))
	}
	return sum
}
