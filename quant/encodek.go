package quant

import (
	"encoding/binary"
	"math"

	"apr/tensor"
)

// affineBlock is a Q4_K or Q5_K block before packing: x̂ = d·sc·q − dmin·m with 8 groups of 32.
type affineBlock struct {
	affineScales
	q [superblock]byte // follows from the scales
}

type affineScales struct {
	d, dmin uint16 // halves
	sc, m   [8]byte
	err     float64 // Σ(x̂ − x)² with the nearest integers
}

const (
	topScale = 63 // the largest 6-bit scale or minimum

	// levelTrials is the number of integers tried for the largest scale of a block, from the top down. Each gives the
	// other scales another grid, and d another rounding error, which is all the error of constant rows. Beyond the
	// fourth little is gained but time.
	levelTrials = 4

	// muchMore is the ratio of the error after rounding the scales to the error before, from which it is worth trying
	// many more scales. Rows of weights without outliers stay below it.
	muchMore = 2

	// nearlyExact is the error of a group, in squares of its scale, that counts as none in that ratio: an eighth of the 32/12
	// that rounding to integers costs. Weights that were in blocks before have an ideal error near 0, and no rounded scale
	// comes within twice of that; the search of all of them took fifty times as long.
	nearlyExact = 0.25
)

// tolerable returns the error of a group after rounding its scale, from which it is worth trying more.
func (t *affineTrial) tolerable() float64 {
	return muchMore * max(t.err, float64(nearlyExact*float64(t.s*t.s)))
}

// fitAffineBlock quantises src to integers 0…top: the four steps of [Quantize].
func fitAffineBlock(b *affineBlock, src *[superblock]float32, top int) {
	var x [superblock]float64
	widen(x[:], src[:])
	var lanes affineGroups // of the vector code
	var natural, wide [8]affineTrial
	if vectors != plain {
		lanes.set(&x)
		lanes.fit(&natural, &wide, top)
	} else {
		for j := range 8 {
			natural[j], wide[j] = fitAffine((*[group]float64)(x[group*j:]), top)
		}
	}
	b.err = math.Inf(1)
	b.tryScales(&x, &lanes, &wide, top)
	b.tryScales(&x, &lanes, &natural, top)
}

// tryScales is steps 2 to 4 for the given ideal scales and minima; it replaces b where its error is less.
func (b *affineBlock) tryScales(x *[superblock]float64, lanes *affineGroups, ideal *[8]affineTrial, top int) {
	var trial, best affineBlock
	largestS, largestM, tolerable := 0.0, 0.0, 0.0
	for j := range ideal {
		largestS, largestM = max(largestS, ideal[j].s), max(largestM, ideal[j].m)
		tolerable += ideal[j].tolerable()
	}
	best.err = math.Inf(1)
	for levels := topScale; levels > topScale/2; levels-- {
		if levels <= topScale-levelTrials && best.err <= tolerable {
			break
		}
		trial.d, trial.dmin = stepHalf(largestS, levels), stepHalf(largestM, levels)
		if trial.roundGroups(x, lanes, ideal, top); trial.err < best.err {
			best.affineScales = trial.affineScales
		}
	}
	best.setIntegers(x, top)
	trial.d, trial.dmin = best.refit(x)
	if trial.roundGroups(x, lanes, ideal, top); trial.err < best.err {
		best.affineScales = trial.affineScales
		best.setIntegers(x, top)
	}
	if best.err < b.err {
		*b = best
	}
}

// roundGroups chooses sc and m of each group for the block's d and dmin.
func (b *affineBlock) roundGroups(x *[superblock]float64, lanes *affineGroups, ideal *[8]affineTrial, top int) {
	var least [8]float64
	if vectors != plain {
		least = lanes.round(b, ideal, top)
	} else {
		for j := range ideal {
			least[j] = b.roundGroup(j, (*[group]float64)(x[group*j:]), &ideal[j], top)
		}
	}
	b.err = 0
	for j := range ideal {
		b.err += b.roundWider(least[j], j, (*[group]float64)(x[group*j:]), &ideal[j], top)
	}
}

