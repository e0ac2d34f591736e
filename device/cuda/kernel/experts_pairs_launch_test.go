package kernel

import (
	"fmt"
	"testing"

	"apr/device"
	"apr/tensor"
)

// TestPairShapes: how products of few slots and of one row over tiles are cut keeps to the bounds of kernels, and covers every row.
func TestPairShapes(t *testing.T) {
	for d := range pairTypes {
		for _, c := range []struct{ cols, rows, copies, xs, sums int }{
			{2048, 768, 8, 1, 0}, {2880, 2880, 4, 1, 0}, {768, 2048, 1, 8, 8}, {2880, 2880, 1, 4, 4}, {2880, 2880, 8, 4, 4}, {4096, 14336, 64, 1, 0}, {256, 1, 1, 1, 1},
		} {
			for _, multiprocessors := range []int{0, 1, 78, 132} {
				if c.cols%d.BlockLen() > 0 {
					continue
				}
				s, name := shapePairs(d, c.cols, c.rows, c.copies, c.xs, c.sums, multiprocessors), fmt.Sprintf("%v %+v %d", d, c, multiprocessors)
				if s.warps < 4 || s.warps > pairWarps || s.stages < 2 || s.stages > pairStages || s.shared > rowsShared || s.pitch%16 > 0 {
					t.Errorf("%s: %+v", name, s)
				}
				if s.each%2 > 0 || s.each*s.blocks < c.rows || s.each*(s.blocks-1) >= c.rows || 4*s.each*c.sums > pairSums {
					t.Errorf("%s: %+v: rows", name, s)
				}
			}
		}
		if wide := (Experts{Blocks: NewBlocks(1<<32, 64, 1<<16, d)}); pairsServe(wide, 1) {
			t.Errorf("%v: rows of 65536 columns are served", d)
		}
	}
	for d := range layersTypes {
		for _, c := range [][2]int{{4096, 4096}, {24576, 4096}, {4096, 12288}, {64, 4096}, {16, 256}, {248320, 4096}} {
			for _, gated := range []bool{false, true} {
				for _, multiprocessors := range []int{0, 1, 132} {
					parts := []Blocks{NewBlocks(1<<32, c[0], c[1], d)}
					if gated {
						parts = append(parts, parts[0])
					}
					s := shapeTileRow(parts, gated, multiprocessors)
					if s.stages < 2 || s.stages > tileRowStages || s.shared > rowsShared || s.pitch%16 > 0 || s.each*s.blocks < s.tiles || gated && s.each%2 > 0 {
						t.Errorf("%v %v, gated %v, %d multiprocessors: %+v", d, c, gated, multiprocessors, s)
					}
				}
			}
		}
	}
}

// TestExpertsFewServes: matrices that one kernel does not multiply as single products do are left to those.
func TestExpertsFewServes(t *testing.T) {
	ids := dense(tensor.I32, 2, 1)
	r := Routing{Experts: 4, Active: 2, Chosen: ids, Slots: ids, Rows: ids, Starts: dense(tensor.I32, 5, 1)}
	y, glu := dense(tensor.BF16, 1, 512), dense(tensor.BF16, 2, 256)
	of := func(d tensor.DType, out, in int) Experts { return Experts{Blocks: NewBlocks(1<<32, 4*out, in, d)} }
	for _, c := range []struct {
		gate, up, down tensor.DType
		want           bool
	}{
		{tensor.Q4_K, tensor.Q4_K, tensor.Q6_K, true}, {tensor.Q4_0, tensor.Q5_0, tensor.MXFP4, true}, {tensor.Q4_K, tensor.Q6_K, tensor.Q6_K, false},
		{tensor.Q8_0, tensor.Q5_0, tensor.Q8_0, false},
	} {
		if got := ExpertsFewServes(y, y, glu, of(c.gate, 256, 512), of(c.up, 256, 512), of(c.down, 512, 256), device.SiLU, r); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
