package kernel

import "testing"

// TestSplit: parts cover all products, each begins at a multiple of 16, their sums have room, and few tiles become many
// groups.
func TestSplit(t *testing.T) {
	for _, s := range []struct{ m, n, k, limit, parts int }{
		{1024, 896, 151936, 1 << 30, 4}, {2048, 896, 4864, 1 << 30, 2}, {1152, 896, 2048, 1 << 30, 4},
		{512, 320, 960, 1 << 30, 15}, {4096, 4096, 4096, 1 << 30, 1}, {70, 67, 164, 1 << 30, 2}, {9, 9, 127, 1 << 30, 1},
		{9, 9, 0, 1 << 30, 1}, {300, 300, 5000, 90000 * 3, 3}, {300, 300, 5000, 1000, 1}, {1, 1, 1 << 20, 1 << 30, 256},
	} {
		parts, depth := split(s.m, s.n, s.k, s.limit)
		if parts != s.parts || depth%16 != 0 || parts*depth < s.k || (parts-1)*depth >= max(1, s.k) {
			t.Errorf("%+v: %d parts of %d", s, parts, depth)
		}
		if parts > 1 && parts*s.m*s.n > min(s.limit, PartialSums) {
			t.Errorf("%+v: %d sums have no room", s, parts*s.m*s.n)
		}
	}
}
