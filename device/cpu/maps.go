package cpu

import (
	"math"

	"apr/device"
)

// mapQueries are the queries of a block of maps: the rows of p and L that exist at a time. mapPart are those of one task.
const mapQueries, mapPart = 64, 16

// mapsOp compares attention maps, one block of queries after the other. First come p and L of the block, a task having mapPart queries
// of a batch row and all heads; then the gradients, a task having one key/value head of one batch row, so that the sums of dk over
// blocks have one order.
type mapsOp struct {
	s        *Stream
	own, big attentionOp // of student and teacher: their operands and what a query sees
	f        float32     // weight·InvN
	counts   []bool      // of each query; nil: all count
	block    int
	keys     int // most keys that a block sees

	p, l           []float32 // [batch·mapQueries, keys]: the teacher's probabilities, the student's ln Σ_h P_h
	pSink, lSink   []float64 // [batch·mapQueries]: the same of the sinks
	divergence     []float64 // of each query
	dsinks         []float64 // [queries, heads]: terms of their gradient
	average, grads func(worker, lo, hi int)
	sum            func(worker, lo, hi int)
}

// CompareMaps adds the divergence of attention maps to the record, and its gradient to dq, dk and s.Attn.DSinks: see
// device.MapComparer.
func (s *Stream) CompareMaps(dq, dk device.Tensor, own, big device.AttnMap, rows device.Tensor, weight float64) {
	device.CheckCompareMaps(dq, dk, own, big, rows, weight)
	if !s.begin() {
		return
	}
	o := &s.ops.maps
	if o.set(dq, dk, own, big, rows, weight) {
		a := own.Attn
		for o.block = 0; o.block*mapQueries < a.QLen; o.block++ {
			s.split(a.Batch*mapQueries/mapPart, 1, o.average)
			s.split(a.Batch*a.KVHeads, 1, o.grads)
		}
		if !a.DSinks.IsZero() {
			s.split(a.Heads, 1, o.sum)
		}
		for _, v := range o.divergence {
			s.scalars.Sums[device.AttentionTransfer] += v
		}
	}
	a, b := own.Attn, big.Attn
	s.end(device.OpCompareMaps, (8*int64(a.Heads*a.HeadDim)+2*int64(b.Heads*b.HeadDim))*int64(a.Batch)*a.Pairs())
}

// set takes the operands and reports whether the values of First and rows may be so.
func (o *mapsOp) set(dq, dk device.Tensor, own, big device.AttnMap, rows device.Tensor, weight float64) bool {
	o.own.s, o.big.s = o.s, o.s
	if !o.own.see(own.Q, own.K, own.LSE, own.Attn) || !o.big.see(big.Q, big.K, big.LSE, big.Attn) {
		return false
	}
	o.own.dq, o.own.dk = floats(dq), floats(dk)
	o.f = float32(weight * o.s.scalars.InvN)
	a := own.Attn
	n := a.Batch * a.QLen
	o.keys = a.KLen
	if a.Window > 0 {
		o.keys = min(o.keys, a.Window+mapQueries)
	}
	strip := a.Batch * mapQueries
	o.p, o.l = grow(o.p, strip*o.keys), grow(o.l, strip*o.keys)
	o.pSink, o.lSink, o.divergence = growWide(o.pSink, strip), growWide(o.lSink, strip), growWide(o.divergence, n)
	clear(o.divergence)
	if !a.DSinks.IsZero() {
		o.dsinks = growWide(o.dsinks, n*a.Heads)
		clear(o.dsinks)
	}
	o.counts = o.counts[:0]
	if rows.IsZero() {
		return true
	}
	at := ints(rows)
	if !o.s.inRange("CompareMaps", at, n) {
		return false
	}
	if cap(o.counts) < n {
		o.counts = make([]bool, n)
	}
	o.counts = o.counts[:n]
	clear(o.counts)
	for _, r := range at {
		o.counts[r] = true
	}
	return true
}

