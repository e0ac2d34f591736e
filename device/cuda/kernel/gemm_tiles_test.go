//go:build emulate

package kernel

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"apr/device"
	"apr/internal/ref"
	"apr/quant"
	"apr/tensor"
)

// tileTypes are those that have tiles.
var tileTypes = []tensor.DType{tensor.Q4_K, tensor.Q5_K, tensor.Q6_K, tensor.Q8_0, tensor.Q4_0, tensor.Q5_0}

// inTiles makes a matrix of random blocks in tiles, with what products of several rows read.
func (l *lab) inTiles(d tensor.DType, rows, cols int) (Blocks, coded) {
	b, _, c := l.tiledCodes(d, rows, cols)
	return b, c
}

// tiled is inTiles with the values as they are, which products of one row read.
func (l *lab) tiled(d tensor.DType, rows, cols int) (Blocks, []float32) {
	b, values, _ := l.tiledCodes(d, rows, cols)
	return b, values
}

func (l *lab) tiledCodes(d tensor.DType, rows, cols int) (Blocks, []float32, coded) {
	content := l.randomBlocks(d, rows*int(d.RowBytes(cols)), false)
	b, values := l.blocks(d, rows, cols, 0, content)
	ptr, _ := l.alloc(rows * b.RowBytes)
	Tile(l.op(), ptr, b, false)
	return NewBlocks(ptr, rows, cols, d), values, codes(d, content, values, cols)
}

// joined is rows of several matrices, one after the other.
func joined(all ...coded) (r coded) {
	r.cols = all[0].cols
	for _, c := range all {
		r.value, r.group = append(r.value, c.value...), append(r.group, c.group...)
		r.rounded = append(r.rounded, c.rounded...)
	}
	return r
}

// TestGemmTiles: products of 1 … 64 rows with all types against float64 of the blocks as
// they are rounded or, of one row, of x as Gemv rounds it; of rows that end within a tile, of columns that end within
// a span, with bias, added, and however blocks share the spans.
func TestGemmTiles(t *testing.T) {
	for _, d := range tileTypes {
		for i, c := range []struct{ n, in, rows, out int }{
			{1, 256, 16, 16}, {2, 512, 64, 64}, {3, 1280, 48, 41}, {7, 768, 32, 17}, {8, 2304, 16, 9}, {9, 256, 80, 80},
			{16, 512, 32, 32}, {31, 256, 48, 33}, {33, 768, 32, 32}, {63, 512, 48, 48}, {64, 1024, 112, 106},
			{5, 32, 16, 16}, {64, 1280, 512, 500}, {17, 96, 32, 31}, {40, 2208, 16, 16}, {1, 768, 32, 17},
			{1, 2304, 48, 41}, {1, 96, 32, 31}, {1, 32, 16, 16}, {1, 1280, 512, 500}, {1, 8448, 64, 64},
			{12, 10240, 48, 41}, // x comes in chunks, whose spans are no multiple of a tile's warps
			{1, 27648, 16, 16},  // too long rows for tiles_row
		} {
			if c.in%d.BlockLen() != 0 {
				continue
			}
			t.Run(fmt.Sprintf("%v/%v", d, c), func(t *testing.T) {
				l := newLab(t)
				l.lead, l.gap, l.multiprocessors = 8*(i%2), 8*(i%3), []int{1, 6, 132}[i%3]
				w, values, coded := l.tiledCodes(d, c.rows, c.in)
				x, bias, before := l.random(c.n, c.in, 1), l.random(1, c.out, 1), l.random(c.n, c.out, 1)
				xt, bt := l.in(tensor.BF16, x), l.in(tensor.F32, bias)
				wanted := coded.want
				if c.n == 1 && c.in < 20000 {
					x = integers(x)
					wanted = func(x ref.Mat, bias, y *ref.Mat, out int) (ref.Mat, ref.Mat) {
						return gemvWant(x, values, bias, y, out)
					}
				}
				for _, o := range []tensor.DType{tensor.F32, tensor.BF16} {
					y, added := l.out(o, c.n, c.out), l.inout(o, before)
					GemmTiles(l.op(), y, xt, []Blocks{w.Slice(0, c.out)}, bt, false)
					GemmTiles(l.op(), added, xt, []Blocks{w.Slice(0, c.out)}, Mat{}, true)
					want, size := wanted(x, &bias, nil, c.out)
					checkGemv(t, l, y, want, size, c.in)
					want, size = wanted(x, nil, &before, c.out)
					checkGemv(t, l, added, want, size, c.in)
				}
			})
		}
	}
}

