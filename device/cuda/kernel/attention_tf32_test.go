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

// unitTF32 is half the distance between 1 and the next number of tf32.
const unitTF32 = 0x1p-11

// roundTF32 rounds m to tf32 in place, to nearest, ties away from zero.
func roundTF32(m ref.Mat) ref.Mat {
	for i, v := range m.V {
		m.V[i] = float64(math.Float32frombits((math.Float32bits(float32(v)) + 0x1000) &^ 0x1fff))
	}
	return m
}

// tf32Case has operands of attention, of which the reference's are rounded as the kernels do it.
type tf32Case struct {
	a              device.Attn
	q, k, v, do    ref.Mat
	qm, km, vm, dm Mat
	o, lse         Mat
}

func newTF32Case(l *lab, a device.Attn, scale float64) *tf32Case {
	c := &tf32Case{a: a}
	qRows, kRows, qCols, kCols := a.Batch*a.QLen, a.Batch*a.KStride, a.Heads*a.HeadDim, a.KVHeads*a.HeadDim
	c.q, c.k, c.v, c.do = l.random(qRows, qCols, scale), l.random(kRows, kCols, scale), l.random(kRows, kCols, 1), l.random(qRows, qCols, 1)
	for r := range kRows {
		if r%a.KStride >= a.KLen {
			for j := range kCols {
				c.k.Row(r)[j], c.v.Row(r)[j] = math.NaN(), math.NaN()
			}
		}
	}
	if qRows == kRows {
		in := l.fused(tensor.F32, c.q, c.k, c.v)
		c.qm, c.km, c.vm = in[0], in[1], in[2]
	} else {
		c.qm = l.in(tensor.F32, c.q)
		in := l.fused(tensor.F32, c.k, c.v)
		c.km, c.vm = in[0], in[1]
	}
	c.dm = l.in(tensor.F32, roundTF32(c.do)) // δ has dO as it came, dO·vᵀ has it rounded: what is left where they cancel is no error of the kernel
	roundTF32(c.q)
	roundTF32(c.k)
	roundTF32(c.v)
	c.o, c.lse = l.out(tensor.F32, qRows, qCols), l.out(tensor.F32, qRows, a.Heads)
	AttentionTF32(l.op(), c.o, c.lse, c.qm, c.km, c.vm, a, Mat{})
	return c
}

// tf32Tolerance: with operands rounded beforehand, what is left are the roundings of probabilities, or of ds, each of
// at most a unit, and float32 sums.
func tf32Tolerance(n int, scale float64) float64 {
	return 4*unitTF32 + attentionTolerance(tensor.F32, n, scale)
}

func (c *tf32Case) forward(t *testing.T, l *lab, scale float64) {
	t.Helper()
	a := c.a
	wantO, wantL := ref.Attention(c.q, c.k, c.v, a, nil, nil)
	near.CheckRel(t, "o", l.get(c.o).V, wantO.V, tf32Tolerance(a.HeadDim+a.KLen, scale))
	near.CheckRel(t, "lse", l.get(c.lse).V, wantL.V, attentionTolerance(tensor.F32, a.HeadDim+a.KLen, scale))
	plain := l.out(tensor.F32, c.q.Rows, c.q.Cols)
	AttentionTF32(l.op(), plain, Mat{}, c.qm, c.km, c.vm, a, Mat{})
	if !bytes.Equal(l.bytes(c.o), l.bytes(plain)) {
		t.Error("o depends on whether lse is kept")
	}
}

