package cpu

import (
	"math"

	"apr/device"
	"apr/internal/fault"
)

// stackRows is about how many rows a block of scores has. The query heads that read one key/value head are stacked, so
// that its keys and values are packed, and read, once for all of them; with 256 keys the block takes 64 KiB and stays in
// the second-level cache between its two products.
const stackRows = 64

// attentionOp is attention and its backward. A task of the forward is a block of queries of one key/value head of one
// batch row, for all query heads that read it; a task of the backward is one key/value head of one batch row, since all
// its blocks add to the same dk and dv.
type attentionOp struct {
	s               *Stream
	q, k, v, o, lse mat
	dq, dk, dv, do  mat
	a               device.Attn
	first           []int32 // the lowest key of each query; nil: none
	group           int     // query heads of a key/value head
	queries, blocks int     // queries of a block, blocks of a batch row
	scale, cap      float32
	sinks, dsinks   mat
	fwd, bwd, sum   func(worker, lo, hi int)
}

// set takes the operands and reports whether the values of First may be so.
func (o *attentionOp) set(q, k, v, out, lse device.Tensor, a device.Attn) bool {
	o.v, o.o = floats(v), floats(out)
	return o.see(q, k, lse, a)
}

// see is set of what decides which probabilities there are.
func (o *attentionOp) see(q, k, lse device.Tensor, a device.Attn) bool {
	o.q, o.k, o.lse, o.a = floats(q), floats(k), optional(lse), a
	o.scale, o.cap = float32(a.ScoreScale()), float32(a.Cap)
	o.group = a.Heads / a.KVHeads
	o.queries = max(16, stackRows/o.group)
	o.blocks = (a.QLen + o.queries - 1) / o.queries
	o.sinks, o.dsinks = optional(a.Sinks), optional(a.DSinks)
	o.first = nil
	if !a.First.IsZero() {
		o.first = ints(a.First)
	}
	for i, key := range o.first {
		if i%a.QLen > 0 && key < o.first[i-1] {
			o.s.fail(fault.New(fault.Invalid, "Attention: the first key %d is below that of the query before, %d", key, o.first[i-1]).
				At("query %d", i).WithID("E-CPU-010"))
			return false
		}
	}
	return true
}

// Attention: o = softmax(cap(Scale·q·kᵀ), masked, sink)·v per head.
func (s *Stream) Attention(o, lse, q, k, v device.Tensor, a device.Attn) {
	device.CheckAttention(o, lse, q, k, v, a)
	if !s.begin() {
		return
	}
	op := &s.ops.attention
	if op.set(q, k, v, o, lse, a) {
		s.split(a.Batch*a.KVHeads*op.blocks, 1, op.fwd)
	}
	s.end(device.OpAttention, 4*int64(a.Batch*a.Heads*a.HeadDim)*a.Pairs())
}

// stack is a block of queries: queries [row, row+n) of the tensors for the heads [head, head+group), as group·n rows,
// head by head. own is the key at the first query's own position. The block sees keys keys, from low on.
type stack struct{ row, head, n, rows, own, low, keys int }

// block returns block b of batch row r and key/value head g.
func (o *attentionOp) block(r, g, b int) stack {
	i := b * o.queries
	n := min(o.queries, o.a.QLen-i)
	s := stack{row: r*o.a.QLen + i, head: g * o.group, n: n, rows: o.group * n, own: o.a.QOffset + i}
	s.low = o.lowest(s.row, s.own) // neither the window nor First falls from one query to the next
	s.keys = s.own + n - s.low
	return s
}

// lowest returns the first key that the query in a row sees, whose own key is given.
func (o *attentionOp) lowest(row, own int) int {
	low := 0
	if o.a.Window > 0 {
		low = max(0, own-o.a.Window+1)
	}
	if o.first != nil {
		low = max(low, min(int(o.first[row]), own))
	}
	return low
}

// at returns where row i of the stack stands: its row in the tensors, its head, and the keys [from, to) that it sees, counted
// from the block's first.
func (o *attentionOp) at(b *stack, i int) (row, head, from, to int) {
	row, own := b.row+i%b.n, b.own+i%b.n
	return row, b.head + i/b.n, o.lowest(row, own) - b.low, own + 1 - b.low
}

