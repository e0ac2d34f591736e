package kernel

import (
	"fmt"
	"unsafe"

	"apr/tensor"
)

const (
	moveModule  = "move"
	moveThreads = 256
	moveUnroll  = 4       // packs of a thread
	maxItems    = 1 << 30 // packs of one launch: kernels count them in 32 bits
	argMaxPack  = 8
	argMaxSlice = 512 * argMaxPack // columns of a row from which on another block takes some: a pack a thread
)

// copyArgs is struct CopyArgs of move.cu.
type copyArgs struct {
	src, dst             uint64
	srcStride, dstStride int64
	packs, items         uint32
}

// gatherArgs is struct GatherArgs of move.cu.
type gatherArgs struct {
	dst, src, ids, record          uint64
	dstStride, srcStride, idStride int64
	limit, packs, items, code      uint32
}

// argMaxArgs is struct ArgMaxArgs of argmax.cuh.
type argMaxArgs struct {
	ids, best, x, part, record   uint64
	idStride, bestStride, stride int64
	cols, slice                  uint32
}

// Zero sets m, of any plain type, to zero. Bytes moved: those of m.
func Zero(q Queue, m Mat) { moveUnits(q, "zero", m, Mat{}) }

// Copy copies src to dst, which may be of another float type: float32 is rounded to the nearest bfloat16, ties to even.
// They do not overlap. Bytes moved: those of src and dst.
func Copy(q Queue, dst, src Mat) {
	need(dst.Rows == src.Rows && dst.Cols == src.Cols, "Copy", "shapes differ")
	if dst.Type == src.Type {
		moveUnits(q, "copy", dst, src)
		return
	}
	name := "convert_" + typeName(dst.Type) + "_" + typeName(src.Type)
	if dst.dense() && src.dense() {
		dst, src = dst.line(), src.line()
	}
	pack := packWidth(dst.Cols, dst, src)
	eachRows(dst.Rows, dst.Cols/pack, func(lo, hi int) {
		to, from := dst.rows(lo, hi), src.rows(lo, hi)
		launchMove(q, fmt.Sprintf("%s_%d", name, pack), to, from, dst.Cols/pack, int64(dst.Stride), int64(src.Stride))
	})
}

// moveUnits zeroes dst, or copies src to it, in the largest unit of 16, 4 and 2 bytes that fits both.
func moveUnits(q Queue, name string, dst, src Mat) {
	if dst.dense() && (src.IsZero() || src.dense()) {
		dst, src = dst.line(), src.line()
	}
	size := dst.Type.BlockBytes()
	unit := 16
	for unit > size && !(dst.alignedTo(unit) && src.alignedTo(unit) && dst.Cols*size%unit == 0) {
		unit /= 2
	}
	if unit == 8 {
		unit = 4
	}
	strides := func(m Mat) int64 { return int64(m.Stride * size / unit) }
	eachRows(dst.Rows, dst.Cols*size/unit, func(lo, hi int) {
		to, from := dst.rows(lo, hi), src.rows(lo, hi)
		launchMove(q, fmt.Sprintf("%s_%d", name, unit), to, from, dst.Cols*size/unit, strides(dst), strides(src))
	})
}

func launchMove(q Queue, name string, dst, src Mat, packs int, dstStride, srcStride int64) {
	items := dst.Rows * packs
	a := &copyArgs{src.Ptr, dst.Ptr, srcStride, dstStride, uint32(packs), uint32(items)}
	launch(q, moveModule, name, items, moveThreads*moveUnroll, moveThreads, unsafe.Pointer(a))
}

// Gather copies rows, dst[i] = src[rows[i]], between any of float32 and bfloat16; rows is int32 [n,1] or [1,n]. A row
// outside src is noted as FaultRow, and its dst is zero. Bytes moved: those of dst, and as many elements of src.
func Gather(q Queue, dst, src, rows Mat) { gather(q, dst, src, rows, FaultRow) }

// Embed is Gather from an embedding table: dst[i] = table[ids[i]]. An id outside the table is noted as FaultID, and its
// dst is zero.
func Embed(q Queue, dst, table, ids Mat) { gather(q, dst, table, ids, FaultID) }

