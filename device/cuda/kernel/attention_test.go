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

// units of the rounding errors: half the distance between 1 and the next number.
const (
	unitF32  = 0x1p-24
	unitBF16 = 0x1p-8
)

// attentionTolerance is that of device/devicetest: a few roundings of the type, float32 sums of n products, and the
// error of scores of size scale² and n products, which is a relative error of probabilities.
func attentionTolerance(d tensor.DType, n int, scale float64) float64 {
	own := 16.0 * unitF32
	if d == tensor.BF16 {
		own = 4 * unitBF16
	}
	return own + (2+4*scale*scale)*(16+3*math.Sqrt(float64(n)))*unitF32
}

func whole(batch, n, heads, kvHeads, d int) device.Attn {
	return device.Attn{Batch: batch, QLen: n, KLen: n, KStride: n, Heads: heads, KVHeads: kvHeads, HeadDim: d}
}

// attentionShapes meets the edges of tiles of 32, 64 and 128 rows, all group sizes in use, caches, and keys none sees.
func attentionShapes(d int) []device.Attn {
	var all []device.Attn
	heads := [][2]int{{1, 1}, {2, 1}, {4, 2}, {3, 3}, {7, 1}}
	for i, n := range []int{1, 2, 15, 16, 17, 31, 33, 63, 64, 65} {
		h := heads[i%len(heads)]
		all = append(all, whole(1+i%2, n, h[0], h[1], d))
	}
	for _, n := range []int{127, 128, 129, 200} {
		all = append(all, whole(1, n, 2, 1, d))
	}
	return append(all,
		device.Attn{Batch: 2, QLen: 1, KLen: 36, QOffset: 35, KStride: 42, Heads: 14, KVHeads: 2, HeadDim: d},
		device.Attn{Batch: 2, QLen: 3, KLen: 40, QOffset: 37, KStride: 64, Heads: 4, KVHeads: 2, HeadDim: d},
		device.Attn{Batch: 3, QLen: 5, KLen: 9, QOffset: 2, KStride: 9, Heads: 2, KVHeads: 1, HeadDim: d},
		device.Attn{Batch: 1, QLen: 70, KLen: 140, QOffset: 70, KStride: 140, Heads: 2, KVHeads: 2, HeadDim: d},
		device.Attn{Batch: 1, QLen: 130, KLen: 131, QOffset: 1, KStride: 131, Heads: 2, KVHeads: 1, HeadDim: d},
		device.Attn{Batch: 1, QLen: 70, KLen: 132, QOffset: 62, KStride: 132, Heads: 2, KVHeads: 1, HeadDim: d},
		device.Attn{Batch: 1, QLen: 20, KLen: 150, QOffset: 9, KStride: 150, Heads: 2, KVHeads: 2, HeadDim: d})
}

func attentionName(a device.Attn) string {
	return fmt.Sprintf("%d rows, %d queries from %d, %d keys of %d, heads %d:%d of %d",
		a.Batch, a.QLen, a.QOffset, a.KLen, a.KStride, a.Heads, a.KVHeads, a.HeadDim)
}

// fused makes one input matrix of several beside each other, as the projections of a layer leave them, and returns the parts.
func (l *lab) fused(d tensor.DType, ms ...ref.Mat) []Mat {
	rows, cols := 0, 0
	for _, m := range ms {
		rows, cols = max(rows, m.Rows), cols+m.Cols
	}
	all, at := ref.New(rows, cols), 0
	for _, m := range ms {
		for r := range m.Rows {
			copy(all.Row(r)[at:], m.Row(r))
		}
		at += m.Cols
	}
	whole := l.in(d, all)
	at = 0
	var views []Mat
	for _, m := range ms {
		for r := range m.Rows {
			copy(m.Row(r), all.Row(r)[at:]) // as rounded
		}
		v := whole
		v.Ptr, v.Rows, v.Cols = whole.Ptr+uint64(at*d.BlockBytes()), m.Rows, m.Cols
		views, at = append(views, v), at+m.Cols
	}
	return views
}

func checkAttention(t *testing.T, l *lab, d tensor.DType, a device.Attn, scale float64) {
	checkSeen(t, l, d, a, scale, nil)
}

