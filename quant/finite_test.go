package quant

import (
	"math"
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