// setIntegers finds q of each group for its sc and m.
func (b *affineBlock) setIntegers(x *[superblock]float64, top int) {
	for j := range b.sc {
		s, m := float64(halfValue(b.d)*float64(b.sc[j])), float64(halfValue(b.dmin)*float64(b.m[j]))
		q, part := (*[group]byte)(b.q[group*j:]), (*[group]float64)(x[group*j:])
		if vectors != plain {
			integerLanes(q, part, s, m, inverse(s), float64(top))
		} else {
			roundAffine(q, part, s, m, top)
		}
	}
}

// roundGroup chooses sc and m of group j and returns its error. It tries both sc next to the ideal scale.
func (b *affineBlock) roundGroup(j int, x *[group]float64, ideal *affineTrial, top int) (least float64) {
	least = math.Inf(1)
	sc0, m0 := below(ideal.s, halfValue(b.d)), below(ideal.m, halfValue(b.dmin))
	for sc := sc0; sc <= min(sc0+1, topScale); sc++ {
		b.tryScale(&least, j, x, sc, m0, top)
	}
	return least
}

// roundWider improves the choice of group j, whose error is least, and returns the new error. If roundGroup left much
// more error than the ideal scale has, it tries all sc from 2/3 to 3/2 of it as well: a group whose outlier is far above
// the rest can count it as 15 steps, or 14 or 13 larger ones, and what matters is which of them meets a multiple of dmin.
func (b *affineBlock) roundWider(least float64, j int, x *[group]float64, ideal *affineTrial, top int) float64 {
	if least <= ideal.tolerable() {
		return least
	}
	sc0, m0 := below(ideal.s, halfValue(b.d)), below(ideal.m, halfValue(b.dmin))
	for sc := sc0 - sc0/3; sc <= min(sc0+sc0/2, topScale); sc++ {
		if sc != sc0 && sc != sc0+1 {
			b.tryScale(&least, j, x, sc, m0, top)
		}
	}
	return least
}

// tryScale tries scale sc of group j with m0 and m0+1, and with both m next to the minimum that is best for the
// integers these gave. It keeps what lowers the error below least.
func (b *affineBlock) tryScale(least *float64, j int, x *[group]float64, sc, m0, top int) {
	s, dmin := float64(halfValue(b.d)*float64(sc)), halfValue(b.dmin)
	from, next := m0, m0 // of this round and the next
	for round := range 2 {
		lowest := math.Inf(1)
		for m := from; m <= min(from+1, topScale); m++ {
			if round == 1 && (m == m0 || m == m0+1) {
				continue
			}
			var q [group]byte
			err, bestMin := roundAffine(&q, x, s, float64(dmin*float64(m)), top)
			if err < lowest {
				lowest, next = err, below(max(bestMin, 0), dmin)
			}
			if err < *least {
				b.sc[j], b.m[j], *least = byte(sc), byte(m), err
			}
		}
		from = next
	}
}

// below returns ⌊v/step⌋, at most 63; 0 if step is 0.
func below(v, step float64) int {
	return int(min(v*inverse(step), topScale))
}

// roundAffine sets q to the nearest integers of (x+m)/s in 0…top and returns Σ(s·q − m − x)², and the m that would be
// best for these integers.
func roundAffine(q *[group]byte, x *[group]float64, s, m float64, top int) (err, bestMin float64) {
	inv := inverse(s)
	var sum, err0, err1 float64 // two sums of squares, that do not wait for each other
	for i := 0; i < len(x); i += 2 {
		v, w := x[i], x[i+1]
		k := min(max(int(float64(inv*(v+m))+0.5), 0), top)
		l := min(max(int(float64(inv*(w+m))+0.5), 0), top)
		q[i], q[i+1] = byte(k), byte(l)
		e0, e1 := float64(s*float64(k))-m-v, float64(s*float64(l))-m-w
		sum += e0 + e1
		err0 += float64(e0 * e0)
		err1 += float64(e1 * e1)
	}
	return err0 + err1, m + float64(sum/group)
}