// checkSeen is checkAttention where first are the first keys that queries see; nil: a.First is zero.
func checkSeen(t *testing.T, l *lab, d tensor.DType, a device.Attn, scale float64, first []int) {
	var lowest Mat
	if first != nil {
		lowest = l.ids(first)
	}
	qRows, kRows, qCols, kCols := a.Batch*a.QLen, a.Batch*a.KStride, a.Heads*a.HeadDim, a.KVHeads*a.HeadDim
	q, k, v := l.random(qRows, qCols, scale), l.random(kRows, kCols, scale), l.random(kRows, kCols, 1)
	for r := range kRows {
		if r%a.KStride >= a.KLen { // what a cache does not hold yet may be anything
			for c := range kCols {
				k.Row(r)[c], v.Row(r)[c] = math.NaN(), math.NaN()
			}
		}
	}
	var in []Mat
	if qRows == kRows {
		in = l.fused(d, q, k, v)
	} else {
		in = append([]Mat{l.in(d, q)}, l.fused(d, k, v)...)
	}
	o, plain, lse := l.out(d, qRows, qCols), l.out(d, qRows, qCols), l.out(tensor.F32, qRows, a.Heads)
	Attention(l.op(), o, lse, in[0], in[1], in[2], a, lowest)
	Attention(l.op(), plain, Mat{}, in[0], in[1], in[2], a, lowest)
	wantO, wantL := ref.Attention(q, k, v, a, first, nil)
	near.CheckRel(t, "o", l.get(o).V, wantO.V, attentionTolerance(d, a.HeadDim+a.KLen, scale))
	near.CheckRel(t, "lse", l.get(lse).V, wantL.V, attentionTolerance(tensor.F32, a.HeadDim+a.KLen, scale))
	if !bytes.Equal(l.bytes(o), l.bytes(plain)) {
		t.Error("o depends on whether lse is kept")
	}
	if a.KStride == a.KLen {
		checkAttentionBackward(t, l, d, a, scale, o, lse, in, q, k, v, first, lowest)
	}
}

func checkAttentionBackward(t *testing.T, l *lab, d tensor.DType, a device.Attn, scale float64, o, lse Mat, in []Mat, q, k, v ref.Mat, first []int, lowest Mat) {
	do := l.random(q.Rows, q.Cols, 1)
	dot := l.in(d, do)
	var before []byte
	for range 2 {
		// Gradients of keys and values lie in one matrix, as in training.
		dq, dkv := l.out(d, q.Rows, q.Cols), l.out(d, k.Rows, 2*k.Cols)
		dk, dv := dkv, dkv
		dk.Cols, dv.Cols = k.Cols, k.Cols
		dv.Ptr += uint64(k.Cols * d.BlockBytes())
		AttentionBackward(l.op(), dq, dk, dv, dot, o, lse, in[0], in[1], in[2], a, lowest)
		bits := append(l.bytes(dq), l.bytes(dkv)...)
		if before != nil {
			if !bytes.Equal(before, bits) {
				t.Error("the second run gives other bits")
			}
			break
		}
		before = bits
		wantQ, wantK, wantV := ref.AttentionBackward(do, l.get(o), q, k, v, a, first, nil)
		tol := 2 * attentionTolerance(d, a.HeadDim+a.QLen*a.Heads/a.KVHeads, scale)
		gotK, gotV := ref.New(k.Rows, k.Cols), ref.New(k.Rows, k.Cols)
		for r, both := range rows(l.get(dkv)) {
			copy(gotK.Row(r), both[:k.Cols])
			copy(gotV.Row(r), both[k.Cols:])
		}
		if a.KLen == 1 || a.Window == 1 { // one key has probability 1 whatever its score: what is left of terms of size scale is rounding
			near.Check(t, "dq", l.get(dq).V, wantQ.V, scale*tol)
			near.Check(t, "dk", gotK.V, wantK.V, scale*tol)
		} else {
			near.CheckRel(t, "dq", l.get(dq).V, wantQ.V, tol)
			near.CheckRel(t, "dk", gotK.V, wantK.V, tol)
		}
		near.CheckRel(t, "dv", gotV.V, wantV.V, tol)
	}
}

func rows(m ref.Mat) [][]float64 {
	var all [][]float64
	for r := range m.Rows {
		all = append(all, m.Row(r))
	}
	return all
}

// plainly runs f with the plain kernels.
func plainly(f func()) {
	PlainAttention = true
	defer func() { PlainAttention = false }()
	f()
}

// TestAttentionPlain: the oracle, both types, widths that are no multiple of anything.
func TestAttentionPlain(t *testing.T) {
	plainly(func() {
		for i, d := range []int{16, 20, 64, 128, 256} {
			for j, a := range attentionShapes(d) {
				if d != 20 && (i+j)%3 != 0 {
					continue // every shape meets some widths
				}
				for _, dtype := range []tensor.DType{tensor.F32, tensor.BF16} {
					t.Run(fmt.Sprintf("%v, %s", dtype, attentionName(a)), func(t *testing.T) { checkAttention(t, newLab(t), dtype, a, 1) })
				}
			}
		}
	})
}

// TestAttentionFlash: tensor cores, at the edges of tiles.
func TestAttentionFlash(t *testing.T) {
	for _, d := range []int{64, 128} {
		for _, a := range attentionShapes(d) {
			t.Run(attentionName(a), func(t *testing.T) { checkAttention(t, newLab(t), tensor.BF16, a, 1) })
		}
	}
}