// stack returns queries [i, i+n) of batch row r, of the block, for the heads of key/value head g of a side. Its keys begin with the
// first that the student sees in the block, as p and L do.
func (o *mapsOp) stack(of *attentionOp, r, g, i, n int) stack {
	b := stack{row: r*of.a.QLen + i, head: g * of.group, n: n, rows: of.group * n, own: i}
	first := o.block * mapQueries
	b.low = o.own.lowest(r*of.a.QLen+first, first)
	b.keys = i + n - b.low
	return b
}

// queries returns those of a part of the block, which has up to of: [i, i+n).
func (o *mapsOp) queries(part, of int) (i, n int) {
	i = o.block*mapQueries + part*of
	return i, min(of, o.own.a.QLen-i)
}

// compared reports whether the query in a row counts.
func (o *mapsOp) compared(row int) bool { return len(o.counts) == 0 || o.counts[row] }

// at returns the strip's row of a query: p, L, and their place.
func (o *mapsOp) at(row int) (p, l []float32, i int) {
	a := &o.own.a
	i = row/a.QLen*mapQueries + row%a.QLen - o.block*mapQueries
	return o.p[i*o.keys:][:o.keys], o.l[i*o.keys:][:o.keys], i
}

// scores writes t of a stack to l.scores, [rows, keys], soft-capped where a row sees keys.
func (o *mapsOp) scores(l *worker, of *attentionOp, r, g int, b *stack) {
	d := of.a.HeadDim
	l.scores, l.q = grow(l.scores, b.rows*b.keys), grow(l.q, b.rows*d)
	of.gather(l.q, &of.q, b)
	l.gemm.Multiply(false, true, b.rows, b.keys, d, of.scale, l.q, d, of.keys(&of.k, r, g, b.low), of.k.stride, l.scores, b.keys, false)
	for i := range b.rows {
		if _, _, from, to := of.at(b, i); of.cap > 0 {
			row := l.scores[i*b.keys:][from:to]
			o.s.isa.SoftCap(row, row, of.cap)
		}
	}
}

// averaged computes p, L and the divergence of a part of the block's queries.
func (o *mapsOp) averaged(worker, task, _ int) {
	parts := mapQueries / mapPart
	r := task / parts
	i, n := o.queries(task%parts, mapPart)
	if n <= 0 {
		return
	}
	l := &o.s.local[worker]
	for _, of := range []*attentionOp{&o.big, &o.own} {
		for g := range of.a.KVHeads {
			b := o.stack(of, r, g, i, n)
			o.scores(l, of, r, g, &b)
			for j := range b.rows {
				row, head, from, to := of.at(&b, j)
				if !o.compared(row) {
					continue
				}
				p, mean, at := o.at(row)
				sink := &o.lSink[at]
				if of == &o.big {
					mean, sink = p, &o.pSink[at]
				}
				o.join(of, mean[from:to], sink, l.scores[j*b.keys:][from:to], row, head)
			}
		}
	}
	first := o.stack(&o.own, r, 0, i, n)
	for j := range n {
		if row, _, from, to := o.own.at(&first, j); o.compared(row) {
			_, _, bigFrom, _ := o.big.at(&first, j)
			o.diverge(l, row, from, bigFrom, to)
		}
	}
}

// join adds the scores t of one head to mean = ln Σ_h P_h, and its sink to sink; the first head begins both.
func (o *mapsOp) join(of *attentionOp, mean []float32, sink *float64, t []float32, row, head int) {
	lse := of.lse.row(row)[head]
	if head == 0 {
		o.s.isa.Shift(mean, t, lse, 0)
		*sink = math.Inf(-1)
	} else {
		o.s.isa.LogAddExp(mean, t, lse, 0, 1, 1)
	}
	if of.sinks.cols > 0 {
		z := float64(of.sinks.row(0)[head]) - float64(lse)
		top := math.Max(*sink, z)
		*sink = top + math.Log(math.Exp(*sink-top)+math.Exp(z-top))
	}
}