// refit returns halves d, dmin ≥ 0 that minimise Σ(d·a − dmin·c − x)² with a = sc·q and c = m.
//
// Least squares give the real minimum. It lies in a long valley: where an outlier makes both terms large, elements
// near zero are their small difference, and rounding d and dmin apart would cost far more than moving along. So halves
// around d are tried, each with the halves around the dmin that is best for it; the sums make that cheap.
func (b *affineBlock) refit(x *[superblock]float64) (d, dmin uint16) {
	var a2, ac2, c2 int // Σa², Σac, Σc²
	var xa, xc float64
	for j, sc := range b.sc {
		m, sum := int(b.m[j]), 0
		c := float64(m)
		part, q := (*[group]float64)(x[group*j:]), (*[group]byte)(b.q[group*j:])
		for i, v := range part {
			a := int(sc) * int(q[i])
			a2, sum = a2+a*a, sum+a
			xa, xc = xa+float64(v*float64(a)), xc+float64(v*c)
		}
		ac2, c2 = ac2+m*sum, c2+group*m*m
	}
	aa, ac, cc := float64(a2), float64(ac2), float64(c2) // below 2⁵³: exact
	center := b.d
	if cc > 0 {
		if det := float64(aa*cc) - float64(ac*ac); det > 0 {
			center = nonNegativeHalf((float64(xa*cc) - float64(xc*ac)) / det)
		}
	} else if aa > 0 {
		center = nonNegativeHalf(xa / aa)
	}
	d, dmin = b.d, b.dmin
	least := math.Inf(1)
	for dBits := int(center) - valley; dBits <= int(center)+valley; dBits++ {
		u := halfValue(clampHalf(dBits))
		minCenter := int(b.dmin)
		if cc > 0 {
			minCenter = int(nonNegativeHalf((float64(ac*u) - xc) / cc))
		}
		for minBits := minCenter - 1; minBits <= minCenter+1; minBits++ {
			w := halfValue(clampHalf(minBits))
			// Σ(u·a − w·c − x)² − Σx²
			err := float64(u*(float64(u*aa)-float64(2*xa))) + float64(w*(float64(w*cc)+float64(2*xc))) - float64(2*u*w*ac)
			if err < least {
				d, dmin, least = clampHalf(dBits), clampHalf(minBits), err
			}
		}
	}
	return d, dmin
}

// valley is the number of halves that refit tries on each side.
const valley = 16

// clampHalf returns bits as those of a half in 0…MaxAbs.
func clampHalf(bits int) uint16 { return uint16(min(max(bits, 0), 0x7bff)) }

// nonNegativeHalf returns the half nearest to v in 0…MaxAbs.
func nonNegativeHalf(v float64) uint16 { return tensor.F32ToF16(float32(min(max(v, 0), MaxAbs))) }

func encodeQ4K(b *[bytesQ4K]byte, src *[superblock]float32) {
	var f affineBlock
	fitAffineBlock(&f, src, 15)
	f.packHeader((*[16]byte)(b[:]))
	packQ4K(b, &f.q)
}

// packQ4K writes the integers.
func packQ4K(b *[bytesQ4K]byte, codes *[superblock]byte) {
	for k := range 4 {
		q, low, high := (*[32]byte)(b[16+32*k:]), (*[32]byte)(codes[64*k:]), (*[32]byte)(codes[64*k+32:])
		for l := range q {
			q[l] = low[l] | high[l]<<4
		}
	}
}

func encodeQ5K(b *[bytesQ5K]byte, src *[superblock]float32) {
	var f affineBlock
	fitAffineBlock(&f, src, 31)
	f.packHeader((*[16]byte)(b[:]))
	packQ5K(b, &f.q)
}

// packQ5K writes the integers.
func packQ5K(b *[bytesQ5K]byte, codes *[superblock]byte) {
	h := (*[32]byte)(b[16:])
	*h = [32]byte{}
	for i, v := range codes {
		h[i%32] |= v >> 4 << (i / 32)
	}
	for k := range 4 {
		q, low, high := (*[32]byte)(b[48+32*k:]), (*[32]byte)(codes[64*k:]), (*[32]byte)(codes[64*k+32:])
		for l := range q {
			q[l] = low[l]&15 | high[l]<<4
		}
	}
}

// packHeader writes d, dmin and the packed scales and minima.
func (b *affineBlock) packHeader(dst *[16]byte) {
	binary.LittleEndian.PutUint16(dst[0:], b.d)
	binary.LittleEndian.PutUint16(dst[2:], b.dmin)
	packScalesMins((*[12]byte)(dst[4:]), binary.LittleEndian.Uint64(b.sc[:]), binary.LittleEndian.Uint64(b.m[:]))
}

