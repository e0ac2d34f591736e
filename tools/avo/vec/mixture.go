package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build" //nolint:revive,staticcheck // the assembler's own idiom
)

// mixtureKernels are the mixture of distributions by their logarithms.
func (s *isa) mixtureKernels() {
	s.expTotal()
	s.shift()
	s.logAddExp()
}

// expTotal returns Σ e^((x−shift)·invT).
func (s *isa) expTotal() {
	k := s.kernel("expTotal", "x []float32, shift, invT float32", "(sum float64)")
	k.slices("x")
	k.count("x")
	shift, invT, least := k.scalar("shift"), k.scalar("invT"), k.minusInf()
	sums := k.totals(1)
	sum := sums.small[0]
	k.loop(s.lanes(), 4, func() {
		x := k.loadOr("x", least)
		VSUBPS(shift, x, x)
		VMULPS(invT, x, x)
		k.exp(x)
		VADDPS(x, sum, sum)
	})
	sums.result(0, "sum")
	k.end()
}

// shift writes y = (x−m)+c.
func (s *isa) shift() {
	k := s.kernel("shift", "y, x []float32, m, c float32", "")
	k.slices("y", "x")
	k.count("y")
	m, c := k.scalar("m"), k.scalar("c")
	k.loop(s.lanes(), 4, func() {
		x := k.load("x")
		VSUBPS(m, x, x)
		VADDPS(c, x, x)
		k.store(x, "y")
	})
	k.end()
}

// logAddExp writes y = T·ln(e^(y/T) + e^(v/T)), v = (x−m)+c: the larger of both, and T·ln(1+e^d), d = (smaller−larger)/T ≤ 0. The
// larger is raised to the lowest finite number in d alone, so that two −∞ stay −∞.
func (s *isa) logAddExp() {
	k := s.kernel("logAddExp", "y, x []float32, m, c, invT, t float32", "")
	k.slices("y", "x")
	k.count("y")
	m, c, invT, t := k.scalar("m"), k.scalar("c"), k.scalar("invT"), k.scalar("t")
	k.loop(s.lanes(), 2, func() {
		v, y := k.load("x"), k.load("y")
		VSUBPS(m, v, v)
		VADDPS(c, v, v)
		larger, d, low := k.vec(), k.vec(), k.held(-math.MaxFloat32)
		VMAXPS(y, v, larger) // y if either is NaN
		VMINPS(v, y, d)      // v if either is NaN: one of both stays NaN
		VMAXPS(low, larger, low)
		VSUBPS(low, d, d)
		VMULPS(invT, d, d)
		k.exp(d)
		k.log1p(d)
		VFMADD231PS(t, d, larger)
		k.store(larger, "y")
	})
	k.end()
}
