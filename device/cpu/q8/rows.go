package q8

import "math"

// rounded is a chunk of a row of activations in 8 bits: element k is d·q[k], with the d of its block.
//
// For K types a chunk is one block, with its scale in d[0], sums[j] = Σ q over columns 16j … 16j+15 and pairs[j] over
// 32j … 32j+31. For 32-blocks d[j] is the scale of block j, sums[2j] = Σ q over it and sums[2j+1] = 0. Assembly knows
// this layout.
type rounded struct {
	q     [chunk]int8
	sums  [16]int16
	pairs [8]int16
	d     [8]float32
}

const (
	smallest  = 0x0d800000 // 2⁻¹⁰⁰ as bits: blocks of smaller elements become 0, for 127/max could overflow
	notFinite = 0x7f800000
)

// round rounds a chunk of at most 256 elements, a multiple of 32; elements beyond it are 0.
func (kn *kernels) round(r *rounded, x []float32, super bool) {
	*r = rounded{}
	if super {
		r.d[0] = kn.block(r.q[:len(x)], x)
		for j := range r.sums {
			r.sums[j] = sum(r.q[16*j:][:16])
		}
		for j := range r.pairs {
			r.pairs[j] = r.sums[2*j] + r.sums[2*j+1]
		}
		return
	}
	for j := range len(x) / 32 {
		q := r.q[32*j:][:32]
		r.d[j] = kn.block(q, x[32*j:][:32])
		r.sums[2*j] = sum(q)
	}
}

// block writes q = round(x/d), half to even, and returns d = max|x|/127. A block with an element that is not finite
// becomes 0 with a scale of NaN.
func (kn *kernels) block(q []int8, x []float32) (d float32) {
	top := kn.top(x)
	switch {
	case top >= notFinite:
		clear(q)
		return float32(math.NaN())
	case top < smallest:
		clear(q)
		return 0
	}
	largest := math.Float32frombits(top)
	kn.quantize(q, x, 127/largest)
	return largest / 127
}

func sum(q []int8) int16 {
	s := int16(0)
	for _, v := range q {
		s += int16(v)
	}
	return s
}

// topGo returns the largest magnitude of x as the bits of a float32, NaN above infinity above all. len(x) is a multiple
// of 32.
func topGo(x []float32) uint32 {
	top := uint32(0)
	for _, v := range x {
		top = max(top, math.Float32bits(v)&^(1<<31))
	}
	return top
}

// quantizeGo computes q[i] = round(x[i]·inv), half to even. len(x) is a multiple of 32.
func quantizeGo(q []int8, x []float32, inv float32) {
	for i, v := range x {
		q[i] = int8(math.RoundToEven(float64(v * inv)))
	}
}
