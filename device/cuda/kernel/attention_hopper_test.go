//go:build emulate

package kernel

import (
	"fmt"
	"testing"

	"apr/device"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// hopperShapes have enough queries for a warpgroup: the edges of tiles of 64 and 128 rows, windows within a tile, over several,
// and at their edges, caches, groups, and items of several for a block.
func hopperShapes(d int) (all []device.Attn) {
	for i, n := range []int{64, 65, 127, 128, 129, 200, 300} {
		heads := [][2]int{{1, 1}, {2, 1}, {4, 2}, {3, 3}}[i%4]
		for _, w := range []int{0, 1, 37, 64, 65, 128, 190}[i%2 : i%2+6] {
			if w < n && (i+w)%3 != 2 {
				a := whole(1+i%2, n, heads[0], heads[1], d)
				a.Window = w
				all = append(all, a)
			}
		}
	}
	return append(all,
		device.Attn{Batch: 2, QLen: 70, KLen: 300, QOffset: 230, KStride: 310, Heads: 2, KVHeads: 1, HeadDim: d, Window: 40},
		device.Attn{Batch: 1, QLen: 130, KLen: 131, QOffset: 1, KStride: 131, Heads: 2, KVHeads: 1, HeadDim: d},
		device.Attn{Batch: 1, QLen: 64, KLen: 400, QOffset: 200, KStride: 400, Heads: 2, KVHeads: 2, HeadDim: d, Window: 30})
}

// TestAttentionHopper: the kernels for compute capability 9.0 with the emulator's stand-ins for its instructions.
func TestAttentionHopper(t *testing.T) {
	for _, d := range []int{64, 128, 256} {
		for i, a := range hopperShapes(d) {
			if d == 256 && i%2 == 0 {
				a.Cap = 2
			}
			t.Run(fmt.Sprintf("%s, window %d, cap %g", attentionName(a), a.Window, a.Cap), func(t *testing.T) { checkHopper(t, newLab(t), a) })
		}
	}
}

func checkHopper(t *testing.T, l *lab, a device.Attn) {
	const scale = 1
	d := tensor.BF16
	l.multiprocessors = 3 // so that blocks have several items
	q, k, v := l.random(a.Batch*a.QLen, a.Heads*a.HeadDim, scale), l.random(a.Batch*a.KStride, a.KVHeads*a.HeadDim, scale), l.random(a.Batch*a.KStride, a.KVHeads*a.HeadDim, 1)
	in := append([]Mat{l.in(d, q)}, l.fused(d, k, v)...)
	o, lse := l.out(d, q.Rows, q.Cols), l.out(tensor.F32, q.Rows, a.Heads)
	if !AttentionSM90Serves(o, in[0], in[1], in[2], a, Mat{}) {
		t.Fatal("not served")
	}
	AttentionSM90(l.op(), o, lse, in[0], in[1], in[2], a, Mat{})
	wantO, wantL := ref.Attention(q, k, v, a, nil, nil)
	near.CheckRel(t, "o", l.get(o).V, wantO.V, attentionTolerance(d, a.HeadDim+a.KLen, scale))
	near.CheckRel(t, "lse", l.get(lse).V, wantL.V, attentionTolerance(tensor.F32, a.HeadDim+a.KLen, scale))
	if a.KStride != a.KLen || a.HeadDim == 256 {
		return
	}
	do := l.random(q.Rows, q.Cols, 1)
	dot := l.in(d, do)
	dq, dk, dv := l.out(d, q.Rows, q.Cols), l.out(d, k.Rows, k.Cols), l.out(d, k.Rows, k.Cols)
	if !AttentionBackwardSM90Serves(dq, dk, dv, dot, o, in[0], in[1], in[2], a, Mat{}) {
		t.Fatal("the backward is not served")
	}
	AttentionBackwardSM90(l.op(), dq, dk, dv, dot, o, lse, in[0], in[1], in[2], a, Mat{})
	wantQ, wantK, wantV := ref.AttentionBackward(do, l.get(o), q, k, v, a, nil, nil)
	tol := 2 * attentionTolerance(d, a.HeadDim+a.QLen*a.Heads/a.KVHeads, scale)
	if a.Window == 1 { // what is left of terms is rounding
		near.Check(t, "dq", l.get(dq).V, wantQ.V, tol)
		near.Check(t, "dk", l.get(dk).V, wantK.V, tol)
	} else {
		near.CheckRel(t, "dq", l.get(dq).V, wantQ.V, tol)
		near.CheckRel(t, "dk", l.get(dk).V, wantK.V, tol)
	}
	near.CheckRel(t, "dv", l.get(dv).V, wantV.V, tol)
}
