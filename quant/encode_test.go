package quant

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"apr/internal/fault"
	"apr/tensor"
)

var encodable = []tensor.DType{tensor.Q4_0, tensor.Q5_0, tensor.Q8_0, tensor.Q4_K, tensor.Q5_K, tensor.Q6_K, tensor.Q3_K, tensor.Q2_K, tensor.IQ4_NL}

// quantized returns the blocks of x and their decoded values; it fails the test on an error.
func quantized(t testing.TB, x []float32, d tensor.DType) (blocks []byte, y []float32) {
	t.Helper()
	size, _ := PackedLen(len(x), d)
	blocks, y = make([]byte, size), make([]float32, len(x))
	if err := Quantize(blocks, x, d); err != nil {
		t.Fatal(err)
	}
	Dequantize(y, blocks, d)
	return blocks, y
}

// allowed is the largest ratio of our root mean square error to GGML's in any row.
const allowed = 1.02

func TestQuantizeErrorAgainstGGMLFixtures(t *testing.T) {
	input := readF32(t, "input.f32")
	for _, f := range readFixtures(t) {
		for r := range fixtureRows {
			row := input[r*fixtureCols : (r+1)*fixtureCols]
			_, got := quantized(t, row, f.dtype)
			if ratio := rmse(row, got) / f.rowRMSE[r]; !(ratio <= allowed) {
				t.Errorf("%v row %d: error is %g of GGML's", f.dtype, r, ratio)
			}
		}
	}
}

func TestIQ4NLErrorAgainstGGMLFixture(t *testing.T) {
	input, theirs := readF32(t, "input.f32"), readF32(t, "iq4_nl.f32")
	for lo := 0; lo < len(input); lo += fixtureCols {
		row := input[lo : lo+fixtureCols]
		_, got := quantized(t, row, tensor.IQ4_NL)
		if ratio := rmse(row, got) / rmse(row, theirs[lo:lo+fixtureCols]); !(ratio <= allowed) {
			t.Errorf("row %d: error is %g of GGML's", lo/fixtureCols, ratio)
		}
	}
}

// distributions of the random rows; heavy tail is Student's t with 2 degrees of freedom, nearly.
var distributions = []struct {
	name string
	at   func(r *rand.Rand, i int) float64
}{
	{"normal", func(r *rand.Rand, i int) float64 { return r.NormFloat64() }},
	{"narrow normal", func(r *rand.Rand, i int) float64 { return 0.02 * r.NormFloat64() }},
	{"shifted normal", func(r *rand.Rand, i int) float64 { return 0.7 + 0.2*r.NormFloat64() }},
	{"uniform", func(r *rand.Rand, i int) float64 { return 2*r.Float64() - 1 }},
	{"all positive", func(r *rand.Rand, i int) float64 { return r.ExpFloat64() }},
	{"positive, far from zero", func(r *rand.Rand, i int) float64 { return 5 + r.Float64() }},
	{"all negative", func(r *rand.Rand, i int) float64 { return -r.ExpFloat64() }},
	{"heavy tail", func(r *rand.Rand, i int) float64 { return r.NormFloat64() / math.Sqrt(r.ExpFloat64()+1e-3) }},
	{"log-normal", func(r *rand.Rand, i int) float64 { return math.Exp(2*r.NormFloat64()) * float64(1-2*r.IntN(2)) }},
	{"outliers", func(r *rand.Rand, i int) float64 {
		if r.IntN(100) == 0 {
			return 60 * r.NormFloat64()
		}
		return 0.02 * r.NormFloat64()
	}},
	{"one outlier per block", func(r *rand.Rand, i int) float64 {
		if i%256 == 77 {
			return 100 * (1 - 2*float64(r.IntN(2)))
		}
		return 0.02 * r.NormFloat64()
	}},
	{"sparse", func(r *rand.Rand, i int) float64 { return float64(r.IntN(8)/7) * r.NormFloat64() }},
	{"two values", func(r *rand.Rand, i int) float64 { return float64(r.IntN(2)) - 0.3 }},
	{"groups of different size", func(r *rand.Rand, i int) float64 { return math.Ldexp(r.NormFloat64(), i/32%8-4) }},
	{"tiny", func(r *rand.Rand, i int) float64 { return 1e-5 * r.NormFloat64() }},
	{"huge", func(r *rand.Rand, i int) float64 { return 10000 * r.NormFloat64() }},
}

