package quant

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"apr/internal/fault"
	"apr/tensor"
)

var rounded = append([]tensor.DType{tensor.MXFP4}, encodable...)

// TestRoundIsNearest: under the scales of other rows, no element has a nearer value in its block; and what is rounded
// already stays.
func TestRoundIsNearest(t *testing.T) {
	for _, dist := range distributions {
		for _, d := range rounded {
			r := rand.New(rand.NewPCG(71, uint64(d)))
			x := randomRow(r, 1024, dist.at)
			blocks, before := quantized(t, x, d)
			moved := make([]float32, len(x))
			for i, v := range x {
				moved[i] = v + float32(0.1*r.NormFloat64()*math.Abs(float64(v)))
				if !(moved[i] <= MaxAbs && moved[i] >= -MaxAbs) {
					moved[i] = v
				}
			}
			scales := scalesOf(blocks, d)
			if err := Round(blocks, moved, d); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(scalesOf(blocks, d), scales) {
				t.Fatalf("%s, %v: the scales changed", dist.name, d)
			}
			got := make([]float32, len(x))
			Dequantize(got, blocks, d)
			for i := range x { // a value of the same group is no nearer
				for k := i &^ 15; k < i|15; k++ {
					for _, other := range []float32{got[k], before[k]} {
						near, far := math.Abs(float64(got[i]-moved[i])), math.Abs(float64(other-moved[i]))
						if !(near <= far*1.00001+1e-7*math.Abs(float64(moved[i]))) {
							t.Fatalf("%s, %v: element %d is %g, its block has %g, nearer to %g", dist.name, d, i, got[i], other, moved[i])
						}
					}
				}
			}
			again := bytes.Clone(blocks)
			if err := Round(again, got, d); err != nil {
				continue // decoded values may be beyond MaxAbs
			}
			y := make([]float32, len(x))
			Dequantize(y, again, d)
			sameValues(t, d.String(), y, got)
		}
	}
}

func sameValues(t *testing.T, name string, got, want []float32) {
	t.Helper()
	for i := range got {
		if !(got[i] == want[i]) {
			t.Fatalf("%s: element %d is %g, want %g", name, i, got[i], want[i])
		}
	}
}

// scalesOf returns the blocks with all integers cleared.
func scalesOf(blocks []byte, d tensor.DType) []byte {
	b := bytes.Clone(blocks)
	integers := map[tensor.DType][2]int{
		tensor.Q4_0: {2, 18}, tensor.Q5_0: {2, 22}, tensor.Q8_0: {2, 34}, tensor.IQ4_NL: {2, 18}, tensor.MXFP4: {1, 17},
		tensor.Q4_K: {16, 144}, tensor.Q5_K: {16, 176}, tensor.Q6_K: {0, 192}, tensor.Q3_K: {0, 96}, tensor.Q2_K: {16, 80},
	}[d]
	for i := 0; i < len(b); i += d.BlockBytes() {
		clear(b[i+integers[0] : i+integers[1]])
	}
	return b
}

// TestRoundAfterQuantize: the integers that Quantize chose are the nearest ones for its scales.
func TestRoundAfterQuantize(t *testing.T) {
	for _, dist := range distributions {
		for _, d := range rounded {
			x := randomRow(rand.New(rand.NewPCG(72, uint64(d))), 1024, dist.at)
			blocks, first := quantized(t, x, d)
			if err := Round(blocks, x, d); err != nil {
				t.Fatal(err)
			}
			y := make([]float32, len(x))
			Dequantize(y, blocks, d)
			if a, b := rmse(x, y), rmse(x, first); !(a <= b*(1+1e-6)) {
				t.Errorf("%s, %v: error %g, before %g", dist.name, d, a, b)
			}
		}
	}
}

func TestRoundRefusesUnusableValues(t *testing.T) {
	for _, d := range rounded {
		dst := make([]byte, 256/d.BlockLen()*d.BlockBytes())
		src := make([]float32, 256)
		src[200] = float32(math.NaN())
		var f *fault.Error
		if err := Round(dst, src, d); !errors.As(err, &f) || f.ID != "E-QUANT-003" || f.Place != "element 200" {
			t.Errorf("%v: error is %v", d, err)
		}
	}
}

