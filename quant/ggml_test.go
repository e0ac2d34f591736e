package quant

import (
	"math"
	"testing"

	"apr/tensor"
)

// This file restates the search that GGML publishes for its quantisers (ggml-quants, the *_ref functions with their
// default weights), to be the standard of comparison on rows that are not in testdata. It returns decoded values.
// TestGGMLReferenceReproducesFixtures shows that it is GGML's search and not merely like it.

// ggmlQuantized returns the values that a row has after GGML's quantisation to d.
func ggmlQuantized(x []float32, d tensor.DType) []float32 {
	var y []float32
	for n := d.BlockLen(); len(x) > 0; x = x[n:] {
		switch d {
		case tensor.Q4_K:
			y = append(y, ggmlAffineBlock(x[:n], 15, -1, 20)...)
		case tensor.Q5_K:
			y = append(y, ggmlAffineBlock(x[:n], 31, -0.5, 15)...)
		case tensor.Q6_K:
			y = append(y, ggmlSymmetricBlock(x[:n])...)
		case tensor.Q3_K:
			y = append(y, ggmlQ3Block(x[:n])...)
		case tensor.Q2_K:
			y = append(y, ggmlQ2Block(x[:n])...)
		case tensor.Q4_0:
			y = append(y, ggmlExtremeBlock(x[:n], 8)...)
		case tensor.Q5_0:
			y = append(y, ggmlExtremeBlock(x[:n], 16)...)
		case tensor.Q8_0:
			y = append(y, ggmlQ8Block(x[:n])...)
		}
	}
	return y
}

func toHalf(f float32) float32 { return tensor.F16ToF32(tensor.F32ToF16(f)) }

func roundEven(f float32) int { return int(math.RoundToEven(float64(f))) }

func abs32(f float32) float32 { return float32(math.Abs(float64(f))) }

func clampInt(v, lo, hi int) int { return min(max(v, lo), hi) }

// ggmlAffineGroup is the scan of make_qkx2_quants, weighting each element by |x| + rms(x). It returns scale, −minimum
// and the integers.
func ggmlAffineGroup(x []float32, top int, from float32, steps int) (scale, offset float32, q []int) {
	var sumSquares float32
	for _, v := range x {
		sumSquares += float32(v * v)
	}
	rms := float32(math.Sqrt(float64(sumSquares / float32(len(x)))))
	w := make([]float32, len(x))
	lo, hi := x[0], x[0]
	var sumW, sumX float32
	for i, v := range x {
		w[i] = rms + abs32(v)
		lo, hi = min(lo, v), max(hi, v)
		sumW += w[i]
		sumX += float32(w[i] * v)
	}
	lo = min(lo, 0)
	q = make([]int, len(x))
	if hi == lo {
		return 0, -lo, q
	}
	quantise := func(inv float32) []int {
		t := make([]int, len(x))
		for i, v := range x {
			t[i] = clampInt(roundEven(inv*(v-lo)), 0, top)
		}
		return t
	}
	loss := func(t []int, s, m float32) (e float32) {
		for i, v := range x {
			diff := float32(s*float32(t[i])) + m - v
			e += float32(w[i] * float32(diff*diff))
		}
		return e
	}
	width := hi - lo
	scale = 1 / (float32(top) / width)
	q = quantise(float32(top) / width)
	best := loss(q, scale, lo)
	for step := 0; step <= steps; step++ {
		t := quantise((from + float32(0.1*float32(step)) + float32(top)) / width)
		var sumL, sumLL, sumXL float32
		for i, v := range x {
			l := float32(t[i])
			sumL += float32(w[i] * l)
			sumLL += float32(float32(w[i]*l) * l)
			sumXL += float32(float32(w[i]*l) * v)
		}
		det := float32(sumW*sumLL) - float32(sumL*sumL)
		if !(det > 0) {
			continue
		}
		s := (float32(sumW*sumXL) - float32(sumX*sumL)) / det
		m := (float32(sumLL*sumX) - float32(sumL*sumXL)) / det
		if m > 0 {
			s, m = sumXL/sumLL, 0
		}
		if e := loss(t, s, m); e < best {
			best, scale, lo, q = e, s, m, t // later trials count from the new minimum
		}
	}
	return scale, -lo, q
}

func ggmlAffineBlock(x []float32, top int, from float32, steps int) []float32 {
	var s, m [8]float32
	var q [8][]int
	var largestS, largestM float32
	for j := range 8 {
		s[j], m[j], q[j] = ggmlAffineGroup(x[32*j:32*j+32], top, from, steps)
		largestS, largestM = max(largestS, s[j]), max(largestM, m[j])
	}
	levels := func(v, largest float32) float32 {
		if !(largest > 0) {
			return 0
		}
		return float32(clampInt(roundEven(63/largest*v), 0, 63))
	}
	d, dmin := toHalf(largestS/63), toHalf(largestM/63)
	y := make([]float32, len(x))
	for i, v := range x {
		j := i / 32
		step, offset := d*levels(s[j], largestS), dmin*levels(m[j], largestM)
		l := q[j][i%32]
		if step != 0 {
			l = clampInt(roundEven((v+offset)/step), 0, top)
		}
		y[i] = float32(step*float32(l)) - offset
	}
	return y
}

