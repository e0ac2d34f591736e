package kernel

import (
	"fmt"
	"unsafe"

	"apr/tensor"
)

const gemvModule = "gemv"

// gemvArgs is struct GemvArgs of gemv.cu.
type gemvArgs struct {
	y, x, w, bias      uint64
	yStride, xStride   int64 // elements
	wStride            int64 // bytes
	rows, cols, tokens uint32
	add                uint32
}

// GemvRows is the number of rows of x up to which Gemv and GemvPlain serve.
const GemvRows = 8

// gemvThreads is the threads of a block, which computes gemvOutputs columns of y.
const (
	gemvThreads = 256
	gemvOutputs = 8
)

// Gemv computes y = x·Wᵀ for few rows of x, plus bias [1,out] (float32) unless it is zero, plus y with add: x [m,in], m at
// most GemvRows, W [out,in] in quantised blocks, y [m,out]; x and y are bfloat16 or float32. Weights are decoded in
// registers; sums are float32, of a fixed order that does not depend on m.
//
// Bytes moved: those of the blocks, once.
func Gemv(q Queue, y, x Mat, w Blocks, bias Mat, add bool) {
	need(DequantizeServes(w), "Gemv", "type or alignment of weights")
	gemv(q, y, x, w, bias, add)
}

// GemvPlain is Gemv with W of bfloat16 or float32. Bytes moved: those of W.
func GemvPlain(q Queue, y, x, w, bias Mat, add bool) {
	gemv(q, y, x, Blocks{w.Ptr, w.Rows, w.Cols, w.Stride * w.Type.BlockBytes(), w.Type}, bias, add)
}

func gemv(q Queue, y, x Mat, w Blocks, bias Mat, add bool) {
	need(x.Rows == y.Rows && x.Rows <= GemvRows && x.Cols == w.Cols && y.Cols == w.Rows, "Gemv", "shapes differ")
	need(bias.IsZero() || bias.Cols == y.Cols && bias.Type == tensor.F32, "Gemv", "bias")
	if y.Rows == 0 || y.Cols == 0 {
		return
	}
	a := &gemvArgs{
		y: y.Ptr, x: x.Ptr, w: w.Ptr, bias: bias.Ptr, yStride: int64(y.Stride), xStride: int64(x.Stride),
		wStride: int64(w.RowBytes), rows: uint32(w.Rows), cols: uint32(w.Cols), tokens: uint32(x.Rows),
	}
	if add {
		a.add = 1
	}
	name := fmt.Sprintf("gemv_%v_%s_%s", w.Type, typeName(x.Type), typeName(y.Type))
	launch(q, gemvModule, name, w.Rows, gemvOutputs, gemvThreads, unsafe.Pointer(a))
}
