package cpu

import (
	"math"

	"apr/device"
)

// queryBlock is how many queries share one block of scores: with 256 keys 64 KiB, so that the block stays in the
// second-level cache between its two products.
const queryBlock = 64

// attentionOp is attention and its backward. A task of the forward is one block of queries of one head of one batch
// row; a task of the backward is one key/value head of one batch row with all query heads that read it, since they add
// to the same dk and dv.
type attentionOp struct {
	s               *Stream
	q, k, v, o, lse mat
	dq, dk, dv, do  mat
	a               device.Attn
	blocks          int
	scale           float32
	fwd, bwd        func(worker, lo, hi int)
}

// set takes the operands and checks their shapes.
func (o *attentionOp) set(op string, q, k, v, out, lse device.Tensor, a device.Attn) {
	o.q, o.k, o.v, o.o, o.lse, o.a = floats(q), floats(k), floats(v), floats(out), optional(lse), a
	need(a.HeadDim > 0 && a.KVHeads > 0 && a.Heads%a.KVHeads == 0, op, "heads do not divide")
	rows, keys := a.Batch*a.QLen, 0
	if a.Batch > 0 {
		keys = (a.Batch-1)*a.KStride + a.KLen
	}
	need(a.KStride >= a.KLen && a.QOffset >= 0 && a.QOffset+a.QLen <= a.KLen, op, "queries see keys that are not there")
	need(o.q.rows == rows && o.o.rows == rows && o.q.cols == a.Heads*a.HeadDim && o.o.cols == o.q.cols, op, "q or o has another shape")
	need(o.k.rows >= keys && o.v.rows >= keys && o.k.cols == a.KVHeads*a.HeadDim && o.v.cols == o.k.cols, op, "k or v has another shape")
	need(lse.IsZero() || o.lse.rows == rows && o.lse.cols == a.Heads, op, "lse has another shape")
	o.scale = float32(1 / math.Sqrt(float64(a.HeadDim)))
	o.blocks = (a.QLen + queryBlock - 1) / queryBlock
}

// pairs counts the (query, key) pairs of one head and batch row that the causal mask leaves.
func (o *attentionOp) pairs() int64 {
	n, first := int64(o.a.QLen), int64(o.a.QOffset)+1
	return n*first + n*(n-1)/2
}

// Attention: o = softmax(q·kᵀ/√d, causal)·v per head.
func (s *Stream) Attention(o, lse, q, k, v device.Tensor, a device.Attn) {
	if !s.begin() {
		return
	}
	op := &s.ops.attention
	op.set("Attention", q, k, v, o, lse, a)
	s.split(a.Batch*a.Heads*op.blocks, 1, op.fwd)
	s.end(opAttention, 4*int64(a.Batch*a.Heads*a.HeadDim)*op.pairs())
}

// block returns the rows of query block b of batch row r, and the keys that its last query sees. The first of its
// queries sees first keys.
func (o *attentionOp) block(r, b int) (row, n, first, keys int) {
	i := b * queryBlock
	n = min(queryBlock, o.a.QLen-i)
	first = o.a.QOffset + i + 1
	return r*o.a.QLen + i, n, first, first + n - 1
}

func (o *attentionOp) forward(worker, task, _ int) {
	l, isa, d := &o.s.local[worker], o.s.isa, o.a.HeadDim
	// The last block of a row sees most keys: it comes first, so that no worker is left with it at the end.
	b, head := o.blocks-1-task%o.blocks, task/o.blocks
	r, h := head/o.a.Heads, head%o.a.Heads
	row, n, first, keys := o.block(r, b)
	kv := r*o.a.KStride*o.k.stride + h*o.a.KVHeads/o.a.Heads*d
	vv := r*o.a.KStride*o.v.stride + h*o.a.KVHeads/o.a.Heads*d
	l.scores = grow(l.scores, n*keys)
	out := o.o.d[row*o.o.stride+h*d:]
	l.gemm.Multiply(false, true, n, keys, d, o.scale, o.q.d[row*o.q.stride+h*d:], o.q.stride, o.k.d[kv:], o.k.stride,
		l.scores, keys, false)
	var sums [queryBlock]float64
	for i := range n {
		p := l.scores[i*keys : (i+1)*keys]
		seen := p[:first+i]
		top := isa.Max(seen)
		sums[i] = isa.ExpSum(seen, seen, top)
		clear(p[first+i:])
		if o.lse.cols > 0 {
			o.lse.row(row + i)[h] = float32(float64(top) + math.Log(sums[i]))
		}
	}
	l.gemm.Multiply(false, false, n, d, keys, 1, l.scores, keys, o.v.d[vv:], o.v.stride, out, o.o.stride, false)
	for i := range n {
		isa.Scale(out[i*o.o.stride:][:d], float32(1/sums[i]))
	}
}

