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

// TestGGMLReferenceReproducesFixtures: four types give equal values. For Q4_K and Q5_K, whose trials often tie to
// within float32 rounding, the order of the original's sums decides; single rows differ, their mean error does not.
func TestGGMLReferenceReproducesFixtures(t *testing.T) {
	input := readF32(t, "input.f32")
	for _, f := range readFixtures(t) {
		got := ggmlQuantized(input, f.dtype)
		if f.dtype != tensor.Q4_K && f.dtype != tensor.Q5_K {
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
			if !(ratio >= 0.95 && ratio <= 1.05) {
				t.Errorf("%v row %d: error is %g of the fixture's", f.dtype, r, ratio)
			}
			mean += ratio / fixtureRows
		}
		if !(mean >= 0.995 && mean <= 1.005) {
			t.Errorf("%v: mean error is %g of the fixtures'", f.dtype, mean)
		}
	}
}
