package kernel

import (
	"math/bits"
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// FinishModule has the kernel of this file.
const FinishModule = "finish"

// finishRows is up to how many positions one kernel finishes.
const finishRows = 256

// finishArgs is struct FinishArgs of finish.cu.
type finishArgs struct {
	x, q, gate, cache                    uint64
	qNorm, kNorm, table                  uint64
	positions, places, record            uint64
	xStride, qStride, gateStride         int64
	cacheStride                          int64
	rows, heads, kv, d, half, lanes, pos uint32
	pool, limit                          uint32
	eps, invD                            float32
}

// FinishServes reports whether Finish takes these.
func FinishServes(q, gate, cache, x, qNorm, kNorm Mat, d int, r device.Rotary) bool {
	half := len(r.Table.Inv)
	return x.Rows > 0 && x.Rows <= finishRows && x.Type == tensor.BF16 && cache.Type == tensor.BF16 && d%8 == 0 && d <= 256 && half%8 == 0 && 2*half <= d &&
		packWidth(d, q, gate, cache, x) == 8 &&
		(qNorm.IsZero() || packWidth(d, qNorm) == 8) && (kNorm.IsZero() || packWidth(d, kNorm) == 8) &&
		r.QBeta == 0 && !r.Inverse
}

// Finish computes, of x = [q|k|v] of a few positions, q = rotate(norm(q)) by heads of d columns, and cache =
// [rotate(norm(k)) | v], of which places are the rows; without, it has as many as x. A norm without weights is none. q
// may stand in x. Unless gate is zero, a gate follows each head of q in x, and is copied there. The bits are those of
// HeadNorm, Rotate and Copy. Bytes moved: those of x twice.
func Finish(
	queue Queue, q, gate, cache, places, x, qNorm, kNorm Mat, d int, eps float64, r device.Rotary, t RotaryTables,
) {
	need(FinishServes(q, gate, cache, x, qNorm, kNorm, d, r), "Finish", "types, shapes or alignment")
	heads, kv := q.Cols/d, cache.Cols/(2*d)
	need(x.Cols == q.Cols+gate.Cols+cache.Cols && q.Rows == x.Rows, "Finish", "shapes differ")
	need(places.IsZero() && cache.Rows == x.Rows || places.Rows*places.Cols == x.Rows, "Finish", "shapes differ")
	queue.Launch(Launch{
		Module: FinishModule, Kernel: "finish_bf16", Grid: [3]int{ceil(x.Cols/d, warpsOfBlock), x.Rows, 1}, Block: 256,
		Args: unsafe.Pointer(&finishArgs{
			x: x.Ptr, q: q.Ptr, gate: gate.Ptr, cache: cache.Ptr, qNorm: qNorm.Ptr, kNorm: kNorm.Ptr, table: t.Table,
			positions: t.Positions.Ptr, places: places.Ptr, record: queue.Record(),
			pool: uint32(cache.Rows), limit: uint32(t.Rows),
			xStride: int64(x.Stride), qStride: int64(q.Stride), gateStride: int64(gate.Stride),
			cacheStride: int64(cache.Stride), rows: uint32(x.Rows), heads: uint32(heads), kv: uint32(kv), d: uint32(d), half: uint32(len(r.Table.Inv)),
			lanes: uint32(min(32, 1<<bits.Len(uint(d/8-1)))), pos: uint32(r.Offset), eps: float32(eps), invD: 1 / float32(d),
		}),
	})
}
