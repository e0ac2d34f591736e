//go:build emulate

package kernel

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"apr/device"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// sinkShapes are those of every kernel of the forward: of tensor cores, plain ones, with windows and caps, of a cache whose single
// query one block and several have.
func sinkShapes() []device.Attn {
	var all []device.Attn
	for i, d := range []int{16, 20, 64, 128, 256, 512} {
		h := [][2]int{{4, 2}, {3, 3}, {2, 1}}[i%3]
		a := whole(2, []int{33, 65, 1}[i%3], h[0], h[1], d)
		cached := device.Attn{Batch: 2, QLen: 1, KLen: 40, QOffset: 39, KStride: 44, Heads: h[0], KVHeads: h[1], HeadDim: d}
		for _, a := range []device.Attn{a, cached} {
			all = append(all, a)
			a.Window, a.Cap = 9, float64(2*(i%2))
			all = append(all, a)
		}
		if d == 20 || d == 64 { // several blocks
			all = append(all, device.Attn{Batch: 1, QLen: 1, KLen: 1700, QOffset: 1699, KStride: 1704, Heads: 2, KVHeads: 1, HeadDim: d})
		}
	}
	return all
}

// TestAttentionSinks: all kernels of the forward with a sink of each head, and the gradients, with sinks that take little, much and all.
func TestAttentionSinks(t *testing.T) {
	for i, a := range sinkShapes() {
		for j, d := range floatTypes {
			size := []float64{.5, 4, 60}[(i+j)%3]
			t.Run(fmt.Sprintf("%v %s, window %d, cap %g, sinks of %g", d, attentionName(a), a.Window, a.Cap, size), func(t *testing.T) {
				checkSinks(t, newLab(t), d, a, size, Attention, AttentionBackward)
			})
		}
	}
}

// TestAttentionSinksHopper: the same with the kernels for compute capability 9.0.
func TestAttentionSinksHopper(t *testing.T) {
	for i, d := range []int{64, 128, 256} {
		for _, n := range []int{64, 130, 200} {
			a := whole(2, n, 4, 2, d)
			a.Window = []int{0, 37}[(i+n)%2]
			back := AttentionBackwardSM90
			if d == 256 {
				back = AttentionBackward
			}
			t.Run(fmt.Sprintf("%s, window %d", attentionName(a), a.Window), func(t *testing.T) {
				checkSinks(t, newLab(t), tensor.BF16, a, 2, AttentionSM90, back)
			})
		}
	}
}

type attendBack func(queue Queue, dq, dk, dv, do, o, lse, q, k, v Mat, a device.Attn, first Mat)

