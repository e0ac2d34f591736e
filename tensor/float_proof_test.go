//go:build proofs

package tensor

import (
	"math"
	"testing"

	"apr/internal/contracttest"
)

// TestRoundEveryBF16: all 2³² patterns of a float32.
func TestRoundEveryBF16(t *testing.T) {
	cases := 0
	for upper := range uint32(1 << 16) {
		for lower := range uint32(1 << 16) {
			u := upper<<16 | lower
			got := F32ToBF16(math.Float32frombits(u))
			if u&0x7fffffff > 0x7f800000 {
				if got&0x7fff <= 0x7f80 || got>>15 != uint16(u>>31) || got&0x40 == 0 {
					t.Fatalf("NaN %08x became %04x", u, got)
				}
			} else if got != nearestBF16(u) {
				t.Fatalf("%08x became %04x, want %04x", u, got, nearestBF16(u))
			}
			cases++
		}
	}
	contracttest.Cases(t, cases)
}