// gather copies the stack's rows of m to dst.
func (o *attentionOp) gather(dst []float32, m *mat, b *stack) {
	d := o.a.HeadDim
	for i := range b.rows {
		row, head := b.row+i%b.n, b.head+i/b.n
		copy(dst[i*d:(i+1)*d], m.row(row)[head*d:])
	}
}

// scatter copies src to the stack's rows of m.
func (o *attentionOp) scatter(m *mat, src []float32, b *stack) {
	d := o.a.HeadDim
	for i := range b.rows {
		row, head := b.row+i%b.n, b.head+i/b.n
		copy(m.row(row)[head*d:][:d], src[i*d:])
	}
}

// keys returns the part of m, k or v or their gradients, that belongs to batch row r and key/value head g, from key low on.
func (o *attentionOp) keys(m *mat, r, g, low int) []float32 {
	return m.d[(r*o.a.KStride+low)*m.stride+g*o.a.HeadDim:]
}

func (o *attentionOp) forward(worker, task, _ int) {
	l, isa, d := &o.s.local[worker], o.s.isa, o.a.HeadDim
	// The last block of a batch row sees most keys: it comes first, so that no worker is left with it at the end.
	r, g := task/o.blocks/o.a.KVHeads, task/o.blocks%o.a.KVHeads
	b := o.block(r, g, o.blocks-1-task%o.blocks)
	l.scores, l.q, l.out = grow(l.scores, b.rows*b.keys), grow(l.q, b.rows*d), grow(l.out, b.rows*d)
	l.scale = grow(l.scale, b.rows)
	o.gather(l.q, &o.q, &b)
	l.gemm.Multiply(false, true, b.rows, b.keys, d, o.scale, l.q, d, o.keys(&o.k, r, g, b.low), o.k.stride, l.scores, b.keys, false)
	for i := range b.rows {
		row, head, from, to := o.at(&b, i)
		all := l.scores[i*b.keys : (i+1)*b.keys]
		p := all[from:to]
		clear(all[:from])
		clear(all[to:])
		var lse float64
		l.scale[i], lse = o.softmax(p, head)
		if o.lse.cols > 0 {
			o.lse.row(row)[head] = float32(lse)
		}
	}
	l.gemm.Multiply(false, false, b.rows, d, b.keys, 1, l.scores, b.keys, o.keys(&o.v, r, g, b.low), o.v.stride, l.out, d, false)
	for i := range b.rows {
		isa.Scale(l.out[i*d:(i+1)*d], l.scale[i])
	}
	o.scatter(&o.o, l.out, &b)
}

// softmax makes the scores p of a query head their exponentials, e^{cap(p)−top}, and returns what they are multiplied
// by to be probabilities, and the log-sum-exp.
func (o *attentionOp) softmax(p []float32, head int) (factor float32, lse float64) {
	isa := o.s.isa
	if o.cap > 0 {
		isa.SoftCap(p, p, o.cap)
	}
	top := isa.Max(p)
	if o.sinks.cols > 0 {
		top = max(top, o.sinks.row(0)[head])
	}
	sum := isa.ExpSum(p, p, top)
	if o.sinks.cols > 0 {
		sum += math.Exp(float64(o.sinks.row(0)[head]) - float64(top))
	}
	return float32(1 / sum), float64(top) + math.Log(sum)
}

// AttentionBackward writes dq, dk, dv. With t the capped scores, p = e^{t−lse}, δ = Σ do∘o and dp = do·vᵀ: dv = pᵀ·do,
// ds = p∘(dp−δ)·Scale·(1−(t/Cap)²), dq = ds·k, dk = dsᵀ·q. The sums over the queries of a key run over blocks of queries, and in each
// over its query heads, in ascending order. With sinks b, dsinks −= Σ e^{b−lse}·δ over the rows.
func (s *Stream) AttentionBackward(dq, dk, dv, do, o, lse, q, k, v device.Tensor, a device.Attn) {
	device.CheckAttentionBackward(dq, dk, dv, do, o, lse, q, k, v, a)
	if !s.begin() {
		return
	}
	op := &s.ops.attention
	op.dq, op.dk, op.dv, op.do = floats(dq), floats(dk), floats(dv), floats(do)
	if op.set(q, k, v, o, lse, a) {
		s.split(a.Batch*a.KVHeads, 1, op.bwd)
		if !a.DSinks.IsZero() {
			s.split(a.Heads, 1, op.sum)
		}
	}
	s.end(device.OpAttentionBackward, 10*int64(a.Batch*a.Heads*a.HeadDim)*a.Pairs())
}

