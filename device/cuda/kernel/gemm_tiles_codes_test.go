//go:build emulate

package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/ref"
	"apr/quant"
	"apr/tensor"
)

// coded is a matrix as products of several rows take it. By codes: of a weight the value that x is multiplied by, and
// of a group of 32 columns what the sum of x over it is. By values, as types of one group are and more than codesRows
// rows: rounded.
type coded struct {
	cols         int
	value, group []float64
	rounded      []float32 // as Dequantize rounds them
}

// codes makes coded of blocks, by the formulas of gemm_tiles_codes.cuh in float64.
func codes(d tensor.DType, content []byte, values []float32, cols int) coded {
	n := len(values)
	c := coded{cols: cols, value: make([]float64, n), group: make([]float64, n/32), rounded: make([]float32, n)}
	for i, v := range values {
		c.rounded[i] = tensor.BF16ToF32(tensor.F32ToBF16(v))
		c.value[i] = float64(c.rounded[i])
	}
	for b := 0; TileProductModule(d) == tilesK && b < len(values)/256; b++ {
		block := content[b*d.BlockBytes():][:d.BlockBytes()]
		half := func(at int) float64 { return float64(tensor.F16ToF32(binary.LittleEndian.Uint16(block[at:]))) }
		for i := range 256 {
			var unit, scale, less, code, middle float64
			if d == tensor.Q6_K {
				unit, scale, middle = half(208), float64(int8(block[192+i/16])), 32
			} else {
				s, m := pairCodes(block[4:16], i/32)
				unit, scale, less, middle = half(0), float64(s), half(2)*float64(m), 8
				if d == tensor.Q5_K {
					middle = 16
				}
			}
			if unit*scale != 0 {
				code = math.Round((float64(values[256*b+i]) + less) / (unit * scale)) // q, or q − 32 of Q6_K
			} else { // nothing is left of it
				code = middle
			}
			if d != tensor.Q6_K {
				code -= middle
				c.group[8*b+i/32] = unit*scale*middle - less
			}
			c.value[256*b+i] = unit * float64(tensor.BF16ToF32(tensor.F32ToBF16(float32(scale*code))))
		}
	}
	return c
}

// pairCodes returns the codes of the scale and of the minimum of group j of Q4_K or Q5_K.
func pairCodes(p []byte, j int) (s, m byte) {
	if j < 4 {
		return p[j] & 63, p[j+4] & 63
	}
	return p[j+4]&15 | p[j-4]>>6<<4, p[j+4]>>4 | p[j]>>6<<4
}

// want is gemvWant by codes. Sums of x are two bfloat16 of a float32.
func (c coded) want(x ref.Mat, bias, y *ref.Mat, out int) (want, size ref.Mat) {
	if x.Rows > codesRows {
		return gemvWant(x, c.rounded, bias, y, out)
	}
	want, size = ref.New(x.Rows, out), ref.New(x.Rows, out)
	for m := range x.Rows {
		row := x.Row(m)
		sums := make([]float64, c.cols/32) // as two bfloat16
		for g := range sums {
			total := 0.0
			for _, v := range row[32*g : 32*g+32] {
				total += v
			}
			hi := tensor.BF16ToF32(tensor.F32ToBF16(float32(total)))
			sums[g] = float64(hi) + float64(tensor.BF16ToF32(tensor.F32ToBF16(float32(total)-hi)))
		}
		for o := range out {
			s, n := 0.0, 0.0
			for i, v := range row {
				p := v * c.value[o*c.cols+i]
				s, n = s+p, n+math.Abs(p)
			}
			for g, total := range sums {
				p := c.group[o*len(sums)+g] * total
				s, n = s+p, n+8*math.Abs(p) // what is lo rounds to 2⁻¹⁷ of it
			}
			if bias != nil {
				s += bias.V[o]
			}
			if y != nil {
				s += y.V[m*out+o]
			}
			want.V[m*out+o], size.V[m*out+o] = s, n+math.Abs(s)
		}
	}
	return want, size
}

// TestCodesBits: what a lane makes of codes, scales and minima is what the formulas give: of x with a single 1 the
// product is a column of W. Every column of a span, of all types, with scales and minima of every size.
func TestCodesBits(t *testing.T) {
	for _, n := range []int{8, 16} {
		for _, d := range []tensor.DType{tensor.Q4_K, tensor.Q5_K, tensor.Q6_K} {
			t.Run(fmt.Sprint(d, n), func(t *testing.T) { checkCodes(t, d, n) })
		}
	}
}

