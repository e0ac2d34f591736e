package kernel

import (
	"fmt"
	"math"
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// PagesModule has the kernels of AttendPages.
const PagesModule = "attention_pages"

const pagesQueries = 8 // query heads of a block of pages_tiles

// pagesWarps are the warps of a thread block of pages_tiles, by columns of a head.
var pagesWarps = map[int]int{64: 8, 128: 6, 256: 4}

// pagesArgs is struct PagesArgs of attention_pages.cu.
type pagesArgs struct {
	q, k, v, o, table, first, keys, sinks, part, record uint64
	qStride, oStride, kStride, vStride                  int64
	entries, pool                                       uint32
	rows, heads, kvHeads, d, most, share, splits        int32
	code                                                uint32
	log2Scale, capIn, capOut                            float32
}

var _ [168]byte = [unsafe.Sizeof(pagesArgs{})]byte{}

// AttendPages launches attention of one query a row to keys in pages: see device.Pager. q, o [n, Heads·d]; k, v
// [pool, KVHeads·d]; all float32 or all bfloat16. Sums are float32. A row of more than decodeShare keys is cut into as
// many shares as its own number of keys says, which a second kernel joins, so that no row's bits depend on another's.
//
// Heads of 64, 128 or 256 columns in bfloat16 go through tensor cores, for which softmax weights are rounded to bfloat16.
//
// Bytes moved: q, o, and the keys and values that rows see. Tensor cores read a key once for up to eight query heads of a
// group; the plain kernel reads it once for each head, mostly from the second-level cache.
func AttendPages(queue Queue, o, q, k, v, table, first, keys, sinks Mat, a device.Paged) {
	n := q.Rows
	if n == 0 {
		return
	}
	splits := min(ceil(a.Most, decodeShare), decodeSplits)
	row := 4 * (a.HeadDim + 2) * a.Heads * splits // bytes of a row's shares
	need(row <= MaxScratch, "AttendPages", "heads whose sums have no room")
	per := min(n, math.MaxUint16)
	part := uint64(0)
	if splits > 1 {
		per = min(per, MaxScratch/row)
		part = queue.Scratch(row * per)
	}
	for lo := 0; lo < n; lo += per {
		hi := min(n, lo+per)
		args := newPages(queue, o.rows(lo, hi), q.rows(lo, hi), k, v, table, a)
		args.first, args.keys = first.Ptr+uint64(4*lo), keys.Ptr+uint64(4*lo)
		args.sinks, args.part, args.splits = sinks.Ptr, part, int32(splits)
		args.attend(queue, q, k, v)
		if splits > 1 {
			args.start(queue, PagesModule+"_join"+plainSuffix(q.Type), [3]int{a.Heads, hi - lo, 1}, 256)
		}
	}
}

// newPages returns the arguments but for the numbers of keys and the scratch.
func newPages(queue Queue, o, q, k, v, table Mat, a device.Paged) *pagesArgs {
	like := newAttention(o, Mat{}, q, k, v, a.Attn(q.Rows, 1), Mat{})
	limits := (*limitedArgs)(unsafe.Pointer(like)) // every attentionArgs begins one
	return &pagesArgs{
		q: q.Ptr, k: k.Ptr, v: v.Ptr, o: o.Ptr, table: table.Ptr, record: queue.Record(),
		qStride: int64(q.Stride), oStride: int64(o.Stride), kStride: int64(k.Stride), vStride: int64(v.Stride),
		entries: uint32(table.Rows * table.Cols), pool: uint32(k.Rows),
		rows: int32(q.Rows), heads: int32(a.Heads), kvHeads: int32(a.KVHeads), d: int32(a.HeadDim),
		most: int32(a.Most), share: decodeShare, code: FaultRow,
		log2Scale: like.log2Scale, capIn: limits.capIn, capOut: limits.capOut,
	}
}

// attend queues the launch over heads, rows and shares.
func (a *pagesArgs) attend(queue Queue, q, k, v Mat) {
	d, grid := int(a.d), [3]int{int(a.heads), int(a.rows), int(a.splits)}
	packs := d <= 256 && packWidth(d, q, k, v) != 1
	switch warps := pagesWarps[d]; {
	case packs && warps > 0 && q.Type == tensor.BF16:
		grid[0] = int(a.kvHeads) * ceil(int(a.heads/a.kvHeads), pagesQueries)
		a.start(queue, fmt.Sprintf("%s_tiles_%d", PagesModule, d), grid, 32*warps)
	case packs:
		a.start(queue, PagesModule+"_packs"+plainSuffix(q.Type), grid, 512)
	default:
		a.start(queue, PagesModule+plainSuffix(q.Type), grid, 256)
	}
}

func (a *pagesArgs) start(q Queue, name string, grid [3]int, block int) {
	q.Launch(Launch{Module: PagesModule, Kernel: name, Grid: grid, Block: block, Args: unsafe.Pointer(a)})
}
