package tensor

import (
	"encoding/binary"
	"math"
	"math/bits"
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

// LargeExponent is from where on Largest looks at magnitudes: 2 to the power of it.
const LargeExponent = 15

// Largest returns the largest magnitude among src, plain little-endian elements of type d (F32, F64, F16 or BF16) as
// float32 holds them, if it is at least 2^15, else 0; a finite one of F16 may be left out. With a NaN among them it
// returns NaN. It panics if d is another type.
func Largest(src []byte, d DType) (largest float64) {
	size := d.BlockBytes()
	from := 127 + LargeExponent
	if d == F16 {
		from = 31
	}
	for len(src) >= size {
		if d != F64 {
			src = src[smallPrefix(src[:len(src)-len(src)%size], d, from):]
		}
		n := min(len(src), 64)
		for i := 0; i+size <= n; i += size {
			var x [1]float32
			Widen(x[:], src[i:], d)
			if v := math.Abs(float64(x[0])); v >= 1<<LargeExponent && !(v <= largest) || math.IsNaN(v) {
				largest = max(largest, v) // a NaN stays
			}
		}
		src = src[n:]
	}
	return largest
}

// CountF16 returns how many of src, elements of type F16, are at least 0.25 in magnitude.
func CountF16(src []byte) (n int) {
	const exponent, sign = 0x7c00_7c00_7c00_7c00, 0x8000_8000_8000_8000
	const add = (32 - 13) << 10 // 0.25 has the exponent 13: from there on the sum carries into the sign's place
	const one = add | add<<16 | add<<32 | add<<48
	for ; len(src) >= 8; src = src[8:] {
		n += bits.OnesCount64((binary.LittleEndian.Uint64(src)&exponent + one) & sign)
	}
	for ; len(src) >= 2; src = src[2:] {
		n += int((uint32(binary.LittleEndian.Uint16(src))&0x7c00 + add) >> 15)
	}
	return n
}

// finitePrefix returns how many bytes of src hold finite values, in steps of 64; see smallPrefix.
func finitePrefix(src []byte, d DType) int {
	if d == F16 {
		return smallPrefix(src, d, 31)
	}
	return smallPrefix(src, d, 255)
}

// smallPrefix returns how many bytes of src hold values with an exponent (with its bias) below from, in steps of 64: it
// stops at the first step that does not, or at less than 64 bytes. What is missing of from to the next power of two,
// added to such an exponent, carries into the sign's place, which was cleared, and into no other element.
func smallPrefix(src []byte, d DType, from int) int {
	var exponent, add, sign uint64
	switch d {
	case F32:
		exponent, sign = 0x7f800000_7f800000, 0x80000000_80000000
		add = uint64(256-from) << 23
		add |= add << 32
	case F16:
		exponent, sign = 0x7c00_7c00_7c00_7c00, 0x8000_8000_8000_8000
		add = uint64(32-from) << 10 * 0x0001_0001_0001_0001
	case BF16:
		exponent, sign = 0x7f80_7f80_7f80_7f80, 0x8000_8000_8000_8000
		add = uint64(256-from) << 7 * 0x0001_0001_0001_0001
	default:
		panic("tensor: exponents of " + d.String())
	}
	n := 0
	for ; n+64 <= len(src); n += 64 {
		b := src[n : n+64 : n+64]
		found := (binary.LittleEndian.Uint64(b)&exponent + add) | (binary.LittleEndian.Uint64(b[8:])&exponent + add) |
			(binary.LittleEndian.Uint64(b[16:])&exponent + add) | (binary.LittleEndian.Uint64(b[24:])&exponent + add) |
			(binary.LittleEndian.Uint64(b[32:])&exponent + add) | (binary.LittleEndian.Uint64(b[40:])&exponent + add) |
			(binary.LittleEndian.Uint64(b[48:])&exponent + add) | (binary.LittleEndian.Uint64(b[56:])&exponent + add)
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
