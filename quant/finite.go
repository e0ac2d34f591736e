package quant

import (
	"encoding/binary"
	"math"

	"apr/tensor"
)

// scales are the offsets of the half-precision numbers of a block, which its elements are multiples of. [tensor.AprQ4] has none here:
// a scale of it that is not finite counts as 0.
var scales = map[tensor.DType][]int{
	tensor.Q4_0: {0}, tensor.Q5_0: {0}, tensor.Q8_0: {0}, tensor.Q4_K: {0, 2}, tensor.Q5_K: {0, 2}, tensor.Q6_K: {bytesQ6K - 2},
	tensor.IQ4_NL: {0}, tensor.IQ4_XS: {0}, tensor.Q3_K: {bytesQ3K - 2}, tensor.Q2_K: {bytesQ2K - 4, bytesQ2K - 2},
}

// FirstNonFinite returns the index of the first element of the first block of src whose scale is a NaN or an infinity, so that its
// elements are; −1 if there is none. src is whole blocks of type d; of AprQ8, the beginning of the tensor.
func FirstNonFinite(src []byte, d tensor.DType) int {
	if d == tensor.AprQ8 {
		if len(src) >= 4 && !isFinite(math.Float32frombits(binary.LittleEndian.Uint32(src))) {
			return 0
		}
		return -1
	}
	if d == tensor.MXFP4 {
		return firstBadMXFP4(src)
	}
	const exponent = 0x7c00
	size := d.BlockBytes()
	for _, at := range scales[d] {
		for i := at; i+2 <= len(src); i += size {
			if binary.LittleEndian.Uint16(src[i:])&exponent == exponent {
				return firstBad(src, d)
			}
		}
	}
	return -1
}

// firstBad finds the first block that has a scale which is not finite; there is one.
func firstBad(src []byte, d tensor.DType) int {
	const exponent = 0x7c00
	size := d.BlockBytes()
	for i := 0; i < len(src); i += size {
		for _, at := range scales[d] {
			if binary.LittleEndian.Uint16(src[i+at:])&exponent == exponent {
				return i / size * d.BlockLen()
			}
		}
	}
	return -1
}

// Largest returns the largest magnitude among the elements of src, whole blocks of type d, if it is beyond what
// half-precision floats hold (65504), else a number up to that. With an element that is not finite it returns NaN or an
// infinity. Of AprQ8 src is the beginning of the tensor, whose largest code is taken to be 127.
func Largest(src []byte, d tensor.DType) (largest float64) {
	if d == tensor.AprQ8 {
		if len(src) < 4 {
			return 0
		}
		return 127 * math.Abs(float64(math.Float32frombits(binary.LittleEndian.Uint32(src))))
	}
	at, least, size := scales[d], uint16(19<<10), d.BlockBytes() // a scale of less than 16 times the largest factor, 4096, is no more
	var block [256]float32
	for i := 0; i+size <= len(src); i += size {
		large := d == tensor.MXFP4 && src[i] >= 140 || d == tensor.AprQ4 && binary.LittleEndian.Uint16(src[i:])&0x7c00 >= least // the exponent of 2^13
		for _, k := range at {
			large = large || binary.LittleEndian.Uint16(src[i+k:])&0x7c00 >= least
		}
		if !large {
			continue
		}
		values := block[:d.BlockLen()]
		DequantizeRange(values, src[i:i+size], 0, d)
		for _, x := range values {
			largest = max(largest, math.Abs(float64(x)))
		}
	}
	return largest
}

func isFinite(x float32) bool { return x-x == 0 }
