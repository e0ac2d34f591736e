package kernel

import (
	"math"
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// PlainAttention makes Attention and AttentionBackward use the kernels of attention_plain.cuh for everything, so that
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

// limitedArgs is LimitedArgs of attention.cuh. Every launch has one; kernels without limits read its beginning.
type limitedArgs struct {
	attentionArgs
	lowest             uint64
	lowestStep, window int32
	capIn, capOut      float32
}

// The sizes of both.
var (
	_ [184]byte = [unsafe.Sizeof(attentionArgs{})]byte{}
	_ [208]byte = [unsafe.Sizeof(limitedArgs{})]byte{}
)

// rowPadding is the multiple to which the rows of a head in the backward's scratch are rounded up: at least a tile of
// queries of every kernel.
const rowPadding = 128

// AttentionModules returns the modules that Attention and AttentionBackward of shapes like a launch from, for values of
// type t, or with tf32 AttentionTF32 and AttentionBackwardTF32 where they serve a, provided that rows begin at
// multiples of 16 bytes, as the rows of a layer's matrices do; other rows take module attention_plain or
// attention_limited. documents: with a First. The rows of a cache grow, so a window that hides nothing yet takes the
// modules of both.
func AttentionModules(a device.Attn, documents bool, t tensor.DType, tf32 bool) []string {
	modules := []string{decodeModule}
	if a.Cap > 0 {
		modules = append(modules, decodeCappedModule)
	}
	hides := a.Cap > 0 || documents
	if !hides {
		modules = append(modules, unlimitedModules(a.HeadDim, t, tf32)...)
	}
	if hides || a.Window > 0 {
		modules = append(modules, limitedModules(a, documents, t)...)
	}
	return modules
}

// unlimitedModules are those of shapes that limits says nothing of.
func unlimitedModules(headDim int, t tensor.DType, tf32 bool) (modules []string) {
	f, fast := flashTiles[headDim]
	rounds, ok := tf32Tiles[headDim]
	switch {
	case tf32 && ok && UseAttentionTF32:
		return []string{rounds.module}
	case headDim > 256:
		return []string{limitedModule}
	case t == tensor.BF16 && !fast && limitedTiles[headDim].module != "":
		return limitedModules(device.Attn{HeadDim: headDim}, false, t)
	case t != tensor.BF16 || !fast:
		return []string{plainModule}
	}
	modules = append(modules, f.module)
	if UseAttentionSM90 {
		modules = append(modules, attentionSM90Module)
	}
	if UseAttentionBackwardSM90 {
		modules = append(modules, attentionBackwardSM90Module)
	}
	return modules
}

// limitedModules are those of the kernels of LimitedArgs.
func limitedModules(a device.Attn, documents bool, t tensor.DType) []string {
	f, fast := limitedTiles[a.HeadDim]
	if t != tensor.BF16 || !fast {
		return []string{limitedModule}
	}
	modules := []string{f.module}
	if UseAttentionSM90 && !documents && (a.Cap == 0 || a.HeadDim == 256) {
		modules = append(modules, attentionLimitedSM90Module)
	}
	if _, narrow := backwardBlocks[a.HeadDim]; UseAttentionBackwardSM90 && narrow && !documents && a.Cap == 0 {
		modules = append(modules, attentionBackwardLimitedSM90Module)
	}
	return modules
}

// limits reports whether a hides keys before a query, or caps scores: what only the kernels of LimitedArgs know.
func limits(a device.Attn, first Mat) bool {
	return a.Cap > 0 || !first.IsZero() || a.Window > 0 && a.Window < a.QOffset+a.QLen
}

// Attention launches o = softmax(cap(Scale·q·kᵀ), masked)·v per head, query head h reading key-value head ⌊h·KVHeads/Heads⌋,
// and lse, the natural logarithm of the sum of exponentials of what the softmax is over, unless it is the zero Mat. device.Attn
// says which keys a query sees; first has the values of a.First, or is zero.
//
// q, o [Batch·QLen, Heads·d]; k, v [≥ (Batch−1)·KStride+KLen, KVHeads·d]; all float32 or all bfloat16, d ≤ 512. lse
// [Batch·QLen, Heads] float32. Sums and statistics are float32; bfloat16 heads of 64, 128 and 256 with 16-byte aligned
// rows go through tensor cores, which round probabilities to bfloat16. Tiles of keys that none of a thread block's
// queries sees cost nothing.
func Attention(queue Queue, o, lse, q, k, v Mat, a device.Attn, first Mat) {
	if a.Batch == 0 || a.QLen == 0 {
		return
	}
	if a.QLen == 1 && first.IsZero() && a.HeadDim <= 256 && !PlainAttention {
		decodeForward(queue, o, lse, q, k, v, a)
		return
	}
	args := newAttention(o, lse, q, k, v, a, first)
	if f, ok := flash(a, first, o, q, k, v); ok {
		f.attention(queue, args)
		return
	}
	plainForward(queue, args, q.Type, limits(a, first))
}

// AttentionBackward launches the gradients of Attention: with p = e^(t−lse) of capped scores t, δ = Σ do∘o and dp = do·vᵀ,
// dv = pᵀ·do, ds = p∘(dp−δ)∘(1−(t/Cap)²)·Scale, dq = ds·k, dk = dsᵀ·q, summed over the query heads of a key-value head.
//
// Shapes and types are those of Attention; dq, dk, dv and do are like q, k, v and o. Rows of dk and dv beyond KLen of a
// batch row are left alone; those of keys that no query sees become zero. Sums have an order that depends on the shape alone.
func AttentionBackward(queue Queue, dq, dk, dv, do, o, lse, q, k, v Mat, a device.Attn, first Mat) {
	if a.Batch == 0 || a.KLen == 0 {
		return
	}
	args, room := newAttentionBackward(queue, dq, dk, dv, do, o, lse, q, k, v, a, first)
	if f, ok := flash(a, first, o, q, k, v, dq, dk, dv, do); ok {
		f.backward(queue, args, room)
		return
	}
	plainBackward(queue, args, q.Type, limits(a, first))
}

// newAttentionBackward returns the arguments of the backward, with scratch for a row's statistics, and how much scratch
// is left.
func newAttentionBackward(queue Queue, dq, dk, dv, do, o, lse, q, k, v Mat, a device.Attn, first Mat) (args *attentionArgs, room int) {
	args = newAttention(o, lse, q, k, v, a, first)
	args.dq, args.dk, args.dv, args.dout = dq.Ptr, dk.Ptr, dv.Ptr, do.Ptr
	args.dqStride, args.dkStride, args.dvStride, args.doutStride = stride32(dq), stride32(dk), stride32(dv), stride32(do)
	args.padded = int32(ceil(a.QLen, rowPadding) * rowPadding)
	statistics := 4 * a.Batch * a.Heads * int(args.padded)
	args.rowLSE, args.rowDelta = queue.Scratch(statistics), queue.Scratch(statistics)
	return args, MaxScratch - 2*statistics
}

// newAttention returns the arguments of the forward, which begin a limitedArgs.
func newAttention(o, lse, q, k, v Mat, a device.Attn, first Mat) *attentionArgs {
	need(a.HeadDim <= device.MaxHeadDim, "Attention", "heads of more than 512 columns")
	scale, log2Scale := a.ScoreScale(), a.ScoreScale()*math.Log2E
	if a.Scale == 0 {
		log2Scale = math.Log2E / math.Sqrt(float64(a.HeadDim)) // rounded once
	}
	l := &limitedArgs{window: math.MaxInt32}
	l.attentionArgs = attentionArgs{
		q: q.Ptr, k: k.Ptr, v: v.Ptr, o: o.Ptr, lse: lse.Ptr,
		qStride: stride32(q), kStride: stride32(k), vStride: stride32(v), oStride: stride32(o), lseStride: stride32(lse),
		batch: int32(a.Batch), qLen: int32(a.QLen), kLen: int32(a.KLen), qOffset: int32(a.QOffset), kRows: int32(a.KStride),
		heads: int32(a.Heads), kvHeads: int32(a.KVHeads), d: int32(a.HeadDim), splits: 1,
		scale: float32(scale), log2Scale: float32(log2Scale),
	}
	if a.Window > 0 {
		l.window = int32(min(a.Window, math.MaxInt32))
	}
	if a.Cap > 0 {
		need(scale > 0, "Attention", "a soft-cap of scores whose factor is 0")
		l.capIn, l.capOut = float32(scale/a.Cap), float32(a.Cap/scale)
	}
	if !first.IsZero() {
		ptr, step := vector(first)
		l.lowest, l.lowestStep = ptr, int32(step)
	}
	return &l.attentionArgs
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
