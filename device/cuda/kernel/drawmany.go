package kernel

import (
	"unsafe"

	"apr/device"
)

// DrawManyModule has the kernel of DrawMany.
const DrawManyModule = "drawmany"

// manyTiles and manyColumns bound the tiles whose sums drawmany.cu keeps, and are the columns of one at least.
const manyTiles, manyColumns = 2048, 256

// drawManyArgs is struct DrawManyArgs of drawmany.cu.
type drawManyArgs struct {
	out, z, keys       uint64
	outStride, zStride int64
	k                  float64
	cols, draws, tile  uint32
	bits               int32
	vector             uint32
}

// DrawMany draws out.Cols−device.ManySums ids from softmax(z/temperature) by rows: see device.ManyDrawer. keys are
// three of 32 bits for each row. A thread block takes a row.
func DrawMany(q Queue, out, z Mat, keys uint64, temperature float64) {
	if z.Rows == 0 {
		return
	}
	tile := ceil(ceil(z.Cols, manyTiles), manyColumns) * manyColumns
	warps := min(16, ceil(z.Cols, tile))
	launch(q, DrawManyModule, "draw_many", z.Rows, 1, 32*warps, unsafe.Pointer(&drawManyArgs{
		out: out.Ptr, z: z.Ptr, keys: keys, outStride: int64(out.Stride), zStride: int64(z.Stride),
		k: device.ManyScale(temperature), cols: uint32(z.Cols), draws: uint32(out.Cols - device.ManySums),
		tile: uint32(tile), bits: int32(device.ManyBits(z.Cols)), vector: uint32(flag(fourAligned(z))),
	}))
}
