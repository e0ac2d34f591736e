package kernel

import (
	"fmt"
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// DrawNextModule has the kernels of DrawNext.
const DrawNextModule = "drawnext"

// drawNextArgs is struct DrawNextArgs of drawnext.cu.
type drawNextArgs struct {
	ids, out, x, never, limits, keys          uint64
	idStride, outStride, stride, limitsStride int64
	cols                                      uint32
}

// DrawNext writes the column of the largest x[r,i] + never[i] + g(keys[r], i) of each row to ids [n,1] int32, g being
// Gumbel's numbers of device.NextDrawer, and the column and ln softmax(x) there to out [n,2] float32: NaN if the row
// has NaN or +∞. x [n,V] float32, never [1,V] float32 or zero, keys [2n,1] int32. Each thread block computes one row.
// Scores are rounded to float32: the id that is drawn may have a score that is 1e-5 below the largest. Bytes moved: x
// once; never is read again for each row, and comes from the cache.
//
// limits [n,3] float32, if not zero, are T, p and k of device.NextDrawer. A row without limits reads x once, as above,
// and has the same bits. One with a p or a k reads x twice where its first id is left, and two more times for every id
// that was not; with both, up to twelve times more for the weight of the first k. All but the first reading of 600 KB
// a row come from the second cache. By operations, 60 a logit where scores are and 15 elsewhere, a row of 151,936
// logits takes a multiprocessor of an H200 at 1.7 GHz 40 µs, and 10 µs a further reading: estimated, not measured.
func DrawNext(q Queue, ids, out, x, never, keys, limits Mat) {
	need(x.Type == tensor.F32 && ids.Rows == x.Rows && x.Cols > 0 && x.Cols < 1<<24, "DrawNext", "shapes differ")
	need(out.Rows == x.Rows && out.Cols == 2 && keys.Rows*keys.Cols == 2*x.Rows, "DrawNext", "shapes differ")
	need(limits.IsZero() || limits.Rows == x.Rows && limits.Cols == device.NextLimits, "DrawNext", "shapes differ")
	if x.Rows == 0 {
		return
	}
	name, pack := "draw_next", 1
	if !limits.IsZero() {
		name = "draw_limited"
	}
	if x.alignedTo(16) {
		pack = argMaxPack // columns behind the last whole pack are read one at a time
	}
	ptr, stride := vector(ids)
	where, _ := vector(keys)
	a := &drawNextArgs{
		ids: ptr, out: out.Ptr, x: x.Ptr, never: never.Ptr, limits: limits.Ptr, keys: where, idStride: int64(stride),
		outStride: int64(out.Stride), stride: int64(x.Stride), limitsStride: int64(limits.Stride),
		cols: uint32(x.Cols),
	}
	q.Launch(Launch{
		Module: DrawNextModule, Kernel: fmt.Sprintf("%s_%d", name, pack), Grid: [3]int{x.Rows, 1, 1},
		Block: min(512, ceil(ceil(x.Cols, pack), 32)*32), Args: unsafe.Pointer(a),
	})
}