// ggmlSymmetricScale is the scan of make_qx_quants for 6 bits, weighting each element by x².
func ggmlSymmetricScale(x []float32) float32 {
	var extreme float32
	for _, v := range x {
		if abs32(v) > abs32(extreme) {
			extreme = v
		}
	}
	if abs32(extreme) < 1e-15 {
		return 0
	}
	sums := func(inv float32) (xl, ll float32) {
		for _, v := range x {
			l := float32(clampInt(roundEven(inv*v), -32, 31))
			w := float32(v * v)
			xl += float32(float32(w*v) * l)
			ll += float32(float32(w*l) * l)
		}
		return xl, ll
	}
	xl, ll := sums(-32 / extreme)
	scale := xl / ll
	best := float32(scale * xl)
	for k := -9; k <= 9; k++ {
		if xl, ll := sums(-(32 + float32(0.1*float32(k))) / extreme); k != 0 && ll > 0 && float32(xl*xl) > float32(best*ll) {
			scale = xl / ll
			best = float32(scale * xl)
		}
	}
	return scale
}

func ggmlSymmetricBlock(x []float32) []float32 {
	var s [16]float32
	var largest float32
	for j := range s {
		if s[j] = ggmlSymmetricScale(x[16*j : 16*j+16]); abs32(s[j]) > abs32(largest) {
			largest = s[j]
		}
	}
	y := make([]float32, len(x))
	if abs32(largest) < 1e-15 {
		return y
	}
	inv := -128 / largest
	d := toHalf(1 / inv)
	for i, v := range x {
		step := d * float32(min(roundEven(inv*s[i/16]), 127))
		if step != 0 {
			y[i] = step * float32(clampInt(roundEven(v/step), -32, 31))
		}
	}
	return y
}

// ggmlQ3Scale is make_q3_quants: from the scale that makes the extreme element −4 steps, integers change one by one while the error with
// weights x² falls.
func ggmlQ3Scale(x []float32) float32 {
	var extreme float32
	for _, v := range x {
		if abs32(v) > abs32(extreme) {
			extreme = v
		}
	}
	if abs32(extreme) < 1e-15 {
		return 0
	}
	var xl, ll float32
	q := make([]float32, len(x))
	for i, v := range x {
		w := float32(v * v)
		q[i] = float32(clampInt(roundEven(-4/extreme*v), -4, 3))
		xl += float32(float32(w*v) * q[i])
		ll += float32(float32(w*q[i]) * q[i])
	}
	for range 5 {
		changed := false
		for i, v := range x {
			w := float32(v * v)
			restX, restL := xl-float32(float32(w*v)*q[i]), ll-float32(float32(w*q[i])*q[i])
			if !(restX > 0) {
				continue
			}
			l := float32(clampInt(roundEven(v*restL/restX), -4, 3))
			if l == q[i] {
				continue
			}
			restX += float32(float32(w*v) * l)
			restL += float32(float32(w*l) * l)
			if restL > 0 && float32(float32(restX*restX)*ll) > float32(float32(xl*xl)*restL) {
				q[i], xl, ll, changed = l, restX, restL, true
			}
		}
		if !changed {
			break
		}
	}
	if !(ll > 0) {
		return 0
	}
	return xl / ll
}

func ggmlQ3Block(x []float32) []float32 {
	var s [16]float32
	var largest float32
	for j := range s {
		if s[j] = ggmlQ3Scale(x[16*j : 16*j+16]); abs32(s[j]) > abs32(largest) {
			largest = s[j]
		}
	}
	y := make([]float32, len(x))
	if largest == 0 {
		return y
	}
	inv := -32 / largest
	d := toHalf(1 / inv)
	for i, v := range x {
		if step := d * float32(clampInt(roundEven(inv*s[i/16]), -32, 31)); step != 0 {
			y[i] = step * float32(clampInt(roundEven(v/step), -4, 3))
		}
	}
	return y
}