// AttentionBackward writes dq, dk, dv. With p = e^{s−lse}, δ = Σ do∘o and dp = do·vᵀ: dv = pᵀ·do,
// ds = p∘(dp−δ)/√d, dq = ds·k, dk = dsᵀ·q. Sums over the queries of a key run over the query heads, then over blocks of
// queries, in ascending order.
func (s *Stream) AttentionBackward(dq, dk, dv, do, o, lse, q, k, v device.Tensor, a device.Attn) {
	if !s.begin() {
		return
	}
	op := &s.ops.attention
	op.set("AttentionBackward", q, k, v, o, lse, a)
	op.dq, op.dk, op.dv, op.do = floats(dq), floats(dk), floats(dv), floats(do)
	same := func(a, b mat) bool { return a.rows == b.rows && a.cols == b.cols }
	need(same(op.dq, op.q) && same(op.dk, op.k) && same(op.dv, op.v) && same(op.do, op.o) && op.lse.cols > 0,
		"AttentionBackward", "shapes differ")
	s.split(a.Batch*a.KVHeads, 1, op.bwd)
	s.end(opAttentionBackward, 10*int64(a.Batch*a.Heads*a.HeadDim)*op.pairs())
}

func (o *attentionOp) backward(worker, task, _ int) {
	r, g := task/o.a.KVHeads, task%o.a.KVHeads
	for key := range o.a.KLen {
		clear(o.dk.row(r*o.a.KStride + key)[g*o.a.HeadDim:][:o.a.HeadDim])
		clear(o.dv.row(r*o.a.KStride + key)[g*o.a.HeadDim:][:o.a.HeadDim])
	}
	group := o.a.Heads / o.a.KVHeads
	for h := g * group; h < (g+1)*group; h++ {
		for b := range o.blocks {
			o.backwardBlock(worker, r, g, h, b)
		}
	}
}

// backwardBlock writes dq of a block of queries of head h and adds its part of dk and dv of head g.
func (o *attentionOp) backwardBlock(worker, r, g, h, b int) {
	l, isa, d := &o.s.local[worker], o.s.isa, o.a.HeadDim
	row, n, first, keys := o.block(r, b)
	l.scores, l.dscores = grow(l.scores, n*keys), grow(l.dscores, n*keys)
	at := func(m *mat, row, head int) []float32 { return m.d[row*m.stride+head*d:] }
	key := r * o.a.KStride
	q, k, v, do := at(&o.q, row, h), at(&o.k, key, g), at(&o.v, key, g), at(&o.do, row, h)
	l.gemm.Multiply(false, true, n, keys, d, o.scale, q, o.q.stride, k, o.k.stride, l.scores, keys, false)
	l.gemm.Multiply(false, true, n, keys, d, 1, do, o.do.stride, v, o.v.stride, l.dscores, keys, false)
	for i := range n {
		seen := first + i
		p, dp := l.scores[i*keys:(i+1)*keys], l.dscores[i*keys:(i+1)*keys]
		delta := isa.Dot(do[i*o.do.stride:][:d], at(&o.o, row+i, h)[:d])
		isa.SoftmaxGrad(p[:seen], dp[:seen], o.scale, o.lse.row(row + i)[h], float32(delta))
		if seen == 1 {
			dp[0] = 0 // p is 1 whatever the score
		}
		clear(p[seen:])
		clear(dp[seen:])
	}
	l.gemm.Multiply(true, false, keys, d, n, 1, l.scores, keys, do, o.do.stride, at(&o.dv, key, g), o.dv.stride, true)
	l.gemm.Multiply(true, false, keys, d, n, 1, l.dscores, keys, q, o.q.stride, at(&o.dk, key, g), o.dk.stride, true)
	l.gemm.Multiply(false, false, n, d, keys, 1, l.dscores, keys, k, o.k.stride, at(&o.dq, row, h), o.dq.stride, false)
}