// diverge makes p of the teacher's logarithms and adds up the divergence of a query: the student sees the keys [from, to), the teacher
// those from big on.
func (o *mapsOp) diverge(l *worker, row, from, big, to int) {
	isa := o.s.isa
	p, mean, at := o.at(row)
	heads, ratio := math.Log(float64(o.big.a.Heads)), math.Log(float64(o.own.a.Heads))-math.Log(float64(o.big.a.Heads))
	l.row = grow(l.row, to-big)
	gap := l.row
	for j := range gap {
		gap[j] = p[big+j] - mean[big+j]
	}
	mass := isa.ExpSum(p[big:to], p[big:to], float32(heads))
	clear(p[from:big])
	sum := isa.Dot(p[big:to], gap) + mass*ratio
	if o.big.sinks.cols > 0 {
		lnP := o.pSink[at]
		o.pSink[at] = math.Exp(lnP - heads)
		sum += o.pSink[at] * (lnP - o.lSink[at] + ratio)
	} else {
		o.pSink[at] = 0
	}
	o.divergence[row] = sum
}

// gradients adds the block's part of dq and dk of one key/value head.
func (o *mapsOp) gradients(worker, task, _ int) {
	own := &o.own
	r, g := task/own.a.KVHeads, task%own.a.KVHeads
	i, n := o.queries(0, mapQueries)
	l, d := &o.s.local[worker], own.a.HeadDim
	b := o.stack(own, r, g, i, n)
	o.scores(l, own, r, g, &b)
	for j := range b.rows {
		all := l.scores[j*b.keys:][:b.keys]
		row, head, from, to := own.at(&b, j)
		clear(all[:from])
		clear(all[to:])
		if to-from == 1 && own.sinks.cols == 0 || !o.compared(row) { // of one key p is 1 whatever the score
			clear(all[from:to])
			continue
		}
		o.scoreGrads(l, all[from:to], row, head, from)
	}
	k, dk := own.keys(&own.k, r, g, b.low), own.keys(&own.dk, r, g, b.low)
	l.gemm.Multiply(true, false, b.keys, d, b.rows, 1, l.scores, b.keys, l.q, d, dk, own.dk.stride, true)
	l.out = grow(l.out, b.rows*d)
	l.gemm.Multiply(false, false, b.rows, d, b.keys, 1, l.scores, b.keys, k, own.k.stride, l.out, d, false)
	for j := range b.rows {
		row, head := b.row+j%b.n, b.head+j/b.n
		o.s.isa.Add(own.dq.row(row)[head*d:][:d], l.out[j*d:][:d])
	}
}

// scoreGrads writes f·Scale·(1−(t/Cap)²)·(P·E − p·w) over the scores t of a query and head, whose keys begin at from.
func (o *mapsOp) scoreGrads(l *worker, t []float32, row, head, from int) {
	isa, own := o.s.isa, &o.own
	p, mean, at := o.at(row)
	p, mean = p[from:][:len(t)], mean[from:][:len(t)]
	l.row, l.capped = grow(l.row, len(t)), grow(l.capped, len(t))
	w, capped := l.row, l.capped
	copy(capped, t)
	for j, v := range t {
		w[j] = v - mean[j]
	}
	lse := own.lse.row(row)[head]
	isa.ExpSum(w, w, lse)
	e := isa.Dot(p, w)
	if own.sinks.cols > 0 {
		z := float64(own.sinks.row(0)[head]) - float64(lse)
		mine := o.pSink[at] * math.Exp(z-o.lSink[at])
		e += mine
		if !own.a.DSinks.IsZero() {
			o.dsinks[row*own.a.Heads+head] = float64(o.f) * (math.Exp(z)*e - mine)
		}
	}
	isa.ExpSum(t, t, lse)
	f, share := o.f*own.scale, float32(e)
	for j, v := range t {
		t[j] = f * (v*share - p[j]*w[j])
	}
	if own.cap > 0 {
		isa.CapGrad(t, capped, own.cap)
	}
}

// sinkGrads adds the gradients of the sinks of heads [lo,hi): those of all queries in ascending order.
func (o *mapsOp) sinkGrads(_, lo, hi int) {
	a := &o.own.a
	for head := lo; head < hi; head++ {
		sum := 0.0
		for row := range a.Batch * a.QLen {
			sum += o.dsinks[row*a.Heads+head]
		}
		o.own.dsinks.row(0)[head] += float32(sum)
	}
}
