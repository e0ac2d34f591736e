package kernel

import (
	"unsafe"

	"apr/device"
)

// DropoutModule has the kernels of Dropout.
const DropoutModule = "dropout"

// dropoutArgs is struct DropoutArgs of dropout.cu.
type dropoutArgs struct {
	x, y               uint64
	xStride, yStride   int64
	first, key         uint64
	cols, items, below uint32
	scale              float32
}

// Dropout: y = 0 where d drops a value, else x·scale, float32 or bfloat16, rounded once; y may be x. Bytes moved per element in
// bfloat16: 4.
func Dropout(q Queue, y, x Mat, d device.Drop) {
	need(y.Rows == x.Rows && y.Cols == x.Cols && y.Type == x.Type, "dropout", "shapes or types differ")
	below, scale := d.Threshold()
	eachRows(y.Rows, y.Cols, func(lo, hi int) {
		args := &dropoutArgs{
			x: x.rows(lo, hi).Ptr, y: y.rows(lo, hi).Ptr, xStride: int64(x.Stride), yStride: int64(y.Stride),
			first: uint64(d.First+lo) * uint64(y.Cols), key: d.Key, cols: uint32(y.Cols), items: uint32((hi - lo) * y.Cols), below: below, scale: scale,
		}
		launch(q, DropoutModule, "dropout_"+typeName(y.Type), int(args.items), 4*256, 256, unsafe.Pointer(args))
	})
}
