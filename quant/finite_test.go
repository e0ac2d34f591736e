package quant

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"apr/internal/contracttest"
	"apr/tensor"
)

// A block is refused exactly if an element of it decodes to a NaN or an infinity: two bytes that make a half or a float infinite are
// put at every place of a block.
func TestFirstNonFinite(t *testing.T) {
	for d := tensor.Q4_0; d <= tensor.MXFP4; d++ {
		const blocks = 3
		size, n := d.BlockBytes(), d.BlockLen()
		if d == tensor.AprQ8 {
			size, n = 8, 4
		}
		for at := 0; at+1 < size; at++ {
			src := make([]byte, blocks*size)
			if d == tensor.AprQ8 {
				src = src[:size]
			}
			for i := range src {
				src[i] = 0x11
			}
			from := len(src) - size // in the last block
			copy(src[from+at:], []byte{0x80, 0x7f})
			values := make([]float32, len(src)/size*n)
			Dequantize(values, src, d)
			first := slices.IndexFunc(values, func(x float32) bool { return math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) })
			if first >= 0 {
				first = first / n * n
			}
			if got := FirstNonFinite(src, d); got != first {
				t.Errorf("%v: byte %d: element %d, want %d", d, at, got, first)
			}
			contracttest.Cases(t, 1)
		}
	}
}

// Largest is the largest element of a block with any scale, unless no element is beyond 65504.
func TestLargest(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for d := tensor.Q4_0; d <= tensor.MXFP4; d++ {
		size, n := d.BlockBytes(), d.BlockLen()
		for range 2000 {
			if d == tensor.AprQ8 {
				continue
			}
			src := make([]byte, 3*size)
			for i := range src {
				src[i] = byte(rng.Uint32())
			}
			values, want := make([]float32, 3*n), 0.0
			Dequantize(values, src, d)
			for _, x := range values {
				want = max(want, math.Abs(float64(x)))
			}
			got := Largest(src, d)
			if same := got == want || math.IsNaN(got) && math.IsNaN(want); !same && !(want <= 65504 && got <= want) {
				t.Fatalf("%v: %g, want %g", d, got, want)
			}
			contracttest.Cases(t, 1)
		}
	}
	if got := Largest([]byte{0, 0, 0, 0x45, 1}, tensor.AprQ8); got != 127*2048 {
		t.Errorf("AprQ8: %g", got)
	}
}
