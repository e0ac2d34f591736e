package quant

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"apr/internal/fault"
	"apr/internal/strictjson"
	"apr/tensor"
)

// FP8 says how a Hugging Face checkpoint stores matrices in 8-bit floats: element [r,c] of a matrix is
//
//	x = q[r,c]·scale[r/BlockRows, c/BlockCols]     one float32 product, rounded once
//
// with q of type F8_E4M3. q has 4 significant bits and a scale up to 24, so that a float32 holds the product but for its last
// bit or two, far below q's own rounding, and a bfloat16 would lose 20 more: values are therefore read as float32. What
// transformers computes with after "dequantize" is the same product, rounded once more to the type of the model.
type FP8 struct {
	BlockRows, BlockCols int // 0: one scale for the whole matrix
}

// fp8Keys are the members of quantization_config that method fp8 has. modules_to_not_convert and its older name list modules
// that hold another type, which each tensor says itself; activation_scheme is about products, not weights.
var fp8Keys = []string{"quant_method", "weight_block_size", "activation_scheme", "fmt", "scale_fmt", "modules_to_not_convert", "ignored_layers", "dequantize"}

// ParseFP8 reads quantization_config of config.json, of quant_method "fp8". A member whose value would change what values
// mean, and one that is unknown, are errors (of strictjson) with key and value.
func ParseFP8(v strictjson.Value) (FP8, error) {
	f := strictjson.NewFields(v)
	for _, s := range []struct {
		key   string
		known []string
	}{
		{"quant_method", []string{"fp8"}}, {"fmt", []string{"e4m3"}}, {"scale_fmt", []string{"float", "ue8m0"}},
		{"activation_scheme", []string{"dynamic", "static"}},
	} {
		if got := f.StrOr(s.key, s.known[0]); f.Err() == nil && !slices.Contains(s.known, got) {
			m, _ := v.Get(s.key)
			return FP8{}, m.Errorf("%s %q is not supported; supported: %q", s.key, got, s.known)
		}
	}
	if f.Only(fp8Keys...); f.Err() != nil {
		return FP8{}, f.Err()
	}
	size, ok := v.Get("weight_block_size")
	switch {
	case !ok:
		return FP8{128, 128}, nil
	case size.Kind() == strictjson.Null:
		return FP8{}, nil
	}
	const most = 1 << 20
	n := strictjson.Field(f, "weight_block_size", strictjson.Value.Uints)
	if err := f.Err(); err != nil {
		return FP8{}, err
	}
	if len(n) != 2 || min(n[0], n[1]) < 1 || max(n[0], n[1]) > most {
		return FP8{}, size.Errorf("weight_block_size %v is not two numbers from 1 to %d; null means one scale per matrix", n, most)
	}
	return FP8{int(n[0]), int(n[1])}, nil
}

// Shape returns the shape of the scales of a matrix; none: one scale for all of it.
func (f FP8) Shape(rows, cols int) []int {
	if f.BlockRows == 0 {
		return nil
	}
	return []int{(rows + f.BlockRows - 1) / f.BlockRows, (cols + f.BlockCols - 1) / f.BlockCols}
}

// FP8Matrix decodes the elements of one matrix of 8-bit floats.
type FP8Matrix struct {
	scheme  FP8
	cols    int
	scales  []float32 // row-major, perRow in a row
	perRow  int
	rounded float64 // relative error of a scale that was rounded to its type after values had been divided by it
}

// Matrix returns the decoder of a rows×cols matrix. scales are the values of a tensor of type d and the given shape: that of
// [FP8.Shape] or, without blocks, any of one element. A wrong shape and a scale that is negative or not finite are faults of
// kind Load; the caller adds file and tensor.
func (f FP8) Matrix(rows, cols int, scales []float32, d tensor.DType, shape []int) (*FP8Matrix, error) {
	want := f.Shape(rows, cols)
	if want == nil && len(scales) != 1 {
		return nil, fault.New(fault.Load, "scales have shape %v", shape).WithHint("without weight_block_size a matrix has one scale").WithID("E-QUANT-010")
	}
	if want != nil && !slices.Equal(shape, want) {
		return nil, fault.New(fault.Load, "scales have shape %v; %d×%d elements in blocks of %d×%d need %v", shape, rows, cols, f.BlockRows, f.BlockCols, want).
			WithHint("weight_block_size of config.json and the scales must agree").WithID("E-QUANT-010")
	}
	for i, s := range scales {
		if !(s > 0 && s <= math.MaxFloat32) {
			return nil, fault.New(fault.Load, "scale %d is %g", i, s).
				WithHint("scales are finite and above 0: a scale of 0 turns its whole block to zeros").WithID("E-QUANT-011")
		}
	}
	m := &FP8Matrix{scheme: f, cols: cols, scales: scales, perRow: 1, rounded: map[tensor.DType]float64{tensor.BF16: 0x1p-8, tensor.F16: 0x1p-11}[d]}
	if want != nil {
		m.perRow = want[1]
	}
	return m, nil
}

// run returns the scale of element number first, and how many elements from there on have it, of n.
func (m *FP8Matrix) run(first int64, n int) (scale float32, length int) {
	if m.scheme.BlockRows == 0 {
		return m.scales[0], n
	}
	row, col := int(first/int64(m.cols)), int(first%int64(m.cols))
	end := min((col/m.scheme.BlockCols+1)*m.scheme.BlockCols, m.cols)
	return m.scales[row/m.scheme.BlockRows*m.perRow+col/m.scheme.BlockCols], min(n, end-col)
}

// e4m3 has the value of every byte.
var e4m3 = func() (t [256]float32) {
	for b := range t {
		t[b] = tensor.F8E4M3ToF32(uint8(b))
	}
	return t
}()

// Decode writes elements [first, first+len(src)) of the matrix, row-major, to dst as little-endian float32; src are their bytes.
// It panics if dst is shorter than 4·len(src).
func (m *FP8Matrix) Decode(dst, src []byte, first int64) {
	if len(dst) < 4*len(src) {
		panic(fmt.Sprintf("quant: %d elements into %d bytes", len(src), len(dst)))
	}
	for len(src) > 0 {
		scale, n := m.run(first, len(src))
		for i, q := range src[:n] {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(e4m3[q]*scale))
		}
		dst, src, first = dst[4*n:], src[n:], first+int64(n)
	}
}

// Roundings sets dst to the bounds of elements from number first on, whose values are given: half the distance of
// neighbouring 8-bit floats, in both directions; at the ends of their range, where values may have been clipped, all of it.
func (m *FP8Matrix) Roundings(dst []Rounding, values []float32, first int64) {
	for at := 0; at < len(dst); {
		scale, n := m.run(first+int64(at), len(dst)-at)
		for i := at; i < at+n; i++ {
			dst[i] = m.rounding(float64(values[i]), float64(scale))
		}
		at += n
	}
}

func (m *FP8Matrix) rounding(x, scale float64) Rounding {
	const largest, digits, least = 448, 4, -9 // significant bits; exponent of the smallest step
	x = math.Abs(x)
	off := (m.rounded + 4e-7) * x
	reach := float32(float64(largest*scale) + off)
	if !(scale > 0) {
		return Rounding{}
	}
	q := x / scale
	_, e := math.Frexp(q * (1 + 1e-6)) // q < 2^e; at a power of two the wider step, above it
	step := math.Ldexp(scale, max(e-digits, least))
	r := Rounding{Below: float32(step/2 + off), Above: float32(step/2 + off), Step: float32(step)}
	if q > largest*(1-1e-3) {
		r.Below, r.Above = reach, reach
	}
	return r
}
