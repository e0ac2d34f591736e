package quant

import (
	"math"

	"apr/tensor"
)

// This file has the searches of [Quantize] once more, for blocks of any shape and for errors with weights: they minimise
// Σ w(x̂−x)². Q2_K and Q3_K are encoded by them always, with weights of 1, the other types by [QuantizeWeighted]. They work
// in float64 and round every product on its own, as the others do.

// shape is what a block of 256 consists of.
type shape struct {
	each     int  // elements that share a scale
	lo, hi   int  // the least and the greatest integer of an element
	affine   bool // there are minima; then scales and minima are 0…top, else scales are −top…top−1
	top      int
	levels   int       // integers that are tried for the largest scale, from the top down
	phases   []float64 // parts of a step by which trials begin below the least element
	patience float64   // what is tried further while the error is above this multiple of that with ideal scales; 0: nothing
	from, to int       // tenths of a step that trials have more than the range of integers
}

var (
	shapeQ2K = shape{each: 16, hi: 3, affine: true, top: 15, levels: 3, patience: muchMore, phases: []float64{-0.3, 0.3, 0.6}, from: -15, to: 12}
	shapeQ3K = shape{each: 16, lo: -4, hi: 3, top: 32, levels: 3, patience: muchMore, from: -15, to: 15}
	shapeQ4K = shape{each: 32, hi: 15, affine: true, top: 63, levels: 4, patience: muchMore, phases: affinePhases[:], from: -12, to: 12}
	shapeQ5K = shape{each: 32, hi: 31, affine: true, top: 63, levels: 4, patience: muchMore, phases: affinePhases[:], from: -12, to: 12}
	shapeQ6K = shape{each: 16, lo: -32, hi: 31, top: 128, levels: 4, from: -9, to: 9}
)

// scaledBlock is a block before packing: x̂ = d·sc·q − dmin·m; the first 256/each of sc and m count.
type scaledBlock struct {
	d, dmin uint16 // halves
	sc, m   [16]int
	q       [superblock]int8
	err     float64 // Σ w(x̂ − x)²
}

// fit is the least-squares scale and minimum ≥ 0 of a group for one choice of integers, and its gain = Σwx² − err, where
// err = Σ w(s·q − m − x)². The searches fill in err when they are done.
type fit struct{ s, m, gain, err float64 }

// values are the elements of a group, or of more, and their weights.
type values struct{ x, w []float64 }

func (v values) group(j, n int) values { return values{v.x[j*n : j*n+n], v.w[j*n : j*n+n]} }

// encode finds the block of the values of src: the four steps of [Quantize].
func (sh *shape) encode(b *scaledBlock, src, weights []float32) {
	var x, w [superblock]float64
	widen(x[:], src)
	for i := range w {
		w[i] = 1
	}
	if weights != nil {
		widen(w[:], weights)
	}
	all := values{x[:], w[:]}
	var natural, wide [16]fit
	for j := range superblock / sh.each {
		v := all.group(j, sh.each)
		squares := 0.0
		for i, x := range v.x {
			squares += float64(v.w[i] * float64(x*x))
		}
		natural[j], wide[j] = sh.fits(v)
		natural[j].err, wide[j].err = max(squares-natural[j].gain, 0), max(squares-wide[j].gain, 0)
	}
	b.err = math.Inf(1)
	sh.scales(b, all, &wide)
	sh.scales(b, all, &natural)
}

// fits looks for the scale and minimum of a group, whatever those of its block can be. The natural one's steps begin at the least
// element, and reach the extreme one; those of the wide one need not.
func (sh *shape) fits(v values) (natural, wide fit) {
	if !sh.affine {
		return sh.fitSymmetric(v, 0), sh.fitSymmetric(v, sh.from)
	}
	lo, hi := math.Min(0, v.x[0]), v.x[0]
	for _, x := range v.x {
		lo, hi = min(lo, x), max(hi, x)
	}
	if hi == lo { // zeros, or one negative number
		f := fit{m: -lo, gain: math.Inf(1)}
		return f, f
	}
	natural.gain = math.Inf(-1)
	sh.scan(&natural, v, lo, hi, 0)
	wide = natural
	for _, phase := range sh.phases {
		sh.scan(&wide, v, lo, hi, phase)
	}
	sh.refine(&natural, v)
	sh.refine(&wide, v)
	return natural, wide
}

func (sh *shape) scan(best *fit, v values, lo, hi, phase float64) {
	for k := sh.from; k <= sh.to; k += 3 {
		inv := (float64(sh.hi) + float64(0.1*float64(k))) / (hi - lo)
		if f := sh.solve(v, lo-phase/inv, inv); f.gain > best.gain {
			*best = f
		}
	}
}

func (sh *shape) refine(best *fit, v values) {
	for range 4 {
		f := sh.solve(v, -best.m, inverse(best.s))
		if !(f.gain > best.gain) {
			return
		}
		*best = f
	}
}

// singular is the part of its terms from which a difference is not rounding: that of groups whose integers are all equal.
const singular = 1e-9