func gather(q Queue, dst, src, ids Mat, code uint32) {
	need(ids.Rows*ids.Cols == dst.Rows && dst.Cols == src.Cols, "Gather", "shapes differ")
	pack := packWidth(dst.Cols, dst, src)
	name := fmt.Sprintf("gather_%s_%s_%d", typeName(dst.Type), typeName(src.Type), pack)
	eachRows(dst.Rows, dst.Cols/pack, func(lo, hi int) {
		launchGather(q, name, dst.rows(lo, hi), src, ids, lo, (hi-lo)*(dst.Cols/pack), &gatherArgs{
			limit: uint32(src.Rows), packs: uint32(dst.Cols / pack), code: code})
	})
}

// Scatter sets dst to zero and copies rows, dst[rows[i]] = src[i], of one type; the rows are distinct. A row outside dst
// is noted as FaultRow and copied nowhere. Bytes moved: those of dst, and twice those of src.
func Scatter(q Queue, dst, src, rows Mat) {
	need(rows.Rows*rows.Cols == src.Rows && dst.Cols == src.Cols && dst.Type == src.Type, "Scatter", "shapes or types differ")
	Zero(q, dst)
	PutRows(q, dst, src, rows)
}

// PutRows is Scatter that leaves the other rows of dst as they are. Bytes moved: twice those of src.
func PutRows(q Queue, dst, src, rows Mat) {
	alike := dst.Cols == src.Cols && dst.Type == src.Type
	need(alike && rows.Rows*rows.Cols == src.Rows, "PutRows", "shapes or types differ")
	pack := packWidth(dst.Cols, dst, src)
	name := fmt.Sprintf("scatter_%s_%d", typeName(dst.Type), pack)
	eachRows(src.Rows, dst.Cols/pack, func(lo, hi int) {
		launchGather(q, name, dst, src.rows(lo, hi), rows, lo, (hi-lo)*(dst.Cols/pack), &gatherArgs{
			limit: uint32(dst.Rows), packs: uint32(dst.Cols / pack), code: FaultRow})
	})
}

// launchGather completes a for the ids from the lo-th on.
func launchGather(q Queue, name string, dst, src, ids Mat, lo, items int, a *gatherArgs) {
	ptr, stride := vector(ids)
	a.ids, a.idStride = ptr+uint64(4*stride*lo), int64(stride)
	a.dst, a.dstStride, a.src, a.srcStride = dst.Ptr, int64(dst.Stride), src.Ptr, int64(src.Stride)
	a.record, a.items = q.Record(), uint32(items)
	launch(q, moveModule, name, items, moveThreads*moveUnroll, moveThreads, unsafe.Pointer(a))
}

// ArgMax writes the index of the largest value of each row of x, float32 or bfloat16, to ids [n,1] int32: the lowest
// index of equal values. NaN is skipped; a row of NaN alone gives 0. best [n,2] float32, if it is not zero, receives the index as a
// number, exact below 2²⁴, and the largest value, or NaN if the row has NaN or +∞.
//
// A row is a thread block's. Rows that are few and long are cut into slices, so that the blocks of all of them are
// about two a multiprocessor at most: each leaves the best of its slice in scratch, and the last to come takes the best
// of these. Which one that is changes nothing, for the larger of two, of equal ones the lower, is the same in every
// order.
//
// Bytes moved: those of x, and 32 for each slice.
func ArgMax(q Queue, ids, best, x Mat) {
	need(ids.Rows*ids.Cols == x.Rows && x.Cols > 0 && x.Cols < 1<<31, "ArgMax", "shapes differ")
	need(best.IsZero() || best.Type == tensor.F32 && best.Rows == x.Rows && best.Cols == 2, "ArgMax", "best is not [n, 2] float32")
	if x.Rows == 0 {
		return
	}
	pack := 1
	if x.alignedTo(16) {
		pack = argMaxPack // what is left of a row comes one by one
	}
	slice := argMaxShare(x.Rows, x.Cols, q.Multiprocessors())
	slices := ceil(x.Cols, slice)
	ptr, stride := vector(ids)
	a := &argMaxArgs{
		ids: ptr, best: best.Ptr, x: x.Ptr, record: q.Record(), idStride: int64(stride), bestStride: int64(best.Stride),
		stride: int64(x.Stride), cols: uint32(x.Cols), slice: uint32(slice),
	}
	if slices > 1 {
		a.part = q.Scratch(16 * x.Rows * slices)
	}
	q.Launch(Launch{
		Module: moveModule, Kernel: fmt.Sprintf("argmax_%s_%d", typeName(x.Type), pack), Grid: [3]int{x.Rows, slices, 1},
		Block: min(512, ceil(ceil(slice, pack), 32)*32), Args: unsafe.Pointer(a),
	})
}

