//go:build emulate

package kernel

import (
	"math"
	"testing"

	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// TestThinZeros: a product that is zero leaves every bit of y, those of −0 too; a column of B that is not changes its own.
func TestThinZeros(t *testing.T) {
	const n, cols, rank = 37, 136, 40
	l := newLab(t)
	before := l.random(n, cols, 1)
	for i := range before.V {
		if i%3 == 0 {
			before.V[i] = math.Copysign(0, -1)
		}
	}
	b := ref.New(cols, rank)
	b.Row(9)[3] = 1
	y, u := l.inout(tensor.BF16, before), l.in(tensor.BF16, l.random(n, rank, 1))
	parts := []ThinPart{{W: l.in(tensor.BF16, b), Hi: cols, To: rank, Scale: 2}}
	if !ThinServes(y, u, parts) {
		t.Fatal("the kernels do not serve this")
	}
	ThinUp(l.op(), y, u, parts, false, true)
	got, stored := l.get(y), l.get(u)
	for r := range n {
		for c, v := range got.Row(r) {
			if want := before.Row(r)[c]; c != 9 && math.Float64bits(v) != math.Float64bits(want) {
				t.Fatalf("row %d, column %d: %g became %g", r, c, want, v)
			}
		}
		near.Check(t, "column 9", got.Row(r)[9:10], []float64{before.Row(r)[9] + 2*stored.Row(r)[3]}, .05)
	}
}
