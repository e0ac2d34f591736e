//go:build emulate

package kernel

import (
	"fmt"
	"slices"
	"testing"

	"apr/device"
	"apr/tensor"
)

// TestTilesRow: with one row of x parts of several types, and gate beside up, have the bits of a product of each, however thread blocks
// share them.
func TestTilesRow(t *testing.T) {
	for _, multiprocessors := range []int{1, 3, 132} {
		for _, types := range [][]tensor.DType{
			{tensor.Q4_K, tensor.Q6_K, tensor.Q5_K, tensor.Q4_K}, {tensor.Q8_0, tensor.Q5_0, tensor.Q4_0}, {tensor.Q6_K, tensor.Q6_K},
		} {
			t.Run(fmt.Sprint(multiprocessors, types), func(t *testing.T) {
				const in = 2304
				l := newLab(t)
				l.multiprocessors = multiprocessors
				x := l.in(tensor.BF16, l.random(1, in, 1))
				var parts []Blocks
				var want []byte
				rows := 0
				for i, d := range types {
					w, _ := l.tiled(d, 48+16*(i%2)*(4-len(types)), in)
					one := l.out(tensor.BF16, 1, w.Rows)
					l.multiprocessors = 132
					GemmTiles(l.op(), one, x, []Blocks{w}, Mat{}, false)
					l.multiprocessors = multiprocessors
					parts, want, rows = append(parts, w), append(want, l.bytes(one)...), rows+w.Rows
				}
				y := l.out(tensor.BF16, 1, rows)
				GemmTiles(l.op(), y, x, parts, Mat{}, false)
				if !slices.Equal(l.bytes(y), want) {
					t.Error("other bits than part by part")
				}
				w, _ := l.tiled(types[0], 2*112, in)
				gate, up := w.Slice(0, 112), w.Slice(112, 224)
				gu, kept := l.out(tensor.BF16, 1, 224), l.out(tensor.BF16, 1, 224)
				m, product := l.out(tensor.BF16, 1, 112), l.out(tensor.BF16, 1, 112)
				GemmTiles(l.op(), gu, x, []Blocks{gate, up}, Mat{}, false)
				GLU(l.op(), product, gu, device.SiLU)
				GemmTilesSwiGLU(l.op(), m, kept, x, gate, up, true)
				if !slices.Equal(l.bytes(m), l.bytes(product)) || !slices.Equal(l.bytes(kept), l.bytes(gu)) {
					t.Error("a gated unit has other bits than its product")
				}
			})
		}
	}
}