// backward with so many splits; 0: as the shape wants.
func (c *tf32Case) backward(t *testing.T, l *lab, scale float64, splits int) {
	t.Helper()
	a := c.a
	var before []byte
	for range 2 {
		dq, dkv := l.out(tensor.F32, c.q.Rows, c.q.Cols), l.out(tensor.F32, c.k.Rows, 2*c.k.Cols)
		dk, dv := dkv, dkv
		dk.Cols, dv.Cols = c.k.Cols, c.k.Cols
		dv.Ptr += uint64(4 * c.k.Cols)
		if splits == 0 {
			AttentionBackwardTF32(l.op(), dq, dk, dv, c.dm, c.o, c.lse, c.qm, c.km, c.vm, a, Mat{})
		} else {
			args, _ := newAttentionBackward(l.op(), dq, dk, dv, c.dm, c.o, c.lse, c.qm, c.km, c.vm, a, Mat{})
			tf32Tiles[a.HeadDim].backward(l, args, splits*2*4*a.Batch*a.KLen*a.KVHeads*a.HeadDim)
			if int(args.splits) != splits {
				t.Fatalf("%d splits, want %d", args.splits, splits)
			}
		}
		bits := append(l.bytes(dq), l.bytes(dkv)...)
		if before != nil {
			if !bytes.Equal(before, bits) {
				t.Error("the second run gives other bits")
			}
			break
		}
		before = bits
		wantQ, wantK, wantV := ref.AttentionBackward(c.do, l.get(c.o), c.q, c.k, c.v, a, nil, nil)
		tol := 2 * tf32Tolerance(a.HeadDim+a.QLen*a.Heads/a.KVHeads, scale)
		gotK, gotV := ref.New(c.k.Rows, c.k.Cols), ref.New(c.k.Rows, c.k.Cols)
		for r, both := range rows(l.get(dkv)) {
			copy(gotK.Row(r), both[:c.k.Cols])
			copy(gotV.Row(r), both[c.k.Cols:])
		}
		if a.KLen == 1 {
			near.Check(t, "dq", l.get(dq).V, wantQ.V, 4*scale*math.Sqrt(float64(a.HeadDim))*unitTF32)
			near.Check(t, "dk", gotK.V, wantK.V, 4*scale*math.Sqrt(float64(a.HeadDim))*unitTF32)
		} else {
			near.CheckRel(t, "dq", l.get(dq).V, wantQ.V, tol)
			near.CheckRel(t, "dk", gotK.V, wantK.V, tol)
		}
		near.CheckRel(t, "dv", gotV.V, wantV.V, tol)
	}
}

// TestAttentionTF32: at the edges of tiles, every group size, caches.
func TestAttentionTF32(t *testing.T) {
	for _, d := range []int{64, 128} {
		for _, a := range attentionShapes(d) {
			if a.QLen == 1 {
				a.QLen, a.QOffset = 2, max(0, a.QOffset-1)
				a.KLen, a.KStride = max(a.KLen, 2), max(a.KStride, 2)
			}
			t.Run(attentionName(a), func(t *testing.T) {
				l := newLab(t)
				c := newTF32Case(l, a, 1)
				c.forward(t, l, 1)
				if a.KStride == a.KLen {
					c.backward(t, l, 1, 0)
				}
			})
		}
	}
}

// TestAttentionTF32Scores: equal scores, scores of tens, and of hundreds, where one key takes all; groups in every
// number of splits.
func TestAttentionTF32Scores(t *testing.T) {
	for _, d := range []int{64, 128} {
		for _, scale := range []float64{0, 3, 12} {
			t.Run(fmt.Sprintf("d %d, scale %g", d, scale), func(t *testing.T) {
				l := newLab(t)
				c := newTF32Case(l, whole(1, 200, 2, 1, d), scale)
				c.forward(t, l, scale)
				c.backward(t, l, scale, 0)
			})
		}
		for splits := 1; splits <= 4; splits++ {
			t.Run(fmt.Sprintf("d %d, %d splits", d, splits), func(t *testing.T) {
				l := newLab(t)
				newTF32Case(l, whole(2, 150, 5, 1, d), 1).backward(t, l, 1, splits)
			})
		}
	}
}

// TestAttentionTF32Rounds: operands are rounded to nearest, not cut off. The first query sees one key, with probability 1.
func TestAttentionTF32Rounds(t *testing.T) {
	for _, d := range []int{64, 128} {
		l, a := newLab(t), whole(1, 40, 1, 1, d)
		c := newTF32Case(l, a, 1)
		o, lse := l.get(c.o), l.get(c.lse)
		dot := 0.0
		for i, v := range c.v.Row(0) {
			if o.Row(0)[i] != v {
				t.Fatalf("o of one key has %g in column %d, want %g, v rounded", o.Row(0)[i], i, v)
			}
			dot += c.q.Row(0)[i] * c.k.Row(0)[i]
		}
		near.Check(t, "lse of one key", []float64{lse.V[0]}, []float64{dot * a.ScoreScale()}, 1e-6)
	}
}