func checkSinks(t *testing.T, l *lab, d tensor.DType, a device.Attn, size float64, attend Attend, back attendBack) {
	l.multiprocessors = 3
	q, k, v := l.random(a.Batch*a.QLen, a.Heads*a.HeadDim, 1), l.random(a.Batch*a.KStride, a.KVHeads*a.HeadDim, 1), l.random(a.Batch*a.KStride, a.KVHeads*a.HeadDim, 1)
	b, do := l.random(1, a.Heads, size), l.random(q.Rows, q.Cols, 1)
	in := append([]Mat{l.in(d, q)}, l.fused(d, k, v)...)
	sinks, dot := l.in(tensor.F32, b), l.in(d, do)
	o, plain, lse := l.out(d, q.Rows, q.Cols), l.out(d, q.Rows, q.Cols), l.out(tensor.F32, q.Rows, a.Heads)
	a.Sinks = device.Tensor{Rows: 1, Cols: a.Heads, Stride: a.Heads, Buf: noBuffer{}}
	AttentionSinks(l.op(), attend, o, lse, in[0], in[1], in[2], a, Mat{}, sinks)
	AttentionSinks(l.op(), attend, plain, Mat{}, in[0], in[1], in[2], a, Mat{}, sinks)
	wantO, wantL := ref.Attention(q, k, v, a, nil, b.V)
	near.CheckRel(t, "o", l.get(o).V, wantO.V, 2*attentionTolerance(d, a.HeadDim+a.KLen, 1))
	near.CheckRel(t, "lse", l.get(lse).V, wantL.V, attentionTolerance(tensor.F32, a.HeadDim+a.KLen, 1))
	if !bytes.Equal(l.bytes(o), l.bytes(plain)) {
		t.Error("o depends on whether lse is kept")
	}
	sum := l.random(1, a.Heads, 1)
	db, again := l.inout(tensor.F32, sum), l.inout(tensor.F32, sum)
	for _, to := range []Mat{db, again} {
		SinkGrad(l.op(), to, dot, o, lse, sinks, a.HeadDim)
	}
	checkSame(t, l, "gradient of sinks", db, again)
	sum.Add(ref.SinkGrad(do, l.get(o), q, k, a, nil, b.V))
	near.CheckRel(t, "dsinks", l.get(db).V, sum.V, attentionTolerance(tensor.F32, a.HeadDim+a.KLen+q.Rows, 1))
	if a.KStride != a.KLen {
		return
	}
	dq, dk, dv := l.out(d, q.Rows, q.Cols), l.out(d, k.Rows, k.Cols), l.out(d, k.Rows, k.Cols)
	back(l.op(), dq, dk, dv, dot, o, lse, in[0], in[1], in[2], a, Mat{})
	wantQ, wantK, wantV := ref.AttentionBackward(do, l.get(o), q, k, v, a, nil, b.V)
	tol := 2 * attentionTolerance(d, a.HeadDim+a.QLen*a.Heads/a.KVHeads, 1)
	if a.KLen == 1 { // with a small sink the probability of the one key is nearly 1, and what is left is rounding
		near.Check(t, "dq", l.get(dq).V, wantQ.V, tol)
		near.Check(t, "dk", l.get(dk).V, wantK.V, tol)
	} else {
		near.CheckRel(t, "dq", l.get(dq).V, wantQ.V, tol)
		near.CheckRel(t, "dk", l.get(dk).V, wantK.V, tol)
	}
	near.CheckRel(t, "dv", l.get(dv).V, wantV.V, tol)
}

// TestSinksAreNotForgotten: NaN of a sink, or of what is scored, is NaN of its head alone, in o, lse and gradient. A sink beyond all
// scores leaves nothing of the values; one of −∞ changes nothing.
func TestSinksAreNotForgotten(t *testing.T) {
	const heads, d = 5, 8
	for _, dt := range floatTypes {
		l := newLab(t)
		b, m, scores := ref.New(1, heads), l.random(3, heads*d, 1), l.random(3, heads, 1)
		b.V[1], b.V[2], b.V[3], scores.V[heads+4] = math.NaN(), 300, math.Inf(-1), math.NaN()
		o, seen, sinks, lse := l.inout(dt, m), l.in(tensor.F32, scores), l.in(tensor.F32, b), l.out(tensor.F32, 3, heads)
		addSinks(l.op(), o, lse, seen, sinks, d)
		for r := range 3 {
			for h := range heads {
				x, s := l.get(o).Row(r)[h*d], l.get(lse).Row(r)[h]
				switch {
				case h == 1 || h == 4 && r == 1:
					if x == x || s == s {
						t.Errorf("%v, row %d, head %d: %v and %v of NaN", dt, r, h, x, s)
					}
				case h == 2:
					if x != 0 || s != 300 {
						t.Errorf("%v, row %d: %v and %v of a sink of 300", dt, r, x, s)
					}
				case h == 3:
					if x != m.Row(r)[h*d] || s != float64(float32(scores.Row(r)[h])) {
						t.Errorf("%v, row %d: %v and %v of a sink of −∞, were %v and %v", dt, r, x, s, m.Row(r)[h*d], scores.Row(r)[h])
					}
				}
			}
		}
	}
}
