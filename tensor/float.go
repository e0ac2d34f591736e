package tensor

import (
	"encoding/binary"
	"math"
)

// BF16ToF32 widens a bfloat16: the bits are the upper half of the float32.
func BF16ToF32(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// F32ToBF16 rounds to nearest, ties to even; NaN stays a quiet NaN of the same sign.
func F32ToBF16(f float32) uint16 {
	u := math.Float32bits(f)
	if u&0x7fffffff > 0x7f800000 {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + (u>>16)&1) >> 16)
}

// F16ToF32 widens an IEEE 754 half, exactly.
func F16ToF32(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp := uint32(h>>10) & 31
	man := uint32(h & 0x3ff)
	switch exp {
	case 0: // zero or subnormal: man·2⁻²⁴ is exact in float32
		f := float32(man) * 0x1p-24
		return math.Float32frombits(math.Float32bits(f) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | man<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | man<<13)
}

// F32ToF16 rounds to nearest, ties to even; overflow gives infinity, NaN stays a quiet NaN.
func F32ToF16(f float32) uint16 {
	u := math.Float32bits(f)
	sign := uint16(u>>16) & 0x8000
	u &= 0x7fffffff
	switch {
	case u > 0x7f800000:
		return sign | 0x7e00 | uint16(u>>13)&0x3ff
	case u >= 0x47800000: // 65536 and above; rounding carries 65520…65535 over below
		return sign | 0x7c00
	case u < 0x38800000: // below 2⁻¹⁴: subnormal; adding 0.5 leaves the rounded multiple of 2⁻²⁴ in the mantissa
		return sign | uint16(math.Float32bits(math.Float32frombits(u)+0.5)-0x3f000000)
	}
	return sign | uint16((u-0x38000000+0xfff+(u>>13)&1)>>13)
}

// F8E4M3ToF32 widens an 8-bit float of 4 exponent and 3 mantissa bits, exactly: the largest is 448, 0x7f and 0xff are NaN, and
// there is no infinity ("e4m3fn").
func F8E4M3ToF32(b uint8) float32 {
	sign := uint32(b&0x80) << 24
	exp, man := uint32(b>>3)&15, uint32(b&7)
	switch {
	case exp == 15 && man == 7:
		return math.Float32frombits(sign | 0x7fc00000)
	case exp == 0: // zero or subnormal: man·2⁻⁹
		return math.Float32frombits(math.Float32bits(float32(man)*0x1p-9) | sign)
	}
	return math.Float32frombits(sign | (exp+120)<<23 | man<<20)
}

// Widen decodes plain little-endian elements of src (F32, F64, F16 or BF16) into dst; len(dst) elements are read.
// It panics if d is none of these or src is too short: callers check types first.
func Widen(dst []float32, src []byte, d DType) {
	switch d {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case F64:
		for i := range dst {
			dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(src[8*i:])))
		}
	case F16:
		for i := range dst {
			dst[i] = F16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case BF16:
		for i := range dst {
			dst[i] = BF16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
		}
	default:
		panic("tensor: Widen of " + d.String())
	}
}

// Narrow encodes src as little-endian elements of type d (F32, F16 or BF16) into dst.
// It panics if d is none of these or dst is too short: callers check types first.
func Narrow(dst []byte, src []float32, d DType) {
	switch d {
	case F32:
		for i, f := range src {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(f))
		}
	case F16:
		for i, f := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], F32ToF16(f))
		}
	case BF16:
		for i, f := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], F32ToBF16(f))
		}
	default:
		panic("tensor: Narrow to " + d.String())
	}
}
