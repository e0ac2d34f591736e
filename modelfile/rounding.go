package modelfile

import (
	"math"

	"apr/quant"
	"apr/tensor"
)

// Limits of identity.
const (
	// sameLimit is the relative difference ‖a−b‖/max(‖a‖,‖b‖) of a stretch up to which it is the same: what is left of
	// arithmetic in float32.
	sameLimit = 1e-5
	// outsideLimit is the part of values that may be outside of what rounding explains; a stretch may have as many by chance.
	// Encoders leave none outside, or 5 in 100,000 (llama.cpp's Q6_K). One step of AdamW at a learning rate of 3e-4 puts 80 % of a bf16 matrix outside, 15 % if it is then kept in Q8_0,
	// and 0.3 % in Q4_K, whose steps are 40 times as wide as the change.
	outsideLimit = 2e-4
	// farLimit is more than the coarsest type costs, 4 bits of rows with outliers. A NaN is farther than that.
	farLimit = 0.5
	// unevenLimit: each eighth of the range of rounding errors holds at least this part of an even share.
	unevenLimit = 0.15
	// fewErrors, and fewOf of all values, are too few errors to judge their distribution.
	fewErrors, fewOf = 4096, 0.25
)

// floatBounds are the bounds of values of a plain type: half the distance to the next value, by round to nearest.
func floatBounds(dst []quant.Rounding, values []float32, d tensor.DType) {
	digits, least := 24, -149 // of the significand; exponent of the smallest step
	switch d {
	case tensor.BF16:
		digits, least = 8, -133
	case tensor.F16:
		digits, least = 11, -24
	}
	for i, x := range values {
		step := powerOfTwo(max(exponent(x)-digits, least))
		dst[i] = quant.Rounding{Below: step / 2, Above: step / 2, Step: step}
	}
}

// exponent returns the exponent e of math.Frexp, |x| < 2^e, and 0 for zero and numbers that are not finite. It reads e
// from the bits of a normal number, since a comparison of two models asks for the exponent of every value.
func exponent(x float32) int {
	e := int(math.Float32bits(x) >> 23 & 0xff)
	if e == 0 || e == 0xff {
		_, e = math.Frexp(float64(x))
		return e
	}
	return e - 126
}

// powerOfTwo is 2^k for −149 ≤ k ≤ 127.
func powerOfTwo(k int) float32 {
	if k < -126 {
		return math.Float32frombits(1 << (k + 149))
	}
	return math.Float32frombits(uint32(k+127) << 23)
}

// tally is what two stretches have to do with each other.
type tally struct {
	n          int
	dd, aa, bb float64 // Σ(a−b)², Σa², Σb²
	outside    int     // values that no rounding of one number explains
	errors     int     // values whose rounding error is known
	eighths    [8]int  // of them, by error from −½ to ½ of a step
}

// touching keeps neighbours of one type apart: no number rounds to both.
const touching = 1 - 1e-5

// compare adds up the differences of two stretches of equal shape.
func compare(a, b *stretch) *tally {
	t := &tally{n: len(a.values)}
	for i, x := range a.values {
		y := b.values[i]
		if x == y || x != x && y != y {
			if sq := float64(x) * float64(x); sq > 0 && !math.IsInf(sq, 0) {
				t.aa += sq
				t.bb += sq
				t.error(0, a.bounds[i].Step, b.bounds[i].Step)
			}
			continue
		}
		d := float64(x) - float64(y)
		t.dd += float64(d * d)
		t.aa += float64(x) * float64(x)
		t.bb += float64(y) * float64(y)
		r, s := &a.bounds[i], &b.bounds[i]
		// some number is within x−Below…x+Above and within y−Below…y+Above
		if !(d <= (float64(r.Below)+float64(s.Above))*touching && -d <= (float64(r.Above)+float64(s.Below))*touching) {
			t.outside++
		}
		t.error(d, r.Step, s.Step)
	}
	return t
}

// error counts a rounding error d where one of the steps is so much finer that the value can be taken for the original.
func (t *tally) error(d float64, s, r float32) {
	coarse, fine := float64(max(s, r)), float64(min(s, r))
	if !(coarse > 0 && 3*fine <= coarse) || !(math.Abs(d) <= (coarse+fine)*0.55) {
		return
	}
	t.errors++
	t.eighths[min(max(int(math.Floor(8*(d/(coarse+fine)+0.5))), 0), 7)]++
}

// difference is the relative difference; NaN or infinite where a value is.
func (t *tally) difference() float64 {
	if t.dd == 0 {
		return 0
	}
	return math.Sqrt(t.dd / max(t.aa, t.bb))
}

func (t *tally) same() bool { return t.difference() <= sameLimit }

// rounded reports whether a number rounds to both, for all values and as rounding leaves them: hardly a value is outside, and
// the errors are spread over the whole step. Errors of a model that was trained from the coarser one gather about zero.
func (t *tally) rounded() bool {
	if !(t.difference() <= farLimit) || !(float64(t.outside) <= mayBeOutside(t.n)) {
		return false
	}
	if t.errors < fewErrors || float64(t.errors) < fewOf*float64(t.n) {
		return true
	}
	for _, n := range t.eighths {
		if float64(n) < unevenLimit*float64(t.errors)/float64(len(t.eighths)) {
			return false
		}
	}
	return true
}

// mayBeOutside returns how many of n values may be outside: the limit and two standard deviations.
func mayBeOutside(n int) float64 {
	mean := outsideLimit * float64(n)
	return mean + 2*math.Sqrt(mean)
}

// roundedOne reports whether b is a after rounding to the values of its type, a is b, or both are one original.
func roundedOne(a, b *stretch) bool {
	return compare(a.exact(), b).rounded() || compare(a, b.exact()).rounded() || compare(a, b).rounded()
}
