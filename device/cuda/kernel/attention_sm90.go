package kernel

import (
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// UseAttentionSM90 lets AttentionSM90Serves say yes; tests that compare kernels turn it off.
var UseAttentionSM90 = true

const attentionSM90Module = "attention_sm90"

// hopperBlock is a block of attention_sm90.cu for one head width.
type hopperBlock struct {
	kernel string
	groups int // warpgroups that compute, each 64 queries; one more fetches
	slots  int // tiles of keys and of values that fit the ring
}

// hopperKeys is the number of keys of a tile.
const hopperKeys = 128

var hopperBlocks = map[int]hopperBlock{
	64:  {"attention_sm90_d64", 2, 4},
	128: {"attention_sm90_d128", 2, 4},
}

// shared is two tiles of queries, the ring, the barriers of all of these, and what aligning them takes.
func (b hopperBlock) shared(d int) int {
	return 1024 + 2*d*(2*64*b.groups+b.slots*hopperKeys) + 16*(2+b.slots)
}

// AttentionSM90Serves reports whether AttentionSM90 serves these operands, on a device of compute capability 9.0: as
// Attention does for tensor cores, and queries enough to fill a warpgroup.
func AttentionSM90Serves(o, q, k, v Mat, a device.Attn, first Mat) bool {
	if _, ok := hopperBlocks[a.HeadDim]; !ok || !UseAttentionSM90 || PlainAttention || a.QLen < 64 || limits(a, first) {
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
// A block takes items of 128 queries of a head, of which every one reads the keys and values that its queries see:
// QLen/128 times half of them in all, mostly from the second-level cache. Every result is that of one item alone, in
// float32 in order of the keys, 128 at a time, whatever the number of multiprocessors.
func AttentionSM90(queue Queue, o, lse, q, k, v Mat, a device.Attn, first Mat) {
	need(AttentionSM90Serves(o, q, k, v, a, first), "AttentionSM90", "operands it does not serve")
	args, b := newAttention(o, lse, q, k, v, a, first), hopperBlocks[a.HeadDim]
	items := a.Batch * a.Heads * ceil(a.QLen, 64*b.groups)
	if items == 0 {
		return
	}
	queue.Launch(Launch{
		Module: attentionSM90Module, Kernel: b.kernel, Grid: [3]int{min(items, max(1, queue.Multiprocessors())), 1, 1},
		Block: 128 * (1 + b.groups), Shared: b.shared(a.HeadDim), Args: unsafe.Pointer(args),
	})
}