// argMaxShare returns how many columns of a row a thread block takes, whole packs of them.
func argMaxShare(rows, cols, multiprocessors int) int {
	slices := max(1, min(ceil(cols, argMaxSlice), 2*multiprocessors/rows))
	return ceil(ceil(cols, slices), argMaxPack) * argMaxPack
}

// launch starts a kernel that counts items, perBlock to a thread block.
func launch(q Queue, module, name string, items, perBlock, threads int, args unsafe.Pointer) {
	q.Launch(Launch{Module: module, Kernel: name, Grid: [3]int{(items + perBlock - 1) / perBlock, 1, 1}, Block: threads, Args: args})
}

// eachRows calls do for ranges of rows that together are [0,rows), each of at most maxItems packs or of one row; not at
// all if there is nothing.
func eachRows(rows, packs int, do func(lo, hi int)) {
	if packs == 0 {
		return
	}
	need(packs < 1<<31, "launch", "row too long")
	step := max(1, maxItems/packs)
	for lo := 0; lo < rows; lo += step {
		do(lo, min(rows, lo+step))
	}
}

// rows returns rows [lo,hi) of m; none of none.
func (m Mat) rows(lo, hi int) Mat {
	if !m.IsZero() {
		m.Ptr += uint64(lo * m.Stride * m.Type.BlockBytes())
		m.Rows = hi - lo
	}
	return m
}

// dense reports whether m has no gaps between its rows.
func (m Mat) dense() bool { return m.Rows <= 1 || m.Stride == m.Cols }

// line returns the elements of a dense matrix as one row, if a kernel can count them.
func (m Mat) line() Mat {
	if n := m.Rows * m.Cols; !m.IsZero() && n <= maxItems {
		m.Rows, m.Cols, m.Stride = min(m.Rows, 1), n, n
	}
	return m
}

// alignedTo reports whether all rows of m begin at multiples of n bytes, n a power of two.
func (m Mat) alignedTo(n int) bool {
	return m.IsZero() || m.Ptr%uint64(n) == 0 && (m.Rows <= 1 || m.Stride*m.Type.BlockBytes()%n == 0)
}

// packWidth returns how many elements a kernel takes at a time: 8 if rows of cols elements are whole packs and those of
// all matrices begin at multiples of 16 bytes, else 1.
func packWidth(cols int, ms ...Mat) int {
	for _, m := range ms {
		if !m.alignedTo(16) {
			return 1
		}
	}
	if cols%8 != 0 {
		return 1
	}
	return 8
}

// vector returns the address and the distance in elements of the n elements of an [n,1] or [1,n] matrix of int32.
func vector(m Mat) (ptr uint64, stride int) {
	need(m.Type == tensor.I32 && (m.Rows <= 1 || m.Cols <= 1), "ids", "no int32 vector")
	if m.Cols == 1 && m.Rows > 1 {
		return m.Ptr, m.Stride
	}
	return m.Ptr, 1
}

// typeName returns the name of a float type in kernels' names.
func typeName(d tensor.DType) string {
	switch d {
	case tensor.F32:
		return "f32"
	case tensor.BF16:
		return "bf16"
	}
	panic("kernel: no kernels for " + d.String())
}

// need panics with the operation's name if its operands do not fit.
func need(ok bool, op, what string) {
	if !ok {
		panic("kernel: " + op + ": " + what)
	}
}
