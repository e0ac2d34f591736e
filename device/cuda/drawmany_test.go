//go:build emulate || gpu

package cuda_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/tensor"
)

// A cache must not depend on the device that drew: ids and sums have the bits of device.DrawManyRow, at any alignment,
// with ties, far outliers, −∞ and rows of one tile and of several.
func TestDrawManyBits(t *testing.T) {
	findDriver(t)
	d := open(t, cuda.Options{})
	defer d.Close()
	s, rng := d.NewStream(), rand.New(rand.NewPCG(1, 2))
	for _, c := range []struct {
		cols, offset, draws int
		temperature         float64
	}{{1, 0, 3, 1}, {127, 1, 63, 0.7}, {129, 0, 63, 2}, {3001, 3, 50, 1}, {70001, 0, 50, 1.3}, {21384, 0, 50, 1}} {
		const rows = 3
		all := s.Temp("z", device.Logits, tensor.F32, rows, c.cols+c.offset)
		z := all.ColRange(c.offset, c.offset+c.cols)
		host, keys := make([]float32, rows*c.cols), make([]int32, 3*rows)
		for i := range host {
			host[i] = float32(math.Round(40*rng.NormFloat64())) / 8 // ties
			if rng.IntN(50) == 0 {
				host[i] = float32(math.Inf(-1))
			}
		}
		for r := range rows { // the largest of a row is above all of the row before
			host[r*c.cols+(5596-2048*r)%c.cols] = float32(30 + 4*r)
		}
		for i := range keys {
			keys[i] = int32(rng.Uint32())
		}
		out := s.Temp("out", device.Logits, tensor.F32, rows, c.draws+device.ManySums)
		at := s.Temp("keys", device.Logits, tensor.I32, 3*rows, 1)
		s.Upload(z, host)
		s.UploadInts(at, keys)
		s.(device.ManyDrawer).DrawMany(out, z, at, c.temperature)
		got := make([]float32, rows*out.Cols)
		if err := s.Download(got, out); err != nil {
			t.Fatal(err)
		}
		s.Release(all, out, at)
		want, weights := make([]float32, out.Cols), make([]uint64, c.cols)
		for r := range rows {
			key := [2]uint32{uint32(keys[3*r]), uint32(keys[3*r+1])}
			device.DrawManyRow(want, host[r*c.cols:(r+1)*c.cols], weights, key, uint32(keys[3*r+2]), c.temperature)
			if row := got[r*out.Cols : (r+1)*out.Cols]; !slices.Equal(row, want) {
				t.Errorf("%d columns, row %d:\n%v\nwant\n%v", c.cols, r, row, want)
			}
		}
	}
}