func checkCodes(t *testing.T, d tensor.DType, n int) {
	const rows, cols = 32, 256
	contracttest.Cases(t, 1)
	l := newLab(t)
	content := l.randomBlocks(d, rows*int(d.RowBytes(cols)), false)
	b, values := l.blocks(d, rows, cols, 0, content)
	ptr, _ := l.alloc(rows * b.RowBytes)
	Tile(l.op(), ptr, b, false)
	c := codes(d, content, values, cols)
	for first := 0; first < cols; first += n {
		x := ref.New(n, cols)
		for m := range n {
			x.Row(m)[first+m] = 1
		}
		y := l.out(tensor.F32, n, rows)
		GemmTiles(l.op(), y, l.in(tensor.BF16, x), []Blocks{NewBlocks(ptr, rows, cols, d)}, Mat{}, false)
		got := l.get(y)
		for m := range n {
			for r := range rows {
				at := r*cols + first + m
				value, share := c.value[at], c.group[at/32]
				if w := value + share; math.Abs(got.Row(m)[r]-w) > 0x1p-22*(math.Abs(value)+math.Abs(share)) {
					t.Fatalf("row %d, column %d: %g, want %g + %g", r, first+m, got.Row(m)[r], value, share)
				}
			}
		}
	}
}

// relative returns ‖got − want‖ / ‖want‖.
func relative(got, want []float64) float64 {
	var apart, all float64
	for i, w := range want {
		apart += (got[i] - w) * (got[i] - w)
		all += w * w
	}
	return math.Sqrt(apart / all)
}

// TestCodesError: products by codes are no less exact than those of weights rounded to bfloat16, of normal weights, of
// weights with a mean, and for x with a mean. Where one weight of a group is much larger than others they may be, by
// less than a tenth of what blocks lose anyway.
func TestCodesError(t *testing.T) {
	const n, rows, cols = 8, 64, 2048
	for _, d := range []tensor.DType{tensor.Q4_K, tensor.Q5_K, tensor.Q6_K} {
		for _, c := range []struct {
			name            string
			weight, of, big float64 // mean of weights, of x; how much larger than others one weight of 64 is
		}{
			{"normal", 0, 0, 1}, {"weights with a mean", 0.05, 0, 1}, {"large ones", 0, 0, 12},
			{"x with a mean", 0, 3, 1}, {"both", 0.05, 3, 1},
		} {
			t.Run(fmt.Sprintf("%v/%v", d, c.name), func(t *testing.T) {
				l := newLab(t)
				w := make([]float32, rows*cols)
				for i := range w {
					v := 0.02*l.rng.NormFloat64() + c.weight
					if l.rng.IntN(64) == 0 {
						v *= c.big
					}
					w[i] = float32(v)
				}
				content := make([]byte, rows*int(d.RowBytes(cols)))
				if err := quant.Quantize(content, w, d); err != nil {
					t.Fatal(err)
				}
				b, values := l.blocks(d, rows, cols, 0, content)
				ptr, _ := l.alloc(rows * b.RowBytes)
				Tile(l.op(), ptr, b, false)
				x := l.random(n, cols, 1)
				for i, v := range x.V {
					x.V[i] = float64(tensor.BF16ToF32(tensor.F32ToBF16(float32(v + c.of))))
				}
				exact, _ := gemvWant(x, values, nil, nil, rows)
				unquantised, _ := gemvWant(x, w, nil, nil, rows)
				lost := relative(unquantised.V, exact.V)
				y := l.out(tensor.F32, n, rows)
				GemmTiles(l.op(), y, l.in(tensor.BF16, x), []Blocks{NewBlocks(ptr, rows, cols, d)}, Mat{}, false)
				byValues, _ := gemvWant(x, codes(d, content, values, cols).rounded, nil, nil, rows)
				by, rounded := relative(l.get(y).V, exact.V), relative(byValues.V, exact.V)
				t.Logf("error by codes %.3g, of rounded weights %.3g, of blocks %.3g", by, rounded, lost)
				if by > 1.05*rounded && (c.big == 1 || by > 0.1*lost) || rounded == 0 {
					t.Errorf("error by codes %.3g, of rounded weights %.3g, of blocks %.3g", by, rounded, lost)
				}
			})
		}
	}
}
