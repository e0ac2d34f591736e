package quant

import (
	"fmt"
	"math"

	"apr/internal/fault"
	"apr/tensor"
)

// MaxAbs is the largest magnitude that Quantize accepts: the largest finite half, so that every scale is a finite half.
const MaxAbs = 65504

// Quantize encodes src, one row or several that fill their blocks, as blocks of type d into dst. It supports Q2_K, Q3_K,
// Q4_K, Q5_K, Q6_K, Q8_0, Q4_0, Q5_0, IQ4_NL and MXFP4.
//
// MXFP4 is encoded as GGML does it. For the others it looks for the scales and integers that minimise Σ(x−x̂)² over a block, where x̂ is what [Dequantize] gives:
//
//  1. For each group, a scan over trial scales; the integers of each trial give the best scale (and minimum) in closed
//     form, by least squares, and the trial with the least error wins. This is the idea of GGML's make_qkx2_quants and
//     make_qx_quants, without their weighting by magnitude and with trials that begin at several parts of a step.
//  2. d (and dmin) so that the largest scale (minimum) of the block becomes an integer at or just below the top.
//  3. For each group, the integer scales and minima on both sides of the ideal ones, and many more where an outlier
//     makes these bad; the pair with the least error wins.
//  4. d and dmin again by least squares, among halves, for the chosen integers; then step 3 again, kept if better.
//
// Other 32-element types need only step 1 and the rounding of d.
//
// In Q2_K, Q4_K and Q5_K the minimum of a group never exceeds 0, so a group of positive numbers is scaled from 0.
// Equal input gives equal bytes on every processor: the vector code of amd64 does what the plain loops do.
//
// A value that is not finite, or larger than [MaxAbs], is a fault of kind Invalid (E-QUANT-003) that names its index as
// "element 17"; nothing is written then. Quantize panics if len(src) is not a multiple of d.BlockLen(), if len(dst) is
// not [PackedLen](len(src), d), or if d is another type.
func Quantize(dst []byte, src []float32, d tensor.DType) error {
	checkQuantize(dst, src, d)
	if i := firstUnusable(src); i >= 0 {
		return unusable(src[i]).At("element %d", i)
	}
	for n, size := d.BlockLen(), d.BlockBytes(); len(src) > 0; src, dst = src[n:], dst[size:] {
		encodeBlock(dst[:size], src[:n], d)
	}
	return nil
}

func checkQuantize(dst []byte, src []float32, d tensor.DType) {
	if !CanQuantize(d) {
		panic("quant: cannot quantise to " + d.String())
	}
	if want, _ := PackedLen(len(src), d); len(src)%d.BlockLen() != 0 || int64(len(dst)) != want {
		panic(fmt.Sprintf("quant: %d elements into %d bytes of %v", len(src), len(dst), d))
	}
}

// QuantizeWeighted is Quantize with an error that counts each element: it looks for the blocks of least Σ weights·(x−x̂)².
// weights has the length of src, is not negative, and of one scale in a group: only their ratios matter. A block or group
// without any weight is encoded as by weights of 1. nil is [Quantize]. A weight that is negative or not finite is a
// fault of kind Invalid (E-QUANT-004).
func QuantizeWeighted(dst []byte, src, weights []float32, d tensor.DType) error {
	if weights == nil {
		return Quantize(dst, src, d)
	}
	checkQuantize(dst, src, d)
	if len(weights) != len(src) {
		panic(fmt.Sprintf("quant: %d weights for %d elements", len(weights), len(src)))
	}
	if i := firstUnusable(src); i >= 0 {
		return unusable(src[i]).At("element %d", i)
	}
	for i, w := range weights {
		if !(w >= 0 && w <= math.MaxFloat32) {
			return fault.New(fault.Invalid, "%g is no weight of an error", w).At("element %d", i).WithID("E-QUANT-004")
		}
	}
	for n, size := d.BlockLen(), d.BlockBytes(); len(src) > 0; src, weights, dst = src[n:], weights[n:], dst[size:] {
		encodeWeighted(dst[:size], src[:n], weights[:n], d)
	}
	return nil
}

// CanQuantize reports whether Quantize encodes d: IQ4_XS and the types of aprender are decoded only.
func CanQuantize(d tensor.DType) bool {
	return d >= tensor.Q4_0 && d <= tensor.Q6_K || d >= tensor.Q3_K && d <= tensor.MXFP4 || d == tensor.IQ4_NL
}

func encodeBlock(dst []byte, src []float32, d tensor.DType) {
	switch d {
	case tensor.Q4_0:
		encodeQ4_0((*[bytesQ4_0]byte)(dst), (*[group]float32)(src))
	case tensor.Q5_0:
		encodeQ5_0((*[bytesQ5_0]byte)(dst), (*[group]float32)(src))
	case tensor.Q8_0:
		encodeQ8_0((*[bytesQ8_0]byte)(dst), (*[group]float32)(src))
	case tensor.Q4_K:
		encodeQ4K((*[bytesQ4K]byte)(dst), (*[superblock]float32)(src))
	case tensor.Q5_K:
		encodeQ5K((*[bytesQ5K]byte)(dst), (*[superblock]float32)(src))
	case tensor.Q6_K:
		encodeQ6K((*[bytesQ6K]byte)(dst), (*[superblock]float32)(src))
	case tensor.Q3_K, tensor.Q2_K:
		encodeScaled(dst, src, nil, d)
	case tensor.IQ4_NL:
		encodeIQ4NL((*[bytesIQ4NL]byte)(dst), src, nil)
	case tensor.MXFP4:
		encodeMXFP4((*[bytesMXFP4]byte)(dst), (*[group]float32)(src))
	}
}

// firstUnusable returns the index of the first element that is not finite or too large, and −1 if there is none.
func firstUnusable(src []float32) int {
	for i, x := range src {
		if !(x <= MaxAbs && x >= -MaxAbs) {
			return i
		}
	}
	return -1
}

func unusable(x float32) *fault.Error {
	e := fault.New(fault.Invalid, "%g cannot be quantised", x).WithID("E-QUANT-003")
	if x != x || math.IsInf(float64(x), 0) {
		return e.WithHint("weights must be finite")
	}
	return e.WithHint("block scales are half-precision: the magnitude may be %d at most", MaxAbs)
}
