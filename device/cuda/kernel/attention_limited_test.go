//go:build emulate

package kernel

import (
	"bytes"
	"fmt"
	"testing"

	"apr/device"
	"apr/tensor"
)

// limitedShapes meets windows of one key, of parts of tiles, of whole ones and of more than there are, documents, soft-caps that
// bite, a scale, and caches.
func limitedShapes(d int) (all []limitedShape) {
	add := func(a device.Attn, first []int) { all = append(all, limitedShape{a, first}) }
	for i, w := range []int{1, 2, 16, 31, 32, 33, 63, 64, 65, 100, 128, 199, 200, 1000} {
		a := whole(1+i%2, []int{200, 70, 129}[i%3], []int{2, 3, 4}[i%3], []int{1, 3, 2}[i%3], d)
		a.Window = w
		add(a, nil)
	}
	caps := whole(1, 80, 4, 2, d)
	caps.Cap = .7
	add(caps, nil)
	caps.Cap, caps.Window, caps.Scale = 3, 24, .09
	add(caps, nil)
	add(device.Attn{Batch: 2, QLen: 3, KLen: 140, QOffset: 137, KStride: 150, Heads: 4, KVHeads: 2, HeadDim: d, Window: 70, Cap: 2}, nil)
	add(device.Attn{Batch: 2, QLen: 1, KLen: 140, QOffset: 139, KStride: 150, Heads: 4, KVHeads: 2, HeadDim: d, Window: 70}, nil)
	add(device.Attn{Batch: 2, QLen: 1, KLen: 40, QOffset: 39, KStride: 50, Heads: 4, KVHeads: 2, HeadDim: d, Cap: 1.5, Scale: .2}, nil)
	add(device.Attn{Batch: 1, QLen: 70, KLen: 140, QOffset: 70, KStride: 140, Heads: 2, KVHeads: 2, HeadDim: d, Window: 5}, nil)
	add(device.Attn{Batch: 1, QLen: 20, KLen: 150, QOffset: 100, KStride: 150, Heads: 2, KVHeads: 1, HeadDim: d, Window: 9}, nil)
	add(whole(2, 140, 2, 1, d), documents(2, 140, 0, 3, 64, 65, 130))
	both := whole(1, 140, 2, 1, d)
	both.Window, both.Cap = 40, 2
	add(both, documents(1, 140, 0, 20, 110))
	add(device.Attn{Batch: 2, QLen: 1, KLen: 40, QOffset: 39, KStride: 50, Heads: 4, KVHeads: 2, HeadDim: d}, []int{12, -1})
	return all
}

type limitedShape struct {
	device.Attn
	first []int
}

// documents returns the first key of each query of batch rows of n where documents begin at starts; the last row's begin one later, and
// its last query names a key after itself, which it does not see.
func documents(batch, n int, starts ...int) []int {
	first := make([]int, batch*n)
	for b := range batch {
		for i := range n {
			for _, s := range starts {
				if s = min(s+b, n-1); s <= i {
					first[b*n+i] = s
				}
			}
		}
	}
	first[len(first)-1] = n + 5
	return first
}

func (s limitedShape) name() string {
	return fmt.Sprintf("%s, window %d, cap %g, documents %v", attentionName(s.Attn), s.Window, s.Cap, s.first != nil)
}

// TestAttentionLimited: the plain kernels of every width, both types.
func TestAttentionLimited(t *testing.T) {
	plainly(func() {
		for i, d := range []int{20, 64, 256, 264, 512} {
			for j, s := range limitedShapes(d) {
				if (i+j)%3 != 0 && d != 64 || d > 256 && s.QLen > 100 {
					continue // every shape meets some widths
				}
				for _, dtype := range []tensor.DType{tensor.F32, tensor.BF16} {
					t.Run(fmt.Sprintf("%v, %s", dtype, s.name()), func(t *testing.T) { checkSeen(t, newLab(t), dtype, s.Attn, 1, s.first) })
				}
			}
		}
	})
}

// TestAttentionLimitedFlash: tensor cores, at the edges of tiles, and a single query of every row.
func TestAttentionLimitedFlash(t *testing.T) {
	for _, d := range []int{64, 128, 256} {
		for _, s := range limitedShapes(d) {
			t.Run(s.name(), func(t *testing.T) { checkSeen(t, newLab(t), tensor.BF16, s.Attn, 1, s.first) })
		}
	}
}

// TestAttentionWide: heads of 256 columns without limits on tensor cores, those of more by the plain kernels.
func TestAttentionWide(t *testing.T) {
	for _, d := range []int{256, 320, 512} {
		for i, a := range attentionShapes(d) {
			if d > 256 && i%3 != 0 {
				continue
			}
			t.Run(attentionName(a), func(t *testing.T) { checkAttention(t, newLab(t), tensor.BF16, a, 1) })
			if d > 256 {
				t.Run("f32, "+attentionName(a), func(t *testing.T) { checkAttention(t, newLab(t), tensor.F32, a, 1) })
			}
		}
	}
}

// TestAttentionLimitedScores: scores whose maxima grow from tile to tile, and equal ones.
func TestAttentionLimitedScores(t *testing.T) {
	for _, d := range []int{64, 128, 256} {
		for _, scale := range []float64{0, 3, 5} {
			a := whole(1, 200, 2, 1, d)
			a.Window = 70
			t.Run(fmt.Sprintf("d %d, scale %g", d, scale), func(t *testing.T) {
				checkAttention(t, newLab(t), tensor.BF16, a, scale)
				plainly(func() { checkAttention(t, newLab(t), tensor.F32, a, scale) })
			})
		}
	}
}

// TestAttentionNoLimits: limits that hide nothing give the bits of the kernels without, forward and backward.
func TestAttentionNoLimits(t *testing.T) {
	for _, d := range []int{20, 64, 128} {
		for _, a := range []device.Attn{whole(2, 150, 4, 2, d), whole(1, 64, 2, 1, d)} {
			run := func(documents bool) []byte {
				l := newLab(t)
				q, k, v, do := l.random(a.Batch*a.QLen, a.Heads*d, 1), l.random(a.Batch*a.QLen, a.KVHeads*d, 1), l.random(a.Batch*a.QLen, a.KVHeads*d, 1), l.random(a.Batch*a.QLen, a.Heads*d, 1)
				in, dot := l.fused(tensor.BF16, q, k, v), l.in(tensor.BF16, do)
				o, lse := l.out(tensor.BF16, q.Rows, q.Cols), l.out(tensor.F32, q.Rows, a.Heads)
				dq, dk, dv := l.out(tensor.BF16, q.Rows, q.Cols), l.out(tensor.BF16, k.Rows, k.Cols), l.out(tensor.BF16, k.Rows, k.Cols)
				var first Mat
				if documents {
					first = l.ids(make([]int, q.Rows))
				}
				Attention(l.op(), o, lse, in[0], in[1], in[2], a, first)
				if _, fast := flashTiles[d]; !fast { // the plain backward adds dO∘O in another order
					return append(l.bytes(o), l.bytes(lse)...)
				}
				AttentionBackward(l.op(), dq, dk, dv, dot, o, lse, in[0], in[1], in[2], a, first)
				return bytes.Join([][]byte{l.bytes(o), l.bytes(lse), l.bytes(dq), l.bytes(dk), l.bytes(dv)}, nil)
			}
			if !bytes.Equal(run(false), run(true)) {
				t.Errorf("%s: other bits", attentionName(a))
			}
		}
	}
}