// solve rounds inv·(x−lo) to integers and solves for s and m ≥ 0. Without a positive s the gain is −∞.
func (sh *shape) solve(v values, lo, inv float64) fit {
	var w0, wq, wqq, wx, wxq float64
	for i, x := range v.x {
		w, q := v.w[i], float64(min(max(int(float64(inv*(x-lo))+0.5), 0), sh.hi))
		a, b := float64(w*q), float64(w*x)
		w0, wq, wqq, wx, wxq = w0+w, wq+a, wqq+float64(a*q), wx+b, wxq+float64(b*q)
	}
	if !(wqq > 0) {
		return fit{gain: math.Inf(-1)}
	}
	s, m := wxq/wqq, 0.0
	if det := float64(w0*wqq) - float64(wq*wq); det > singular*float64(w0*wqq) {
		if free := (float64(wq*wxq) - float64(wqq*wx)) / det; free > 0 {
			s, m = (float64(w0*wxq)-float64(wx*wq))/det, free
		}
	}
	if !(s > 0) {
		return fit{gain: math.Inf(-1)}
	}
	gain := float64(2*float64(s*wxq)) - float64(2*float64(m*wx)) - float64(s*s*wqq) + float64(2*float64(s*m)*wq) - float64(m*m*w0)
	return fit{s: s, m: m, gain: gain}
}

// fitSymmetric is the search for a scale of either sign; the extreme element is lo steps and from/10 or more. An outlier among
// small elements is as well counted as few wide steps, but then the scale of its block is wider for all groups.
func (sh *shape) fitSymmetric(v values, from int) (best fit) {
	extreme := extremeOf(v.x)
	if extreme == 0 {
		return fit{}
	}
	for k := from; k <= sh.to; k++ {
		if f := sh.solveSymmetric(v, (float64(sh.lo)-float64(0.1*float64(k)))/extreme); f.gain > best.gain {
			best = f
		}
	}
	for range 4 {
		f := sh.solveSymmetric(v, inverse(best.s))
		if !(f.gain > best.gain) {
			break
		}
		best = f
	}
	return best
}

func (sh *shape) solveSymmetric(v values, inv float64) fit {
	var wqq, wxq float64
	for i, x := range v.x {
		q := float64(roundSymmetric(float64(inv*x), sh.lo, sh.hi))
		a := float64(v.w[i] * q)
		wqq, wxq = wqq+float64(a*q), wxq+float64(a*x)
	}
	if !(wqq > 0) {
		return fit{}
	}
	s := wxq / wqq
	return fit{s: s, gain: float64(s * wxq)}
}

// scales is steps 2 to 4 for the given ideal scales and minima; it replaces b where its error is less.
func (sh *shape) scales(b *scaledBlock, v values, ideal *[16]fit) {
	n := superblock / sh.each
	largest, largestM, perfect := 0.0, 0.0, 0.0
	for _, f := range ideal[:n] {
		perfect += f.err
		if math.Abs(f.s) > math.Abs(largest) {
			largest = f.s
		}
		largestM = max(largestM, f.m)
	}
	best := scaledBlock{err: math.Inf(1)}
	for k := range sh.top / 2 {
		if k >= sh.levels && (sh.patience == 0 || best.err <= float64(sh.patience*perfect)) {
			break
		}
		t := scaledBlock{d: stepHalf(math.Abs(largest), sh.top-k), dmin: stepHalf(largestM, sh.top-k)}
		if !sh.affine {
			t.dmin = 0
			if largest > 0 { // the integers reach further down
				t.d |= 0x8000
			}
		}
		if sh.choose(&t, v, ideal); t.err < best.err {
			best = t
		}
	}
	for range 2 {
		t := best
		if t.d, t.dmin = sh.refit(&best, v); t.d == best.d && t.dmin == best.dmin {
			break
		}
		if sh.choose(&t, v, ideal); !(t.err < best.err) {
			break
		}
		best = t
	}
	if best.err < b.err {
		*b = best
	}
}

// choose finds the integer scales, minima and integers of all groups for the d and dmin of b.
func (sh *shape) choose(b *scaledBlock, v values, ideal *[16]fit) {
	b.err = 0
	for j := range superblock / sh.each {
		b.err += sh.chooseGroup(b, j, v.group(j, sh.each), ideal[j])
	}
}

// chooseGroup tries the integer scales on both sides of the ideal one; if these leave much more error than the ideal
// scale has, also those from 2/3 to 3/2 of it, since an outlier may count any integer of steps near the end of the range.
func (sh *shape) chooseGroup(b *scaledBlock, j int, v values, ideal fit) (least float64) {
	d, dmin := halfValue(b.d), halfValue(b.dmin)
	low, high := 0, sh.top
	if !sh.affine {
		low, high = -sh.top, sh.top-1
	}
	least = math.Inf(1)
	center := int(math.Floor(min(max(float64(ideal.s*inverse(d)), float64(low)), float64(high))))
	var q [32]int8
	try := func(sc, m int) (bestMin float64) {
		err, bestMin := sh.round(q[:sh.each], v, float64(d*float64(sc)), float64(dmin*float64(m)))
		if err < least {
			b.sc[j], b.m[j], least = sc, m, err
			copy(b.q[j*sh.each:], q[:sh.each])
		}
		return bestMin
	}
	scale := func(sc int) {
		if !sh.affine {
			try(sc, 0)
			return
		}
		m := min(int(float64(ideal.m*inverse(dmin))), sh.top)
		next := min(int(float64(max(try(sc, m), 0)*inverse(dmin))), sh.top)
		for _, other := range [...]int{m + 1, next} {
			if other != m && other <= sh.top {
				try(sc, other)
			}
		}
	}
	from, to := center, min(center+1, high)
	for sc := from; sc <= to; sc++ {
		scale(sc)
	}
	if sh.patience > 0 && least > float64(sh.patience*ideal.err) {
		reach := max(center, -center) / 2
		for sc := max(center-reach, low); sc <= min(center+reach, high); sc++ {
			if (sc < from || sc > to) && (sh.affine || sc != 0) {
				scale(sc)
			}
		}
	}
	return least
}

