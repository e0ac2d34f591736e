package kernel

import (
	"fmt"
	"unsafe"

	"apr/tensor"
)

const dequantModule = "dequant"

// Blocks is a matrix of quantised blocks in device memory, as they are in a file: row r begins at Ptr + r·RowBytes and
// is whole blocks, one after the other. Package quant has their layout and equations.
type Blocks struct {
	Ptr        uint64 // device address, a multiple of 16
	Rows, Cols int    // values
	RowBytes   int    // between rows, at least Type.RowBytes(Cols)
	Type       tensor.DType
}

// NewBlocks returns the matrix of rows×cols values whose blocks stand at ptr without gaps.
func NewBlocks(ptr uint64, rows, cols int, d tensor.DType) Blocks {
	return Blocks{ptr, rows, cols, int(d.RowBytes(cols)), d}
}

// Slice returns rows [lo,hi) of b.
func (b Blocks) Slice(lo, hi int) Blocks {
	b.Ptr += uint64(lo * b.RowBytes)
	b.Rows = hi - lo
	return b
}

// DequantizeServes reports whether Dequantize and Gemv take these blocks: Q4_K, Q5_K, Q6_K, Q8_0, Q4_0, Q5_0, IQ4_NL, IQ4_XS
// or MXFP4 in rows of whole blocks, which begin at multiples of 16 bytes (Q4_K, Q5_K), of 8 (IQ4_XS), anywhere (MXFP4) or at
// multiples of 2 (the others).
func DequantizeServes(b Blocks) bool {
	align := 2
	switch b.Type {
	case tensor.Q4_K, tensor.Q5_K:
		align = 16
	case tensor.IQ4_XS:
		align = 8
	case tensor.MXFP4:
		align = 1
	case tensor.Q6_K, tensor.Q8_0, tensor.Q4_0, tensor.Q5_0, tensor.IQ4_NL:
	default:
		return false
	}
	return b.Cols%b.Type.BlockLen() == 0 && int64(b.RowBytes) >= b.Type.RowBytes(b.Cols) &&
		b.Ptr%uint64(align) == 0 && b.RowBytes%align == 0
}

// dequantArgs is struct DequantArgs of dequant.cuh.
type dequantArgs struct {
	dst, src, scale      uint64
	dstStride, srcStride int64 // elements, bytes
	scaleStride          int64
	chunks               uint32 // of 8 values in a row
	spans, all           uint32 // of 256 values in a row, in all rows
	perScale             uint32 // chunks of a row that share a scale
}

// The threads of a thread block, and the values that a thread block decodes: 4 spans of 256 for each of 8 warps.
const (
	dequantThreads = 256
	dequantSpans   = 32
)

// Dequantize decodes blocks: dst[r,c] = round(x[r,c]) with x of quant.Dequantize, every operation a float32 one rounded on
// its own, and one more rounding to bfloat16 (none to float32). The bits are those of the CPU. Rows of dst begin at
// multiples of 16 bytes.
//
// Bytes moved: those of the blocks, and of dst; 2.5625 a value from Q4_K to bfloat16.
func Dequantize(q Queue, dst Mat, src Blocks) {
	need(dst.Rows == src.Rows && dst.Cols == src.Cols, "Dequantize", "shapes differ")
	need(DequantizeServes(src) && rowsAt(dst, 16), "Dequantize", "type or alignment")
	args, grid := newDequant(dst.Ptr, dst.Stride, src, true)
	if grid > 0 {
		q.Launch(Launch{
			Module: dequantModule, Kernel: fmt.Sprintf("dequant_%v_%s", src.Type, typeName(dst.Type)),
			Grid: [3]int{grid, 1, 1}, Block: dequantThreads, Args: unsafe.Pointer(args),
		})
	}
}

// newDequant returns the arguments for a destination and the number of blocks. With join, rows without gaps on either
// side are one long row, so that no span is shorter than 256 but the last.
func newDequant(dst uint64, stride int, src Blocks, join bool) (*dequantArgs, int) {
	rows, cols := src.Rows, src.Cols
	if rows == 0 || cols == 0 {
		return nil, 0
	}
	if join && int64(src.RowBytes) == src.Type.RowBytes(cols) && stride == cols {
		rows, cols = 1, rows*cols
	}
	spans := ceil(cols, 256)
	need(rows*spans < 1<<31, "Dequantize", "matrix too large")
	return &dequantArgs{
		dst: dst, src: src.Ptr, dstStride: int64(stride), srcStride: int64(src.RowBytes),
		chunks: uint32(cols / 8), spans: uint32(spans), all: uint32(rows * spans),
	}, ceil(rows*spans, dequantSpans)
}
