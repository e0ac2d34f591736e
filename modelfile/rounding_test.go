package modelfile

import (
	"math"
	"math/rand/v2"
	"testing"

	"apr/quant"
	"apr/tensor"
)

// The bounds of plain values are those of math.Frexp and math.Ldexp, for every exponent, zeros and what is not finite.
func TestFloatBounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	values := []float32{0, float32(math.Copysign(0, -1)), float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 1e-45, 1}
	for e := range uint32(256) {
		for range 20 {
			values = append(values, math.Float32frombits(e<<23|rng.Uint32()&0x807fffff))
		}
	}
	for d, x := range map[tensor.DType][2]int{tensor.F32: {24, -149}, tensor.BF16: {8, -133}, tensor.F16: {11, -24}} {
		got := make([]quant.Rounding, len(values))
		floatBounds(got, values, d)
		for i, v := range values {
			_, e := math.Frexp(float64(v))
			step := float32(math.Ldexp(1, max(e-x[0], x[1])))
			if want := (quant.Rounding{Below: step / 2, Above: step / 2, Step: step}); got[i] != want {
				t.Fatalf("%v in %v: %v, want %v", v, d, got[i], want)
			}
		}
	}
}

func BenchmarkFloatBounds(b *testing.B) {
	values := make([]float32, 1<<16)
	for i := range values {
		values[i] = rand.Float32()
	}
	dst := make([]quant.Rounding, len(values))
	b.SetBytes(4 << 16)
	for b.Loop() {
		floatBounds(dst, values, tensor.BF16)
	}
}
