package quant

import (
	"bytes"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"apr/internal/contracttest"
	"apr/tensor"
)

// The blocks of testdata/mxfp4.blocks are the rows of input.f32 by ggml's quantize_row_mxfp4_ref, and mxfp4.f32 what its
// dequantize_row_mxfp4 makes of them (ggml-org/llama.cpp, ggml/src/ggml-quants.c, compiled by gcc without fused operations).
func readMXFP4(t *testing.T) (blocks []byte, values []float32) {
	t.Helper()
	blocks, err := os.ReadFile("testdata/mxfp4.blocks")
	if err != nil {
		t.Fatal(err)
	}
	return blocks, readF32(t, "mxfp4.f32")
}

func TestMXFP4EqualsGGMLByteForByte(t *testing.T) {
	blocks, values := readMXFP4(t)
	got := make([]float32, len(values))
	Dequantize(got, blocks, tensor.MXFP4)
	sameBits(t, "decoded", got, values)
	again := make([]byte, len(blocks))
	if err := Quantize(again, readF32(t, "input.f32"), tensor.MXFP4); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again, blocks) {
		for i := range blocks {
			if again[i] != blocks[i] {
				t.Fatalf("byte %d of block %d is %#x, want %#x", i%17, i/17, again[i], blocks[i])
			}
		}
	}
}

// Every scale with every code: the value by the definition of the float of 4 bits; scale 255 is NaN, and what float32 cannot hold
// infinite. Both are found, nothing else is.
func TestMXFP4EveryScaleAndCode(t *testing.T) {
	for e := range 256 {
		for c := range 16 {
			contracttest.Cases(t, 1)
			b := make([]byte, 3*bytesMXFP4)
			at := b[bytesMXFP4:]
			at[0], at[1+7] = byte(e), byte(c)<<4 // element 23
			x := make([]float32, 96)
			Dequantize(x, b, tensor.MXFP4)
			want := refElement(tensor.MXFP4, at, 23)
			sameBits(t, "element", x[55:56], []float32{want})
			first := -1
			if e == 255 || math.IsInf(float64(want), 0) {
				first = 32
			}
			if got := FirstNonFinite(b, tensor.MXFP4); got != first {
				t.Errorf("scale %d, code %d: element %d is not finite, want %d", e, c, got, first)
			}
			if bf := tensor.BF16ToF32(tensor.F32ToBF16(want)); e < 253 && bf != want {
				t.Errorf("scale %d, code %d: %g is %g in bfloat16", e, c, want, bf)
			}
		}
	}
}

// Blocks whose largest magnitude is near a power of two, and tiny ones, as the logarithm of float32 decides.
func TestMXFP4Scales(t *testing.T) {
	for _, c := range []struct {
		most float32
		e    byte
	}{
		{0, 0}, {1, 125}, {4, 127}, {6, 127}, {7.99, 127}, {8, 128}, {-1024, 135},
		{math.Nextafter32(4, 0), 126}, {math.Nextafter32(8, 0), 128}, // log₂ rounds to 3
		{0x1p-125, 0}, {0x1p-124, 1}, {0x1p-149, 0}, {MaxAbs, 140},
	} {
		src := make([]float32, 32)
		src[11] = c.most
		var b [bytesMXFP4]byte
		if err := Quantize(b[:], src, tensor.MXFP4); err != nil {
			t.Fatal(err)
		}
		if b[0] != c.e {
			t.Errorf("a largest magnitude of %g has scale %d, want %d", c.most, b[0], c.e)
		}
	}
}

// Between the layouts nothing is lost: element i has the nibble that each layout says, and blocks come back byte for byte.
func TestMXFP4OfHuggingFace(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 9))
	const n = 64
	codes, scales, blocks := make([]byte, 16*n), make([]byte, n), make([]byte, bytesMXFP4*n)
	for i := range codes {
		codes[i] = byte(r.Uint32())
	}
	for i := range scales {
		scales[i] = byte(r.Uint32())
	}
	MXFP4FromHF(blocks, codes, scales)
	for i := range n {
		b := blocks[bytesMXFP4*i:]
		if b[0] != scales[i] {
			t.Fatalf("scale %d is %d, want %d", i, b[0], scales[i])
		}
		for k := range 32 {
			if got, want := b[1+k%16]>>(4*(k/16))&15, codes[16*i+k/2]>>(4*(k%2))&15; got != want {
				t.Fatalf("block %d, element %d is %d, want %d", i, k, got, want)
			}
		}
	}
	backCodes, backScales := make([]byte, len(codes)), make([]byte, len(scales))
	MXFP4ToHF(backCodes, nil, blocks)
	MXFP4ToHF(nil, backScales, blocks)
	if !bytes.Equal(backCodes, codes) || !bytes.Equal(backScales, scales) {
		t.Error("codes or scales came back as others")
	}
}

// What was encoded lies within the bounds of what came out, of rows of several distributions.
func TestRoundingsOfMXFP4(t *testing.T) {
	for _, scale := range []float64{1, 0.02, 1e-7, 300} {
		r := rand.New(rand.NewPCG(1, 7))
		const n = 64 * 256
		src, values, bounds, raw := make([]float32, n), make([]float32, n), make([]Rounding, n), make([]byte, n/32*bytesMXFP4)
		for i := range src {
			src[i] = float32(scale * r.NormFloat64())
		}
		if err := Quantize(raw, src, tensor.MXFP4); err != nil {
			t.Fatal(err)
		}
		Dequantize(values, raw, tensor.MXFP4)
		Roundings(bounds, values, raw, tensor.MXFP4)
		far := 0
		for i, b := range bounds {
			e := src[i] - values[i]
			if !(e <= b.Above && -e <= b.Below) {
				t.Fatalf("element %d is %g, decoded %g, outside %+v", i, src[i], values[i], b)
			}
			if e+1.2*b.Step > b.Above {
				far++
			}
		}
		if !(far >= n*8/10) {
			t.Errorf("of %d elements %d are outside when they are moved by more than a step", n, far)
		}
	}
}
