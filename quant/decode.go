package quant

import (
	"encoding/binary"
	"fmt"
	"math"

	"apr/tensor"
)

// group is the number of elements that decoders produce at a time: the block of the small formats, and the part of a
// 256-element block that shares a Q4_K scale.
const group = 32

// Dequantize decodes src, the blocks of one row of len(dst) elements (or of several rows that fill their blocks),
// into dst. The last block may hold more elements than dst: they are padding.
//
// len(src) must be [PackedLen](len(dst), d); Dequantize panics if it is not, or if d is not a block type.
// Equations and rounding: see the package comment. Layouts: GGML's ggml-quants, and aprender's for AprQ4 and AprQ8.
func Dequantize(dst []float32, src []byte, d tensor.DType) {
	if want, ok := PackedLen(len(dst), d); ok && int64(len(src)) != want {
		panic(fmt.Sprintf("quant: %d bytes of %v for %d elements, want %d", len(src), d, len(dst), want))
	}
	DequantizeRange(dst, src, 0, d)
}

// DequantizeRange decodes elements [lo, lo+len(dst)) of src into dst; src starts at a block boundary and may be longer
// than needed. Element lo is counted from the start of src, so that row r of a flat tensor of c columns is lo = r·c.
// It is fast when lo and len(dst) are multiples of 32, and fastest when they are multiples of the block.
//
// For AprQ8, src is the whole payload of the tensor, scale first.
// It panics if src is too short, lo is negative or d is not a block type.
func DequantizeRange(dst []float32, src []byte, lo int, d tensor.DType) {
	if !d.IsQuantized() {
		panic("quant: " + d.String() + " is not a block type")
	}
	if need, ok := PackedLen(lo+len(dst), d); lo < 0 || !ok || int64(len(src)) < need {
		panic(fmt.Sprintf("quant: elements [%d,%d) of %v are not in %d bytes", lo, lo+len(dst), d, len(src)))
	}
	if len(dst) == 0 {
		return
	}
	if d == tensor.AprQ8 {
		decodeAprQ8(dst, src, lo)
		return
	}
	if lo%group == 0 && len(dst)%group == 0 {
		decodeGroups(dst, src, lo/group, d)
		return
	}
	decodeRagged(dst, src, lo, d)
}

// decodeRagged decodes a range that begins or ends inside a group.
func decodeRagged(dst []float32, src []byte, lo int, d tensor.DType) {
	var part [group]float32
	if r := lo % group; r != 0 {
		decodeGroups(part[:], src, lo/group, d)
		n := copy(dst, part[r:])
		dst, lo = dst[n:], lo+n
	}
	whole := len(dst) &^ (group - 1)
	decodeGroups(dst[:whole], src, lo/group, d)
	if whole < len(dst) {
		decodeGroups(part[:], src, (lo+whole)/group, d)
		copy(dst[whole:], part[:])
	}
}

// decodeGroups fills dst, whose length is a multiple of group, from group number g of src on.
// It is a switch and not a table of functions, so that dst does not escape to the heap.
func decodeGroups(dst []float32, src []byte, g int, d tensor.DType) {
	switch d {
	case tensor.Q4_0:
		decodeQ4_0(dst, src, g)
	case tensor.Q5_0:
		decodeQ5_0(dst, src, g)
	case tensor.Q8_0:
		decodeQ8_0(dst, src, g)
	case tensor.Q4_K:
		decodeQ4K(dst, src, g)
	case tensor.Q5_K:
		decodeQ5K(dst, src, g)
	case tensor.Q6_K:
		decodeQ6K(dst, src, g)
	case tensor.Q3_K:
		decodeQ3K(dst, src, g)
	case tensor.Q2_K:
		decodeQ2K(dst, src, g)
	case tensor.AprQ4:
		decodeAprQ4(dst, src, g)
	case tensor.IQ4_NL:
		decodeIQ4NL(dst, src, g)
	case tensor.IQ4_XS:
		decodeIQ4XS(dst, src, g)
	case tensor.MXFP4:
		decodeMXFP4(dst, src, g)
	}
}

// decodeAprQ8 computes dst[i] = scale·q[lo+i], with the tensor's float32 scale in front of its int8 elements.
func decodeAprQ8(dst []float32, src []byte, lo int) {
	scale := math.Float32frombits(binary.LittleEndian.Uint32(src))
	q := src[4+lo:]
	q = q[:len(dst)]
	for i := range dst {
		dst[i] = scale * signedByte[q[i]]
	}
}

// The tables give the number that a byte stands for, so that decoding an element is one load, one product and at most
// one subtraction. They are indexed by whole bytes, which needs no bounds check.
var (
	lowNibble   = table(func(b byte) int { return int(b & 15) })
	highNibble  = table(func(b byte) int { return int(b >> 4) })
	lowNibble8  = table(func(b byte) int { return int(b&15) - 8 })
	highNibble8 = table(func(b byte) int { return int(b>>4) - 8 })
	plainByte   = table(func(b byte) int { return int(b) })
	signedByte  = table(func(b byte) int { return int(int8(b)) })
	minus16     = table(func(b byte) int { return int(b) - 16 })
	minus32     = table(func(b byte) int { return int(b) - 32 })
)

func table(value func(byte) int) (t [256]float32) {
	for b := range t {
		t[b] = float32(value(byte(b)))
	}
	return t
}

// affine32 computes x[l] = s·t[q[l]] − off, each operation rounded to float32.
// It is unrolled by hand because the compiler does not: 1.25 times as fast as the plain loop.
func affine32(x *[32]float32, q *[32]byte, t *[256]float32, s, off float32) {
	for l := 0; l < 32; l += 8 {
		y, p := (*[8]float32)(x[l:]), (*[8]byte)(q[l:])
		y[0] = float32(s*t[p[0]]) - off
		y[1] = float32(s*t[p[1]]) - off
		y[2] = float32(s*t[p[2]]) - off
		y[3] = float32(s*t[p[3]]) - off
		y[4] = float32(s*t[p[4]]) - off
		y[5] = float32(s*t[p[5]]) - off
		y[6] = float32(s*t[p[6]]) - off
		y[7] = float32(s*t[p[7]]) - off
	}
}

// scale16 computes x[l] = s·t[q[l]].
func scale16(x *[16]float32, q *[16]byte, t *[256]float32, s float32) {
	for l := 0; l < 16; l += 8 {
		y, p := (*[8]float32)(x[l:]), (*[8]byte)(q[l:])
		y[0] = s * t[p[0]]
		y[1] = s * t[p[1]]
		y[2] = s * t[p[2]]
		y[3] = s * t[p[3]]
		y[4] = s * t[p[4]]
		y[5] = s * t[p[5]]
		y[6] = s * t[p[6]]
		y[7] = s * t[p[7]]
	}
}

// half reads a little-endian IEEE half.
func half(b []byte) float32 { return tensor.F16ToF32(binary.LittleEndian.Uint16(b)) }
