package kernel

import (
	"fmt"
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// UseAttentionSM90 lets AttentionSM90Serves say yes; tests that compare kernels turn it off.
var UseAttentionSM90 = true

const (
	attentionSM90Module        = "attention_sm90"
	attentionLimitedSM90Module = "attention_limited_sm90"
)

// hopperBlock is a thread block of attention_sm90.cuh for one head width.
type hopperBlock struct {
	groups int // warpgroups that compute, each 64 queries; one more fetches
	slots  int // tiles of keys and of values that fit the ring
	keys   int // of a tile
	places int // tiles of queries
}

var hopperBlocks = map[int]hopperBlock{
	64:  {groups: 2, slots: 4, keys: 128, places: 2},
	128: {groups: 2, slots: 4, keys: 128, places: 2},
	256: {groups: 2, slots: 5, keys: 64, places: 1},
}

// shared is the tiles of queries, the ring, the barriers of all of these, and what aligning them takes.
func (b hopperBlock) shared(d int) int {
	return 1024 + 2*d*(b.places*64*b.groups+b.slots*b.keys) + 16*(b.places+b.slots)
}

// hopperLimited reports whether the kernels with limits are those for a, on compute capability 9.0: heads of 256 columns have no
// others.
func hopperLimited(a device.Attn, first Mat) bool { return limits(a, first) || a.HeadDim == 256 }

// AttentionSM90Serves reports whether AttentionSM90 serves these operands, on a device of compute capability 9.0: as
// Attention does for tensor cores, and queries enough to fill a warpgroup, without documents, and with a soft-cap only of heads
// of 256 columns.
func AttentionSM90Serves(o, q, k, v Mat, a device.Attn, first Mat) bool {
	if _, ok := hopperBlocks[a.HeadDim]; !ok || !UseAttentionSM90 || PlainAttention || a.QLen < 64 || !first.IsZero() || a.Cap > 0 && a.HeadDim != 256 {
		return false
	}
	for _, m := range []Mat{o, q, k, v} {
		if m.Type != tensor.BF16 || !rowsAt(m, 16) {
			return false
		}
	}
	return true
}

// AttentionSM90 is Attention on compute capability 9.0, where its products are those of warpgroups. For operands that
// AttentionSM90Serves.
//
// A thread block takes items of 128 queries of a head, of which every one reads the keys and values that its queries
// see: QLen/128 times half of them in all, or those of its window, mostly from the second-level cache. Every result is
// that of one item alone, in float32 in order of the keys, 128 at a time (64 of heads of 256 columns), whatever the
// number of multiprocessors.
func AttentionSM90(queue Queue, o, lse, q, k, v Mat, a device.Attn, first Mat) {
	need(AttentionSM90Serves(o, q, k, v, a, first), "AttentionSM90", "operands it does not serve")
	args, b := newAttention(o, lse, q, k, v, a, first), hopperBlocks[a.HeadDim]
	items := a.Batch * a.Heads * ceil(a.QLen, 64*b.groups)
	if items == 0 {
		return
	}
	module := attentionSM90Module
	if hopperLimited(a, first) {
		module = attentionLimitedSM90Module
	}
	queue.Launch(Launch{
		Module: module, Kernel: fmt.Sprintf("%s_d%d", module, a.HeadDim), Grid: [3]int{min(items, max(1, queue.Multiprocessors())), 1, 1},
		Block: 128 * (1 + b.groups), Shared: b.shared(a.HeadDim), Args: unsafe.Pointer(args),
	})
}
