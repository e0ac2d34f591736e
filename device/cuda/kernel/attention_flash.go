package kernel

import (
	"apr/device"
	"apr/tensor"
)

// flashTile describes the kernels for one head width, as attention_d<width>.cu and attention_limited_d<width>.cu
// instantiate attention_flash.cuh, and attention_tf32_d<width>.cu attention_tf32.cuh.
type flashTile struct {
	module  string
	size    int        // bytes of an element
	forward flashBlock // owns queries, streams keys and values
	dq      flashBlock // the same; owns dO, too
	dkv     flashBlock // owns keys and values, streams queries, dO and two float32 a query
}

// flashBlock is one kernel's block.
type flashBlock struct {
	threads, rows, tile int // rows owned and streamed at a time
	own, streamed       int // matrices of them in shared memory
	extra               int // bytes a stage more
}

// shared is what a thread block owns and two stages of what it streams, of rows of so many bytes.
func (b flashBlock) shared(row int) int {
	return row*(b.own*b.rows+2*b.streamed*b.tile) + 2*b.extra
}

var flashTiles = map[int]flashTile{
	64: {
		module: "attention_d64", size: 2,
		forward: flashBlock{threads: 128, rows: 128, tile: 64, own: 1, streamed: 2},
		dq:      flashBlock{threads: 128, rows: 128, tile: 64, own: 2, streamed: 2},
		dkv:     flashBlock{threads: 128, rows: 64, tile: 64, own: 2, streamed: 2, extra: 512},
	},
	128: {
		module: "attention_d128", size: 2,
		forward: flashBlock{threads: 128, rows: 128, tile: 64, own: 1, streamed: 2},
		dq:      flashBlock{threads: 128, rows: 64, tile: 64, own: 2, streamed: 2},
		dkv:     flashBlock{threads: 128, rows: 64, tile: 64, own: 2, streamed: 2, extra: 512},
	},
}

// limitedTiles are those of attention_limited_d<width>.cu, which know windows, documents and soft-caps. They also serve what is
// without them where there are no others.
var limitedTiles = map[int]flashTile{
	64: {
		module: "attention_limited_d64", size: 2,
		forward: flashTiles[64].forward, dq: flashTiles[64].dq, dkv: flashTiles[64].dkv,
	},
	128: {
		module: "attention_limited_d128", size: 2,
		forward: flashTiles[128].forward, dq: flashTiles[128].dq, dkv: flashTiles[128].dkv,
	},
	256: {
		module: "attention_limited_d256", size: 2,
		forward: flashBlock{threads: 128, rows: 64, tile: 32, own: 1, streamed: 2},
		dq:      flashBlock{threads: 128, rows: 64, tile: 16, own: 2, streamed: 2},
		dkv:     flashBlock{threads: 128, rows: 32, tile: 32, own: 2, streamed: 2, extra: 256},
	},
}

// flash returns the kernels for these matrices if there are any: bfloat16 heads of 64, 128 or 256 columns whose rows begin at
// multiples of 16 bytes.
func flash(a device.Attn, first Mat, ms ...Mat) (flashTile, bool) {
	f, ok := flashTiles[a.HeadDim]
	if !ok || limits(a, first) {
		f, ok = limitedTiles[a.HeadDim]
	}
	if !ok || PlainAttention {
		return f, false
	}
	for _, m := range ms {
		if m.Type != tensor.BF16 || m.Ptr%16 != 0 || m.Stride%8 != 0 {
			return f, false
		}
	}
	return f, true
}

// attention: every block reads the keys and values that its queries see, QLen/rows times half of them in all, mostly
// from the second-level cache, where the query heads of a group meet.
func (f flashTile) attention(q Queue, a *attentionArgs) {
	f.start(q, a, f.forward, "", [3]int{int(a.heads), int(a.batch), ceil(int(a.qLen), f.forward.rows)})
}

// busy is how many blocks of dkv keep a large device busy to the end although their lengths differ. A constant and not
// the device's own number, so that the order of sums is that of the shape alone.
const busy = 640

// backward computes dq, and on the way what dkv needs of each query; then dk and dv. Where key-value heads and tiles of
// keys are too few to occupy the device, the queries of a group are cut into splits that write float32 parts to scratch,
// of which at most room bytes are free; they are added in ascending order.
func (f flashTile) backward(q Queue, a *attentionArgs, room int) {
	f.start(q, a, f.dq, "_dq", [3]int{int(a.heads), int(a.batch), ceil(int(a.qLen), f.dq.rows)})
	tiles := ceil(int(a.kLen), f.dkv.rows)
	part := 2 * 4 * int(a.batch*a.kvHeads*a.kLen*a.d)
	splits := min(ceil(busy, tiles*int(a.batch*a.kvHeads)), int(a.heads/a.kvHeads), room/part)
	if splits > 1 {
		a.splits, a.part = int32(splits), q.Scratch(splits*part)
	}
	f.start(q, a, f.dkv, "_dkv", [3]int{int(a.kvHeads * a.splits), int(a.batch), tiles})
	if splits > 1 {
		// A thread adds 8 columns of dk or dv.
		pieces := int(a.kLen * a.d / 8)
		a.start(q, f.module, f.module+"_sum", [3]int{ceil(pieces, sumThreads), int(2 * a.kvHeads), int(a.batch)}, sumThreads, 0)
	}
}

const sumThreads = 128

func (f flashTile) start(q Queue, a *attentionArgs, b flashBlock, suffix string, grid [3]int) {
	a.start(q, f.module, f.module+suffix, grid, b.threads, b.shared(int(a.d)*f.size))
}
