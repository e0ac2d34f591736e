package device_test

import (
	"testing"

	"apr/device"
	"apr/internal/contracttest"
)

// Every element is kept by one rank, or by all; own parts have equal sizes, so that a reduce-scatter can make them, and
// begin at multiples of the unit, so that sums of squares are cut the same way whatever the number of ranks.
func TestShare(t *testing.T) {
	for _, world := range []int{0, 1, 2, 3, 4, 8} {
		for _, n := range []int{1, device.ShareUnit, 8*device.ShareUnit - 1, 8 * device.ShareUnit, 25*device.ShareUnit + 7} {
			contracttest.Cases(t, 1)
			at, kept := 0, -1
			for r := range max(1, world) {
				s := device.Share{Rank: r, World: world}
				lo, hi, tail := s.Own(n)
				if hi > lo && lo != at || hi < lo || lo%device.ShareUnit != 0 || tail < hi || tail > n {
					t.Fatalf("rank %d of %d keeps [%d,%d) and [%d,%d) of %d", r, world, lo, hi, tail, n, n)
				}
				if at = max(at, hi); kept >= 0 && s.Kept(n) != kept {
					t.Errorf("rank %d of %d keeps %d of %d elements, rank 0 %d", r, world, s.Kept(n), n, kept)
				}
				if kept = s.Kept(n); kept != hi-lo+n-tail {
					t.Errorf("%d elements are kept, not %d and %d", kept, hi-lo, n-tail)
				}
				if r == max(1, world)-1 && (at != tail || world > 1 && n-tail >= world*device.ShareUnit) {
					t.Errorf("%d ranks: own parts of %d end at %d, what all keep begins at %d", world, n, at, tail)
				}
			}
		}
	}
}
