package device

import (
	"math"
	"math/bits"
)

// ManySums are the columns behind the ids of DrawMany.
const ManySums = 6

// MaxMany bounds the ids that DrawMany draws of a row.
const MaxMany = 1 << 10

// ManyBits returns the binary places of the weights of v ids: their sum is below 2⁶².
func ManyBits(v int) int { return min(50, 62-bits.Len(uint(v))) }

// ManyScale returns log₂e/temperature, by which (z − max z) becomes an exponent of 2.
func ManyScale(temperature float64) float64 { return math.Log2E / temperature }

// Philox returns block counter of the generator Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy
// as 1, 2, 3").
func Philox(key [2]uint32, counter [4]uint32) [4]uint32 {
	for range 10 {
		hi0, lo0 := bits.Mul32(0xD2511F53, counter[0])
		hi1, lo1 := bits.Mul32(0xCD9E8D57, counter[2])
		counter = [4]uint32{hi1 ^ counter[1] ^ key[0], lo1, hi0 ^ counter[3] ^ key[1], lo0}
		key[0] += 0x9E3779B9
		key[1] += 0xBB67AE85
	}
	return counter
}

// ManyFraction returns the uniform number of a draw in units of 2⁻⁵³: the first 53 bits of two words of a block of
// Philox, of counter (position, ⌊draw/2⌋, 0, 0). Even draws have words 0 and 1, odd ones 2 and 3, the higher first.
func ManyFraction(key [2]uint32, position uint32, draw int) uint64 {
	w := Philox(key, [4]uint32{position, uint32(draw / 2), 0, 0})
	if draw%2 == 1 {
		w[0], w[1] = w[2], w[3]
	}
	return (uint64(w[0])<<32 | uint64(w[1])) >> 11
}

// exp2 are (ln 2)^i/i!, i from 12 to 0.
var exp2 = [...]float64{0x1.c3bd650fc2986p-36, 0x1.e8cac7351bb25p-32, 0x1.e4cf5158b8ecap-28, 0x1.b5253d395e7c4p-24,
	0x1.62c0223a5c824p-20, 0x1.ffcbfc588b0c7p-17, 0x1.430912f86c787p-13, 0x1.5d87fe78a6731p-10, 0x1.3b2ab6fba4e77p-7,
	0x1.c6b08d704a0c0p-5, 0x1.ebfbdff82c58fp-3, 0x1.62e42fefa39efp-1, 1}

// ManyWeight returns the weight of an id, W = ⌊2^(bits+x)⌉, and e = ⌊−x·2^(bits+x)⌉, where
// x = (z − max z)·log₂e/T. It returns false if x is NaN or above 0. 2^x is the Taylor polynomial of degree 12
// around the nearest integer by fused multiply-adds: its relative error is 1e-16, and all devices compute the
// same bits.
func ManyWeight(x float64, bits int) (w, e uint64, ok bool) {
	const nearest, whole = 0x1.8p52, 0x1p52
	if !(x >= -60) { // W is 0
		return 0, 0, x < 0
	}
	r := x + nearest
	n := int(int32(uint32(math.Float64bits(r))))
	f := x - (r - nearest)
	p := exp2[0]
	for _, c := range exp2[1:] {
		p = math.FMA(p, f, c)
	}
	y := float64(p * math.Float64frombits(uint64(n+bits+1023)<<52)) // exact
	round := func(v float64) uint64 { return math.Float64bits(v+whole) & (1<<52 - 1) }
	return round(y), round(float64(y * -x)), x <= 0
}

// DrawManyRow draws n = len(out)−ManySums ids from softmax(z/temperature), with replacement, and writes them to
// out[:n] as numbers, in the order of draws. weights has room for a value of each logit.
//
// With x = (z−max z)·log₂e/temperature, rounded to float64 at each step, an id weighs what ManyWeight says. The
// sums S = ΣW and E = Σe are exact, in whatever order they are added. A draw with number u of ManyFraction is the
// first id whose running sum of W exceeds ⌊u·S/2⁵³⌋. S and E follow the ids, in three numbers of 21 bits each,
// the lowest first. If a logit is NaN or the largest is infinite, all of out is 0.
func DrawManyRow(out, z []float32, weights []uint64, key [2]uint32, position uint32, temperature float64) {
	n, scale, places := len(out)-ManySums, ManyScale(temperature), ManyBits(len(z))
	largest := float32(math.Inf(-1))
	for _, t := range z {
		largest = max(largest, t)
	}
	var sum, energy uint64
	top, ok := float64(largest), !math.IsInf(float64(largest), 0)
	for i, t := range z {
		w, e, fine := ManyWeight(float64((float64(t)-top)*scale), places)
		weights[i], sum, energy, ok = w, sum+w, energy+e, ok && fine
	}
	if !ok {
		clear(out)
		return
	}
	for i := range 3 {
		out[n+i], out[n+3+i] = float32(sum>>(21*i)&(1<<21-1)), float32(energy>>(21*i)&(1<<21-1))
	}
	for i, w := range weights[:len(z)] { // running sums
		if i > 0 {
			weights[i] = w + weights[i-1]
		}
	}
	for k := range n {
		hi, lo := bits.Mul64(ManyFraction(key, position, k), sum)
		target := hi<<11 | lo>>53
		a, b := 0, len(z)-1
		for a < b { // the first whose running sum is above target
			if mid := (a + b) / 2; weights[mid] > target {
				b = mid
			} else {
				a = mid + 1
			}
		}
		out[k] = float32(a)
	}
}

// ManyResult returns the sum S of the weights of v ids, from a row of DrawMany, and the distribution's entropy in nats,
// ln(S/2^B) + ln 2·E/S. S 0 means that the logits have no distribution.
func ManyResult(row []float32, v int) (sum uint64, entropy float64) {
	sums := row[len(row)-ManySums:]
	var energy uint64
	for i := range 3 {
		sum |= uint64(sums[i]) << (21 * i)
		energy |= uint64(sums[3+i]) << (21 * i)
	}
	if sum == 0 {
		return 0, 0
	}
	return sum, math.Log(math.Ldexp(float64(sum), -ManyBits(v))) + math.Ln2*float64(energy)/float64(sum)
}
