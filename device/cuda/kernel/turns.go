package kernel

import (
	"fmt"
	"unsafe"
)

// TurnsModule has the kernels of Deinterleave and Interleave.
const TurnsModule = "turns"

// turnsArgs is struct TurnsArgs of turns.cu.
type turnsArgs struct {
	x, a, b                   uint64
	xStride, aStride, bStride int64
	width, units, items       uint32
}

// Deinterleave: a and b [n,c] are the even and the odd groups of width columns of x [n,2c], all float32 or all bfloat16.
//
// Bytes moved: twice those of x.
func Deinterleave(q Queue, a, b, x Mat, width int) { turns(q, "apart", x, a, b, width) }

// Interleave writes x, of which a and b are the even and the odd groups of width columns. Bytes moved: twice those of x.
func Interleave(q Queue, x, a, b Mat, width int) { turns(q, "together", x, a, b, width) }

// turns moves units of 16, 4 or 2 bytes, the largest that all rows and groups consist of.
func turns(q Queue, name string, x, a, b Mat, width int) {
	size := x.Type.BlockBytes()
	unit := 16
	for unit > size && !(x.alignedTo(unit) && a.alignedTo(unit) && b.alignedTo(unit) && width*size%unit == 0) {
		unit /= 2
	}
	if unit == 8 {
		unit = 4
	}
	units := x.Cols * size / unit
	strides := func(m Mat) int64 { return int64(m.Stride * size / unit) }
	eachRows(x.Rows, units, func(lo, hi int) {
		args := &turnsArgs{
			x: x.rows(lo, hi).Ptr, a: a.rows(lo, hi).Ptr, b: b.rows(lo, hi).Ptr, xStride: strides(x), aStride: strides(a), bStride: strides(b),
			width: uint32(width * size / unit), units: uint32(units), items: uint32((hi - lo) * units),
		}
		launch(q, TurnsModule, fmt.Sprintf("turns_%s_%d", name, unit), int(args.items), moveThreads*moveUnroll, moveThreads, unsafe.Pointer(args))
	})
}
