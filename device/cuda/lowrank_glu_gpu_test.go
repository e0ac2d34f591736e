//go:build gpu

package cuda_test

import (
	"math"
	"slices"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/internal/near"
)

// TestLowRankGLU: the product of a gated layer with its adapters in one kernel agrees with the product, then the
// adapters, and repeats its bits; where all B are zero it has those of the product alone.
func TestLowRankGLU(t *testing.T) {
	findDriver(t)
	d := open(t, cuda.Options{})
	defer d.Close()
	for _, c := range []struct{ n, in, f, rank int }{
		{64, 64, 128, 8}, {300, 200, 136, 32}, {2000, 896, 4864, 32}, {1000, 256, 688, 64},
	} {
		b := newLowRankBench(d, c.in, []int{c.f, c.f}, c.n, c.rank, 1)
		s := b.s
		at, ok := s.(device.GatedAdapters)
		w := b.param(2*c.f, c.in)
		if !ok || !at.ServesLowRankGLU(b.m, b.y, b.x, b.u, w.Weight, b.l, device.SiLU) {
			t.Logf("%v: not on this device", c)
			continue
		}
		read := func(x device.Tensor) []float32 {
			v := make([]float32, x.Rows*x.Cols)
			if err := s.Download(v, x); err != nil {
				t.Fatal(err)
			}
			return v
		}
		fused := func() (y, m []float32) {
			var none device.Tensor
			s.LowRank(none, none, b.u, b.x, b.l, 0)
			at.MatMulLowRankGLU(b.m, b.y, b.x, b.u, w.Weight, b.l, device.SiLU)
			return read(b.y), read(b.m)
		}
		y, m := fused()
		if y2, m2 := fused(); !slices.Equal(y, y2) || !slices.Equal(m, m2) {
			t.Errorf("%v: other bits", c)
		}
		s.MatMul(b.y, b.x, w.Weight, device.Tensor{}, false)
		plain := read(b.y)
		s.LowRank(b.y, b.m, b.u, b.x, b.l, device.SiLU)
		near.CheckL2(t, "gu", y, read(b.y), 8e-3)
		near.CheckL2(t, "m", m, read(b.m), 1.5e-2)
		var moved, norm float64
		for i, v := range plain {
			moved, norm = moved+math.Pow(float64(y[i]-v), 2), norm+math.Pow(float64(v), 2)
		}
		if !(moved > .01*norm) {
			t.Errorf("%v: the adapters move the product by %g of its norm", c, math.Sqrt(moved/norm))
		}
		for _, p := range b.params[1:3] {
			s.Upload(p.Value, make([]float32, p.Rows*p.Cols))
			s.RefreshWeight(p)
		}
		y, m = fused()
		s.MatMulGLU(b.m, b.y, b.x, w.Weight, device.SiLU, true)
		if !slices.Equal(y, read(b.y)) || !slices.Equal(m, read(b.m)) {
			t.Errorf("%v: with B zero other bits than without adapters", c)
		}
		s.Release(b.all...)
	}
}
