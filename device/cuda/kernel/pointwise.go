package kernel

import (
	"fmt"
	"unsafe"
)

// PointwiseModule has the kernels of Scale, Add and SoftCap.
const PointwiseModule = "pointwise"

// pointwiseArgs is struct PointwiseArgs of pointwise.cu.
type pointwiseArgs struct {
	x, y             uint64
	xStride, yStride int64
	packs, items     uint32
	f, inv           float32
}

// Scale: y = f·x, float32 or bfloat16; y may be x. Bytes moved per element in bfloat16: 4.
func Scale(q Queue, y, x Mat, f float64) { pointwise(q, "scale", y, x, pointwiseArgs{f: float32(f)}) }

// Add: dst += src, float32 or bfloat16, rounded once. Bytes moved per element in bfloat16: 6.
func Add(q Queue, dst, src Mat) { pointwise(q, "add", dst, src, pointwiseArgs{}) }

// SoftCap: y = c·tanh(x/c), float32 or bfloat16; y may be x. Bytes moved per element in bfloat16: 4.
func SoftCap(q Queue, y, x Mat, c float64) {
	pointwise(q, "cap", y, x, pointwiseArgs{f: float32(c), inv: float32(1 / c)})
}

func pointwise(q Queue, name string, y, x Mat, a pointwiseArgs) {
	need(y.Rows == x.Rows && y.Cols == x.Cols && y.Type == x.Type, name, "shapes or types differ")
	if y.dense() && x.dense() {
		y, x = y.line(), x.line()
	}
	pack, unroll := packWidth(y.Cols, y, x), 2
	if pack == 1 {
		unroll = 4
	}
	packs := y.Cols / pack
	eachRows(y.Rows, packs, func(lo, hi int) {
		args := a
		args.y, args.x, args.yStride, args.xStride = y.rows(lo, hi).Ptr, x.rows(lo, hi).Ptr, int64(y.Stride), int64(x.Stride)
		args.packs, args.items = uint32(packs), uint32((hi-lo)*packs)
		launch(q, PointwiseModule, fmt.Sprintf("pointwise_%s_%s_%d", name, typeName(y.Type), pack), int(args.items), 256*unroll, 256, unsafe.Pointer(&args))
	})
}
