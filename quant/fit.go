package quant

import (
	"math"

	"apr/tensor"
)

// The searches work in float64 and round every product on its own, float64(a*b)+c, so that a processor with fused
// multiply-add finds the same scales.

// affineTrial is the least-squares scale s and minimum m ≥ 0 for one choice of integers q, and its
// gain = Σx² − err, where err = Σ(s·q − m − x)². The fits fill in err when they are done.
type affineTrial struct{ s, m, gain, err float64 }

// affinePhases are the parts of a step by which trials of a wide fit begin below the least element.
// Beginning elsewhere than at that element matters most in groups far from zero: on exponential rows it lowers the
// error of Q4_K by 6 %.
var affinePhases = [...]float64{-0.3, 0.3, 0.6}

// fitAffine looks for s ≥ 0 and m ≥ 0 that minimise Σ(s·q[i] − m − x[i])² over s, m and integers q in 0…top.
//
// A trial maps the range of x to top + k/10 steps, −12 ≤ k ≤ 12 (elements beyond are clipped); its integers then fix
// s and m. The winner is refined until its own s and m no longer give better integers. The natural fit's steps begin
// at the least element; the wide fit is at least as good and may begin anywhere, which may cost a common dmin of
// several groups more than it gains: in a group of two values, many pairs of s and m are perfect.
func fitAffine(x *[group]float64, top int) (natural, wide affineTrial) {
	lo, hi, sumX, sumXX := math.Min(0, x[0]), x[0], 0.0, 0.0
	for _, v := range x {
		lo, hi, sumX, sumXX = min(lo, v), max(hi, v), sumX+v, sumXX+float64(v*v)
	}
	if hi == lo { // zeros, or one negative number
		natural.m = -lo
		return natural, natural
	}
	natural.gain = math.Inf(-1)
	scanAffine(&natural, x, sumX, lo, hi, 0, top)
	wide = natural
	for _, phase := range affinePhases {
		scanAffine(&wide, x, sumX, lo, hi, phase, top)
	}
	refineAffine(&natural, x, sumX, top)
	refineAffine(&wide, x, sumX, top)
	natural.err, wide.err = sumXX-natural.gain, sumXX-wide.gain
	return natural, wide
}

// scanAffine improves best by trials whose steps begin phase steps below lo.
func scanAffine(best *affineTrial, x *[group]float64, sumX, lo, hi, phase float64, top int) {
	for k := -12; k <= 12; k += 3 {
		inv := (float64(top) + float64(0.1*float64(k))) / (hi - lo)
		if trial := tryAffine(x, sumX, lo-phase/inv, inv, top); trial.gain > best.gain {
			*best = trial
		}
	}
}

// refineAffine improves best by the integers that its own s and m give, at most four times.
func refineAffine(best *affineTrial, x *[group]float64, sumX float64, top int) {
	for range 4 {
		trial := tryAffine(x, sumX, -best.m, inverse(best.s), top)
		if !(trial.gain > best.gain) {
			return
		}
		*best = trial
	}
}

// tryAffine rounds inv·(x−lo) to integers q in 0…top and solves for s and m ≥ 0. Without a positive s the gain is −∞.
func tryAffine(x *[group]float64, sumX, lo, inv float64, top int) affineTrial {
	var q1, q2 int        // Σq, Σq²
	var even, odd float64 // Σxq, in two sums that do not wait for each other
	for i := 0; i < len(x); i += 2 {
		v, w := x[i], x[i+1]
		a := min(max(int(float64(inv*(v-lo))+0.5), 0), top)
		b := min(max(int(float64(inv*(w-lo))+0.5), 0), top)
		q1 += a + b
		q2 += a*a + b*b
		even += float64(v * float64(a))
		odd += float64(w * float64(b))
	}
	xq := even + odd
	if q2 == 0 {
		return affineTrial{gain: math.Inf(-1)}
	}
	const n = group
	s, m := xq/float64(q2), 0.0
	if det := n*q2 - q1*q1; det > 0 {
		if free := (float64(float64(q1)*xq) - float64(float64(q2)*sumX)) / float64(det); free > 0 {
			s, m = (float64(n*xq)-float64(sumX*float64(q1)))/float64(det), free
		}
	}
	if !(s > 0) {
		return affineTrial{gain: math.Inf(-1)}
	}
	gain := float64(2*float64(s*xq)) - float64(2*float64(m*sumX)) -
		float64(s*s*float64(q2)) + float64(2*float64(s*m)*float64(q1)) - float64(n*m*m)
	return affineTrial{s: s, m: m, gain: gain}
}

// fitSymmetric returns the scale s, of either sign, that nearly minimises Σ(s·q[i] − x[i])² over s and integers q in
// −n…n−1. A trial maps the element of largest magnitude to −n − k/10, −9 ≤ k ≤ 9; its integers then fix s.
func fitSymmetric(x []float64, n int) float64 {
	extreme := extremeOf(x)
	if extreme == 0 {
		return 0
	}
	s, gain := 0.0, 0.0
	for k := -9; k <= 9; k++ {
		inv := -(float64(n) + float64(0.1*float64(k))) / extreme
		if trial, g := trySymmetric(x, inv, n); g > gain {
			s, gain = trial, g
		}
	}
	for range 4 {
		trial, g := trySymmetric(x, inverse(s), n)
		if !(g > gain) {
			break
		}
		s, gain = trial, g
	}
	return s
}

// trySymmetric rounds inv·x to integers q in −n…n−1, and returns the best scale for them, s = Σxq/Σq², and the gain
// Σx² − Σ(s·q − x)² = (Σxq)²/Σq². len(x) is even.
func trySymmetric(x []float64, inv float64, n int) (s, gain float64) {
	var q2 int
	var even, odd float64
	for ; len(x) >= 2; x = x[2:] {
		a, b := roundSymmetric(float64(inv*x[0]), -n, n-1), roundSymmetric(float64(inv*x[1]), -n, n-1)
		q2 += a*a + b*b
		even += float64(x[0] * float64(a))
		odd += float64(x[1] * float64(b))
	}
	xq := even + odd
	if q2 == 0 {
		return 0, 0
	}
	s = xq / float64(q2)
	return s, s * xq
}

// roundSymmetric rounds v to the nearest integer in lo…hi. Subtracting lo first makes truncation a floor.
func roundSymmetric(v float64, lo, hi int) int {
	return min(max(int(v+(0.5-float64(lo))), 0), hi-lo) + lo
}

// stepHalf returns the half nearest to largest/top, or the next larger one if top steps of it would not reach largest
// (only subnormal halves are so coarse). largest ≥ 0.
func stepHalf(largest float64, top int) uint16 {
	h := tensor.F32ToF16(float32(largest / float64(top)))
	if halfValue(h)*(float64(top)+0.5) < largest {
		h++
	}
	return h
}

// inverse returns 1/s, and 0 for s = 0.
func inverse(s float64) float64 {
	if s == 0 {
		return 0
	}
	return 1 / s
}

func halfValue(h uint16) float64 { return float64(tensor.F16ToF32(h)) }

// extremeOf returns the element of largest magnitude.
func extremeOf(x []float64) float64 {
	extreme := 0.0
	for _, v := range x {
		if math.Abs(v) > math.Abs(extreme) {
			extreme = v
		}
	}
	return extreme
}
