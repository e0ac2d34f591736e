package teacher

import (
	"math"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

// TestAllowFP8: only less noise than Q4_K's is allowed, and a number that is not one is not less.
func TestAllowFP8(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		kl, limit float64
		allowed   bool
	}{
		{0.025, 0.088, true}, {0, 1e-9, true}, {0.087999, 0.088, true},
		{0.088, 0.088, false}, {0.1, 0.088, false}, {0, 0, false}, {nan, 0.088, false}, {0.025, nan, false}, {inf, inf, false}, {inf, 1, false},
	} {
		contracttest.Cases(t, 1)
		err := AllowFP8(c.kl, c.limit)
		if (err == nil) != c.allowed || err != nil && fault.KindOf(err) != fault.Invalid {
			t.Errorf("%g of %g: %v", c.kl, c.limit, err)
		}
	}
}
