package kernel

import (
	"unsafe"

	"apr/device"
	"apr/tensor"
)

const fp8Module = "fp8_sm90"

// Bytes is a row-major matrix of one-byte elements in device memory, such as e4m3 numbers.
type Bytes struct {
	Ptr                uint64 // a multiple of 16
	Rows, Cols, Stride int
}

// quantizeRowsArgs is struct QuantizeRowsArgs of fp8.cuh.
type quantizeRowsArgs struct {
	dst, scale, x                   uint64
	dstStride, xStride, scaleStride int64
	rows, packs                     uint32 // packs: of 8 values in a row
	shift                           uint32 // 2^shift warps have a row together
}

// scaleRowsArgs is struct ScaleRowsArgs of fp8.cuh.
type scaleRowsArgs struct {
	y, scale, bias       uint64
	yStride, scaleStride int64
	packs, items         uint32 // packs of 8 values of a row, of all rows
}

// QuantizeRows converts rows to e4m3 with a scale each: rowScale[r] = max_c |x[r,c]|/448 (1 if that maximum is below 2⁻¹⁰⁰) and
// dst[r,c] = e4m3(x[r,c]·(1/rowScale[r])), to nearest, saturating. x bfloat16 [n,k], rowScale float32 [n,1]; k is a
// multiple of 8, rows of x begin at multiples of 16 bytes and rows of dst at multiples of 8. For compute capability 9.0.
//
// Bytes moved: 2 of x (the second reading comes from the cache) and 1 of dst an element.
func QuantizeRows(q Queue, dst Bytes, rowScale, x Mat) { quantizeRows(q, "rows", dst, rowScale, x, 1) }

// QuantizeGLU is QuantizeRows of what GLU makes of gu, in the same bits.
//
// Bytes moved: 4 of gu and 1 of dst an element of dst.
func QuantizeGLU(q Queue, dst Bytes, rowScale, gu Mat, act device.Activation) {
	quantizeRows(q, GLUModule(act), dst, rowScale, gu, 2)
}

// quantizeRows converts rows of which x has so many columns for one of dst.
func quantizeRows(q Queue, of string, dst Bytes, rowScale, x Mat, each int) {
	shapes := dst.Rows == x.Rows && each*dst.Cols == x.Cols && rowScale.Rows == x.Rows && rowScale.Cols == 1
	need(shapes, "QuantizeRows", "shapes differ")
	aligned := dst.Cols%8 == 0 && rowsAt(x, 16) && dst.Ptr%8 == 0 && dst.Stride%8 == 0
	need(x.Type == tensor.BF16 && rowScale.Type == tensor.F32 && aligned, "QuantizeRows", "type or alignment")
	if dst.Rows == 0 || dst.Cols == 0 {
		return
	}
	packs, shift := dst.Cols/8, 0
	for shift < 3 && packs > 4*32<<shift { // 4 packs of a thread stay in registers
		shift++
	}
	a := &quantizeRowsArgs{
		dst.Ptr, rowScale.Ptr, x.Ptr, int64(dst.Stride), int64(x.Stride), int64(rowScale.Stride),
		uint32(dst.Rows), uint32(packs), uint32(shift),
	}
	launch(q, fp8Module, "quantize_"+of+"_e4m3", dst.Rows, 8>>shift, 256, unsafe.Pointer(a))
}

// ScaleRows multiplies rows: y[r,c] = y[r,c]·rowScale[r] + bias[c], y bfloat16 or float32 [n,m], rowScale float32 [n,1],
// bias float32 [1,m] or zero; m is a multiple of 8 and rows of y begin at multiples of 16 bytes.
//
// Bytes moved: twice those of y.
func ScaleRows(q Queue, y, rowScale, bias Mat) {
	need(rowScale.Rows == y.Rows && rowScale.Cols == 1 && rowScale.Type == tensor.F32, "ScaleRows", "scales")
	need(bias.IsZero() || bias.Cols == y.Cols && bias.Type == tensor.F32 && bias.Ptr%16 == 0, "ScaleRows", "bias")
	need(y.Cols%8 == 0 && rowsAt(y, 16), "ScaleRows", "alignment")
	packs := y.Cols / 8
	eachRows(y.Rows, packs, func(lo, hi int) {
		part, s := y.rows(lo, hi), rowScale.rows(lo, hi)
		a := &scaleRowsArgs{part.Ptr, s.Ptr, bias.Ptr, int64(y.Stride), int64(s.Stride), uint32(packs), uint32(part.Rows * packs)}
		launch(q, fp8Module, "scale_rows_"+typeName(y.Type), part.Rows*packs, 1024, 256, unsafe.Pointer(a))
	})
}