func randomRow(r *rand.Rand, n int, at func(*rand.Rand, int) float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(at(r, i))
	}
	return x
}

// TestQuantizeErrorAgainstGGMLSearch compares with the restatement of GGML's search in ggml_test.go.
func TestQuantizeErrorAgainstGGMLSearch(t *testing.T) {
	for _, dist := range distributions {
		for _, d := range encodable {
			if d == tensor.IQ4_NL { // see TestIQ4NLErrorAgainstGGMLFixture
				continue
			}
			r := rand.New(rand.NewPCG(21, uint64(d)))
			worst, mean := 0.0, 0.0
			const rows = 20
			for range rows {
				row := randomRow(r, 512, dist.at)
				_, got := quantized(t, row, d)
				ours, theirs := rmse(row, got), rmse(row, ggmlQuantized(row, d))
				if !(ours <= allowed*theirs) {
					t.Errorf("%s, %v: error %g, GGML's %g", dist.name, d, ours, theirs)
				}
				worst, mean = max(worst, ours/theirs), mean+ours/theirs/rows
			}
			t.Logf("%-25s %v: mean %.3f worst %.3f of GGML's error", dist.name, d, mean, worst)
		}
	}
}

// halfRounding is the largest error of an element of magnitude x from rounding the scale of its block to a half:
// 2⁻¹¹ of x, or where the half is subnormal half of its 2⁻²⁴ for each of the steps to the top.
func halfRounding(d tensor.DType, x float64) float64 {
	steps := map[tensor.DType]float64{tensor.Q4_0: 8, tensor.Q5_0: 16, tensor.Q8_0: 127,
		tensor.Q4_K: 63 * 15, tensor.Q5_K: 63 * 31, tensor.Q6_K: 128 * 32,
		tensor.Q3_K: 32 * 4, tensor.Q2_K: 15 * 3, tensor.IQ4_NL: 127}
	return 1.01*(0x1p-11*math.Abs(x)) + 0x1p-25*steps[d]
}

// TestQuantizeExactGrids: rows that small integers can express are off by the rounding of their scale at most.
func TestQuantizeExactGrids(t *testing.T) {
	grids := []struct {
		name string
		at   func(r *rand.Rand, i int) float64
	}{
		{"zero", func(*rand.Rand, int) float64 { return 0 }},
		{"one", func(*rand.Rand, int) float64 { return 1 }},
		{"minus one", func(*rand.Rand, int) float64 { return -1 }},
		{"0.37", func(*rand.Rand, int) float64 { return 0.37 }},
		{"largest", func(*rand.Rand, int) float64 { return MaxAbs }},
		{"minus largest", func(*rand.Rand, int) float64 { return -MaxAbs }},
		{"zero or a third", func(r *rand.Rand, i int) float64 { return float64(r.IntN(2)) / 3 }},
	}
	for _, grid := range grids {
		for _, d := range encodable {
			if d == tensor.IQ4_NL && grid.name == "zero or a third" { // no code of it stands for 0
				continue
			}
			row := randomRow(rand.New(rand.NewPCG(31, 32)), 512, grid.at)
			_, got := quantized(t, row, d)
			largest := 0.0
			for _, x := range row {
				largest = max(largest, math.Abs(float64(x)))
			}
			for i, x := range row {
				if diff := math.Abs(float64(got[i]) - float64(x)); !(diff <= halfRounding(d, largest)) {
					t.Fatalf("%s, %v: element %d is %g, want %g", grid.name, d, i, got[i], x)
				}
			}
		}
	}
}

func TestQuantizeZerosAreZeros(t *testing.T) {
	for _, d := range encodable {
		_, got := quantized(t, make([]float32, 256), d)
		for i, x := range got {
			if x != 0 {
				t.Fatalf("%v: element %d is %g", d, i, x)
			}
		}
	}
}

func TestQuantizeRandomConstants(t *testing.T) {
	r := rand.New(rand.NewPCG(33, 34))
	for range 300 {
		c := math.Exp(3*r.NormFloat64()) * float64(1-2*r.IntN(2))
		row := randomRow(r, 256, func(*rand.Rand, int) float64 { return c })
		for _, d := range encodable {
			_, got := quantized(t, row, d)
			if e := rmse(row, got); !(e <= halfRounding(d, c)) {
				t.Errorf("%v: constant %g has error %g, want at most %g", d, c, e, halfRounding(d, c))
			}
		}
	}
}

