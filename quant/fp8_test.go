package quant_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/strictjson"
	"apr/quant"
	"apr/quant/quanttest"
	"apr/tensor"
)

func TestParseFP8(t *testing.T) {
	for _, tt := range []struct {
		text string
		want quant.FP8
		err  string
	}{
		{`{"quant_method":"fp8","weight_block_size":[128,64]}`, quant.FP8{BlockRows: 128, BlockCols: 64}, ""},
		{`{"quant_method":"fp8","activation_scheme":"dynamic","fmt":"e4m3","modules_to_not_convert":["lm_head"]}`, quant.FP8{BlockRows: 128, BlockCols: 128}, ""},
		{`{"quant_method":"fp8","activation_scheme":"static","dequantize":false,"modules_to_not_convert":[],"weight_block_size":null}`, quant.FP8{}, ""},
		{`{"quant_method":"fp8","scale_fmt":"ue8m0","weight_block_size":[1,1]}`, quant.FP8{BlockRows: 1, BlockCols: 1}, ""},
		{`{"quant_method":"gptq","bits":4}`, quant.FP8{}, `quant_method "gptq" is not supported; supported: ["fp8"]`},
		{`{"quant_method":"fp8","config_groups":{}}`, quant.FP8{}, `unknown key "config_groups"`},
		{`{"quant_method":"awq"}`, quant.FP8{}, `quant_method "awq" is not supported; supported: ["fp8"]`},
		{`{"quant_method":"fp8","fmt":"e5m2"}`, quant.FP8{}, `fmt "e5m2" is not supported`},
		{`{"quant_method":"fp8","scale_fmt":"e8m7"}`, quant.FP8{}, `scale_fmt "e8m7" is not supported`},
		{`{"quant_method":"fp8","activation_scheme":"x"}`, quant.FP8{}, `activation_scheme "x" is not supported`},
		{`{"quant_method":"fp8","weight_block_size":[0,128]}`, quant.FP8{}, `weight_block_size [0 128] is not two numbers from 1`},
		{`{"quant_method":"fp8","weight_block_size":[128]}`, quant.FP8{}, `weight_block_size [128] is not two numbers`},
		{`{"quant_method":"fp8","weight_block_size":[128,9999999999]}`, quant.FP8{}, `weight_block_size [128 9999999999] is not`},
		{`{"quant_method":"fp8","weight_block_size":128}`, quant.FP8{}, `weight_block_size`},
		{`{"quant_method":"fp8","weight_block_size":[-1,128]}`, quant.FP8{}, `weight_block_size`},
		{`{"quant_method":7}`, quant.FP8{}, `quant_method`},
		{`[]`, quant.FP8{}, `expected an object`},
	} {
		contracttest.Cases(t, 1)
		v, err := strictjson.Parse(tt.text, strictjson.Options{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := quant.ParseFP8(v)
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v, %v; want %v, %q", tt.text, got, err, tt.want, tt.err)
		}
	}
}

// TestE4M3: all 256 values by their formula, and back by the nearest.
func TestE4M3(t *testing.T) {
	for b := range 256 {
		contracttest.Cases(t, 1)
		sign, exp, man := 1-2*float64(b>>7), b>>3&15, float64(b&7)
		want := sign * math.Ldexp(8+man, exp-10)
		if exp == 0 {
			want = sign * math.Ldexp(man, -9)
		}
		if b&0x7f == 0x7f {
			want = math.NaN()
		}
		got := float64(tensor.F8E4M3ToF32(byte(b)))
		if want != want {
			if got == got {
				t.Errorf("%02x is %g, want NaN", b, got)
			}
			continue
		}
		if got != want || math.Signbit(got) != (b>>7 == 1) || quanttest.E4M3(got) != byte(b) {
			t.Errorf("%02x is %g, want %g; it becomes %02x", b, got, want, quanttest.E4M3(got))
		}
	}
}

// shapes of matrices and blocks: whole blocks, ragged ones on both sides, blocks larger than the matrix, one scale.
var fp8Cases = []struct {
	rows, cols int
	f          quant.FP8
}{
	{8, 12, quant.FP8{BlockRows: 4, BlockCols: 4}}, {7, 13, quant.FP8{BlockRows: 4, BlockCols: 5}}, {3, 5, quant.FP8{BlockRows: 128, BlockCols: 128}},
	{300, 260, quant.FP8{BlockRows: 128, BlockCols: 128}}, {6, 10, quant.FP8{}}, {5, 7, quant.FP8{BlockRows: 1, BlockCols: 1}}, {1, 1, quant.FP8{}},
}

// matrixOf encodes random values as tests do, and returns what they are encoded to.
func matrixOf(t *testing.T, r *rand.Rand, rows, cols int, f quant.FP8, narrow func(float32) float32, d tensor.DType) (values []float32, q []byte, scales []float32, m *quant.FP8Matrix) {
	t.Helper()
	values = make([]float32, rows*cols)
	for i := range values {
		values[i] = float32(0.02 * r.NormFloat64() * math.Exp(r.NormFloat64()))
	}
	q, scales = quanttest.FP8(values, rows, cols, f.BlockRows, f.BlockCols, narrow)
	shape := f.Shape(rows, cols)
	m, err := f.Matrix(rows, cols, scales, d, shape)
	if err != nil {
		t.Fatal(err)
	}
	return values, q, scales, m
}

// TestFP8Decode: every element is q·scale of its block, rounded to float32 once, whatever part of the matrix is decoded.
func TestFP8Decode(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, c := range fp8Cases {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			_, q, scales, m := matrixOf(t, r, c.rows, c.cols, c.f, nil, tensor.F32)
			height, width, perRow := c.rows, c.cols, 1
			if c.f.BlockRows > 0 {
				height, width = c.f.BlockRows, c.f.BlockCols
				perRow = (c.cols + width - 1) / width
			}
			for range 20 {
				contracttest.Cases(t, 1)
				lo := r.IntN(len(q))
				hi := lo + 1 + r.IntN(len(q)-lo)
				raw := make([]byte, 4*(hi-lo))
				m.Decode(raw, q[lo:hi], int64(lo))
				for i := lo; i < hi; i++ {
					scale := scales[i/c.cols/height*perRow+i%c.cols/width]
					want := float32(float64(tensor.F8E4M3ToF32(q[i])) * float64(scale)) // 4 and 24 bits: exact in float64
					if got := math.Float32frombits(binary.LittleEndian.Uint32(raw[4*(i-lo):])); got != want {
						t.Fatalf("element %d is %g, want %g", i, got, want)
					}
				}
			}
		})
	}
}

