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
	tensor.IQ4_NL: {0}, tensor.IQ4_XS: {0},
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

func isFinite(x float32) bool { return x-x == 0 }
