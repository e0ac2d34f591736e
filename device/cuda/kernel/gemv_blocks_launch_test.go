package kernel

import (
	"fmt"
	"testing"

	"apr/tensor"
)

// TestRowsShape: how products are cut keeps to the bounds of kernels and multiprocessors.
func TestRowsShape(t *testing.T) {
	for _, cols := range []int{32, 256, 896, 2048, 3584, 4864, 8192, 18944} {
		for _, rows := range []int{1, 56, 3584, 18944, 152064} {
			for _, parts := range [][]int{{rows}, {rows, rows}, {rows, 512, 512}} {
				for _, tokens := range []int{1, rowsTokens} {
					if tokens > 1 && tokens*ceil(cols, rowsChunk)*rowsX > rowsShared/2 {
						continue // goes one by one
					}
					for _, d := range []tensor.DType{tensor.Q4_K, tensor.Q5_K, tensor.Q6_K, tensor.Q8_0, tensor.Q4_0, tensor.Q5_0, tensor.IQ4_NL, tensor.IQ4_XS, tensor.MXFP4} {
						for _, multiprocessors := range []int{0, 1, 108, 132} {
							most := int(d.RowBytes(min(cols, rowsChunk) / 32 * 32 / d.BlockLen() * d.BlockLen()))
							s := shapeRows(cols, parts, tokens, most, multiprocessors)
							name := fmt.Sprintf("%d columns, %d rows, %d tokens, %v, %d multiprocessors: %+v", cols, parts, tokens, d, multiprocessors, s)
							if s.blocks < 1 || rows >= multiprocessors && s.blocks < multiprocessors {
								t.Errorf("%s: blocks", name)
							}
							if s.warps < 4 || s.warps > rowsWarps || s.stages < 2 || s.stages > rowsStages {
								t.Errorf("%s: warps or stages", name)
							}
							if s.pitch%16 != 0 || s.pitch < most+15 || s.shared > rowsShared {
								t.Errorf("%s: shared memory", name)
							}
						}
					}
				}
			}
		}
	}
}
