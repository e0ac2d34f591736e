//go:build emulate

package kernel

import (
	"fmt"
	"testing"

	"apr/tensor"
)

// TestGemvBlocks: the number of blocks does not change bits; of
// parts, of products, and of rows of one chunk or several.
func TestGemvBlocks(t *testing.T) {
	for _, d := range []tensor.DType{tensor.Q4_K, tensor.Q5_K, tensor.Q6_K, tensor.Q8_0, tensor.Q4_0, tensor.Q5_0, tensor.IQ4_NL, tensor.IQ4_XS, tensor.MXFP4} {
		for _, c := range [][2]int{{1, 256}, {1, 3584}, {3, 2304}, {1, 8192}, {1, 9984}} {
			t.Run(fmt.Sprintf("%v/%v", d, c), func(t *testing.T) {
				l := newLab(t)
				const f = 8*9 + 3
				m, in := c[0], c[1]
				w, _ := l.blocks(d, 2*f, in, 0, l.randomBlocks(d, 2*f*int(d.RowBytes(in)), false))
				x := l.in(tensor.BF16, l.random(m, in, 1))
				parts := []Blocks{w.Slice(0, 35), w.Slice(35, 36), w.Slice(36, 2*f)}
				var want [3]string
				for i, n := range []int{100, 1, 2} {
					l.multiprocessors = n
					gu, y, prod := l.out(tensor.BF16, m, 2*f), l.out(tensor.F32, m, 2*f), l.out(tensor.BF16, m, f)
					GemvParts(l.op(), y, x, parts, Mat{}, false)
					GemvSwiGLU(l.op(), prod, gu, x, w.Slice(0, f), w.Slice(f, 2*f), true)
					got := [3]string{string(l.bytes(y)), string(l.bytes(gu)), string(l.bytes(prod))}
					if i == 0 {
						want = got
					} else if got != want {
						t.Errorf("%d multiprocessors: other bits", n)
					}
				}
			})
		}
	}
}
