package kernel

import (
	"fmt"
	"math/bits"
	"unsafe"
)

// HeadNormModule has the kernels of HeadNorm and HeadNormBackward.
const HeadNormModule = "headnorm"

const (
	headNormThreads = 256
	headNormBlocks  = 256 // of the backward, and so partial sums of dw
)

// headNormArgs is struct HeadNormArgs of headnorm.cu.
type headNormArgs struct {
	x, y, w, rstd                uint64
	xStride, yStride, rstdStride int64
	units, heads, d, lanes       uint32
	eps, invD                    float32
}

// headNormBackwardArgs is struct HeadNormBackwardArgs of headnorm.cu.
type headNormBackwardArgs struct {
	dx, dy, x, rstd, w, part                uint64
	dxStride, dyStride, xStride, rstdStride int64
	units, heads, d, lanes, perBlock        uint32
	invD                                    float32
}

// HeadNorm: over each group h of headDim columns of x [n, heads·headDim], bfloat16 or float32,
//
//	rstd[r,h] = (mean(x_h²)+eps)^−½,  y_h = x_h·rstd·w
//
// with w [1,headDim] float32, or zero for ones, and rstd [n,heads] float32, or zero when not kept; y may be x. Sums are
// float32, in an order that depends on the shape alone.
//
// Bytes moved per element in bfloat16: 4; of groups too wide for a warp's registers 6.
func HeadNorm(q Queue, y, rstd, x, w Mat, headDim int, eps float64) {
	heads := x.Cols / headDim
	units := x.Rows * heads
	need(units < 1<<31, "HeadNorm", "too many heads")
	if units == 0 {
		return
	}
	form := headNormForm(headDim, y, x, w)
	a := &headNormArgs{
		x: x.Ptr, y: y.Ptr, w: w.Ptr, rstd: rstd.Ptr, xStride: int64(x.Stride), yStride: int64(y.Stride), rstdStride: int64(rstd.Stride),
		units: uint32(units), heads: uint32(heads), d: uint32(headDim), lanes: form.lanes, eps: float32(eps), invD: 1 / float32(headDim),
	}
	launch(q, HeadNormModule, fmt.Sprintf("head_norm_%s_%s", typeName(x.Type), form.name), units, form.units, headNormThreads, unsafe.Pointer(a))
}

// HeadNormBackward writes dx, which may be dy, and adds to dw [1,headDim] float32, which is zero if w is: with x̂ = x·rstd,
//
//	dx_h = rstd·(dy·w − x̂·mean_h(dy·w·x̂)),  dw += Σ_rows Σ_h dy·x̂
//
// of matrices as HeadNorm has them. Sums are float32, in an order that depends on the shape alone.
//
// Bytes moved per element in bfloat16: 6.
func HeadNormBackward(q Queue, dx, dw, dy, x, rstd, w Mat, headDim int) {
	heads := x.Cols / headDim
	units := x.Rows * heads
	need(units < 1<<31, "HeadNormBackward", "too many heads")
	if units == 0 {
		return
	}
	form := headNormForm(headDim, dx, dy, x, w)
	perBlock := ceil(ceil(units, headNormBlocks), form.units) * form.units
	blocks := ceil(units, perBlock)
	a := &headNormBackwardArgs{
		dx: dx.Ptr, dy: dy.Ptr, x: x.Ptr, rstd: rstd.Ptr, w: w.Ptr,
		dxStride: int64(dx.Stride), dyStride: int64(dy.Stride), xStride: int64(x.Stride), rstdStride: int64(rstd.Stride),
		units: uint32(units), heads: uint32(heads), d: uint32(headDim), lanes: form.lanes, perBlock: uint32(perBlock), invD: 1 / float32(headDim),
	}
	parts := blocks * form.parts
	if !dw.IsZero() {
		a.part = q.Scratch(4 * parts * headDim)
	}
	launch(q, HeadNormModule, fmt.Sprintf("head_norm_backward_%s_%s", typeName(x.Type), form.name), blocks, 1, headNormThreads, unsafe.Pointer(a))
	if !dw.IsZero() {
		columnSum(q, dw, a.part, parts)
	}
}

// headForm is how thread blocks share heads: lanes of a warp per head, heads at a time per thread block, and the
// partial sums of dw that a thread block has.
type headForm struct {
	name         string
	lanes        uint32
	units, parts int
}

func headNormForm(headDim int, ms ...Mat) headForm {
	pack := packWidth(headDim, ms...)
	packs := headDim / pack
	lanes := min(32, 1<<bits.Len(uint(packs-1)))
	f := headForm{lanes: uint32(lanes), units: headNormThreads / lanes, parts: headNormThreads / 32}
	switch {
	case pack == 8 && packs <= 32:
		f.name = "8"
	case pack == 8 && packs <= 4*32:
		f.name = "32"
	case pack == 1 && packs <= 32*32:
		f.name = "1"
	default:
		return headForm{fmt.Sprintf("long_%d", pack), 32, 1, 1}
	}
	return f
}