// scaleE4M3Args is struct ScaleE4M3Args of fp8.cuh.
type scaleE4M3Args struct {
	scale, part uint64
	n           uint32
}

// ScaleE4M3 computes the scale of a matrix of which src are the rows, one part after the other: scale = amax/448 with
// amax = max |x|, 1 if amax is below 2⁻¹⁰⁰; scale is float32 [1,1]. Bytes moved: those of the blocks.
func ScaleE4M3(q Queue, scale Mat, src ...Blocks) {
	need(scale.Rows == 1 && scale.Cols == 1 && scale.Type == tensor.F32, "ScaleE4M3", "scale")
	total := 0
	for _, b := range src {
		total += absmaxGrid(b)
	}
	part := q.Scratch(4 * max(total, 1))
	at := part
	for _, b := range src {
		need(DequantizeServes(b), "ScaleE4M3", "type or alignment")
		if n := absmaxGrid(b); n > 0 {
			a, _ := newDequant(at, b.Cols, b, true)
			q.Launch(Launch{Module: fp8Module, Kernel: "absmax_" + b.Type.String(), Grid: [3]int{n, 1, 1}, Block: dequantThreads, Args: unsafe.Pointer(a)})
			at += uint64(4 * n)
		}
	}
	a := &scaleE4M3Args{scale.Ptr, part, uint32(total)}
	q.Launch(Launch{Module: fp8Module, Kernel: "scale_e4m3", Grid: [3]int{1, 1, 1}, Block: 256, Args: unsafe.Pointer(a)})
}

// absmaxGrid returns how many blocks look for the maximum of b.
func absmaxGrid(b Blocks) int { return min(ceil(b.Rows*ceil(b.Cols, 256), dequantSpans), 1024) }

// RowScalesE4M3 computes a scale for every row of src, as ScaleE4M3 does for a matrix: scale is float32 [rows,1].
func RowScalesE4M3(q Queue, scale Mat, src Blocks) {
	need(scale.Rows == src.Rows && scale.Cols == 1 && scale.Type == tensor.F32, "RowScalesE4M3", "scale")
	need(DequantizeServes(src), "RowScalesE4M3", "type or alignment")
	if a, grid := newDequant(0, src.Cols, src, false); grid > 0 {
		a.scale, a.scaleStride = scale.Ptr, int64(scale.Stride)
		q.Launch(Launch{Module: fp8Module, Kernel: "row_scales_" + src.Type.String(), Grid: [3]int{src.Rows, 1, 1}, Block: dequantThreads, Args: unsafe.Pointer(a)})
	}
}

// DequantizeE4M3 decodes blocks to e4m3: dst[r,c] = e4m3(x[r,c]·(1/scale)), to nearest, saturating, with x of Dequantize.
// scale is float32, [1,1] for one of the whole matrix or [rows,1] for one of every row. Rows of dst begin at multiples of
// 8 bytes. For compute capability 9.0.
//
// Bytes moved: those of the blocks, and of dst; 1.5625 a value from Q4_K.
func DequantizeE4M3(q Queue, dst Bytes, src Blocks, scale Mat) {
	need(dst.Rows == src.Rows && dst.Cols == src.Cols, "DequantizeE4M3", "shapes differ")
	need(scale.Cols == 1 && (scale.Rows == 1 || scale.Rows == src.Rows) && scale.Type == tensor.F32, "DequantizeE4M3", "scale")
	need(DequantizeServes(src) && dst.Ptr%8 == 0 && dst.Stride%8 == 0, "DequantizeE4M3", "type or alignment")
	a, grid := newDequant(dst.Ptr, dst.Stride, src, true)
	if grid == 0 {
		return
	}
	if a.scale, a.perScale = scale.Ptr, a.chunks; scale.Rows > 1 {
		a.scaleStride, a.perScale = int64(scale.Stride), uint32(src.Cols/8)
	}
	q.Launch(Launch{Module: fp8Module, Kernel: "dequant_e4m3_" + src.Type.String(), Grid: [3]int{grid, 1, 1}, Block: dequantThreads, Args: unsafe.Pointer(a)})
}
