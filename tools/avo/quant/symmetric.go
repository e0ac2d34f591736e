package main

import (
	. "github.com/mmcloughlin/avo/build" //nolint:revive,staticcheck // the assembler's own idiom
	"github.com/mmcloughlin/avo/reg"
)

// Rows of symmetricGroups, symmetricBest and symmetricRound; see lanes.go of package quant.
const (
	sixteen = 16 // elements of a group

	rowExtreme             = sixteen
	symmetricS, symmetricG = 0, 1

	wantS, gotSc, gotErr = 0, 1, 2

	half = 32 // integers are −half…half−1
)

// symmetricScan improves best by one trial for each group.
func (s isa) symmetricScan() {
	s.begin("symmetricScan", "groups *float64, best *float64, steps float64",
		"improves best by one trial of trySymmetric for each group.")
	g, best := pointer("groups"), pointer("best")
	s.halves(func(off int) {
		inv := s.scalar("steps")
		VDIVPD(at(g, rowExtreme, off), inv, inv)
		s.symmetricTrial(g, best, off, inv)
	})
}

// symmetricRefine improves best by the integers that its own s gives.
func (s isa) symmetricRefine() {
	s.begin("symmetricRefine", "groups *float64, best *float64",
		"improves best by the integers that its own s gives.")
	g, best := pointer("groups"), pointer("best")
	s.halves(func(off int) { s.symmetricTrial(g, best, off, s.inverse(s.load(best, symmetricS, off))) })
}

// symmetricInteger rounds inv·v to −half…half−1.
func (s isa) symmetricInteger(v, inv reg.VecVirtual) reg.VecVirtual {
	k := s.vec()
	VMULPD(inv, v, k)
	VADDPD(constant(half+0.5), k, k)
	VMAXPD(constant(0), k, k)
	VMINPD(constant(2*half-1), k, k)
	s.truncate(k)
	VSUBPD(constant(half), k, k)
	return k
}

// symmetricTrial is trySymmetric for each lane, and keeps what gains more.
func (s isa) symmetricTrial(g, best reg.GPVirtual, off int, inv reg.VecVirtual) {
	q2, sums := s.zero(), [2]reg.VecVirtual{s.zero(), s.zero()}
	for i := range sixteen {
		v := s.load(g, i, off)
		k := s.symmetricInteger(v, inv)
		VFMADD231PD(k, k, q2) // integers: exact
		VMULPD(k, v, v)
		VADDPD(v, sums[i%2], sums[i%2])
	}
	xq, scale := sums[0], s.vec()
	VADDPD(sums[1], xq, xq)
	VDIVPD(q2, xq, scale)
	VMULPD(scale, xq, xq)
	old := s.load(best, symmetricG, off)
	better := s.and(s.compare(xq, greater, old), s.compare(q2, greater, constant(0)))
	s.choose(better, xq, old)
	store(old, best, symmetricG, off)
	old = s.load(best, symmetricS, off)
	s.choose(better, scale, old)
	store(old, best, symmetricS, off)
}

// symmetricRound chooses the scale of each group among the integers on both sides of the ideal one.
func (s isa) symmetricRound() {
	s.begin("symmetricRound", "groups *float64, r *float64, d float64, inv float64",
		"chooses the scale of each group, as roundGroups of symmetricBlock does.")
	g, r := pointer("groups"), pointer("r")
	s.halves(func(off int) {
		least := s.vec()
		VMOVUPD(constant(infinity), least)
		store(least, r, gotErr, off)
		for a := range 2 {
			sc := s.load(r, wantS, off)
			VMULPD(s.scalar("inv"), sc, sc)
			s.floor(sc)
			VMAXPD(constant(-128), sc, sc)
			VMINPD(constant(127), sc, sc)
			if a == 1 {
				VADDPD(constant(1), sc, sc)
			}
			scale := s.scalar("d")
			VMULPD(sc, scale, scale)
			inv, err := s.inverse(scale), s.zero()
			for i := range sixteen {
				v := s.load(g, i, off)
				k := s.symmetricInteger(v, inv)
				VMULPD(scale, k, k)
				VSUBPD(v, k, k)
				VMULPD(k, k, k)
				VADDPD(k, err, err)
			}
			least := s.load(r, gotErr, off)
			better := s.and(s.compare(sc, atMost, constant(127)), s.compare(err, less, least))
			s.choose(better, err, least)
			store(least, r, gotErr, off)
			old := s.load(r, gotSc, off)
			s.choose(better, sc, old)
			store(old, r, gotSc, off)
		}
	})
}