func rootError(x, y, w []float32) float64 {
	sum := 0.0
	for i := range x {
		e := float64(y[i]) - float64(x[i])
		sum += float64(w[i]) * e * e
	}
	return math.Sqrt(sum)
}

// TestQuantizeWeighted: with equal weights the error is not above GGML's either; with others the weighted error falls.
func TestQuantizeWeighted(t *testing.T) {
	input := readF32(t, "input.f32")
	fixtures := map[tensor.DType]fixture{}
	for _, f := range readFixtures(t) {
		fixtures[f.dtype] = f
	}
	for _, d := range rounded {
		ones := make([]float32, fixtureCols)
		for i := range ones {
			ones[i] = 3
		}
		size, _ := PackedLen(fixtureCols, d)
		blocks, y := make([]byte, size), make([]float32, fixtureCols)
		r := rand.New(rand.NewPCG(81, uint64(d)))
		ratio := 0.0
		for row := range fixtureRows {
			x := input[row*fixtureCols : (row+1)*fixtureCols]
			if err := QuantizeWeighted(blocks, x, ones, d); err != nil {
				t.Fatal(err)
			}
			Dequantize(y, blocks, d)
			if f, ok := fixtures[d]; ok && !(rmse(x, y) <= allowed*f.rowRMSE[row]) {
				t.Errorf("%v row %d: error %g, GGML's %g", d, row, rmse(x, y), f.rowRMSE[row])
			}
			w := make([]float32, len(x))
			for i := range w {
				w[i] = float32(math.Exp(2 * r.NormFloat64()))
			}
			_, unweighted := quantized(t, x, d)
			if err := QuantizeWeighted(blocks, x, w, d); err != nil {
				t.Fatal(err)
			}
			Dequantize(y, blocks, d)
			a, b := rootError(x, y, w), rootError(x, unweighted, w)
			if !(a <= b*(1+1e-9)) {
				t.Errorf("%v row %d: weighted error %g, without weights %g", d, row, a, b)
			}
			ratio += a / max(b, 1e-12) / fixtureRows
		}
		if !(ratio <= 0.97) {
			t.Errorf("%v: weights leave %.3f of the weighted error", d, ratio)
		}
		t.Logf("%v: weights leave %.3f of the weighted error", d, ratio)
	}
}

func TestQuantizeWeightedRefusesWeights(t *testing.T) {
	x, w := make([]float32, 32), make([]float32, 32)
	for _, bad := range []float32{-1, float32(math.NaN()), float32(math.Inf(1))} {
		w[5] = bad
		var f *fault.Error
		if err := QuantizeWeighted(make([]byte, 18), x, w, tensor.Q4_0); !errors.As(err, &f) || f.ID != "E-QUANT-004" || f.Place != "element 5" {
			t.Errorf("weight %g: error is %v", bad, err)
		}
	}
}

// TestQuantizeEndsInRounding: what Quantize makes is what Round makes under its scales, whatever the integers were
// before. A device that searches for scales alone, and then rounds, relies on it.
func TestQuantizeEndsInRounding(t *testing.T) {
	for _, dist := range distributions {
		for _, d := range rounded {
			r := rand.New(rand.NewPCG(72, uint64(d)))
			for round := range 4 {
				x := randomRow(r, 1024, dist.at)
				for i := range x {
					switch {
					case round == 1:
						x[i] *= 1e-38
					case round == 2 && i/64%2 == 0:
						x[i] = x[i/32*32]
					case round == 3 && r.IntN(40) == 0:
						x[i] *= 1000
					}
					x[i] = max(-MaxAbs, min(MaxAbs, x[i]))
				}
				blocks, _ := quantized(t, x, d)
				again := scalesOf(blocks, d)
				if err := Round(again, x, d); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(again, blocks) {
					t.Errorf("%s, %v, round %d: other integers", dist.name, d, round)
				}
			}
		}
	}
}