// sinkGrads adds the gradients of the sinks of heads [lo,hi): those of all rows in ascending order.
func (o *attentionOp) sinkGrads(_, lo, hi int) {
	d := o.a.HeadDim
	for head := lo; head < hi; head++ {
		sum, sink := 0.0, float64(o.sinks.row(0)[head])
		for row := range o.a.Batch * o.a.QLen {
			delta := o.s.isa.Dot(o.do.row(row)[head*d:][:d], o.o.row(row)[head*d:][:d])
			sum -= math.Exp(sink-float64(o.lse.row(row)[head])) * delta
		}
		o.dsinks.row(0)[head] += float32(sum)
	}
}

func (o *attentionOp) backward(worker, task, _ int) {
	r, g := task/o.a.KVHeads, task%o.a.KVHeads
	for key := range o.a.KLen {
		clear(o.dk.row(r*o.a.KStride + key)[g*o.a.HeadDim:][:o.a.HeadDim])
		clear(o.dv.row(r*o.a.KStride + key)[g*o.a.HeadDim:][:o.a.HeadDim])
	}
	for b := range o.blocks {
		o.backwardBlock(worker, r, g, b)
	}
}

// backwardBlock writes dq of a block of queries and adds its part of dk and dv.
func (o *attentionOp) backwardBlock(worker, r, g, block int) {
	l, isa, d := &o.s.local[worker], o.s.isa, o.a.HeadDim
	b := o.block(r, g, block)
	n, keys := b.rows, b.keys
	l.scores, l.dscores = grow(l.scores, n*keys), grow(l.dscores, n*keys)
	l.q, l.out, l.dout = grow(l.q, n*d), grow(l.out, n*d), grow(l.dout, n*d)
	o.gather(l.q, &o.q, &b)
	o.gather(l.out, &o.o, &b)
	o.gather(l.dout, &o.do, &b)
	k, v := o.keys(&o.k, r, g, b.low), o.keys(&o.v, r, g, b.low)
	l.gemm.Multiply(false, true, n, keys, d, o.scale, l.q, d, k, o.k.stride, l.scores, keys, false)
	l.gemm.Multiply(false, true, n, keys, d, 1, l.dout, d, v, o.v.stride, l.dscores, keys, false)
	for i := range n {
		row, head, from, to := o.at(&b, i)
		all, dall := l.scores[i*keys:(i+1)*keys], l.dscores[i*keys:(i+1)*keys]
		p, dp := all[from:to], dall[from:to]
		if o.cap > 0 {
			isa.SoftCap(p, p, o.cap)
			l.capped = grow(l.capped, len(p))
			copy(l.capped, p)
		}
		delta := isa.Dot(l.dout[i*d:(i+1)*d], l.out[i*d:(i+1)*d])
		isa.SoftmaxGrad(p, dp, o.scale, o.lse.row(row)[head], float32(delta))
		if o.cap > 0 {
			isa.CapGrad(dp, l.capped, o.cap)
		}
		if len(p) == 1 && o.sinks.cols == 0 {
			dp[0] = 0 // p is 1 whatever the score
		}
		for _, row := range [][]float32{all, dall} {
			clear(row[:from])
			clear(row[to:])
		}
	}
	l.gemm.Multiply(true, false, keys, d, n, 1, l.scores, keys, l.dout, d, o.keys(&o.dv, r, g, b.low), o.dv.stride, true)
	l.gemm.Multiply(true, false, keys, d, n, 1, l.dscores, keys, l.q, d, o.keys(&o.dk, r, g, b.low), o.dk.stride, true)
	l.gemm.Multiply(false, false, n, d, keys, 1, l.dscores, keys, k, o.k.stride, l.out, d, false)
	o.scatter(&o.dq, l.out, &b)
}
