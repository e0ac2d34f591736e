package kernel

import (
	"fmt"
	"unsafe"

	"apr/tensor"
)

const (
	normModule     = "norm"
	normBlocks     = 256 // blocks of the backward, and so partial sums of dw
	normMostCols   = 512 * 4 * 8
	normMostCols16 = 256 * 2 * 8 // of the backward, 16 values of a row to a thread
	normMostCols32 = 256 * 4 * 8
)

// rmsNormArgs is struct RMSNormArgs of norm.cu.
type rmsNormArgs struct {
	x, delta, sum, y, w, rstd                          uint64
	xStride, deltaStride, sumStride, yStride, rstdStep int64
	rows, cols, warps                                  uint32
	eps, invCols                                       float32
}

// rowNorm is struct RowNorm of norm.cuh.
type rowNorm struct {
	x, y, w      uint64
	eps, invCols float32
	warps        uint32
}

// Normed is a row X of bfloat16 whose norm Y = X·W/√(mean(X²)+Eps) what reads it first makes and writes, in the
// bits of RMSNorm.
type Normed struct {
	Y, X, W Mat
	Eps     float64
}

// row returns the norm as kernels read it.
func (n Normed) row() rowNorm {
	return rowNorm{n.X.Ptr, n.Y.Ptr, n.W.Ptr, float32(n.Eps), 1 / float32(n.X.Cols), uint32(normWarps(n.X.Cols))}
}

// serves reports whether one thread block of that many threads computes this norm with the bits of RMSNorm.
func (n Normed) serves(threads int) bool {
	x, y, w := n.X, n.Y, n.W
	return x.Rows == 1 && x.Cols > 0 && x.Type == tensor.BF16 && y.Type == tensor.BF16 &&
		packWidth(x.Cols, y, x, w) == 8 &&
		32*normWarps(x.Cols) <= threads
}

// normWarps returns the warps that add up the squares of a row in packs.
func normWarps(cols int) int { return ceil(cols, 32*4*8) }

// rmsNormBackwardArgs is struct RMSNormBackwardArgs of norm.cu.
type rmsNormBackwardArgs struct {
	dx, dy, x, rstd, w, part              uint64
	dxStride, dyStride, xStride, rstdStep int64
	rows, cols, warps, perBlock           uint32
	invCols                               float32
}

// RMSNorm: with delta, sum = x + delta and v = sum (sum may be x itself); without, v = x. Then for each row
//
//	rstd[r] = (mean(v[r]²)+eps)^−½,  y = v·rstd·w
//
// with x, delta, sum, y [n,h] bfloat16 or float32, w [1,h] and rstd [n,1] float32. delta and sum come together; rstd is
// zero when not kept; y is zero, and then w may be, when only the sum is wanted. v is sum as stored, so that the backward
// sees the same numbers; everything else is float32, in which |v| beyond 10¹⁸ overflows.
//
// Bytes moved per element in bfloat16: 4, and 4 more with delta.
func RMSNorm(q Queue, y, rstd, sum, x, delta, w Mat, eps float64) {
	if x.Rows == 0 || x.Cols == 0 {
		return
	}
	a := &rmsNormArgs{
		x: x.Ptr, delta: delta.Ptr, sum: sum.Ptr, y: y.Ptr, w: w.Ptr, rstd: rstd.Ptr, xStride: int64(x.Stride),
		deltaStride: int64(delta.Stride), sumStride: int64(sum.Stride), yStride: int64(y.Stride), rstdStep: int64(rstd.Stride),
		rows: uint32(x.Rows), cols: uint32(x.Cols), eps: float32(eps), invCols: 1 / float32(x.Cols),
	}
	name := "rmsnorm_" + typeName(x.Type)
	if packWidth(x.Cols, y, sum, x, delta, w) == 1 || x.Cols > normMostCols {
		launch(q, normModule, name+"_1", x.Rows, 1, 32*min(8, ceil(x.Cols, 32)), unsafe.Pointer(a))
		return
	}
	name += "_8"
	if !delta.IsZero() {
		name += "_add"
	}
	a.warps = uint32(normWarps(x.Cols))
	slots := max(1, 4/int(a.warps)) // rows of a thread block
	launch(q, normModule, name, x.Rows, slots, slots*int(a.warps)*32, unsafe.Pointer(a))
}

// RMSNormBackward: with x̂ = x·rstd,
//
//	dx += rstd·(dy·w − x̂·mean(dy·w·x̂)),  dw += Σ_rows dy·x̂
//
// with dx, dy, x [n,h] bfloat16 or float32, rstd [n,1], w and dw [1,h] float32. Sums are float32; that of dw runs over
// groups of rows and then over the groups, in an order that depends on the shape alone.
//
// Bytes moved per element in bfloat16: 8, and 4·256/n for dw.
func RMSNormBackward(q Queue, dx, dw, dy, x, rstd, w Mat) {
	if x.Rows == 0 || x.Cols == 0 {
		return
	}
	kernel, warps, threads := normBackwardKernel(dx, dy, x, w)
	slots := threads / 32 / warps // rows at a time
	per := ceil(ceil(x.Rows, normBlocks), slots) * slots
	blocks := ceil(x.Rows, per)
	part := q.Scratch(4 * blocks * x.Cols)
	launch(q, normModule, kernel, blocks, 1, threads, unsafe.Pointer(&rmsNormBackwardArgs{
		dx: dx.Ptr, dy: dy.Ptr, x: x.Ptr, rstd: rstd.Ptr, w: w.Ptr, part: part, dxStride: int64(dx.Stride),
		dyStride: int64(dy.Stride), xStride: int64(x.Stride), rstdStep: int64(rstd.Stride), rows: uint32(x.Rows),
		cols: uint32(x.Cols), warps: uint32(warps), perBlock: uint32(per), invCols: 1 / float32(x.Cols),
	}))
	columnSum(q, dw, part, blocks)
}

// normBackwardKernel chooses a kernel, the warps of a row and the threads of a thread block.
func normBackwardKernel(dx, dy, x, w Mat) (name string, warps, threads int) {
	name = "rmsnorm_backward_" + typeName(x.Type)
	values := 32
	switch {
	case packWidth(x.Cols, dx, dy, x, w) == 1 || x.Cols > normMostCols32:
		warps = min(8, ceil(x.Cols, 32))
		return name + "_1", warps, 32 * warps
	case x.Cols <= normMostCols16:
		values = 16
	}
	warps = ceil(x.Cols, 32*values)
	return fmt.Sprintf("%s_%d", name, values), warps, max(1, 8/warps) * warps * 32
}
