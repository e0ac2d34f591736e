//go:build emulate

package kernel

import (
	"slices"
	"strings"
	"testing"

	"apr/device"
	"apr/internal/ref"
	"apr/tensor"
)

// TestConvPairs: two channels of a thread have the bits of one, forward and backward, over documents, behind other inputs, and where a step
// or a thread block's rows end.
func TestConvPairs(t *testing.T) {
	for _, c := range []struct{ batch, n, channels int }{{1, 1, 2}, {2, 3, 6}, {1, 8, 4}, {2, 9, 258}, {1, 64, 4}, {2, 67, 2}, {1, 131, 6}, {1, 0, 2}} {
		for _, documents := range []bool{false, true} {
			l := newLab(t)
			n := c.batch * c.n
			x, dy, w, from, sum := l.random(n, c.channels, 2), l.random(n, c.channels, 1), l.random(c.channels, 4, 1), l.random(3*c.batch, c.channels, 1), l.random(c.channels, 4, 1)
			first := make([]int, n)
			for i := range first {
				at := i % c.n
				for _, begin := range []int{1, 2, 5, 8, 16, 64, 66} { // of documents
					if at >= begin {
						first[i] = begin
					}
				}
			}
			var want []ref.Mat
			for _, lead := range []int{1, 0} { // one channel a thread, then two
				l.lead, l.gap = 0, 0
				var ids Mat
				if documents && n > 0 {
					ids = l.ids(first)
				}
				wt, dw := l.in(tensor.F32, w), l.inout(tensor.F32, sum)
				l.lead = lead
				s := device.Sequences{Batch: c.batch, Len: c.n}
				xt, y, dx := l.in(tensor.BF16, x), l.out(tensor.BF16, n, c.channels), l.out(tensor.BF16, n, c.channels)
				var ft, to Mat
				if !documents {
					ft, to = l.in(tensor.BF16, from), l.out(tensor.BF16, from.Rows, c.channels)
				}
				var r recorder
				Conv(&r, y, xt, wt, ft, to, ids, s)
				if k := r.launches[len(r.launches)-1].Kernel; strings.HasSuffix(k, "_four") != (lead == 0) {
					t.Fatalf("%+v: lead %d: kernel %s", c, lead, k)
				}
				Conv(l.op(), y, xt, wt, ft, to, ids, s)
				ConvBackward(l.op(), dx, dw, l.in(tensor.BF16, dy), xt, wt, ids, s)
				got := []ref.Mat{l.get(y), l.get(dx), l.get(dw)}
				if !documents {
					got = append(got, l.get(to))
				}
				if want == nil {
					want = got
					continue
				}
				for i := range got {
					if !slices.Equal(got[i].V, want[i].V) {
						t.Errorf("%+v, documents %v: %s has other bits", c, documents, []string{"y", "dx", "dw", "to"}[i])
					}
				}
			}
		}
	}
}
