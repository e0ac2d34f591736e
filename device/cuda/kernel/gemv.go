package kernel

import (
	"fmt"
	"strings"
	"unsafe"

	"apr/tensor"
)

// gemvArgs is struct GemvArgs of gemv.cu.
type gemvArgs struct {
	y, x, w, bias      uint64
	yStride, xStride   int64 // elements
	wStride            int64 // bytes
	rows, cols, tokens uint32
	flags              uint32 // gemvAdd, gemvFloat
}

// routerArgs is struct RouterArgs of gemv.cuh.
type routerArgs struct {
	gemvArgs
	norm   rowNorm
	route  routeArgs
	record uint64
}

// Bits of gemvArgs.flags.
const (
	gemvAdd = 1 << iota
	gemvFloat
)

// GemvRows is the number of rows of x up to which Gemv and GemvPlain serve.
const GemvRows = 8

// gemvThreads is the threads of a thread block, whose warps compute a column of y each (but for blocks of x of
// bfloat16).
const gemvThreads = 256

// gemvModule has products of few rows of bfloat16 with matrices that are not in blocks.
const gemvModule = "gemv"

// gemvWide is up to how many rows a matrix has that is multiplied by a thread block for each, where x is bfloat16: with a warp for each few
// bytes would be in flight, one load after the other.
const gemvWide = 256

// Gemv computes y = x·Wᵀ for few rows of x, plus bias [1,out] (float32) unless it is zero, plus y with add: x [m,in], m at
// most GemvRows, W [out,in] in quantised blocks, y [m,out]; x and y are bfloat16 or float32; rows of x begin at multiples of
// 16 bytes. With x of float32, weights are decoded in registers. With x of bfloat16, codes are multiplied as integers with x
// rounded to 16 bits, in groups of 32 that share a power of two: exact down to 1/128 of the largest of a group, an absolute
// 2⁻¹⁵ of it below. Sums are float32, of a fixed order that does not depend on m.
//
// Bytes moved: those of the blocks, once.
func Gemv(q Queue, y, x Mat, w Blocks, bias Mat, add bool) {
	if x.Type == tensor.BF16 {
		GemvParts(q, y, x, []Blocks{w}, bias, add)
		return
	}
	need(DequantizeServes(w) && rowsAt(x, 16), "Gemv", "type or alignment")
	gemv(q, gemvForm(x), y, x, w, bias, add)
}

// GemvWideServes reports whether a product of x with a matrix of so many rows is one of a thread block for each of them.
func GemvWideServes(x Mat, rows int) bool {
	return x.Rows > 0 && x.Rows <= GemvRows && x.Cols > 0 && rows > 0 && rows <= gemvWide
}

// GemvPlain is Gemv with W of bfloat16 or float32. It reads W once.
func GemvPlain(q Queue, y, x, w, bias Mat, add bool) {
	blocks := plainBlocks(w)
	if packWidth(w.Cols, w, x) == 1 {
		gemv(q, "any", y, x, blocks, bias, add)
		return
	}
	form := gemvForm(x)
	if w.Rows <= gemvWide && x.Type == tensor.BF16 {
		form = "wide_" + form
	}
	gemv(q, form, y, x, blocks, bias, add)
}

// gemvForm names the kernel for one row of x or for up to GemvRows.
func gemvForm(x Mat) string {
	if x.Rows == 1 {
		return "1"
	}
	return "8"
}

func gemv(q Queue, form string, y, x Mat, w Blocks, bias Mat, add bool) {
	if y.Rows == 0 || y.Cols == 0 {
		return
	}
	a := newGemv(y, x, w, bias, add)
	module := gemvModule
	if x.Type == tensor.F32 {
		module = "gemv_f32"
	}
	l := Launch{
		Module: module, Kernel: fmt.Sprintf("gemv_%v_%s_%s", w.Type, typeName(x.Type), form),
		Grid: [3]int{ceil(w.Rows, gemvThreads/32), 1, 1}, Block: gemvThreads, Args: unsafe.Pointer(a),
	}
	if strings.HasPrefix(form, "wide_") {
		l.Grid[0] = w.Rows
	}
	q.Launch(l)
}

func newGemv(y, x Mat, w Blocks, bias Mat, add bool) *gemvArgs {
	need(x.Rows == y.Rows && x.Rows <= GemvRows && x.Cols == w.Cols && y.Cols == w.Rows, "Gemv", "shapes differ")
	need(bias.IsZero() || bias.Cols == y.Cols && bias.Type == tensor.F32, "Gemv", "bias")
	a := &gemvArgs{
		y: y.Ptr, x: x.Ptr, w: w.Ptr, bias: bias.Ptr, yStride: int64(y.Stride), xStride: int64(x.Stride),
		wStride: int64(w.RowBytes), rows: uint32(w.Rows), cols: uint32(w.Cols), tokens: uint32(x.Rows),
	}
	if add {
		a.flags |= gemvAdd
	}
	if y.Type == tensor.F32 {
		a.flags |= gemvFloat
	}
	return a
}

// RouterServes reports whether Router takes these: W and the norm as GemvPlain and RMSNorm, experts as Route in one
// warp.
func RouterServes(norm Normed, w Mat, r Routing) bool {
	return norm.serves(gemvThreads) && w.Type == tensor.BF16 && w.Rows == r.Experts && GemvWideServes(norm.X, w.Rows) &&
		packWidth(w.Cols, w) == 8 && routesOne(1, r)
}

// Router computes norm.Y, z = norm.Y·Wᵀ (+ bias) and the choice of experts by z, as RMSNorm, GemvPlain and Route.
// It reads W once.
func Router(q Queue, weights, z Mat, norm Normed, w, bias, scale Mat, r Routing) {
	need(RouterServes(norm, w, r), "Router", "types, shapes or alignment")
	a := &routerArgs{
		gemvArgs: *newGemv(z, norm.X, plainBlocks(w), bias, false), norm: norm.row(),
		route: *newRoute(weights, z, scale, r), record: q.Record(),
	}
	q.Launch(Launch{
		Module: gemvModule, Kernel: "router_bf16", Grid: [3]int{w.Rows, 1, 1}, Block: gemvThreads, Args: unsafe.Pointer(a),
	})
}

// plainBlocks is a matrix of floats as one of blocks.
func plainBlocks(w Mat) Blocks {
	return Blocks{w.Ptr, w.Rows, w.Cols, w.Stride * w.Type.BlockBytes(), w.Type}
}
