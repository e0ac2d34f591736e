//go:build gpu

package cuda_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/tensor"
)

// BenchmarkDrawNext draws from rows of 151,936 logits. They are normally distributed with standard deviation 2, as flat as
// the logits of random weights.
func BenchmarkDrawNext(b *testing.B) {
	findDriver(b)
	d := open(b, cuda.Options{})
	defer d.Close()
	s, rng := d.NewStream(), rand.New(rand.NewPCG(1, 2))
	const most, vocab = 256, 151936
	of := func(name string, t tensor.DType, rows, cols int) device.Tensor {
		return s.Temp(name, device.Logits, t, rows, cols)
	}
	x, out := of("x", tensor.F32, most, vocab), of("out", tensor.F32, most, 2)
	ids, keys := of("ids", tensor.I32, most, 1), of("keys", tensor.I32, 2*most, 1)
	limits := of("limits", tensor.F32, most, device.NextLimits)
	row := make([]float32, vocab)
	for r := range most {
		for i := range row {
			row[i] = float32(2 * rng.NormFloat64())
		}
		s.Upload(x.RowRange(r, r+1), row)
	}
	for _, l := range [][]float32{{1, 0, 0}, {.8, .95, 0}, {.8, 0, 40}, {.7, .8, 20}} {
		var all []float32
		halves := make([]int32, 2*most)
		for r := range most {
			all = append(all, l...)
			halves[2*r] = int32(r)
		}
		s.Upload(limits, all)
		s.UploadInts(keys, halves)
		for _, rows := range []int{1, 64, 256} {
			b.Run(fmt.Sprintf("%d rows, T %g, p %g, k %g", rows, l[0], l[1], l[2]), func(b *testing.B) {
				for range b.N {
					s.(device.NextDrawer).DrawNext(ids.RowRange(0, rows), out.RowRange(0, rows), x.RowRange(0, rows),
						device.Tensor{}, keys.RowRange(0, 2*rows), limits.RowRange(0, rows))
				}
				if _, err := s.Wait(context.Background()); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}