// TestAttentionScores: equal scores; scores of tens, whose maxima grow from tile to tile; scores of hundreds and
// hundred thousands, where one key takes all.
func TestAttentionScores(t *testing.T) {
	for _, d := range []int{64, 128} {
		for _, scale := range []float64{0, 3, 12} {
			t.Run(fmt.Sprintf("d %d, scale %g", d, scale), func(t *testing.T) {
				checkAttention(t, newLab(t), tensor.BF16, whole(1, 200, 2, 1, d), scale)
				plainly(func() { checkAttention(t, newLab(t), tensor.BF16, whole(1, 50, 2, 1, d), scale) })
				plainly(func() { checkAttention(t, newLab(t), tensor.F32, whole(1, 50, 2, 1, d), scale) })
			})
		}
		t.Run(fmt.Sprintf("d %d, scale 300", d), func(t *testing.T) {
			l, a := newLab(t), whole(1, 200, 2, 1, d)
			q, k, v := l.random(200, 2*d, 300), l.random(200, d, 300), l.random(200, d, 1)
			in := l.fused(tensor.BF16, q, k, v)
			o, lse := l.out(tensor.BF16, 200, 2*d), l.out(tensor.F32, 200, 2)
			Attention(l.op(), o, lse, in[0], in[1], in[2], a, Mat{})
			wantO, wantL := ref.Attention(q, k, v, a, nil, nil)
			near.CheckRel(t, "lse", l.get(lse).V, wantL.V, 1e-5)
			near.CheckRel(t, "o", l.get(o).V, wantO.V, 0.3) // gaps between scores are as small as their rounding
		})
	}
}

// TestAttentionDecode: one query after caches of many lengths, aligned or not.
func TestAttentionDecode(t *testing.T) {
	eachLayout(t, func(t *testing.T, l *lab) {
		for _, d := range []int{20, 64, 128, 256} {
			for _, n := range []int{1, 2, 40, 300, 1024, 1025, 2100} {
				if n > 300 && d != 64 {
					continue
				}
				for _, dtype := range []tensor.DType{tensor.F32, tensor.BF16} {
					a := device.Attn{Batch: 2, QLen: 1, KLen: n, QOffset: n - 1, KStride: n + 3, Heads: 4, KVHeads: 2, HeadDim: d}
					checkAttention(t, l, dtype, a, 1)
					checkAttention(t, l, dtype, a, 12)
				}
			}
		}
	})
}

// TestAttentionUnaligned: rows that do not begin at multiples of 16 bytes go the plain way.
func TestAttentionUnaligned(t *testing.T) {
	eachLayout(t, func(t *testing.T, l *lab) { checkAttention(t, l, tensor.BF16, whole(2, 33, 4, 2, 64), 1) })
}

// TestAttentionGroups: groups as trained models have them, and every way to cut one into parts.
func TestAttentionGroups(t *testing.T) {
	for _, a := range []device.Attn{whole(1, 40, 14, 2, 64), whole(1, 40, 7, 1, 128), whole(2, 17, 8, 8, 64)} {
		t.Run(attentionName(a), func(t *testing.T) { checkAttention(t, newLab(t), tensor.BF16, a, 1) })
	}
	for _, d := range []int{64, 128} {
		a := whole(2, 150, 5, 1, d)
		l := newLab(t)
		q, k, v, do := l.random(300, 5*d, 1), l.random(300, d, 1), l.random(300, d, 1), l.random(300, 5*d, 1)
		in, dot := l.fused(tensor.BF16, q, k, v), l.in(tensor.BF16, do)
		o, lse := l.out(tensor.BF16, 300, 5*d), l.out(tensor.F32, 300, 5)
		Attention(l.op(), o, lse, in[0], in[1], in[2], a, Mat{})
		wantQ, wantK, wantV := ref.AttentionBackward(do, l.get(o), q, k, v, a, nil, nil)
		tol := 2 * attentionTolerance(tensor.BF16, d+5*150, 1)
		for splits := 1; splits <= 4; splits++ {
			dq, dk, dv := l.out(tensor.BF16, 300, 5*d), l.out(tensor.BF16, 300, d), l.out(tensor.BF16, 300, d)
			args, _ := newAttentionBackward(l.op(), dq, dk, dv, dot, o, lse, in[0], in[1], in[2], a, Mat{})
			flashTiles[d].backward(l, args, splits*2*4*300*d)
			if int(args.splits) != splits {
				t.Fatalf("%d splits, want %d", args.splits, splits)
			}
			name := fmt.Sprintf("d %d, %d splits: ", d, splits)
			near.CheckRel(t, name+"dq", l.get(dq).V, wantQ.V, tol)
			near.CheckRel(t, name+"dk", l.get(dk).V, wantK.V, tol)
			near.CheckRel(t, name+"dv", l.get(dv).V, wantV.V, tol)
		}
	}
}
