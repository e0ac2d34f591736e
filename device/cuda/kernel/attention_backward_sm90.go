package kernel

import (
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// UseAttentionBackwardSM90 lets AttentionBackwardSM90Serves say yes; tests that compare kernels turn it off.
var UseAttentionBackwardSM90 = true

const (
	attentionBackwardSM90Module        = "attention_backward_sm90"
	attentionBackwardLimitedSM90Module = "attention_backward_limited_sm90"
)

// attentionBackwardArgs and its kin with limits are AttentionBackwardArgs of attention_backward_sm90.cuh.
type (
	attentionBackwardArgs struct {
		attentionArgs
		backwardShares
	}
	limitedBackwardArgs struct {
		limitedArgs
		backwardShares
	}
	backwardShares struct{ line, chunks, turns int32 }
)

// Of attention_backward_sm90.cuh.
const (
	backwardTile = 64  // rows of a tile
	backwardOwn  = 128 // rows that a thread block owns
)

// backwardBlock describes the blocks for one head width.
type backwardBlock struct {
	suffix string
	slots  int   // stages of two tiles
	turns  int32 // 1: the two warpgroups take turns in starting products, which on an H200 takes 1 % off; with wide heads it adds 10 %
}

var backwardBlocks = map[int]backwardBlock{64: {"_d64", 6, 1}, 128: {"_d128", 3, 0}}

// shared is Memory::BYTES for a thread block that owns that many matrices.
func (b backwardBlock) shared(d, matrices int) int {
	tile := 2 * d * backwardTile
	return (2*matrices+2*b.slots+2)*tile + b.slots*512 + 16*(b.slots+1) + 1024
}

// backwardChunks is into how many equal shares the steps of dk and dv are cut: the multiprocessors of a large device of
// compute capability 9.0. A constant and not the device's own number, so that the order of sums is that of the shape alone.
const backwardChunks = 132

// backwardSteps returns the steps of a key-value head of a batch row: over its tiles of keys, its query heads and the
// tiles of queries that see one of these keys, at least one. A window that hides nothing ends no tile earlier.
func backwardSteps(a device.Attn) int {
	queries, steps := ceil(a.QLen, backwardTile), 0
	for key := 0; key < a.KLen; key += backwardOwn {
		lowest, end := min(max(0, key-a.QOffset)/backwardTile, queries-1), queries
		if a.Window > 0 {
			last := min(a.QLen-1, key+backwardOwn-2+a.Window-a.QOffset) // to see one of the keys
			end = max(lowest, max(0, last)/backwardTile) + 1
		}
		steps += a.Heads / a.KVHeads * (end - lowest)
	}
	return steps
}

// backwardParts returns the bytes of the parts of dk and dv.
func backwardParts(chunks, d int) int { return chunks * 2 * 2 * backwardOwn * d * 4 }

// AttentionBackwardSM90Serves reports whether AttentionBackwardSM90 serves these operands, on a device of compute
// capability 9.0: as AttentionBackward does for tensor cores with heads of 64 and 128 columns, and queries enough to fill a warpgroup,
// without documents and soft-caps.
func AttentionBackwardSM90Serves(dq, dk, dv, do, o, q, k, v Mat, a device.Attn, first Mat) bool {
	if _, ok := backwardBlocks[a.HeadDim]; !ok || !UseAttentionBackwardSM90 || PlainAttention || a.Batch == 0 || a.QLen < backwardTile || !first.IsZero() || a.Cap > 0 {
		return false
	}
	for _, m := range []Mat{dq, dk, dv, do, o, q, k, v} {
		if m.Type != tensor.BF16 || !rowsAt(m, 16) {
			return false
		}
	}
	statistics := 2 * 4 * a.Batch * a.Heads * ceil(a.QLen, rowPadding) * rowPadding
	return statistics+backwardParts(backwardChunks, a.HeadDim) <= MaxScratch && backwardSteps(a)*a.Batch*a.KVHeads < 1<<31
}

// AttentionBackwardSM90 is AttentionBackward on compute capability 9.0, where its products are those of warpgroups. For
// operands that AttentionBackwardSM90Serves.
//
// The first kernel has items of 128 queries of a head, which read the keys and values that they see, and computes dq
// and on the way lse·log₂e and δ of every query for the second. That one owns 128 keys of a key-value head at a time
// and reads queries and dO of the heads of its group; its work is cut into backwardChunks shares of equal length, one a
// thread block, and what blocks computed of the same keys is added by the third in ascending order of the share. Every
// result has the same bits on any number of multiprocessors.
//
// Of 7 products of QLen·KLen/2·HeadDim multiply-adds a head, two are computed twice, scores and dO·vᵀ.
func AttentionBackwardSM90(queue Queue, dq, dk, dv, do, o, lse, q, k, v Mat, a device.Attn, first Mat) {
	need(AttentionBackwardSM90Serves(dq, dk, dv, do, o, q, k, v, a, first), "AttentionBackwardSM90", "operands it does not serve")
	base, _ := newAttentionBackward(queue, dq, dk, dv, do, o, lse, q, k, v, a, first)
	steps, b := backwardSteps(a), backwardBlocks[a.HeadDim]
	chunks := min(backwardChunks, steps*a.Batch*a.KVHeads)
	base.part = queue.Scratch(backwardParts(chunks, a.HeadDim))
	shares := backwardShares{int32(steps), int32(chunks), b.turns}
	module, prefix, args := attentionBackwardSM90Module, "attention_sm90_", unsafe.Pointer(&attentionBackwardArgs{*base, shares})
	if limits(a, first) {
		module, prefix = attentionBackwardLimitedSM90Module, "attention_limited_sm90_"
		args = unsafe.Pointer(&limitedBackwardArgs{*(*limitedArgs)(unsafe.Pointer(base)), shares})
	}
	start := func(name string, grid [3]int, block, shared int) {
		queue.Launch(Launch{Module: module, Kernel: prefix + name + b.suffix, Grid: grid, Block: block, Shared: shared, Args: args})
	}
	items := a.Batch * a.Heads * ceil(a.QLen, backwardOwn)
	start("dq", [3]int{min(items, max(1, queue.Multiprocessors())), 1, 1}, 384, b.shared(a.HeadDim, 3))
	start("dkv", [3]int{chunks, 1, 1}, 384, b.shared(a.HeadDim, 2))
	if chunks > 1 {
		start("sum", [3]int{chunks - 1, 2, backwardOwn * a.HeadDim / 8 / sumThreads}, sumThreads, 0)
	}
}
