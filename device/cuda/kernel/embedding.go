package kernel

import (
	"fmt"
	"unsafe"
)

const (
	embeddingModule = "embedding"
	embedTile       = 1024 // keys that one thread block sorts
	embedLong       = 32   // positions beyond which a thread block adds the rows of one id
)

// embedSortArgs is struct EmbedSortArgs of embedding.cu.
type embedSortArgs struct {
	keys, ids, record uint64
	idStride          int64
	count, limit      uint32
}

// embedMergeArgs is struct EmbedMergeArgs of embedding.cu.
type embedMergeArgs struct {
	keys, sorted uint64
	tiles, count uint32
}

// embedAddArgs is struct EmbedAddArgs of embedding.cu.
type embedAddArgs struct {
	grad, dx, sorted     uint64
	gradStride, dxStride int64
	count, cols          uint32
}

// EmbedBackward adds rows: grad[ids[i]] += dx[i], grad [rows,h] float32, dx [n,h] bfloat16 or float32, ids int32 [n,1] or
// [1,n]. The rows of one id are added in ascending i, in float32 and then to grad; more than 32 of them in eight shares of
// consecutive i, whose sums are added in ascending order. An id outside grad is noted as FaultID and adds nothing.
//
// Bytes moved: those of dx, and twice those of the rows of grad that change. Sorting n ids adds work of n²/1024·10
// comparisons, a few microseconds up to n = 65,536.
func EmbedBackward(q Queue, grad, ids, dx Mat) {
	n, cols := dx.Rows, dx.Cols
	if n == 0 || cols == 0 {
		return
	}
	tiles := ceil(n, embedTile)
	keys := q.Scratch(8 * tiles * embedTile)
	sorted := q.Scratch(8 * n)
	ptr, stride := vector(ids)
	launch(q, embeddingModule, "embed_sort", tiles, 1, embedTile/2, unsafe.Pointer(&embedSortArgs{
		keys: keys, ids: ptr, record: q.Record(), idStride: int64(stride), count: uint32(n), limit: uint32(grad.Rows)}))
	launch(q, embeddingModule, "embed_merge", tiles*embedTile, 256, 256, unsafe.Pointer(&embedMergeArgs{
		keys: keys, sorted: sorted, tiles: uint32(tiles), count: uint32(n)}))
	pack := packWidth(cols, grad, dx)
	a := &embedAddArgs{
		grad: grad.Ptr, dx: dx.Ptr, sorted: sorted, gradStride: int64(grad.Stride), dxStride: int64(dx.Stride),
		count: uint32(n), cols: uint32(cols),
	}
	suffix := fmt.Sprintf("%s_%d", typeName(dx.Type), pack)
	strips := ceil(cols, 32*pack)
	q.Launch(Launch{Module: embeddingModule, Kernel: "embed_add_short_" + suffix, Grid: [3]int{ceil(n, 8), strips, 1},
		Block: 256, Args: unsafe.Pointer(a)})
	if n > embedLong {
		q.Launch(Launch{Module: embeddingModule, Kernel: "embed_add_long_" + suffix, Grid: [3]int{ceil(n, embedLong), strips, 1},
			Block: 256, Args: unsafe.Pointer(a)})
	}
}
