package kernel

import (
	"fmt"
	"testing"
)

// TestTileShape: how products are cut keeps to the bounds of kernels and multiprocessors, and the number of warps, on which
// bits depend, is one of the columns alone.
func TestTileShape(t *testing.T) {
	for _, spans := range []int{1, 2, 4, 8, 9, 14, 16, 31, 32, 33, 56, 74, 112} {
		warps := 0
		for _, tiles := range []int{1, 56, 224, 288, 2368, 9504} {
			for _, tokens := range []int{1, tileTokens} {
				for dtype, pitch := range tilePitch {
					for _, multiprocessors := range []int{0, 1, 108, 132} {
						for _, single := range []bool{false, true} {
							s := shapeTiles(spans, tiles, tokens, tileRows*pitch, multiprocessors, single)
							name := fmt.Sprintf("%d spans, %d tiles, %d tokens, %v, %d multiprocessors, %v: %+v", spans, tiles, tokens, dtype, multiprocessors, single, s)
							if warps == 0 {
								warps = s.warps
							}
							if s.warps != warps || s.warps < 1 || s.warps > min(spans, tileLongWarps) {
								t.Errorf("%s: warps", name)
							}
							if s.blocks < 1 || s.blocks > tiles || single && s.blocks != tiles {
								t.Errorf("%s: blocks", name)
							}
							if s.stages < 2 || s.stages > tileStages || s.shared > tileShared {
								t.Errorf("%s: shared memory", name)
							}
							if resident := ceil(s.blocks, max(1, multiprocessors)); s.blocks < tiles && resident*(s.shared+1<<10) > 228<<10 {
								t.Errorf("%s: %d blocks do not fit", name, resident)
							}
						}
					}
				}
			}
		}
	}
	for _, c := range []struct {
		name                       string
		spans, tiles, bytes, block int
	}{
		{"gate and up of Q4_K", 14, 2368, 16 * 144, 3 * 132}, // 5.98 tiles a block
		{"head of Q6_K", 14, 9504, 16 * 240, 4 * 132},        // 18 tiles a block
		{"down of Q6_K", 74, 224, 16 * 240, 224},             // all at once
	} {
		if got := shapeTiles(c.spans, c.tiles, 1, c.bytes, 132, false).blocks; got != c.block {
			t.Errorf("%s: %d blocks, want %d", c.name, got, c.block)
		}
	}
}
