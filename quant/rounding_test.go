package quant

import (
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"apr/tensor"
)

// What was encoded lies within the bounds of what came out, for every type and for rows of several shapes; what is a
// little more than a step away does not, but for the few elements at an end of their range.
func TestRoundings(t *testing.T) {
	shapes := map[string]func(*rand.Rand) float64{
		"normal":      func(r *rand.Rand) float64 { return 0.02 * r.NormFloat64() },
		"outliers":    func(r *rand.Rand) float64 { return 0.02 * math.Pow(r.NormFloat64(), 5) },
		"positive":    func(r *rand.Rand) float64 { return 1 + 0.1*r.Float64() },
		"tiny":        func(r *rand.Rand) float64 { return 1e-7 * r.NormFloat64() },
		"exponential": func(r *rand.Rand) float64 { return math.Exp(2 * r.NormFloat64()) },
		"zero":        func(*rand.Rand) float64 { return 0 },
	}
	const n = 64 * 256
	for name, draw := range shapes {
		for _, d := range []tensor.DType{tensor.Q4_0, tensor.Q5_0, tensor.Q8_0, tensor.Q4_K, tensor.Q5_K, tensor.Q6_K} {
			r := rand.New(rand.NewPCG(1, uint64(d)))
			src, values, bounds := make([]float32, n), make([]float32, n), make([]Rounding, n)
			for i := range src {
				src[i] = float32(draw(r))
			}
			size, _ := PackedLen(n, d)
			raw := make([]byte, size)
			if err := Quantize(raw, src, d); err != nil {
				t.Fatal(err)
			}
			Dequantize(values, raw, d)
			Roundings(bounds, values, raw, d)
			far := 0
			for i, b := range bounds {
				e := src[i] - values[i]
				if !(e <= b.Above && -e <= b.Below) {
					t.Fatalf("%s, %s: element %d is %g, decoded %g, outside %+v", name, d, i, src[i], values[i], b)
				}
				if moved := e + 1.2*b.Step; moved > b.Above || b.Step == 0 {
					far++
				}
			}
			if name == "normal" && !(far >= n*8/10) {
				t.Errorf("%s, %s: of %d elements %d are outside when they are moved by more than a step", name, d, n, far)
			}
		}
	}
}

// What GGML's own quantiser made of its test rows lies within the bounds too: it rounds to the final scales as we do.
func TestRoundingsOfGGML(t *testing.T) {
	src := readF32(t, "input.f32")
	for _, d := range []tensor.DType{tensor.Q4_0, tensor.Q5_0, tensor.Q8_0, tensor.Q4_K, tensor.Q5_K, tensor.Q6_K} {
		raw, err := os.ReadFile("testdata/" + d.String() + ".blocks")
		if err != nil {
			t.Fatal(err)
		}
		values, bounds := make([]float32, len(src)), make([]Rounding, len(src))
		Dequantize(values, raw, d)
		Roundings(bounds, values, raw, d)
		outside := 0
		for i, b := range bounds {
			if e := src[i] - values[i]; !(e <= b.Above && -e <= b.Below) {
				outside++
			}
		}
		if outside > 0 {
			t.Errorf("%s: %d of %d elements are outside", d, outside, len(src))
		}
	}
}
