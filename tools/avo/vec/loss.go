package main

import (
	. "github.com/mmcloughlin/avo/build" //nolint:revive,staticcheck // the assembler's own idiom
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// lossKernels are the sums and the gradient of forward KL and cross-entropy; names ending in 1 are for temperature 1.
func (s *isa) lossKernels() {
	s.lossSums("lossSums", false)
	s.lossSums("lossSums1", true)
	s.lossGrad("lossGrad", false)
	s.lossGrad("lossGrad1", true)
}

func (s *isa) lossSums(name string, one bool) {
	params := "z, t []float32, mz, mt, invT float32"
	if one {
		params = "z, t []float32, mz, mt float32"
	}
	k := s.kernel(name, params, "(st, szt, sz1, a, e float64)")
	k.slices("z", "t")
	k.count("z")
	sums := k.totals(5)
	st, sz1, a, e, szt := sums.small[0], sums.small[1], sums.small[2], sums.small[3], sums.small[4]
	if one {
		sums.small = sums.small[:4]
	}
	k.loop(s.lanes(), 4, func() {
		least := k.minusInf()
		dz, dt := k.loadOr("z", least), k.loadOr("t", least)
		VSUBPS(k.scalar("mz"), dz, dz)
		VSUBPS(k.scalar("mt"), dt, dt)
		p := k.copyOf(dt)
		if !one {
			VMULPS(k.scalar("invT"), p, p)
		}
		k.exp(p)
		VADDPS(p, st, st)
		diff := k.vec()
		VSUBPS(dz, dt, diff)
		VMULPS(p, diff, diff)
		VMULPS(p, dt, dt)
		k.keepNonZero(p, diff)
		k.keepNonZero(p, dt)
		VADDPS(diff, a, a)
		VADDPS(dt, e, e)
		if !one {
			q := k.vec()
			VMULPS(k.scalar("invT"), dz, q)
			k.exp(q)
			VADDPS(q, szt, szt)
		}
		k.exp(dz)
		VADDPS(dz, sz1, sz1)
	})
	sums.result(0, "st")
	sums.result(1, "sz1")
	sums.result(2, "a")
	sums.result(3, "e")
	if one {
		sums.result(1, "szt")
	} else {
		sums.result(4, "szt")
	}
	k.end()
}

func (s *isa) lossGrad(name string, one bool) {
	params := "grad, z, t []float32, mz, mt, invT, a, b, c float32"
	if one {
		params = "grad, z, t []float32, mz, mt, b, c float32"
	}
	k := s.kernel(name, params, "")
	k.slices("grad", "z", "t")
	k.count("grad")
	mz, mt, b, c := k.scalar("mz"), k.scalar("mt"), k.scalar("b"), k.scalar("c")
	var invT, a reg.VecVirtual
	if !one {
		invT, a = k.scalar("invT"), k.scalar("a")
	}
	k.loop(s.lanes(), 1, func() {
		p, q := k.load("t"), k.load("z")
		VSUBPS(mt, p, p)
		VSUBPS(mz, q, q)
		var q1 reg.VecVirtual
		if !one {
			q1 = k.copyOf(q)
			VMULPS(invT, p, p)
			VMULPS(invT, q, q)
		}
		k.exp(p)
		k.exp(q)
		VMULPS(c, p, p)
		VMULPS(b, q, q)
		VSUBPS(p, q, q) // both products rounded: equal ones cancel to zero
		if !one {
			k.exp(q1)
			VFMADD231PS(a, q1, q)
		}
		k.store(q, "grad")
	})
	k.end()
}

// The fields of vec.Centre and vec.Mix.
const (
	centreMZ = iota
	centreMT
	centreInvT
	centreInvSumZ
	centreInvSumT
	centreLogRatio
)

const (
	mixBeta = iota
	mixDP
	mixDQ
	mixHLog
	mixHP
	mixHQ
)

// divergenceKernels write hᵢ and return D and Σh.
func (s *isa) divergenceKernels() {
	s.terms("reverseTerms", false, func(k *kernel, p, q, r, d, sumH reg.VecVirtual) {
		v := k.zero()
		VSUBPS(r, v, v)
		VMULPS(q, v, v)
		k.keepNonZero(q, v)
		k.addTerm(v, sumH)
		k.addTerm(v, d)
		k.store(v, "h")
	})
	s.terms("tvdTerms", false, s.tvd)
	s.terms("mixTerms", true, s.mix)
	s.divGrad()
}

// addTerm adds v to sum, without the lanes beyond the tail.
func (k *kernel) addTerm(v, sum reg.VecVirtual) {
	switch {
	case !k.tail:
		VADDPS(v, sum, sum)
	case k.wide():
		VADDPS(v, sum, k.mask, sum)
	default:
		w := k.vec()
		VANDPS(k.mask, v, w)
		VADDPS(w, sum, sum)
	}
}

// terms makes p, Q and r = ln(p/Q) of each logit pair for body.
func (s *isa) terms(name string, mixed bool, body func(k *kernel, p, q, r, d, sumH reg.VecVirtual)) {
	params := "h, z, t []float32, c *float32"
	if mixed {
		params += ", m *float32"
	}
	k := s.kernel(name, params, "(d, sumH float64)")
	k.slices("h", "z", "t")
	k.count("h")
	k.structure("c")
	if mixed {
		k.structure("m")
	}
	sums := k.totals(2)
	d, sumH := sums.small[0], sums.small[1]
	k.loop(s.lanes(), 2, func() {
		p, q := k.load("t"), k.load("z")
		VSUBPS(k.field("c", centreMT), p, p)
		VSUBPS(k.field("c", centreMZ), q, q)
		r := k.vec()
		VSUBPS(q, p, r)
		invT := k.field("c", centreInvT)
		VMULPS(invT, p, p)
		VMULPS(invT, q, q)
		VFMADD213PS(k.field("c", centreLogRatio), invT, r)
		k.exp(p)
		k.exp(q)
		VMULPS(k.field("c", centreInvSumT), p, p)
		VMULPS(k.field("c", centreInvSumZ), q, q)
		body(k, p, q, r, d, sumH)
	})
	sums.result(0, "d")
	sums.result(1, "sumH")
	k.end()
}

// tvd: h = ½·sign(Q−p)·Q, D = ½|p−Q|.
func (s *isa) tvd(k *kernel, p, q, _, d, sumH reg.VecVirtual) {
	diff := k.vec()
	VSUBPS(p, q, diff)
	k.with(VMULPS, VMULPS_BCST, 0.5, q, q)
	sign := k.vec()
	k.withBits(VANDPS, VANDPS_BCST, 0x80000000, diff, sign)
	VXORPS(sign, q, q)
	k.keepNonZero(diff, q)
	k.withBits(VANDPS, VANDPS_BCST, 0x7fffffff, diff, diff)
	k.with(VMULPS, VMULPS_BCST, 0.5, diff, diff)
	k.addTerm(diff, d)
	k.addTerm(q, sumH)
	k.store(q, "h")
}

// mix: see mixTerms of the package, whose names these are.
func (s *isa) mix(k *kernel, p, q, r, d, sumH reg.VecVirtual) {
	zero := k.zero()
	neg, pos, e := k.vec(), k.vec(), k.vec()
	VMINPS(r, zero, neg) // min(r,0)
	VSUBPS(r, zero, pos)
	VMINPS(pos, zero, pos) // min(−r,0)
	VADDPS(neg, pos, e)    // −|r|
	k.exp(e)
	beta, rest := k.field("m", mixBeta), k.held(1)
	VSUBPS(beta, rest, rest)
	big, q2m := k.vec(), k.vec()
	if s.wide() {
		m := K()
		VCMPPS(operand.U8(14), zero, r, m) // r > 0
		VMOVAPS(rest, big)
		VMOVAPS(beta, m, big)
		lower := k.copyOf(beta)
		VMOVAPS(rest, m, lower)
		VFMADD231PS(lower, e, big)
		VMOVAPS(k.held(1), q2m)
		VMOVAPS(e, m, q2m)
	} else {
		m := k.vec()
		VCMPPS(operand.U8(14), zero, r, m)
		VBLENDVPS(m, beta, rest, big)
		VBLENDVPS(m, rest, beta, beta)
		VFMADD231PS(beta, e, big)
		VMOVAPS(k.held(1), q2m)
		VBLENDVPS(m, e, q2m, q2m)
	}
	VDIVPS(big, q2m, q2m)
	k.log(big)
	VSUBPS(big, neg, neg) // ln(p/M)
	VSUBPS(big, pos, pos) // ln(Q/M)
	VMULPS(p, neg, neg)
	k.keepNonZero(p, neg)
	VMULPS(q, pos, pos)
	k.keepNonZero(q, pos)
	dTerm := k.field("m", mixDP)
	VMULPS(neg, dTerm, dTerm)
	VFMADD231PS(k.field("m", mixDQ), pos, dTerm)
	k.addTerm(dTerm, d)
	h := k.field("m", mixHP)
	pm := k.vec()
	VMULPS(p, h, h)
	VMULPS(k.field("m", mixHQ), q, pm)
	VADDPS(pm, h, h)
	VMULPS(q2m, h, pm)
	k.keepNonZero(h, pm)
	VFMADD231PS(k.field("m", mixHLog), pos, pm)
	k.addTerm(pm, sumH)
	k.store(pm, "h")
}

func (s *isa) divGrad() {
	k := s.kernel("divGrad", "grad, z, h []float32, c *float32, a, k, sumH float32", "")
	k.slices("grad", "z", "h")
	k.count("grad")
	k.structure("c")
	a, f, sumH := k.scalar("a"), k.scalar("k"), k.scalar("sumH")
	k.loop(s.lanes(), 1, func() {
		q1 := k.load("z")
		VSUBPS(k.field("c", centreMZ), q1, q1)
		q := k.vec()
		VMULPS(k.field("c", centreInvT), q1, q)
		k.exp(q)
		VMULPS(k.field("c", centreInvSumZ), q, q)
		h := k.load("h")
		VFNMADD231PS(q, sumH, h)
		VMULPS(f, h, h)
		k.exp(q1)
		VFMADD231PS(a, q1, h)
		k.store(h, "grad")
	})
	k.end()
}
