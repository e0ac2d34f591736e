package q8

import "math"

// rounded is one half of a chunk of a row of activations: element k of the half is d·q[k], with the d of its block. The
// halves of a chunk stand side by side in memory, the coarse one first.
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

// finer is how many steps of the fine half a step of the coarse one has: its rest is at most half a step, or 127 fine
// ones.
const finer = 254

const (
	smallest  = 0x0d800000 // 2⁻¹⁰⁰ as bits: blocks of smaller elements become 0, for 127·254/max could overflow
	notFinite = 0x7f800000
)

// round rounds a chunk of at most 256 elements, a multiple of 32; elements beyond it are 0. rest is scratch.
func (kn *kernels) round(r *[2]rounded, x []float32, rest *[chunk]float32, super bool) {
	*r = [2]rounded{}
	if super {
		r[0].d[0], r[1].d[0] = kn.block(r[0].q[:len(x)], r[1].q[:len(x)], x, rest)
		for half := range r {
			h := &r[half]
			kn.sums(&h.sums, &h.q)
			for j := range h.pairs {
				h.pairs[j] = h.sums[2*j] + h.sums[2*j+1]
			}
		}
		return
	}
	for j := range len(x) / 32 {
		r[0].d[j], r[1].d[j] = kn.block(r[0].q[32*j:][:32], r[1].q[32*j:][:32], x[32*j:][:32], rest)
	}
	for half := range r {
		h := &r[half]
		kn.sums(&h.sums, &h.q)
		for j := range h.pairs {
			h.sums[2*j], h.sums[2*j+1] = h.sums[2*j]+h.sums[2*j+1], 0
		}
	}
}

// block writes q = round(x/d), d = max|x|/127, and with the rest fine = round((x−d·q)/(d/254)), halves to even, and
// returns d and d/254. A block with an element that is not finite becomes 0 with scales of NaN.
func (kn *kernels) block(q, fine []int8, x []float32, rest *[chunk]float32) (d, dFine float32) {
	top := kn.top(x)
	switch {
	case top >= notFinite:
		clear(q)
		clear(fine)
		nan := float32(math.NaN())
		return nan, nan
	case top < smallest:
		clear(q)
		clear(fine)
		return 0, 0
	}
	largest := math.Float32frombits(top)
	d, dFine = largest/127, largest/(127*finer)
	kn.quantize(q, rest[:len(x)], x, 127/largest, d)
	kn.quantize(fine, rest[:len(x)], rest[:len(x)], 127*finer/largest, dFine)
	return d, dFine
}

// sumsGo computes sums[j] = Σ q[16j+i], i < 16.
func sumsGo(sums *[16]int16, q *[chunk]int8) {
	for j := range sums {
		s := int16(0)
		for _, v := range q[16*j:][:16] {
			s += int16(v)
		}
		sums[j] = s
	}
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

// quantizeGo computes q[i] = round(x[i]·inv), half to even, and rest[i] = x[i] − d·q[i]. len(x) is a multiple of 32;
// rest may be x.
func quantizeGo(q []int8, rest, x []float32, inv, d float32) {
	for i, v := range x {
		r := math.RoundToEven(float64(v * inv))
		q[i] = int8(r)
		rest[i] = v - float32(d*float32(r))
	}
}