// TestFP8Roundings: what was encoded is within the bounds, also where the scale was rounded afterwards; a step away it is not.
func TestFP8Roundings(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	narrow := func(x float32) float32 { return tensor.BF16ToF32(tensor.F32ToBF16(x)) }
	for _, c := range fp8Cases {
		for d, change := range map[tensor.DType]func(float32) float32{tensor.F32: nil, tensor.BF16: narrow} {
			contracttest.Cases(t, 1)
			src, q, _, m := matrixOf(t, r, c.rows, c.cols, c.f, change, d)
			raw, values, bounds := make([]byte, 4*len(q)), make([]float32, len(q)), make([]quant.Rounding, len(q))
			m.Decode(raw, q, 0)
			tensor.Widen(values, raw, tensor.F32)
			m.Roundings(bounds, values, 0)
			far := 0
			for i, b := range bounds {
				e := src[i] - values[i]
				if !(e <= b.Above && -e <= b.Below) {
					t.Fatalf("%v, %v: element %d is %g, decoded %g, outside %+v", c, d, i, src[i], values[i], b)
				}
				if e+1.2*b.Step > b.Above {
					far++
				}
			}
			if len(q) > 50 && !(far >= len(q)*8/10) {
				t.Errorf("%v, %v: of %d elements %d are outside when they are moved by more than a step", c, d, len(q), far)
			}
		}
	}
}

func TestFP8MatrixRefuses(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	block := quant.FP8{BlockRows: 2, BlockCols: 2}
	for _, tt := range []struct {
		name   string
		f      quant.FP8
		scales []float32
		shape  []int
		want   string
	}{
		{"shape", block, []float32{1, 1, 1, 1}, []int{4}, "scales have shape [4]; 4×3 elements in blocks of 2×2 need [2 2]"},
		{"turned", quant.FP8{BlockRows: 1, BlockCols: 3}, []float32{1, 1, 1, 1}, []int{1, 4}, "need [4 1]"},
		{"one for blocks", block, []float32{1}, nil, "scales have shape []; 4×3 elements in blocks of 2×2 need [2 2]"},
		{"many for one", quant.FP8{}, []float32{1, 1}, []int{2}, "scales have shape [2]"},
		{"none", quant.FP8{}, nil, []int{0}, "scales have shape [0]"},
		{"NaN", block, []float32{1, nan, 1, 1}, []int{2, 2}, "scale 1 is NaN"},
		{"infinite", block, []float32{1, 1, 1, inf}, []int{2, 2}, "scale 3 is +Inf"},
		{"zero", block, []float32{1, 0, 1, 1}, []int{2, 2}, "scale 1 is 0"},
		{"negative", quant.FP8{}, []float32{-1}, []int{1}, "scale 0 is -1"},
	} {
		contracttest.Cases(t, 1)
		_, err := tt.f.Matrix(4, 3, tt.scales, tensor.F32, tt.shape)
		if fault.KindOf(err) != fault.Load || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
