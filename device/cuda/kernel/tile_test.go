//go:build emulate

package kernel

import (
	"bytes"
	"fmt"
	"testing"

	"apr/tensor"
)

// tiled is what Tile makes of rows of n bytes each.
func tiled(content []byte, n int, d tensor.DType) (r []byte) {
	span, block := int(d.RowBytes(256)), d.BlockBytes()
	fields := []int{0, block}
	if d == tensor.Q6_K {
		fields = []int{0, 192, 208, block}
	}
	for first := 0; first < len(content); first += TileRows * n {
		for at := 0; at < n; at += span {
			for field := range len(fields) - 1 {
				for row := range TileRows {
					for i := first + row*n + at; i < first+row*n+min(at+span, n); i += block {
						r = append(r, content[i+fields[field]:i+fields[field+1]]...)
					}
				}
			}
		}
	}
	return r
}

// TestTile: every byte goes to its place in a tile, and back, for all types that have tiles, and rows that end within a span.
func TestTile(t *testing.T) {
	for d := range layersTypes {
		for _, c := range [][2]int{{16, 256}, {48, 1280}, {32, 32}, {16, 96}, {64, 2208}} {
			rows, cols := c[0], c[1]
			if cols%d.BlockLen() != 0 {
				continue
			}
			t.Run(fmt.Sprintf("%v/%v", d, c), func(t *testing.T) {
				l := newLab(t)
				n := int(d.RowBytes(cols))
				content := l.randomBlocks(d, rows*n, true)
				b, _ := l.blocks(d, rows, cols, 0, content)
				there, got := l.alloc(rows * n)
				Tile(l.op(), there, b, false)
				if !bytes.Equal(got[:rows*n], tiled(content, n, d)) {
					t.Error("tiles are not those of the rows")
				}
				back, again := l.alloc(rows * n)
				Tile(l.op(), back, NewBlocks(there, rows, cols, d), true)
				if !bytes.Equal(again[:rows*n], content) {
					t.Error("the rows do not come back")
				}
			})
		}
	}
}