// symmetricBlock is a Q6_K block before packing: x̂ = d·sc·q with 16 groups of 16 and q in −32…31.
type symmetricBlock struct {
	d   uint16 // half
	sc  [16]int8
	q   [superblock]int8
	err float64 // Σ(x̂ − x)²
}

// fitSymmetricBlock quantises x: the four steps of [Quantize].
func fitSymmetricBlock(b *symmetricBlock, src *[superblock]float32) {
	var x [superblock]float64
	widen(x[:], src[:])
	var lanes [2]symmetricGroups // of the vector code
	var s [16]float64
	if vectors != plain {
		for h := range lanes {
			lanes[h].set(x[128*h:])
			lanes[h].fit(s[8*h:])
		}
	} else {
		for j := range s {
			s[j] = fitSymmetric(x[16*j:16*j+16], 32)
		}
	}
	largest := 0.0
	for _, v := range s {
		if math.Abs(v) > math.Abs(largest) {
			largest = v
		}
	}
	b.err = math.Inf(1)
	for levels := 128; levels > 128-levelTrials; levels-- {
		trial := symmetricBlock{d: stepHalf(math.Abs(largest), levels)}
		if largest > 0 { // the integers reach further down: −128
			trial.d |= 0x8000
		}
		if trial.roundGroups(&x, &lanes, &s); trial.err < b.err {
			*b = trial
		}
	}
	b.setIntegers(&x)
	again := symmetricBlock{d: b.refit(&x)}
	if again.roundGroups(&x, &lanes, &s); again.err < b.err {
		*b = again
		b.setIntegers(&x)
	}
}

// roundGroups chooses sc of each group for the block's d: of the integers on both sides of the ideal scale, the one with
// the least error.
func (b *symmetricBlock) roundGroups(x *[superblock]float64, lanes *[2]symmetricGroups, s *[16]float64) {
	d := halfValue(b.d)
	b.err = 0
	if vectors != plain {
		for h := range lanes {
			for _, err := range lanes[h].round(b.sc[8*h:], s[8*h:], d) {
				b.err += err
			}
		}
		return
	}
	inv := inverse(d)
	for j := range s {
		var q [16]int8
		least := math.Inf(1)
		sc0 := min(max(int(math.Floor(s[j]*inv)), -128), 127)
		for sc := sc0; sc <= min(sc0+1, 127); sc++ {
			if err := roundTo(q[:], x[16*j:16*j+16], float64(d*float64(sc)), -32, 31); err < least {
				b.sc[j], least = int8(sc), err
			}
		}
		b.err += least
	}
}

// setIntegers finds q of each group for its sc.
func (b *symmetricBlock) setIntegers(x *[superblock]float64) {
	for j, sc := range b.sc {
		roundTo(b.q[16*j:16*j+16], x[16*j:16*j+16], float64(halfValue(b.d)*float64(sc)), -32, 31)
	}
}

// refit returns the half d that minimises Σ(d·sc·q − x)².
func (b *symmetricBlock) refit(x *[superblock]float64) uint16 {
	var aa int
	var xa float64
	for i, v := range x {
		a := int(b.sc[i/16]) * int(b.q[i])
		aa += a * a
		xa += float64(v * float64(a))
	}
	if aa == 0 {
		return b.d
	}
	return tensor.F32ToF16(float32(xa / float64(aa)))
}

func encodeQ6K(b *[bytesQ6K]byte, src *[superblock]float32) {
	var f symmetricBlock
	fitSymmetricBlock(&f, src)
	f.pack(b)
}

func (b *symmetricBlock) pack(dst *[bytesQ6K]byte) {
	packQ6K(dst, &b.q)
	for j, sc := range b.sc {
		dst[192+j] = byte(sc)
	}
	binary.LittleEndian.PutUint16(dst[208:], b.d)
}

// packQ6K writes the integers.
func packQ6K(b *[bytesQ6K]byte, q *[superblock]int8) {
	for h := range 2 {
		ql, qh := (*[64]byte)(b[64*h:]), (*[32]byte)(b[128+32*h:])
		for l := range 32 {
			at := func(k int) byte { return byte(q[128*h+32*k+l] + 32) }
			ql[l] = at(0)&15 | at(2)<<4
			ql[32+l] = at(1)&15 | at(3)<<4
			qh[l] = at(0)>>4 | at(1)>>4<<2 | at(2)>>4<<4 | at(3)>>4<<6
		}
	}
}
