//go:build gpu

package cuda

import (
	"fmt"
	"slices"
	"testing"

	"apr/device"
)

// TestAttentionSM90Windows: windows within a tile, at its edges and over several, with caches and groups, and heads of 256 columns, also
// with a soft-cap.
func TestAttentionSM90Windows(t *testing.T) {
	d := openHopper(t)
	for _, dim := range []int{64, 128, 256} {
		for _, window := range []int{0, 1, 37, 64, 65, 127, 128, 129, 400, 1024} {
			for _, a := range []device.Attn{
				{Batch: 2, QLen: 300, KLen: 300, KStride: 300, Heads: 4, KVHeads: 2}, {Batch: 1, QLen: 1030, KLen: 1030, KStride: 1030, Heads: 3, KVHeads: 1},
				{Batch: 2, QLen: 130, KLen: 331, QOffset: 201, KStride: 512, Heads: 4, KVHeads: 2},
			} {
				a.HeadDim, a.Window = dim, window
				if dim == 256 && window%2 == 0 {
					a.Cap = 5
				}
				name := fmt.Sprintf("%d rows, %d queries from %d, heads %d:%d of %d, window %d, cap %g", a.Batch, a.QLen, a.QOffset, a.Heads, a.KVHeads, dim, window, a.Cap)
				t.Run(name, func(t *testing.T) {
					b := newAttentionBench(t, d, a, 1)
					b.check(name, 1)
					b.release()
					if dim < 256 {
						g := newAttentionGradients(t, d, a, 1)
						g.check(name, 1)
						g.release()
					}
				})
			}
		}
	}
}

// TestWindowsCostWhatTheyKeep: at 4,096 positions a window of 128, 512 and 1,024 keys takes no more than these shares of the time without.
func TestWindowsCostWhatTheyKeep(t *testing.T) {
	d := openHopper(t)
	median := func(took func() float64) float64 {
		took() // warm
		times := []float64{took(), took(), took(), took(), took()}
		slices.Sort(times)
		return times[2]
	}
	for _, dim := range []int{64, 128, 256} {
		whole := map[string]float64{}
		for _, w := range []struct {
			window int
			most   float64
		}{{0, 1}, {128, .15}, {512, .36}, {1024, .60}} {
			a := device.Attn{Batch: 2, QLen: 4096, KLen: 4096, KStride: 4096, Heads: 16, KVHeads: 4, HeadDim: dim, Window: w.window}
			b := newAttentionBench(t, d, a, 1)
			times := map[string]float64{"forward": median(func() float64 { return b.took(waySM90, 20) })}
			b.release()
			if dim < 256 {
				g := newAttentionGradients(t, d, a, 1)
				times["backward"] = median(func() float64 { return g.took(waySM90, 20) })
				g.release()
			}
			for pass, ms := range times {
				if w.window == 0 {
					whole[pass] = ms
				}
				t.Logf("%s, heads of %d, window %d: %.4f ms, %.3f", pass, dim, w.window, ms, ms/whole[pass])
				if !(ms <= w.most*whole[pass]) {
					t.Errorf("%s, heads of %d: a window of %d takes %.3f of the time, more than %.2f", pass, dim, w.window, ms/whole[pass], w.most)
				}
			}
		}
	}
}

// TestWideHeadsRate prints the rate of the forward with heads of 256 columns.
func TestWideHeadsRate(t *testing.T) {
	d := openHopper(t)
	for _, a := range []device.Attn{
		{Batch: 4, QLen: 4096, KLen: 4096, KStride: 4096, Heads: 8, KVHeads: 4, HeadDim: 256},
		{Batch: 4, QLen: 4096, KLen: 4096, KStride: 4096, Heads: 8, KVHeads: 4, HeadDim: 256, Cap: 50},
	} {
		b := newAttentionBench(t, d, a, 1)
		b.rate(fmt.Sprintf("heads of 256, cap %g, warps", a.Cap), wayFlash)
		b.rate(fmt.Sprintf("heads of 256, cap %g, warpgroups", a.Cap), waySM90)
		b.release()
	}
}
