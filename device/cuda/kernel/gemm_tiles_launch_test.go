package kernel

import (
	"fmt"
	"testing"

	"apr/tensor"
)

// TestCodesShape: how products by codes are cut keeps to the bounds of kernels and multiprocessors, every span of
// every tile is in one block, and x of a share is in shared memory at once where it is little.
func TestCodesShape(t *testing.T) {
	for _, d := range []tensor.DType{tensor.Q4_K, tensor.Q5_K, tensor.Q6_K} {
		for _, s := range [][2]int{{16, 256}, {512, 3584}, {3584, 18944}, {18944, 3584}, {28672, 8192}, {8192, 28672}} {
			for _, n := range []int{2, 8, 9, 16} {
				for _, multiprocessors := range []int{0, 1, 78, 132} {
					for _, gated := range []bool{false, true} {
						w := []Blocks{NewBlocks(1<<32, s[0], s[1], d), NewBlocks(1<<33, s[0], s[1], d)}
						c := shapeCodes(w, n, gated, multiprocessors)
						name := fmt.Sprintf("%v, %d × %d, %d rows of x, %d multiprocessors: %+v",
							d, s[0], s[1], n, multiprocessors, c)
						size := TileRows * int(d.RowBytes(256)) // and, of Q6_K, what is copied before a span
						if d == tensor.Q6_K {
							size += tilesAlign - 16
						}
						if c.warps < 1 || c.warps > codesWarps || c.warps%c.split != 0 {
							t.Errorf("%s: warps", name)
						}
						if c.stages < 2 || c.stages > codesStages {
							t.Errorf("%s: stages", name)
						}
						if c.split > c.spans || gated && c.warps/c.split%2 != 0 {
							t.Errorf("%s: warps of a tile", name)
						}
						if c.split > 1 && (n > 8 || c.chunk < c.spans) {
							t.Errorf("%s: warps have a tile together", name)
						}
						if c.shared() > tilesShared || c.pitch%tilesAlign != 0 || c.pitch < size {
							t.Errorf("%s: shared memory", name)
						}
						tiles := c.groups * (c.warps / c.split)
						if 8*c.columns < n || tiles < 2*s[0]/TileRows || c.shares*c.spans < s[1]/256 || c.chunk > c.spans {
							t.Errorf("%s: blocks", name)
						}
						if n <= 8 && s[1] <= 3584 && c.chunk != c.spans {
							t.Errorf("%s: x comes in chunks", name)
						}
					}
				}
			}
		}
	}
}

// TestTilesShape: how products are cut keeps to the bounds of kernels and multiprocessors, and every span of every tile
// is in one block.
func TestTilesShape(t *testing.T) {
	for _, d := range []tensor.DType{tensor.Q4_K, tensor.Q5_K, tensor.Q6_K, tensor.Q8_0, tensor.Q4_0, tensor.Q5_0} {
		for _, s := range [][2]int{
			{16, 256}, {512, 3584}, {3584, 18944}, {18944, 3584}, {28672, 8192}, {8192, 28672}, {896, 4864},
		} {
			for _, parts := range [][]int{{s[0]}, {s[0], 512, 512}, {s[0], s[0]}} {
				for _, n := range []int{1, 8, 9, 16, 17, 32, 33, 64} {
					for _, multiprocessors := range []int{0, 1, 78, 132} {
						var w []Blocks
						tiles := 0
						for _, rows := range parts {
							w = append(w, NewBlocks(1<<32, rows, s[1], d))
							tiles += rows / TileRows
						}
						c := shapeTiles(w, n, false, multiprocessors)
						name := fmt.Sprintf("%v of %d rows, %d columns, %d rows of x, %d multiprocessors: %+v",
							d, parts, s[1], n, multiprocessors, c)
						if c.warps < 4 || c.warps > wideWarps || c.warps%4 != 0 {
							t.Errorf("%s: warps", name)
						}
						if c.stages < 2 || c.stages > wideStages || c.halves < 3 || c.halves > wideHalves {
							t.Errorf("%s: stages or halves", name)
						}
						if c.shared() > tilesShared || c.pitch%16 != 0 {
							t.Errorf("%s: shared memory", name)
						}
						if 8*c.columns < n || c.groups*c.warps < tiles || c.shares < 1 || c.shares > ceil(s[1], 256) {
							t.Errorf("%s: blocks", name)
						}
						x, y := dense(tensor.BF16, n, s[1]), dense(tensor.BF16, n, total(parts))
						checkModules(t, func(q Queue) { GemmTiles(q, y, x, w, dense(tensor.F32, 1, y.Cols), true) })
						if len(w) == 2 {
							checkModules(t, func(q Queue) { GemmTilesSwiGLU(q, dense(tensor.BF16, n, s[0]), y, x, w[0], w[1], false) })
						}
					}
				}
			}
		}
	}
}

func total(parts []int) (n int) {
	for _, p := range parts {
		n += p
	}
	return n
}

// TestTileProductModules: types of one group are of one module, Q4_K, Q5_K and Q6_K of two, types without tiles of
// none.
func TestTileProductModules(t *testing.T) {
	for types, want := range map[string]int{
		"q4_k": 2, "q4_k+q6_k": 2, "q8_0": 1, "q4_k+q8_0": 3, "bf16": 0, "iq4_xs": 0, "": 0,
	} {
		if got := TileProductModules(types); len(got) != want {
			t.Errorf("%q: %v", types, got)
		}
	}
	for d := range layersTypes {
		if m := TileProductModule(d); m != tilesK && m != tilesG {
			t.Errorf("%v: module %q", d, m)
		}
	}
	if TileProductModule(tensor.IQ4_XS) != "" || TileProductModule(tensor.MXFP4) != "" {
		t.Error("IQ4_XS or MXFP4 has tiles")
	}
}
