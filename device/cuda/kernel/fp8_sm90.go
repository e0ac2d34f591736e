package kernel

import (
	"unsafe"

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
	packs                           uint32 // of 8 values
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
func QuantizeRows(q Queue, dst Bytes, rowScale, x Mat) {
	need(dst.Rows == x.Rows && dst.Cols == x.Cols && rowScale.Rows == x.Rows && rowScale.Cols == 1, "QuantizeRows", "shapes differ")
	need(x.Type == tensor.BF16 && rowScale.Type == tensor.F32 && x.Cols%8 == 0 && rowsAt(x, 16) && dst.Ptr%8 == 0 && dst.Stride%8 == 0,
		"QuantizeRows", "type or alignment")
	if x.Rows == 0 || x.Cols == 0 {
		return
	}
	a := &quantizeRowsArgs{dst.Ptr, rowScale.Ptr, x.Ptr, int64(dst.Stride), int64(x.Stride), int64(rowScale.Stride), uint32(x.Cols / 8)}
	q.Launch(Launch{Module: fp8Module, Kernel: "quantize_rows_e4m3", Grid: [3]int{x.Rows, 1, 1}, Block: 256, Args: unsafe.Pointer(a)})
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

// ScalesE4M3 writes the scales of a matrix that is the concatenation of src: with amax = max |x|, out[0] = amax/448, what a
// product of e4m3 numbers is multiplied by, and out[1] = 448/amax, what DequantizeE4M3 takes; both 1 if amax is below 2⁻¹⁰⁰. out is
// the device address of two float32. Bytes moved: those of the blocks.
func ScalesE4M3(q Queue, out uint64, src ...Blocks) {
	grids := make([]int, len(src))
	total := 0
	for i, b := range src {
		need(DequantizeServes(b), "ScalesE4M3", "type or alignment")
		if _, g := newDequant(0, b.Cols, b); g > 0 {
			grids[i] = min(g, 1024)
			total += grids[i]
		}
	}
	part := q.Scratch(4 * max(total, 1))
	at := part
	for i, b := range src {
		if grids[i] == 0 {
			continue
		}
		a, _ := newDequant(at, b.Cols, b)
		q.Launch(Launch{Module: fp8Module, Kernel: "absmax_" + b.Type.String(), Grid: [3]int{grids[i], 1, 1}, Block: dequantThreads, Args: unsafe.Pointer(a)})
		at += uint64(4 * grids[i])
	}
	q.Launch(Launch{Module: fp8Module, Kernel: "scales_e4m3", Grid: [3]int{1, 1, 1}, Block: 256,
		Args: unsafe.Pointer(&scalesE4M3Args{out, part, uint32(total)})})
}

// scalesE4M3Args is struct ScalesE4M3Args of fp8.cuh.
type scalesE4M3Args struct {
	out, part uint64
	n         uint32
}

// DequantizeE4M3 decodes blocks to e4m3: dst[r,c] = e4m3(x[r,c]·scale), to nearest, saturating, with x of Dequantize and
// scale the device address of a float32. Rows of dst begin at multiples of 8 bytes. For compute capability 9.0.
//
// Bytes moved: those of the blocks, and of dst.
func DequantizeE4M3(q Queue, dst Bytes, src Blocks, scale uint64) {
	need(dst.Rows == src.Rows && dst.Cols == src.Cols, "DequantizeE4M3", "shapes differ")
	need(DequantizeServes(src) && dst.Ptr%8 == 0 && dst.Stride%8 == 0, "DequantizeE4M3", "type or alignment")
	args, grid := newDequant(dst.Ptr, dst.Stride, src)
	if grid > 0 {
		args.scale = scale
		q.Launch(Launch{Module: fp8Module, Kernel: "dequant_e4m3_" + src.Type.String(), Grid: [3]int{grid, 1, 1}, Block: dequantThreads, Args: unsafe.Pointer(args)})
	}
}
