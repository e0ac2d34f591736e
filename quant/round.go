package quant

import (
	"fmt"

	"apr/tensor"
)

// Round encodes src under the scales that the blocks of dst have: each element becomes the nearest value that its block can
// hold, of two equally near integers the greater one. It is what [Quantize] does last, and costs a fraction of its search.
//
// It supports the types of [CanQuantize] and panics on lengths as that does; values that are not finite, or larger than
// [MaxAbs], are its fault too, and then nothing is written.
func Round(dst []byte, src []float32, d tensor.DType) error {
	checkQuantize(dst, src, d)
	if i := firstUnusable(src); i >= 0 {
		return unusable(src[i]).At("element %d", i)
	}
	for n, size := d.BlockLen(), d.BlockBytes(); len(src) > 0; src, dst = src[n:], dst[size:] {
		roundBlock(dst[:size], src[:n], d)
	}
	return nil
}

func roundBlock(b []byte, src []float32, d tensor.DType) {
	switch d {
	case tensor.Q4_0:
		q := round32(src, halfValue16(b), -8, 7)
		packQ4_0((*[bytesQ4_0]byte)(b), &q)
	case tensor.Q5_0:
		q := round32(src, halfValue16(b), -16, 15)
		packQ5_0((*[bytesQ5_0]byte)(b), &q)
	case tensor.Q8_0:
		q := round32(src, halfValue16(b), -127, 127)
		packQ8_0((*[bytesQ8_0]byte)(b), &q)
	case tensor.IQ4_NL:
		var q [group]byte
		inv := inverse(halfValue16(b))
		for i, x := range src {
			q[i] = nearestIQ4(float64(inv * float64(x)))
		}
		packIQ4NL((*[bytesIQ4NL]byte)(b), &q)
	case tensor.MXFP4:
		roundMXFP4((*[bytesMXFP4]byte)(b), (*[group]float32)(src))
	case tensor.Q2_K, tensor.Q4_K, tensor.Q5_K:
		roundAffineBlock(b, src, d)
	case tensor.Q3_K, tensor.Q6_K:
		roundSymmetricBlock(b, src, d)
	default:
		panic(fmt.Sprintf("quant: cannot round to %v", d))
	}
}

func halfValue16(b []byte) float64 { return float64(half(b)) }

func round32(src []float32, s float64, lo, hi int) (q [group]int8) {
	inv := inverse(s)
	for i, x := range src {
		q[i] = int8(roundSymmetric(float64(inv*float64(x)), lo, hi))
	}
	return q
}

// roundMXFP4 rounds to the scale that b has.
func roundMXFP4(b *[bytesMXFP4]byte, src *[group]float32) {
	d := mxfp4Scale[b[0]]
	for j := range 16 {
		b[1+j] = nearestMXFP4(src[j], d) | nearestMXFP4(src[16+j], d)<<4
	}
}

// roundAffineBlock rounds a block of Q2_K, Q4_K or Q5_K.
func roundAffineBlock(b []byte, src []float32, d tensor.DType) {
	var q [superblock]byte
	var sc, m uint64
	at, each, top := 0, group, 15
	switch d {
	case tensor.Q2_K:
		at, each, top = 80, 16, 3
	case tensor.Q5_K:
		top = 31
	}
	s, dmin := halfValue16(b[at:]), halfValue16(b[at+2:])
	if d != tensor.Q2_K {
		sc, m = scalesMins((*[12]byte)(b[4:]))
	}
	for j := range superblock / each {
		c, n := byte(sc>>(8*j)), byte(m>>(8*j))
		if d == tensor.Q2_K {
			c, n = b[j]&15, b[j]>>4
		}
		inv, low := inverse(s*float64(c)), float64(dmin*float64(n))
		for i := j * each; i < (j+1)*each; i++ {
			q[i] = byte(min(max(int(float64(inv*(float64(src[i])+low))+0.5), 0), top))
		}
	}
	switch d {
	case tensor.Q2_K:
		codesQ2K((*[bytesQ2K]byte)(b), &q)
	case tensor.Q4_K:
		packQ4K((*[bytesQ4K]byte)(b), &q)
	case tensor.Q5_K:
		packQ5K((*[bytesQ5K]byte)(b), &q)
	}
}

// roundSymmetricBlock rounds a block of Q3_K or Q6_K.
func roundSymmetricBlock(b []byte, src []float32, d tensor.DType) {
	var q [superblock]int8
	lo, hi, at := -32, 31, bytesQ6K-2
	if d == tensor.Q3_K {
		lo, hi, at = -4, 3, bytesQ3K-2
	}
	s := halfValue16(b[at:])
	for j := range superblock / 16 {
		var sc int
		if d == tensor.Q3_K {
			sc = scaleQ3K((*[12]byte)(b[96:]), j)
		} else {
			sc = int(int8(b[192+j]))
		}
		inv := inverse(s * float64(sc))
		for i := 16 * j; i < 16*(j+1); i++ {
			q[i] = int8(roundSymmetric(float64(inv*float64(src[i])), lo, hi))
		}
	}
	if d == tensor.Q3_K {
		codesQ3K((*[bytesQ3K]byte)(b), &q)
	} else {
		packQ6K((*[bytesQ6K]byte)(b), &q)
	}
}
