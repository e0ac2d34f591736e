package quant

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"apr/internal/fault"
	"apr/tensor"
)

func TestLayoutOf(t *testing.T) {
	cases := []struct {
		name       string
		size       int64
		rows, cols int
		dtype      tensor.DType
		want       Layout
		id         string // of the error
	}{
		{"full blocks", 4 * 2 * 144, 4, 512, tensor.Q4_K, RowPadded, ""},
		{"padded rows", 896 * 4 * 144, 896, 896, tensor.Q4_K, RowPadded, ""},
		{"flat rows", 896 * 896 / 256 * 144, 896, 896, tensor.Q4_K, Flat, ""},
		{"one short row", 210, 1, 100, tensor.Q6_K, RowPadded, ""},
		{"two rows, 200 padding elements", 2 * 144, 2, 156, tensor.Q4_K, 0, "E-QUANT-002"},
		{"two rows, 256 padding elements, padded", 2 * 144, 2, 128, tensor.Q4_K, RowPadded, ""},
		{"two rows, 256 padding elements, flat", 144, 2, 128, tensor.Q4_K, Flat, ""},
		{"one byte short", 4*2*144 - 1, 4, 512, tensor.Q4_K, 0, "E-QUANT-001"},
		{"small blocks", 34 * 6, 2, 96, tensor.Q8_0, Flat, ""},
		{"small blocks, odd columns", 18 * 4, 3, 33, tensor.AprQ4, Flat, ""},
		{"AprQ8", 4 + 6, 2, 3, tensor.AprQ8, Flat, ""},
		{"AprQ8 without scale", 6, 2, 3, tensor.AprQ8, 0, "E-QUANT-001"},
		{"nothing", 0, 0, 100, tensor.Q4_K, RowPadded, ""},
		{"AprQ8 of nothing", 0, 0, 100, tensor.AprQ8, Flat, ""},
		{"overflow", 144, math.MaxInt, math.MaxInt, tensor.Q4_K, 0, "E-QUANT-001"},
		{"padding overflows", 144, math.MaxInt, 1, tensor.Q6_K, 0, "E-QUANT-001"},
		{"negative", 0, -1, 256, tensor.Q4_K, 0, "E-QUANT-001"},
		{"plain type", 16, 2, 2, tensor.F32, 0, "E-QUANT-001"},
	}
	for _, c := range cases {
		got, err := LayoutOf(c.size, c.rows, c.cols, c.dtype)
		var f *fault.Error
		errors.As(err, &f)
		switch {
		case c.id == "" && (err != nil || got != c.want):
			t.Errorf("%s: %v, %v, want %v", c.name, got, err, c.want)
		case c.id != "" && (f == nil || f.ID != c.id || f.Kind != fault.Format):
			t.Errorf("%s: error %v, want %s", c.name, err, c.id)
		}
	}
}

func TestDequantizeMatrixLayouts(t *testing.T) {
	r := rand.New(rand.NewPCG(61, 62))
	const rows = 3
	for _, d := range blockTypes {
		for _, cols := range []int{0, 32, 100, 256, 300} {
			for _, l := range []Layout{RowPadded, Flat} {
				size, _ := MatrixLen(rows, cols, l, d)
				src := randomBlocks(r, d, int(size)/d.BlockBytes(), true)
				all, got := refDecode(d, src), make([]float32, rows*cols)
				DequantizeMatrix(got, src, rows, cols, l, d)
				stride := cols
				if l == RowPadded {
					stride = len(all) / rows
				}
				for row := range rows {
					sameBits(t, fmt.Sprintf("%v %v %d columns, row %d", d, l, cols, row),
						got[row*cols:(row+1)*cols], all[row*stride:row*stride+cols])
				}
			}
		}
	}
}
