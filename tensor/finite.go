package tensor

import (
	"encoding/binary"
	"math"
)

// FirstNonFinite returns the index of the first element of src, plain little-endian elements of type d (F32, F64, F16 or BF16), that
// float32 holds as a NaN or an infinity; −1 if there is none. It panics if d is another type. A part of an element at the end of src
// is not looked at.
func FirstNonFinite(src []byte, d DType) int {
	size := d.BlockBytes()
	if size != 8 {
		src = src[:len(src)-len(src)%size]
		n := finitePrefix(src, d)
		src = src[n:]
		if i := firstNonFinite(src, d); i >= 0 {
			return n/size + i
		}
		return -1
	}
	return firstNonFinite(src, d)
}

// finitePrefix returns how many bytes of src hold finite values, in steps of 64: it stops at the first step that does not, or at less
// than 64 bytes. The exponent of a value that is not finite is all ones: one more in its lowest bit carries into the sign's place,
// which was cleared, and into no other element.
func finitePrefix(src []byte, d DType) int {
	var exponent, one, sign uint64
	switch d {
	case F32:
		exponent, one, sign = 0x7f800000_7f800000, 0x00800000_00800000, 0x80000000_80000000
	case F16:
		exponent, one, sign = 0x7c00_7c00_7c00_7c00, 0x0400_0400_0400_0400, 0x8000_8000_8000_8000
	case BF16:
		exponent, one, sign = 0x7f80_7f80_7f80_7f80, 0x0080_0080_0080_0080, 0x8000_8000_8000_8000
	default:
		panic("tensor: FirstNonFinite of " + d.String())
	}
	n := 0
	for ; n+64 <= len(src); n += 64 {
		b := src[n : n+64 : n+64]
		found := (binary.LittleEndian.Uint64(b)&exponent + one) | (binary.LittleEndian.Uint64(b[8:])&exponent + one) |
			(binary.LittleEndian.Uint64(b[16:])&exponent + one) | (binary.LittleEndian.Uint64(b[24:])&exponent + one) |
			(binary.LittleEndian.Uint64(b[32:])&exponent + one) | (binary.LittleEndian.Uint64(b[40:])&exponent + one) |
			(binary.LittleEndian.Uint64(b[48:])&exponent + one) | (binary.LittleEndian.Uint64(b[56:])&exponent + one)
		if found&sign != 0 {
			break
		}
	}
	return n
}

// firstNonFinite is FirstNonFinite, element by element.
func firstNonFinite(src []byte, d DType) int {
	var x [1]float32
	size := d.BlockBytes()
	for i := 0; (i+1)*size <= len(src); i++ {
		Widen(x[:], src[i*size:], d)
		if v := float64(x[0]); math.IsNaN(v) || math.IsInf(v, 0) {
			return i
		}
	}
	return -1
}
