package quant

import (
	"math/rand/v2"
	"testing"

	"apr/tensor"
)

// TestQuantizeAgain: weights that were in blocks before lose next to nothing in blocks of the same type, although the
// search for their scales ends as early as that of other weights.
func TestQuantizeAgain(t *testing.T) {
	for _, dist := range distributions[:4] {
		for _, d := range []tensor.DType{tensor.Q4_K, tensor.Q5_K} {
			x := randomRow(rand.New(rand.NewPCG(61, 62)), 64*superblock, dist.at)
			_, once := quantized(t, x, d)
			_, again := quantized(t, once, d)
			first, second := rmse(x, once), rmse(once, again)
			if !(second <= 0.2*first) {
				t.Errorf("%s, %v: the second rounding has an error of %g, the first of %g", dist.name, d, second, first)
			}
		}
	}
}

// BenchmarkQuantizeAgain quantises weights that were in blocks of the same type before.
func BenchmarkQuantizeAgain(b *testing.B) {
	x := randomRow(rand.New(rand.NewPCG(1, 1)), 4096, distributions[0].at)
	for _, d := range []tensor.DType{tensor.Q4_K, tensor.Q5_K} {
		blocks, y := quantized(b, x, d)
		b.Run(d.String(), func(b *testing.B) {
			b.SetBytes(int64(4 * len(x)))
			for b.Loop() {
				if err := Quantize(blocks, y, d); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
