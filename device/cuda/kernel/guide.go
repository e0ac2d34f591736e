package kernel

import (
	"fmt"
	"math"
	"unsafe"

	"apr/tensor"
)

// GuideModule has the kernels of Mix and SquaredError.
const GuideModule = "guide"

// mixArgs is struct MixArgs of guide.cu.
type mixArgs struct {
	y, t                 uint64
	yStride, tStride     int64
	cols, vector         uint32
	k, temperature, logW float32
}

// Mix: y = T·ln(w·softmax(t/T)) by rows, or with add y = T·ln(e^{y/T} + w·softmax(t/T)); y and t float32, without add y may be t.
// Sums are float32 within a thread and float64 from there on.
//
// Bytes moved per logit: 12, and with add 16; a row that a multiprocessor's share of the second cache holds is read from there the
// second time.
func Mix(q Queue, y, t Mat, w, temperature float64, add bool) {
	need(y.Rows == t.Rows && y.Cols == t.Cols && y.Type == tensor.F32 && t.Type == tensor.F32, "Mix", "shapes or types differ")
	if t.Rows == 0 || t.Cols == 0 {
		return
	}
	name := "mix_first"
	if add {
		name = "mix_add"
	}
	launch(q, GuideModule, name, t.Rows, 1, 512, unsafe.Pointer(&mixArgs{
		y: y.Ptr, t: t.Ptr, yStride: int64(y.Stride), tStride: int64(t.Stride), cols: uint32(t.Cols), vector: uint32(flag(fourAligned(t))),
		k: float32(log2e / temperature), temperature: float32(temperature), logW: float32(math.Log(w)),
	}))
}

// squaredArgs is struct SquaredArgs of guide.cu.
type squaredArgs struct {
	grad, u, t, sums, record     uint64
	gradStride, uStride, tStride int64
	f                            float64
	cols, n                      uint32
}

// squaredRows is the most rows of one round of launches.
const squaredRows = 1 << 20

// SquaredError adds Σ_r ‖u[r]−t[r]‖²/m to the record's first sum and writes grad = weight·InvN·2/m·(u−t), with InvN read from the
// record. u [n,m] float32, t and grad [n,m] float32 or bfloat16; grad may be u. Sums are float32 within a thread and float64 from
// there on.
//
// Bytes moved per element with bfloat16 beside u: 8.
func SquaredError(q Queue, grad, u, t Mat, weight float64) {
	need(u.Type == tensor.F32 && grad.Rows == u.Rows && grad.Cols == u.Cols && t.Rows == u.Rows && t.Cols == u.Cols && u.Cols > 0, "SquaredError", "shapes or types differ")
	if u.Rows == 0 {
		return
	}
	sums := q.Scratch(8 * min(u.Rows, squaredRows))
	for lo := 0; lo < u.Rows; lo += squaredRows {
		hi := min(lo+squaredRows, u.Rows)
		g, x, y := grad.rows(lo, hi), u.rows(lo, hi), t.rows(lo, hi)
		a := &squaredArgs{
			grad: g.Ptr, u: x.Ptr, t: y.Ptr, sums: sums, record: q.Record(), gradStride: int64(g.Stride), uStride: int64(x.Stride), tStride: int64(y.Stride),
			f: weight * 2 / float64(u.Cols), cols: uint32(u.Cols), n: uint32(hi - lo),
		}
		launch(q, GuideModule, fmt.Sprintf("squared_%s_%s", typeName(g.Type), typeName(y.Type)), hi-lo, 1, 32*min(8, ceil(u.Cols, 32)), unsafe.Pointer(a))
		launch(q, GuideModule, "squared_finish", 1, 1, 256, unsafe.Pointer(a))
	}
}