// TestGemmTilesBits: what a lane decodes is what Dequantize gives, bit for bit: of x with a single 1 the product is a
// column of W. Blocks are quantised values, whose d and dmin are near each other.
func TestGemmTilesBits(t *testing.T) {
	const rows, cols = 32, 512
	for i, d := range slices.Concat(tileTypes, tileTypes) {
		n := []int{32, 64}[i/len(tileTypes)] // rows of x, by values with all types
		t.Run(fmt.Sprint(d, n), func(t *testing.T) {
			l := newLab(t)
			normal := make([]float32, rows*cols)
			for i := range normal {
				normal[i] = float32(0.05 * l.rng.NormFloat64())
			}
			content := make([]byte, rows*int(d.RowBytes(cols)))
			if err := quant.Quantize(content, normal, d); err != nil {
				t.Fatal(err)
			}
			b, values := l.blocks(d, rows, cols, 0, content)
			ptr, _ := l.alloc(rows * b.RowBytes)
			Tile(l.op(), ptr, b, false)
			for first := 0; first < cols; first += n {
				x := ref.New(n, cols)
				want := make([]float32, 0, n*rows)
				for m := range n {
					x.Row(m)[first+m] = 1
					for r := range rows {
						want = append(want, values[r*cols+first+m]+0) // a sum has no −0
					}
				}
				y := l.out(tensor.BF16, n, rows)
				GemmTiles(l.op(), y, l.in(tensor.BF16, x), []Blocks{NewBlocks(ptr, rows, cols, d)}, Mat{}, false)
				checkDecoded(t, l, y, want)
			}
		})
	}
}

// TestGemmTilesParts: parts of several types, more than a launch takes, make their columns of y and no others; a row of
// x gives the bits that it gives beside others.
func TestGemmTilesParts(t *testing.T) {
	for _, n := range []int{7, 14, 29, 37} { // rows of x: by codes with 8 and 16, by values with 32 and 64
		t.Run(fmt.Sprint(n), func(t *testing.T) { checkParts(t, n) })
	}
}

func checkParts(t *testing.T, n int) {
	const cols = 512
	l := newLab(t)
	var parts []Blocks
	var values []coded
	for i, d := range []tensor.DType{
		tensor.Q4_K, tensor.Q4_K, tensor.Q6_K, tensor.Q8_0, tensor.Q5_K, tensor.Q6_K, tensor.Q4_K, tensor.Q5_K, tensor.Q4_K,
		tensor.Q4_0,
	} {
		w, v := l.inTiles(d, 16*(1+i%3), cols)
		parts, values = append(parts, w), append(values, v)
	}
	all := joined(values...)
	out := len(all.value) / cols
	x, bias := l.random(n, cols, 1), l.random(1, out, 1)
	xt, bt := l.in(tensor.BF16, x), l.in(tensor.F32, bias)
	y := l.out(tensor.F32, n, out)
	GemmTiles(l.op(), y, xt, parts, bt, false)
	want, size := all.want(x, &bias, nil, out)
	checkGemv(t, l, y, want, size, cols)
	some := l.out(tensor.F32, n-4, out) // 3, 10, 25, 33: the same kernels
	GemmTiles(l.op(), some, xt.rows(4, n), parts, bt, false)
	for m := range n - 4 {
		if !slices.Equal(l.get(some).Row(m), l.get(y).Row(m+4)) {
			t.Errorf("row %d gives other bits beside fewer rows", m+4)
		}
	}
}

// TestGemmTilesSwiGLU: gu is the product, and m comes of it as SwiGLU makes it, whether gu is kept or not.
func TestGemmTilesSwiGLU(t *testing.T) {
	for _, c := range []struct {
		d               tensor.DType
		n, in, f, multi int
	}{
		{tensor.Q4_K, 3, 256, 48, 1}, {tensor.Q4_K, 64, 1024, 400, 132}, {tensor.Q5_K, 24, 1024, 400, 132},
		{tensor.Q6_K, 9, 2048, 32, 6}, {tensor.Q8_0, 33, 96, 80, 132}, {tensor.Q5_0, 8, 2304, 16, 132},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			l := newLab(t)
			l.gap, l.multiprocessors = 8, c.multi
			gate, values := l.inTiles(c.d, c.f, c.in)
			up, more := l.inTiles(c.d, c.f, c.in)
			x := l.random(c.n, c.in, 0.1)
			xt := l.in(tensor.BF16, x)
			gu, m := l.out(tensor.BF16, c.n, 2*c.f), l.out(tensor.BF16, c.n, c.f)
			GemmTilesSwiGLU(l.op(), m, gu, xt, gate, up, true)
			want, size := joined(values, more).want(x, nil, nil, 2*c.f)
			checkGemv(t, l, gu, want, size, c.in)
			product := l.out(tensor.BF16, c.n, c.f)
			GLU(l.op(), product, gu, device.SiLU)
			if !slices.Equal(l.bytes(product), l.bytes(m)) {
				t.Error("m is not SwiGLU of gu")
			}
			lost, only := l.out(tensor.BF16, c.n, 2*c.f), l.out(tensor.BF16, c.n, c.f)
			GemmTilesSwiGLU(l.op(), only, lost, xt, gate, up, false)
			if !slices.Equal(l.bytes(only), l.bytes(m)) || !math.IsNaN(l.get(lost).V[0]) {
				t.Error("without gu other bits, or gu")
			}
		})
	}
}
