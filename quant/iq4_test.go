package quant_test

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"apr/internal/contracttest"
	"apr/quant"
	"apr/quant/quanttest"
	"apr/tensor"
)

// The blocks of testdata/iq4_*.blocks are the rows of input.f32 by ggml's quantize_iq4_nl and quantize_iq4_xs, without
// importance, and *.f32 what its dequantize_row_iq4_nl and dequantize_row_iq4_xs make of them (ggml-org/llama.cpp,
// ggml/src/ggml-quants.c, compiled by gcc without fused operations).
var iq4Fixtures = map[tensor.DType][2]string{
	tensor.IQ4_NL: {"2103ea120df815f55c34acd3dd5515daf49f177b18f495b24f7065c732f3f2f0", "8edc370acb004ba66f555278d769e389f88bf52645e76f26c96ffe52232e2b7b"},
	tensor.IQ4_XS: {"d50cfca0475e1486864e452572b2c01549650858231b908737a997484d140c73", "2f180c5fc7f29910177559edbb7563d571f55b8d9ee6c2484821f10aeaccd63d"},
}

func fixture(t *testing.T, d tensor.DType) (blocks []byte, values []float32) {
	t.Helper()
	var raw [2][]byte
	for i, ext := range []string{".blocks", ".f32"} {
		b, err := os.ReadFile("testdata/" + d.String() + ext)
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != iq4Fixtures[d][i] {
			t.Fatalf("%s%s is another file", d, ext)
		}
		raw[i] = b
	}
	values = make([]float32, len(raw[1])/4)
	tensor.Widen(values, raw[1], tensor.F32)
	return raw[0], values
}

func TestIQ4EqualsGGMLBitForBit(t *testing.T) {
	for d := range iq4Fixtures {
		contracttest.Cases(t, 1)
		blocks, want := fixture(t, d)
		got := make([]float32, len(want))
		quant.Dequantize(got, blocks, d)
		for i := range want {
			if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
				t.Fatalf("%s: element %d is %g, want %g", d, i, got[i], want[i])
			}
		}
	}
}

// What ggml and the encoder of tests made of their rows lies within the bounds; a little more than a step away nothing does, but
// for the few elements at an end of their range.
func TestRoundingsOfIQ4(t *testing.T) {
	raw, err := os.ReadFile("testdata/input.f32")
	if err != nil {
		t.Fatal(err)
	}
	src := make([]float32, len(raw)/4)
	tensor.Widen(src, raw, tensor.F32)
	normal := make([]float32, 64*256)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range normal {
		normal[i] = float32(0.02 * r.NormFloat64())
	}
	for d := range iq4Fixtures {
		blocks, _ := fixture(t, d)
		for name, c := range map[string]struct {
			src []float32
			raw []byte
			far bool
		}{"ggml": {src, blocks, false}, "normal": {normal, quanttest.IQ4(normal, d), true}} {
			contracttest.Cases(t, 1)
			values, bounds := make([]float32, len(c.src)), make([]quant.Rounding, len(c.src))
			quant.Dequantize(values, c.raw, d)
			quant.Roundings(bounds, values, c.raw, d)
			outside, far := 0, 0
			for i, b := range bounds {
				e := c.src[i] - values[i]
				if !(e <= b.Above && -e <= b.Below) {
					outside++
				}
				if moved := e + 1.2*b.Step; moved > b.Above || b.Step == 0 {
					far++
				}
			}
			if outside > 0 {
				t.Errorf("%s, %s: %d of %d elements are outside", d, name, outside, len(src))
			}
			if c.far && !(far >= len(values)*8/10) {
				t.Errorf("%s, %s: of %d elements %d are outside when they are moved by more than a step", d, name, len(values), far)
			}
		}
	}
}
