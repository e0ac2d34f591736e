package kernel

import (
	"math"
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// PlainAttention makes Attention and AttentionBackward use the kernels of attention_plain.cu for everything, so that
// tests and measurements can compare the others with them.
var PlainAttention bool

// attentionArgs is AttentionArgs of attention.cuh.
type attentionArgs struct {
	q, k, v, o, lse, dout, dq, dk, dv uint64
	rowLSE, rowDelta, part            uint64

	qStride, kStride, vStride, oStride, lseStride, doutStride, dqStride, dkStride, dvStride int32
	batch, qLen, kLen, qOffset, kRows, heads, kvHeads, d                                    int32
	padded, splits                                                                          int32
	scale, log2Scale                                                                        float32
}

// rowPadding is the multiple to which the rows of a head in the backward's scratch are rounded up: at least a tile of
// queries of every kernel.
const rowPadding = 128

// AttentionModules returns the modules that Attention and AttentionBackward of heads of headDim values of type t launch
// from, provided that bfloat16 rows begin at multiples of 16 bytes, as the rows of a layer's matrices do; other rows take
// module attention_plain.
func AttentionModules(headDim int, t tensor.DType) []string {
	if f, ok := flashTiles[headDim]; ok && t == tensor.BF16 {
		modules := []string{f.module, decodeModule}
		if UseAttentionSM90 {
			modules = append(modules, attentionSM90Module)
		}
		if UseAttentionBackwardSM90 {
			modules = append(modules, attentionBackwardSM90Module)
		}
		return modules
	}
	return []string{plainModule, decodeModule}
}

// Attention launches o = softmax(q·kᵀ/√d, causal)·v per head, query head h reading key-value head ⌊h·KVHeads/Heads⌋,
// and lse, the natural logarithm of the sum of exponentials of the scaled scores, unless it is the zero Mat.
//
// q, o [Batch·QLen, Heads·d]; k, v [≥ (Batch−1)·KStride+KLen, KVHeads·d]; all float32 or all bfloat16, d ≤ 256.
// lse [Batch·QLen, Heads] float32. Sums and statistics are float32; bfloat16 heads of 64 and 128 with 16-byte aligned
// rows go through tensor cores, which round probabilities to bfloat16.
func Attention(queue Queue, o, lse, q, k, v Mat, a device.Attn) {
	args := newAttention(o, lse, q, k, v, a)
	if a.Batch == 0 || a.QLen == 0 {
		return
	}
	if a.QLen == 1 && !PlainAttention {
		decodeForward(queue, args, q, k, v)
		return
	}
	if f, ok := flash(a, o, q, k, v); ok {
		f.attention(queue, args)
		return
	}
	plainForward(queue, args, q.Type)
}

// AttentionBackward launches the gradients of Attention: with p = e^(score−lse), δ = Σ do∘o and dp = do·vᵀ,
// dv = pᵀ·do, ds = p∘(dp−δ)/√d, dq = ds·k, dk = dsᵀ·q, summed over the query heads of a key-value head.
//
// Shapes and types are those of Attention; dq, dk, dv and do are like q, k, v and o. Rows of dk and dv beyond KLen of a
// batch row are left alone. Sums have an order that depends on the shape alone.
func AttentionBackward(queue Queue, dq, dk, dv, do, o, lse, q, k, v Mat, a device.Attn) {
	if a.Batch == 0 || a.KLen == 0 {
		return
	}
	args, room := newAttentionBackward(queue, dq, dk, dv, do, o, lse, q, k, v, a)
	if f, ok := flash(a, o, q, k, v, dq, dk, dv, do); ok {
		f.backward(queue, args, room)
		return
	}
	plainBackward(queue, args, q.Type)
}

// newAttentionBackward returns the arguments of the backward, with scratch for a row's statistics, and how much scratch
// is left.
func newAttentionBackward(queue Queue, dq, dk, dv, do, o, lse, q, k, v Mat, a device.Attn) (args *attentionArgs, room int) {
	args = newAttention(o, lse, q, k, v, a)
	args.dq, args.dk, args.dv, args.dout = dq.Ptr, dk.Ptr, dv.Ptr, do.Ptr
	args.dqStride, args.dkStride, args.dvStride, args.doutStride = stride32(dq), stride32(dk), stride32(dv), stride32(do)
	args.padded = int32(ceil(a.QLen, rowPadding) * rowPadding)
	statistics := 4 * a.Batch * a.Heads * int(args.padded)
	args.rowLSE, args.rowDelta = queue.Scratch(statistics), queue.Scratch(statistics)
	return args, MaxScratch - 2*statistics
}

// newAttention returns the arguments of the forward.
func newAttention(o, lse, q, k, v Mat, a device.Attn) *attentionArgs {
	need(a.HeadDim <= 256, "Attention", "heads of more than 256 columns")
	return &attentionArgs{
		q: q.Ptr, k: k.Ptr, v: v.Ptr, o: o.Ptr, lse: lse.Ptr,
		qStride: stride32(q), kStride: stride32(k), vStride: stride32(v), oStride: stride32(o), lseStride: stride32(lse),
		batch: int32(a.Batch), qLen: int32(a.QLen), kLen: int32(a.KLen), qOffset: int32(a.QOffset), kRows: int32(a.KStride),
		heads: int32(a.Heads), kvHeads: int32(a.KVHeads), d: int32(a.HeadDim), splits: 1,
		scale:     float32(1 / math.Sqrt(float64(a.HeadDim))),
		log2Scale: float32(math.Log2E / math.Sqrt(float64(a.HeadDim))),
	}
}

// stride32 returns the stride as the kernels take it.
func stride32(m Mat) int32 {
	if m.Stride > math.MaxInt32 {
		panic("kernel: stride of 2^31 elements")
	}
	return int32(m.Stride)
}

// start queues a launch of an attention kernel unless its grid is empty.
func (a *attentionArgs) start(q Queue, module, name string, grid [3]int, block, shared int) {
	if grid[0] > 0 && grid[1] > 0 && grid[2] > 0 {
		q.Launch(Launch{Module: module, Kernel: name, Grid: grid, Block: block, Shared: shared, Args: unsafe.Pointer(a)})
	}
}
