package kernel

import (
	"testing"

	"apr/device"
	"apr/tensor"
)

// TestPagesLaunches: at the sizes of published models launches are such as devices accept, their sums have room, and
// their number depends on the slots only where these sums need more than there is.
func TestPagesLaunches(t *testing.T) {
	for _, c := range []struct{ rows, heads, kv, d, most, launches int }{
		{64, 32, 32, 128, 700, 1}, {64, 32, 32, 128, 769, 2}, {256, 64, 64, 128, 4096, 2},
		{256, 32, 32, 128, 131072, 10}, {64, 8, 8, 512, 131072, 4},
		{256, 64, 64, 64, 1, 1}, {0, 2, 2, 64, 1, 0}, {64, 28, 4, 128, 512, 1}, {64, 40, 2, 256, 1024, 2},
	} {
		var r recorder
		q, kv := dense(tensor.BF16, c.rows, c.heads*c.d), dense(tensor.BF16, 1<<16, c.kv*c.d)
		ids := dense(tensor.I32, c.rows, 1)
		AttendPages(&r, q, q, kv, kv, dense(tensor.I32, 1<<20, 1), ids, ids, Mat{}, device.Paged{
			Heads: c.heads, KVHeads: c.kv, HeadDim: c.d, Most: c.most,
		})
		if len(r.launches) != c.launches || r.scratch > MaxScratch {
			t.Errorf("%+v: %d launches, %d bytes of scratch", c, len(r.launches), r.scratch)
		}
		for i, l := range r.launches {
			if tiles := c.d <= 256 && (c.launches == 1 || i%2 == 0); tiles && l.Grid[0] != c.kv*ceil(c.heads/c.kv, 8) {
				t.Errorf("%+v: %s reads keys %d times", c, l.Kernel, l.Grid[0])
			}
			if !hasKernel(t, l.Module, l.Kernel) || l.Grid[1] > 65535 || l.Grid[2] > decodeSplits || l.Grid[2] < 1 {
				t.Errorf("%+v: %s has grid %v", c, l.Kernel, l.Grid)
			}
		}
	}
}
