package main

import (
	. "github.com/mmcloughlin/avo/build" //nolint:revive,staticcheck // the assembler's own idiom
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Rows of affineGroups, affineBest and affineRound; see lanes.go of package quant.
const (
	groupLen = 32

	rowLow, rowWidth, rowSum = groupLen, groupLen + 1, groupLen + 2
	bestS, bestM, bestGain   = 0, 1, 2

	idealS, idealM, foundSc, foundM, foundErr = 0, 1, 2, 3, 4
	scratchLowest, scratchNext                = 5, 6
)

// affineScan improves best by one trial for each group.
func (s isa) affineScan() {
	s.begin("affineScan", "groups *float64, best *float64, steps float64, phase float64, top float64",
		"improves best by one trial of tryAffine for each group.")
	g, best := pointer("groups"), pointer("best")
	s.halves(func(off int) {
		inv, lo := s.scalar("steps"), s.load(g, rowLow, off)
		VDIVPD(at(g, rowWidth, off), inv, inv)
		shift := s.scalar("phase")
		VDIVPD(inv, shift, shift)
		VSUBPD(shift, lo, lo)
		s.affineTrial("scan"+s.name+string(rune('a'+off/32)), g, best, off, lo, inv)
	})
}

// affineRefine improves best by the integers that its own s and m give.
func (s isa) affineRefine() {
	s.begin("affineRefine", "groups *float64, best *float64, top float64",
		"improves best by the integers that its own s and m give.")
	g, best := pointer("groups"), pointer("best")
	s.halves(func(off int) {
		lo := s.zero()
		VSUBPD(at(best, bestM, off), lo, lo)
		s.affineTrial("refine"+s.name+string(rune('a'+off/32)), g, best, off, lo, s.inverse(s.load(best, bestS, off)))
	})
}

// affineTrial is tryAffine for each lane, and keeps what gains more.
func (s isa) affineTrial(label string, g, best reg.GPVirtual, off int, lo, inv reg.VecVirtual) {
	top := s.scalar("top")
	q1, q2, even, odd := s.zero(), s.zero(), s.zero(), s.zero()
	half, none := s.held(0.5), s.held(0)
	x := GP64()
	LEAQ(at(g, 0, off), x)
	loop(label, groupLen/4, func() {
		for i := range 4 {
			v, k := s.load(x, i, 0), s.vec()
			VSUBPD(lo, v, k)
			VMULPD(inv, k, k)
			VADDPD(half, k, k)
			VMAXPD(none, k, k)
			VMINPD(top, k, k)
			s.truncate(k)
			VADDPD(k, q1, q1)
			VFMADD231PD(k, k, q2) // integers: exact
			VMULPD(k, v, v)
			if i%2 == 0 {
				VADDPD(v, even, even)
			} else {
				VADDPD(v, odd, odd)
			}
		}
		ADDQ(operand.U32(4*row), x)
	})
	VADDPD(odd, even, even)
	s.affineSolve(g, best, off, q1, q2, even)
}

// affineSolve finds scale, minimum and gain of the integers with the sums Σq, Σq² and Σxq.
func (s isa) affineSolve(g, best reg.GPVirtual, off int, q1, q2, xq reg.VecVirtual) {
	sum := s.load(g, rowSum, off)
	scale, low := s.vec(), s.zero()
	VDIVPD(q2, xq, scale)
	det, free, t := s.vec(), s.vec(), s.vec()
	VMULPD(constant(groupLen), q2, det)
	VMULPD(q1, q1, t)
	VSUBPD(t, det, det)
	VMULPD(xq, q1, free)
	VMULPD(sum, q2, t)
	VSUBPD(t, free, free)
	VDIVPD(det, free, free)
	both := s.and(s.compare(det, greater, constant(0)), s.compare(free, greater, constant(0)))
	s.choose(both, free, low)
	VMULPD(constant(groupLen), xq, free)
	VMULPD(q1, sum, t)
	VSUBPD(t, free, free)
	VDIVPD(det, free, free)
	s.choose(both, free, scale)

	gain := det // 2·s·Σxq − 2·m·Σx − s²·Σq² + 2·s·m·Σq − n·m²
	VMULPD(xq, scale, gain)
	VADDPD(gain, gain, gain)
	VMULPD(sum, low, t)
	VADDPD(t, t, t)
	VSUBPD(t, gain, gain)
	VMULPD(scale, scale, t)
	VMULPD(q2, t, t)
	VSUBPD(t, gain, gain)
	VMULPD(low, scale, t)
	VADDPD(t, t, t)
	VMULPD(q1, t, t)
	VADDPD(t, gain, gain)
	VMULPD(constant(groupLen), low, t)
	VMULPD(low, t, t)
	VSUBPD(t, gain, gain)

	better := s.and(s.compare(scale, greater, constant(0)), s.compare(gain, greater, at(best, bestGain, off)))
	better = s.and(better, s.compare(q2, greater, constant(0)))
	for i, v := range []reg.VecVirtual{bestS: scale, bestM: low, bestGain: gain} {
		old := s.load(best, i, off)
		s.choose(better, v, old)
		store(old, best, i, off)
	}
}

// affineRound chooses scale and minimum of each group among the integers: roundGroup without its wider search.
func (s isa) affineRound() {
	s.begin("affineRound", "groups *float64, r *float64, d float64, dmin float64, invD float64, invMin float64, top float64",
		"chooses scale and minimum of each group, as roundGroup does without its wider search.")
	g, r := pointer("groups"), pointer("r")
	s.halves(func(off int) {
		inf := s.vec()
		VMOVUPD(constant(infinity), inf)
		store(inf, r, foundErr, off)
		for a := range 2 {
			store(inf, r, scratchLowest, off)
			for b := range 4 {
				label := "round" + s.name + string(rune('a'+off/32)) + string(rune('a'+4*a+b))
				s.affineCandidate(label, g, r, off, a, b)
			}
		}
	})
}

const (
	topScale = 63
	infinity = 0x1p1023 // more than any error
)

// below is ⌊v·inverse⌋, at most 63.
func (s isa) below(v reg.VecVirtual, inverse string) {
	VMULPD(s.scalar(inverse), v, v)
	VMINPD(constant(topScale), v, v)
	s.truncate(v)
}

// affineCandidate tries the scale that is a steps above the lower one with the minimum: b = 0 and 1 are those next to
// the ideal one, 2 and 3 those next to the best for the integers of the better of 0 and 1.
func (s isa) affineCandidate(label string, g, r reg.GPVirtual, off, a, b int) {
	sc := s.load(r, idealS, off)
	s.below(sc, "invD")
	if a == 1 {
		VADDPD(constant(1), sc, sc)
	}
	var m reg.VecVirtual
	if b < 2 {
		m = s.load(r, idealM, off)
		s.below(m, "invMin")
	} else {
		m = s.load(r, scratchNext, off)
	}
	if b%2 == 1 {
		VADDPD(constant(1), m, m)
	}
	scale, low := s.scalar("d"), s.scalar("dmin")
	VMULPD(sc, scale, scale)
	VMULPD(m, low, low)
	err, best := s.affineError(label, g, off, scale, low)

	valid := s.and(s.compare(sc, atMost, constant(topScale)), s.compare(m, atMost, constant(topScale)))
	if b < 2 {
		VMAXPD(constant(0), best, best)
		s.below(best, "invMin")
		lowest, next := s.load(r, scratchLowest, off), s.load(r, scratchNext, off)
		k := s.and(valid, s.compare(err, less, lowest))
		s.choose(k, err, lowest)
		s.choose(k, best, next)
		store(lowest, r, scratchLowest, off)
		store(next, r, scratchNext, off)
	}
	least := s.load(r, foundErr, off)
	k := s.and(valid, s.compare(err, less, least))
	for _, c := range []struct {
		row int
		v   reg.VecVirtual
	}{{foundErr, err}, {foundSc, sc}, {foundM, m}} {
		old := s.load(r, c.row, off)
		s.choose(k, c.v, old)
		store(old, r, c.row, off)
	}
}

// affineError is roundAffine for each lane.
func (s isa) affineError(label string, g reg.GPVirtual, off int, scale, low reg.VecVirtual) (err, bestMin reg.VecVirtual) {
	inv, top := s.inverse(scale), s.scalar("top")
	sum, err0, err1 := s.zero(), s.zero(), s.zero()
	half, none := s.held(0.5), s.held(0)
	x := GP64()
	LEAQ(at(g, 0, off), x)
	loop(label, groupLen/4, func() {
		for i := 0; i < 4; i += 2 {
			var e [2]reg.VecVirtual
			for j := range e {
				v, k := s.load(x, i+j, 0), s.vec()
				VADDPD(low, v, k)
				VMULPD(inv, k, k)
				VADDPD(half, k, k)
				VMAXPD(none, k, k)
				VMINPD(top, k, k)
				s.truncate(k)
				VMULPD(scale, k, k)
				VSUBPD(low, k, k)
				VSUBPD(v, k, k)
				e[j] = k
			}
			both := s.vec()
			VADDPD(e[1], e[0], both)
			VADDPD(both, sum, sum)
			VMULPD(e[0], e[0], e[0])
			VADDPD(e[0], err0, err0)
			VMULPD(e[1], e[1], e[1])
			VADDPD(e[1], err1, err1)
		}
		ADDQ(operand.U32(4*row), x)
	})
	VADDPD(err1, err0, err0)
	VMULPD(constant(1.0/groupLen), sum, sum) // a power of two: exact
	VADDPD(low, sum, sum)
	return err0, sum
}

// affineIntegers are the integers of a group with its scale and minimum.
func (s isa) affineIntegers() {
	s.begin("affineIntegers", "q *byte, x *float64, scale float64, low float64, inv float64, top float64",
		"sets q to the integers that roundAffine finds.")
	q, x := pointer("q"), pointer("x")
	low, inv, top := s.scalar("low"), s.scalar("inv"), s.scalar("top")
	for i := 0; i < groupLen*8; i += s.bytes {
		k := s.vec()
		VMOVUPD(operand.Mem{Base: x, Disp: i}, k)
		VADDPD(low, k, k)
		VMULPD(inv, k, k)
		VADDPD(constant(0.5), k, k)
		VMAXPD(constant(0), k, k)
		VMINPD(top, k, k)
		if s.wide() {
			n := YMM()
			VCVTTPD2DQ(k, n)
			VPMOVDB(n, operand.Mem{Base: q, Disp: i / 8})
			continue
		}
		n := XMM()
		VCVTTPD2DQY(k, n)
		VPACKUSDW(n, n, n)
		VPACKUSWB(n, n, n)
		VMOVD(n, operand.Mem{Base: q, Disp: i / 8})
	}
	VZEROUPPER()
	RET()
}