// ggmlQ2Group is make_qkx2_quants as Q2_K calls it: weights |x|, and the error is the weighted sum of magnitudes.
func ggmlQ2Group(x []float32) (scale, offset float32) {
	lo, hi := x[0], x[0]
	var sumW, sumX float32
	for _, v := range x {
		lo, hi = min(lo, v), max(hi, v)
		sumW += abs32(v)
		sumX += float32(abs32(v) * v)
	}
	lo = min(lo, 0)
	if hi == lo {
		return 0, -lo
	}
	quantise := func(inv float32) []float32 {
		q := make([]float32, len(x))
		for i, v := range x {
			q[i] = float32(clampInt(roundEven(inv*(v-lo)), 0, 3))
		}
		return q
	}
	loss := func(q []float32, s, m float32) (e float32) {
		for i, v := range x {
			e += float32(abs32(v) * abs32(float32(s*q[i])+m-v))
		}
		return e
	}
	width := hi - lo
	scale = 1 / (3 / width)
	best := loss(quantise(3/width), scale, lo)
	for step := 0; step <= 15; step++ {
		q := quantise((-0.5 + float32(0.1*float32(step)) + 3) / width)
		var sumL, sumLL, sumXL float32
		for i, v := range x {
			w := abs32(v)
			sumL += float32(w * q[i])
			sumLL += float32(float32(w*q[i]) * q[i])
			sumXL += float32(float32(w*q[i]) * v)
		}
		det := float32(sumW*sumLL) - float32(sumL*sumL)
		if !(det > 0) {
			continue
		}
		s := (float32(sumW*sumXL) - float32(sumX*sumL)) / det
		m := (float32(sumLL*sumX) - float32(sumL*sumXL)) / det
		if m > 0 {
			s, m = sumXL/sumLL, 0
		}
		if e := loss(q, s, m); e < best {
			best, scale, lo = e, s, m
		}
	}
	return scale, -lo
}

func ggmlQ2Block(x []float32) []float32 {
	var s, m [16]float32
	var largestS, largestM float32
	for j := range s {
		s[j], m[j] = ggmlQ2Group(x[16*j : 16*j+16])
		largestS, largestM = max(largestS, s[j]), max(largestM, m[j])
	}
	levels := func(v, largest float32) float32 {
		if !(largest > 0) {
			return 0
		}
		return float32(roundEven(15 / largest * v))
	}
	d, dmin := toHalf(largestS/15), toHalf(largestM/15)
	y := make([]float32, len(x))
	for i, v := range x {
		step, offset := d*levels(s[i/16], largestS), dmin*levels(m[i/16], largestM)
		var l float32
		if step != 0 {
			l = float32(clampInt(roundEven((v+offset)/step), 0, 3))
		}
		y[i] = float32(step*l) - offset
	}
	return y
}

// ggmlExtremeBlock is quantize_row_q4_0_ref (n = 8) and quantize_row_q5_0_ref (n = 16).
func ggmlExtremeBlock(x []float32, n int) []float32 {
	var extreme float32
	for _, v := range x {
		if abs32(v) > abs32(extreme) {
			extreme = v
		}
	}
	d := extreme / float32(-n)
	var inv float32
	if d != 0 {
		inv = 1 / d
	}
	y := make([]float32, len(x))
	for i, v := range x {
		l := min(int(float32(v*inv)+float32(n)+0.5), 2*n-1)
		y[i] = toHalf(d) * float32(l-n)
	}
	return y
}

// ggmlQ8Block is quantize_row_q8_0_ref.
func ggmlQ8Block(x []float32) []float32 {
	var largest float32
	for _, v := range x {
		largest = max(largest, abs32(v))
	}
	d := largest / 127
	var inv float32
	if d != 0 {
		inv = 1 / d
	}
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = toHalf(d) * float32(math.Round(float64(v*inv)))
	}
	return y
}

func rmse(x, y []float32) float64 {
	sum := 0.0
	for i := range x {
		e := float64(y[i]) - float64(x[i])
		sum += e * e
	}
	return math.Sqrt(sum / float64(len(x)))
}

// TestGGMLReferenceReproducesFixtures: five types give equal values. For Q4_K, Q5_K and Q2_K, whose trials often tie to
// within float32 rounding, the order of the original's sums decides; single rows differ, their mean error does not.
func TestGGMLReferenceReproducesFixtures(t *testing.T) {
	input := readF32(t, "input.f32")
	for _, f := range readFixtures(t) {
		got := ggmlQuantized(input, f.dtype)
		if f.dtype != tensor.Q4_K && f.dtype != tensor.Q5_K && f.dtype != tensor.Q2_K {
			for i, want := range f.decoded {
				if !(got[i] == want) { // zeros of either sign are equal
					t.Fatalf("%v: element %d is %g, want %g", f.dtype, i, got[i], want)
				}
			}
			continue
		}
		mean := 0.0
		for r := range fixtureRows {
			lo, hi := r*fixtureCols, (r+1)*fixtureCols
			ratio := rmse(input[lo:hi], got[lo:hi]) / f.rowRMSE[r]
			if off := math.Abs(ratio - 1); !(off <= 0.06) {
				t.Errorf("%v row %d: error is %g of the fixture's", f.dtype, r, ratio)
			}
			mean += ratio / fixtureRows
		}
		if !(mean >= 0.995 && mean <= 1.005) {
			t.Errorf("%v: mean error is %g of the fixtures'", f.dtype, mean)
		}
	}
}
