package devicetest

import (
	"fmt"
	"math"

	"apr/device"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

func attentionCases() []Case {
	var all []Case
	add := func(a device.Attn, scale float64) {
		name := fmt.Sprintf("attention/%d rows, %d queries from %d, %d keys of %d, heads %d:%d of %d",
			a.Batch, a.QLen, a.QOffset, a.KLen, a.KStride, a.Heads, a.KVHeads, a.HeadDim)
		if scale != 1 {
			name += fmt.Sprintf(", values times %g", scale)
		}
		all = append(all, both(name, func(l *lab) { checkAttention(l, a, scale, nil, 0) })...)
	}
	heads := [][2]int{{1, 1}, {2, 1}, {4, 2}, {3, 3}, {14, 2}}
	for i, d := range []int{16, 32, 64, 128} {
		for j, h := range heads {
			// Every length meets every width, and every group size, without the whole product.
			n := []int{1, 2, 17, 33, 65}[(i+j)%5]
			add(train(1+(i+j)%3, n, h, d), 1)
			add(device.Attn{Batch: 2, QLen: 1, KLen: n + 3, QOffset: n + 2, KStride: n + 9, Heads: h[0], KVHeads: h[1], HeadDim: d}, 1)
		}
	}
	add(train(1, 257, [2]int{2, 1}, 16), 1)
	add(train(2, 64, [2]int{2, 2}, 64), 1)
	add(device.Attn{Batch: 2, QLen: 3, KLen: 40, QOffset: 37, KStride: 64, Heads: 4, KVHeads: 2, HeadDim: 32}, 1)
	add(device.Attn{Batch: 3, QLen: 5, KLen: 9, QOffset: 2, KStride: 9, Heads: 2, KVHeads: 1, HeadDim: 16}, 1) // keys none sees
	add(device.Attn{Batch: 1, QLen: 70, KLen: 140, QOffset: 70, KStride: 140, Heads: 2, KVHeads: 2, HeadDim: 32}, 1)
	add(train(2, 33, [2]int{4, 2}, 32), 0)  // equal scores
	add(train(2, 33, [2]int{4, 2}, 32), 12) // one key takes all: scores of hundreds
	return all
}

// train is attention over whole rows.
func train(batch, n int, heads [2]int, d int) device.Attn {
	return device.Attn{Batch: batch, QLen: n, KLen: n, KStride: n, Heads: heads[0], KVHeads: heads[1], HeadDim: d}
}

// maskedAttentionCases are attention with windows, documents, soft-caps and scales of their own.
func maskedAttentionCases() []Case {
	var all []Case
	add := func(a device.Attn, scale float64, docs func(a device.Attn) []int) {
		name := fmt.Sprintf("attention/masked, %d rows, %d queries from %d, %d keys of %d, heads %d:%d of %d, window %d, scale %g, cap %g",
			a.Batch, a.QLen, a.QOffset, a.KLen, a.KStride, a.Heads, a.KVHeads, a.HeadDim, a.Window, a.Scale, a.Cap)
		if docs != nil {
			name += ", documents"
		}
		if scale != 1 {
			name += fmt.Sprintf(", values times %g", scale)
		}
		all = append(all, both(name, func(l *lab) { checkAttention(l, a, scale, docs, 0) })...)
	}
	for i, d := range []int{16, 32, 64, 80, 96, 128, 256, 512} {
		h := [][2]int{{1, 1}, {4, 2}, {2, 1}, {3, 3}}[i%4]
		n := []int{17, 33, 65, 70}[(i+i/4)%4]
		for j, w := range []int{1, 2, 16, n - 1, n, n + 5} {
			a := train(1+(i+j)%2, n, h, d)
			a.Window = w
			if j%2 == 0 {
				a.Cap = 2
			}
			if j%3 == 1 {
				a.Scale = .3 / math.Sqrt(float64(d))
			}
			add(a, 1, [](func(device.Attn) []int){nil, documents, nil}[j%3])
		}
		a := train(2, n, h, d)
		a.Cap, a.Scale = 1.5, 1/float64(d)
		add(a, 3, documents)
		one := device.Attn{Batch: 2, QLen: 1, KLen: n + 3, QOffset: n + 2, KStride: n + 9, Heads: h[0], KVHeads: h[1], HeadDim: d, Cap: 5, Window: 11}
		add(one, 1, nil)
		one.Window = 0
		add(one, 1, documents)
	}
	long := train(1, 257, [2]int{2, 1}, 16)
	for _, w := range []int{1, 63, 64, 65, 128, 200, 256, 257} { // more than one block of keys
		long.Window = w
		add(long, 1, nil)
		add(long, 1, documents)
	}
	late := device.Attn{Batch: 2, QLen: 70, KLen: 140, QOffset: 65, KStride: 140, Heads: 2, KVHeads: 1, HeadDim: 32, Window: 20} // early and late keys none sees
	add(late, 1, nil)
	late.KStride = 160
	add(late, 1, documents)
	equal := train(2, 33, [2]int{4, 2}, 32)
	equal.Window, equal.Cap = 7, 50
	add(equal, 0, documents)
	add(equal, 12, nil) // scores of hundreds, most at the cap
	return all
}

// documents returns the first keys of queries in documents of several lengths, of one key too, with values beyond both ends.
func documents(a device.Attn) []int {
	first := make([]int, a.Batch*a.QLen)
	for n := range first {
		own, begin := a.QOffset+n%a.QLen, -2
		for next, length := 0, 3+n/a.QLen; next <= own; next, length = next+length, (5*length+3)%23+1 {
			if next > 0 {
				begin = next
			}
		}
		if n%a.QLen == a.QLen-1 && n >= a.QLen {
			begin = own + 4
		}
		first[n] = begin
	}
	return first
}

func checkAttention(l *lab, a device.Attn, scale float64, docs func(device.Attn) []int, sinkScale float64) {
	var sinks []float64
	if sinkScale > 0 {
		m := l.random(1, a.Heads, sinkScale)
		a.Sinks, sinks = l.in(tensor.F32, m), m.V
	}
	var first []int
	if docs != nil {
		first = docs(a)
		a.First = l.ids(first)
	}
	qRows, kRows, qCols, kCols := a.Batch*a.QLen, a.Batch*a.KStride, a.Heads*a.HeadDim, a.KVHeads*a.HeadDim
	q, k, v := l.random(qRows, qCols, scale), l.random(kRows, kCols, scale), l.random(kRows, kCols, 1)
	qt, kt, vt := l.in(l.act, q), l.in(l.act, k), l.in(l.act, v)
	o, plain, lse := l.out(l.act, qRows, qCols), l.out(l.act, qRows, qCols), l.out(tensor.F32, qRows, a.Heads)
	l.s.Attention(o, lse, qt, kt, vt, a)
	l.s.Attention(plain, device.Tensor{}, qt, kt, vt, a)
	wantO, wantL := ref.Attention(q, k, v, a, first, sinks)
	// A score is a sum over the head; its absolute error is the relative error of a probability. Scores are of size
	// scale² (the sum of HeadDim products over √HeadDim, as far as they are not scaled otherwise), largest about four times that.
	loose := 1 + 4*scale*scale*max(1, a.ScoreScale()*math.Sqrt(float64(a.HeadDim)))
	score := func(n int) float64 { return loose * (tol("attention", tensor.F32, n) + l.rounding("scores", l.act)) }
	allowed := l.tol("attention", l.act, a.KLen) + score(a.HeadDim)
	l.compareScaled("o", o, wantO, allowed)
	l.compareScaled("o without lse", plain, wantO, allowed)
	l.compareScaled("lse", lse, wantL, score(a.HeadDim+a.KLen))
	if a.KStride != a.KLen {
		return // a cache has no backward
	}
	do := l.random(qRows, qCols, 1)
	dot := l.in(l.act, do)
	dq, dk, dv := l.out(l.act, qRows, qCols), l.out(l.act, kRows, kCols), l.out(l.act, kRows, kCols)
	var dsinks ref.Mat
	if sinks != nil {
		dsinks = l.random(1, a.Heads, 1)
		a.DSinks = l.inout(tensor.F32, dsinks)
	}
	l.s.AttentionBackward(dq, dk, dv, dot, o, lse, qt, kt, vt, a)
	// What o lost to rounding is part of the input: where one key takes nearly all it is as large as what is left of dp − δ.
	wantQ, wantK, wantV := ref.AttentionBackward(do, l.get(o), q, k, v, a, first, sinks)
	n := a.HeadDim + a.QLen*a.Heads/a.KVHeads
	allowed = 2 * (l.tol("attention", l.act, n) + score(n))
	if sinks == nil && (a.KLen == 1 || a.Window == 1) { // one key has probability 1 whatever its score: what is left of terms of size scale is rounding
		floor := scale * (tol("attention", l.act, n) + 4*l.rounding("attention", l.act)) // dO·v is not rounded as δ is
		l.note(near.Abs("dq", l.get(dq).V, wantQ.V, floor))
		l.note(near.Abs("dk", l.get(dk).V, wantK.V, floor))
	} else {
		l.compareScaled("dq", dq, wantQ, allowed)
		l.compareScaled("dk", dk, wantK, allowed)
	}
	l.compareScaled("dv", dv, wantV, allowed)
	if sinks != nil {
		dsinks.Add(ref.SinkGrad(do, l.get(o), q, k, a, first, sinks))
		l.compareScaled("dsinks", a.DSinks, dsinks, 2*score(a.HeadDim+a.KLen+a.Batch*a.QLen))
	}
}

// sinkAttentionCases are attention with sinks, alone and with windows, documents, soft-caps and caches.
func sinkAttentionCases() []Case {
	var all []Case
	for i, d := range []int{16, 64, 80, 128, 256, 512} {
		h := [][2]int{{1, 1}, {4, 2}, {2, 1}, {3, 3}}[i%4]
		n := []int{1, 17, 33, 70}[(i+i/4)%4]
		for j, size := range []float64{.5, 2, 40} { // a sink of 40 takes all, or nothing
			a := train(1+(i+j)%2, n, h, d)
			one := device.Attn{Batch: 2, QLen: 1, KLen: n + 3, QOffset: n + 2, KStride: n + 9, Heads: h[0], KVHeads: h[1], HeadDim: d}
			for k, window := range []int{0, 1, 8} {
				a.Window, one.Window = window, window
				if a.Cap = 0; k == 2 {
					a.Cap = 2
				}
				docs := [](func(device.Attn) []int){nil, documents}[(j+k)%2]
				name := fmt.Sprintf("attention/sinks of %g, %d rows of %d, heads %d:%d of %d, window %d, cap %g", size, a.Batch, n, h[0], h[1], d, window, a.Cap)
				all = append(all, both(name, func(l *lab) { checkAttention(l, a, 1, docs, size) })...)
				all = append(all, both(name+", cache", func(l *lab) { checkAttention(l, one, 1, nil, size) })...)
			}
		}
	}
	return all
}
