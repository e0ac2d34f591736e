// Package quanttest encodes, for tests, what package quant only decodes: blocks of IQ4_NL and IQ4_XS, and matrices of 8-bit
// floats with scales. Every value becomes the nearest that its final scale allows, as the public writers of these types do it.
package quanttest

import (
	"encoding/binary"
	"math"
	"sort"

	"apr/tensor"
)

var iq4Values = [16]float64{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// IQ4 encodes src as blocks of IQ4_NL or IQ4_XS, which it must fill. The scale makes the largest magnitude of a group −127.
func IQ4(src []float32, d tensor.DType) []byte {
	if d != tensor.IQ4_NL && d != tensor.IQ4_XS || len(src)%d.BlockLen() != 0 {
		panic("quanttest: not whole blocks of IQ4")
	}
	var out []byte
	for ; len(src) > 0; src = src[d.BlockLen():] {
		if d == tensor.IQ4_NL {
			h := tensor.F32ToF16(float32(-extreme(src[:32]) / 127))
			out = append(binary.LittleEndian.AppendUint16(out, h), codes(src[:32], float64(tensor.F16ToF32(h)))...)
			continue
		}
		out = append(out, superblock(src[:256])...)
	}
	return out
}

// superblock encodes a block of IQ4_XS.
func superblock(src []float32) []byte {
	b := make([]byte, 8, 136)
	h := tensor.F32ToF16(float32(extreme(src) / 127 / 32))
	d := float64(tensor.F16ToF32(h))
	binary.LittleEndian.PutUint16(b, h)
	upper := uint16(0)
	for j := range 8 {
		part, sc := src[32*j:32*j+32], -32
		if d != 0 {
			sc = int(math.RoundToEven(max(-32, min(31, -extreme(part)/127/d))))
		}
		b[4+j/2] |= byte(sc+32) & 15 << (4 * (j % 2))
		upper |= uint16(sc+32) >> 4 << (2 * j)
		b = append(b, codes(part, d*float64(sc))...)
	}
	binary.LittleEndian.PutUint16(b[2:], upper)
	return b
}

// extreme returns the value of the largest magnitude.
func extreme(src []float32) float64 {
	most := 0.0
	for _, x := range src {
		if math.Abs(float64(x)) > math.Abs(most) {
			most = float64(x)
		}
	}
	return most
}

// codes are the nibbles of 32 values under a scale.
func codes(src []float32, scale float64) []byte {
	out := make([]byte, 16)
	for i, x := range src {
		best, least := 0, math.Inf(1)
		for c, v := range iq4Values {
			if off := math.Abs(v*scale - float64(x)); off < least {
				best, least = c, off
			}
		}
		out[i%16] |= byte(best) << (4 * (i / 16))
	}
	return out
}

// FP8 encodes a rows×cols matrix as 8-bit floats and the scales of their blocks of height×width (0: one of all), each of which makes the largest magnitude of
// its block 448. narrow is what becomes of a scale when it is stored, after values were divided by it; nil: it stays as it is.
func FP8(values []float32, rows, cols, height, width int, narrow func(float32) float32) (q []byte, scales []float32) {
	if height == 0 {
		height, width = max(1, rows), max(1, cols)
	}
	q = make([]byte, len(values))
	for top := 0; top < rows; top += height {
		for left := 0; left < cols; left += width {
			most := 0.0
			each := func(do func(i int)) {
				for r := top; r < min(rows, top+height); r++ {
					for c := left; c < min(cols, left+width); c++ {
						do(r*cols + c)
					}
				}
			}
			each(func(i int) { most = max(most, math.Abs(float64(values[i]))) })
			scale := float32(max(most, 1e-12) / 448)
			each(func(i int) { q[i] = E4M3(float64(values[i]) / float64(scale)) })
			if narrow != nil {
				scale = narrow(scale)
			}
			scales = append(scales, scale)
		}
	}
	return q, scales
}

// E4M3 returns the 8-bit float nearest to x; beyond ±448 that is ±448.
func E4M3(x float64) byte {
	a := math.Abs(x)
	at := sort.Search(0x7e, func(i int) bool { return float64(tensor.F8E4M3ToF32(byte(i))) >= a })
	if at > 0 {
		down, up := a-float64(tensor.F8E4M3ToF32(byte(at-1))), float64(tensor.F8E4M3ToF32(byte(at)))-a
		if down < up || down == up && at%2 == 1 {
			at--
		}
	}
	if math.Signbit(x) {
		at |= 0x80
	}
	return byte(at)
}
