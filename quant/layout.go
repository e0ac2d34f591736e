package quant

import (
	"math/bits"

	"apr/internal/fault"
	"apr/tensor"
)

// Layout says where the rows of a matrix of blocks begin.
type Layout uint8

// The layouts. They are the same bytes when the columns fill whole blocks, or when there is one row.
const (
	RowPadded Layout = iota // every row starts a block; its last block is padded
	Flat                    // the matrix is one stream of elements; rows may start inside a block
)

// String returns "row-padded" or "flat".
func (l Layout) String() string {
	if l == Flat {
		return "flat"
	}
	return "row-padded"
}

// PackedLen returns the bytes of a stream of n elements of block type d, whole blocks rounded up (for AprQ8 with the
// tensor's scale, unless n is 0), and false when n is negative, d is no block type or the result does not fit an int64.
func PackedLen(n int, d tensor.DType) (int64, bool) {
	if n < 0 || !d.IsQuantized() {
		return 0, false
	}
	if d == tensor.AprQ8 {
		if n == 0 {
			return 0, true
		}
		return addInt64(int64(n), 4)
	}
	blocks := int64(n) / int64(d.BlockLen())
	if n%d.BlockLen() != 0 {
		blocks++
	}
	return mulInt64(blocks, int64(d.BlockBytes()))
}

// MatrixLen returns the bytes of a rows×cols matrix of block type d in layout l, and false when a dimension is
// negative, d is no block type or the result does not fit an int64. AprQ8 is always flat.
func MatrixLen(rows, cols int, l Layout, d tensor.DType) (int64, bool) {
	if rows < 0 || cols < 0 {
		return 0, false
	}
	if l == RowPadded && d != tensor.AprQ8 {
		row, ok := PackedLen(cols, d)
		if !ok {
			return 0, false
		}
		return mulInt64(int64(rows), row)
	}
	n, ok := mulInt64(int64(rows), int64(cols))
	if !ok || int64(int(n)) != n {
		return 0, false
	}
	return PackedLen(int(n), d)
}

// LayoutOf returns the layout of a rows×cols matrix of block type d from its payload size.
//
// K-quants (blocks of 256) occur in both layouts; where both would have this size but differ in content, the matrix
// is refused as ambiguous (E-QUANT-002). The other types are Flat. A size that fits no layout is E-QUANT-001.
// Both are faults of kind Format; the caller adds file and tensor.
func LayoutOf(size int64, rows, cols int, d tensor.DType) (Layout, error) {
	flat, flatOK := MatrixLen(rows, cols, Flat, d)
	padded, paddedOK := MatrixLen(rows, cols, RowPadded, d)
	if d.BlockLen() != superblock {
		padded, paddedOK = flat, flatOK
	}
	isFlat, isPadded := flatOK && size == flat, paddedOK && size == padded
	switch {
	case !isFlat && !isPadded:
		e := fault.New(fault.Format, "%d bytes do not fit %d×%d elements of %v", size, rows, cols, d).WithID("E-QUANT-001")
		if flatOK {
			return 0, e.WithHint("%d bytes would be right", flat)
		}
		return 0, e
	case isFlat && isPadded && d.BlockLen() == superblock && cols%superblock != 0 && rows > 1:
		return 0, fault.New(fault.Format, "rows of %d columns do not fill %v blocks, and the size does not tell how they are padded",
			cols, d).WithHint("store this tensor as bf16").WithID("E-QUANT-002")
	case isPadded && d.BlockLen() == superblock:
		return RowPadded, nil
	}
	return Flat, nil
}

// DequantizeMatrix decodes a rows×cols matrix of block type d in layout l into dst, row-major.
// It panics if len(dst) is not rows·cols or len(src) is not what [MatrixLen] says.
func DequantizeMatrix(dst []float32, src []byte, rows, cols int, l Layout, d tensor.DType) {
	want, ok := MatrixLen(rows, cols, l, d)
	if !ok || int64(len(src)) != want || len(dst) != rows*cols {
		panic("quant: matrix size and buffer lengths differ")
	}
	if l == Flat || d == tensor.AprQ8 || cols%d.BlockLen() == 0 {
		Dequantize(dst, src, d)
		return
	}
	rowBytes := len(src) / max(rows, 1)
	for r := range rows {
		Dequantize(dst[r*cols:(r+1)*cols], src[r*rowBytes:(r+1)*rowBytes], d)
	}
}

// mulInt64 multiplies two non-negative numbers; false means overflow.
func mulInt64(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	return int64(lo), hi == 0 && int64(lo) >= 0
}

// addInt64 adds two non-negative numbers; false means overflow.
func addInt64(a, b int64) (int64, bool) { return a + b, a+b >= a }
