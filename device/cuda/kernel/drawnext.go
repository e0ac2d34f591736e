package kernel

import (
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// DrawNextModule has the kernels of DrawNext.
const DrawNextModule = "drawnext"

// drawNextArgs is struct DrawNextArgs of drawnext.cu.
type drawNextArgs struct {
	ids, out, x, never, limits, keys          uint64
	records, states, arrived                  uint64
	idStride, outStride, stride, limitsStride int64
	cols, part, parts, rows, again            uint32
}

const (
	drawPart   = 4096 // columns that a block of the first launches has
	drawRecord = 32   // bytes that it leaves
	drawState  = 48   // bytes of struct State of drawnext.cu
)

// DrawNext writes the column of the largest x[r,i] + never[i] + g(keys[r], i) of each row to ids [n,1] int32, g being
// Gumbel's numbers of device.NextDrawer, and the column and ln softmax(x) there to out [n,2] float32: NaN if the row
// has NaN or +∞. x [n,V] float32, never [1,V] float32 or zero, keys [2n,1] int32. Scores are rounded to float32: the
// id that is drawn may have a score that is 1e-5 below the largest. Bytes moved: x once; never is read again for each
// row, and comes from the cache.
//
// limits [n,3] float32, if not zero, are T, p and k of device.NextDrawer. A row without limits has the same bits as
// with none. One with a p or a k reads x once more to learn whether they leave the best column, and twice if they do
// not; twice again for every further column that they do not leave, and with both, up to twelve times for the weight of
// the first k. All but the first reading of 600 KB a row come from the second cache.
//
// Rows are cut into parts of drawPart columns, a block each, until two columns have been looked at; one block a row
// does what remains, which for most rows is to write what was found. How sums are cut depends on V alone. Counted, 40
// instructions a logit where scores are and 15 elsewhere, 64 rows of 151,936 logits take an H200 at 1.7 GHz 20 µs
// and 7 µs.
func DrawNext(q Queue, ids, out, x, never, keys, limits Mat) {
	need(x.Type == tensor.F32 && ids.Rows == x.Rows && x.Cols > 0 && x.Cols < 1<<24, "DrawNext", "shapes differ")
	need(out.Rows == x.Rows && out.Cols == 2 && keys.Rows*keys.Cols == 2*x.Rows, "DrawNext", "shapes differ")
	need(limits.IsZero() || limits.Rows == x.Rows && limits.Cols == device.NextLimits, "DrawNext", "shapes differ")
	parts := ceil(x.Cols, drawPart)
	need(x.Rows*(drawRecord*parts+drawState+4) <= MaxScratch, "DrawNext", "rows whose records have no room")
	if x.Rows == 0 {
		return
	}
	ptr, stride := vector(ids)
	where, _ := vector(keys)
	records := q.Scratch(x.Rows * (drawRecord*parts + drawState + 4))
	states := records + uint64(drawRecord*x.Rows*parts)
	a := drawNextArgs{
		ids: ptr, out: out.Ptr, x: x.Ptr, never: never.Ptr, limits: limits.Ptr, keys: where,
		records: records, states: states, arrived: states + uint64(drawState*x.Rows),
		idStride: int64(stride), outStride: int64(out.Stride), stride: int64(x.Stride), limitsStride: int64(limits.Stride),
		cols: uint32(x.Cols), part: drawPart, parts: uint32(parts), rows: uint32(x.Rows),
	}
	launch := func(name string, a drawNextArgs, grid [3]int, block int) {
		q.Launch(Launch{Module: DrawNextModule, Kernel: name, Grid: grid, Block: block, Args: unsafe.Pointer(&a)})
	}
	each, again := [3]int{x.Rows, parts, 1}, a
	again.again = 1
	launch("draw_begin", a, [3]int{ceil(x.Rows, 256), 1, 1}, 256)
	launch("draw_scores", a, each, 128)
	if parts > 1 && !limits.IsZero() {
		launch("draw_share", a, each, 128)
		launch("draw_scores", again, each, 128)
		launch("draw_share", again, each, 128)
	}
	launch("draw_end", a, [3]int{x.Rows, 1, 1}, min(1024, 32*ceil(x.Cols, 32)))
}