// TestQuantizeTinyValues: whatever the scale, the error is at most that of writing zeros, and half a step of the
// smallest half where that is less.
func TestQuantizeTinyValues(t *testing.T) {
	for exp := -149; exp <= -8; exp++ {
		r := rand.New(rand.NewPCG(35, uint64(exp+200)))
		row := randomRow(r, 256, func(r *rand.Rand, _ int) float64 { return math.Ldexp(r.NormFloat64(), exp) })
		for _, d := range encodable {
			_, got := quantized(t, row, d)
			ours, zeros := rmse(row, got), rmse(row, make([]float32, 256))
			if !(ours <= zeros) {
				t.Errorf("%v, 2^%d: error %g, of zeros %g", d, exp, ours, zeros)
			}
			if exp >= -24 && !(ours <= 0.35*zeros) && d != tensor.IQ4_NL { // its smallest value but 1 is 10 times its scale
				t.Errorf("%v, 2^%d: error %g of %g", d, exp, ours, zeros)
			}
		}
	}
}

func TestQuantizeRefusesUnusableValues(t *testing.T) {
	bad := map[string]float32{
		"NaN": float32(math.NaN()), "infinity": float32(math.Inf(1)), "minus infinity": float32(math.Inf(-1)),
		"too large": 65505, "too small": -65505,
	}
	for name, x := range bad {
		for _, d := range encodable {
			src := make([]float32, 512)
			src[300], src[400] = x, x
			size, _ := PackedLen(512, d)
			dst := bytes.Repeat([]byte{0xaa}, int(size))
			err := Quantize(dst, src, d)
			var f *fault.Error
			if !errors.As(err, &f) || f.Kind != fault.Invalid || f.ID != "E-QUANT-003" || f.Place != "element 300" {
				t.Errorf("%s, %v: error is %v", name, d, err)
			}
			if !bytes.Equal(dst, bytes.Repeat([]byte{0xaa}, int(size))) {
				t.Errorf("%s, %v: dst was written", name, d)
			}
		}
	}
}

// TestQuantizeMinimumIsNotPositive: groups of positive numbers are scaled from zero and keep their magnitude.
func TestQuantizeMinimumIsNotPositive(t *testing.T) {
	row := make([]float32, 256)
	for i := range row {
		row[i] = 1 + float32(i%32)/320
	}
	for _, d := range []tensor.DType{tensor.Q4_K, tensor.Q5_K} {
		_, got := quantized(t, row, d)
		for i, x := range row {
			if !(math.Abs(float64(got[i]-x)) <= 0.04) {
				t.Fatalf("%v: element %d is %g, want %g", d, i, got[i], x)
			}
		}
	}
}

// TestQ8LeavesOutMinus128, which integer kernels could not negate.
func TestQ8LeavesOutMinus128(t *testing.T) {
	r := rand.New(rand.NewPCG(51, 52))
	for _, dist := range distributions {
		blocks, _ := quantized(t, randomRow(r, 512, dist.at), tensor.Q8_0)
		for i, b := range blocks {
			if i%bytesQ8_0 >= 2 && int8(b) == -128 {
				t.Fatalf("%s: byte %d is −128", dist.name, i)
			}
		}
	}
}

func FuzzQuantize(f *testing.F) {
	f.Add(uint8(0), []byte{0, 0, 128, 63, 0, 0, 0, 128, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, kind uint8, raw []byte) {
		d := encodable[int(kind)%len(encodable)]
		x := make([]float32, d.BlockLen())
		for i := range x {
			if 4*i+4 <= len(raw) {
				x[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
			}
		}
		blocks := make([]byte, d.BlockBytes())
		if err := Quantize(blocks, x, d); err != nil {
			if firstUnusable(x) < 0 {
				t.Fatal(err)
			}
			return
		}
		y := make([]float32, len(x))
		Dequantize(y, blocks, d)
		if zeros := rmse(x, make([]float32, len(x))); !(rmse(x, y) <= 1.0001*zeros) {
			t.Fatalf("error %g is more than that of zeros, %g", rmse(x, y), zeros)
		}
	})
}

func BenchmarkQuantize(b *testing.B) {
	x := randomRow(rand.New(rand.NewPCG(1, 1)), 4096, distributions[0].at)
	for _, d := range encodable {
		size, _ := PackedLen(len(x), d)
		dst := make([]byte, size)
		b.Run(d.String(), func(b *testing.B) {
			b.SetBytes(int64(4 * len(x)))
			for b.Loop() {
				if err := Quantize(dst, x, d); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