// round sets q to the nearest integers of (x+m)/s and returns Σ w(s·q − m − x)² and the m that is best for them.
func (sh *shape) round(q []int8, v values, s, m float64) (err, bestMin float64) {
	inv := inverse(s)
	var sum, total float64
	for i, x := range v.x {
		k := roundSymmetric(float64(inv*(x+m)), sh.lo, sh.hi)
		q[i] = int8(k)
		e, w := float64(s*float64(k))-m-x, v.w[i]
		sum, total = sum+float64(w*e), total+w
		err += float64(w * float64(e*e))
	}
	return err, m + float64(sum*inverse(total))
}

// refit returns halves d and dmin that minimise Σ w(d·a − dmin·c − x)² with a = sc·q and c = m; see affineBlock.refit for why
// halves around the real minimum are tried.
func (sh *shape) refit(b *scaledBlock, v values) (d, dmin uint16) {
	var aa, ac, cc, xa, xc float64
	for i, x := range v.x {
		j := i / sh.each
		a, c, w := float64(b.sc[j]*int(b.q[i])), float64(b.m[j]), v.w[i]
		wa, wc := float64(w*a), float64(w*c)
		aa, ac, cc = aa+float64(wa*a), ac+float64(wa*c), cc+float64(wc*c)
		xa, xc = xa+float64(wa*x), xc+float64(wc*x)
	}
	if !(aa > 0) {
		return b.d, b.dmin
	}
	if !sh.affine {
		return signedHalf(xa / aa), 0
	}
	center := nonNegativeHalf(xa / aa)
	if det := float64(aa*cc) - float64(ac*ac); cc > 0 && det > 0 {
		center = nonNegativeHalf((float64(xa*cc) - float64(xc*ac)) / det)
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
			y := halfValue(clampHalf(minBits))
			err := float64(u*(float64(u*aa)-float64(2*xa))) + float64(y*(float64(y*cc)+float64(2*xc))) - float64(2*u*y*ac)
			if err < least {
				d, dmin, least = clampHalf(dBits), clampHalf(minBits), err
			}
		}
	}
	return d, dmin
}

// signedHalf returns the half nearest to v in −MaxAbs…MaxAbs.
func signedHalf(v float64) uint16 {
	h := nonNegativeHalf(math.Abs(v))
	if v < 0 {
		h |= 0x8000
	}
	return h
}

// affineBlock is b as a block of Q4_K or Q5_K.
func (b *scaledBlock) affineBlock() (f affineBlock) {
	f.d, f.dmin = b.d, b.dmin
	for j := range f.sc {
		f.sc[j], f.m[j] = byte(b.sc[j]), byte(b.m[j])
	}
	for i, q := range b.q {
		f.q[i] = byte(q)
	}
	return f
}

// symmetricBlock is b as a block of Q6_K.
func (b *scaledBlock) symmetricBlock() (f symmetricBlock) {
	f.d, f.q = b.d, b.q
	for j := range f.sc {
		f.sc[j] = int8(b.sc[j])
	}
	return f
}

// encodeScaled encodes a block of 256 by the searches of this file; weights nil: all are 1.
func encodeScaled(dst []byte, src, weights []float32, d tensor.DType) {
	var f scaledBlock
	switch d {
	case tensor.Q2_K:
		shapeQ2K.encode(&f, src, weights)
		packQ2K((*[bytesQ2K]byte)(dst), &f)
	case tensor.Q3_K:
		shapeQ3K.encode(&f, src, weights)
		packQ3K((*[bytesQ3K]byte)(dst), &f)
	case tensor.Q4_K:
		shapeQ4K.encode(&f, src, weights)
		a := f.affineBlock()
		a.packHeader((*[16]byte)(dst))
		packQ4K((*[bytesQ4K]byte)(dst), &a.q)
	case tensor.Q5_K:
		shapeQ5K.encode(&f, src, weights)
		a := f.affineBlock()
		a.packHeader((*[16]byte)(dst))
		packQ5K((*[bytesQ5K]byte)(dst), &a.q)
	case tensor.Q6_K:
		shapeQ6K.encode(&f, src, weights)
		s := f.symmetricBlock()
		s.pack((*[bytesQ6K]byte)(dst))
	}
}
