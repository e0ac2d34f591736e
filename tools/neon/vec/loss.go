package main

import (
	. "apr/tools/neon/asm" //nolint:revive,staticcheck // an assembler's idiom
)

// lossKernels are the distillation loss; those of a temperature of 1 need one exponential less.
func lossKernels() {
	lossSums("lossSums", false)
	lossSums("lossSums1", true)
	lossGrad("lossGrad", false)
	lossGrad("lossGrad1", true)
}

func lossSums(name string, one bool) {
	params := "z, t []float32, mz, mt, invT float32"
	if one {
		params = "z, t []float32, mz, mt float32"
	}
	generate(name, params, "(st, szt, sz1, a, e float64)", func(k *kernel) {
		k.slices("z", "t")
		k.count("z")
		mz, mt, least := k.scalar("mz"), k.scalar("mt"), k.minusInf()
		n := 5
		var invT V
		if one {
			n = 4
		} else {
			invT = k.scalar("invT")
		}
		sums := k.totals(n)
		add := func(i int, v V) { f.V3(FADD, sums.small[i], sums.small[i], v) }
		k.loop(2, func() {
			dz, dt := k.loadOr("z", least), k.loadOr("t", least)
			f.V3(FSUB, dz, dz, mz)
			f.V3(FSUB, dt, dt, mt)
			p := k.copyOf(dt)
			if !one {
				f.V3(FMUL, p, p, invT)
			}
			k.exp(p)
			add(0, p)
			diff := k.vec()
			f.V3(FSUB, diff, dt, dz)
			f.V3(FMUL, diff, diff, p)
			f.V3(FMUL, dt, dt, p)
			k.keepNonZero(p, diff)
			k.keepNonZero(p, dt)
			add(2, diff)
			add(3, dt)
			if !one {
				f.V3(FMUL, p, dz, invT)
				k.exp(p)
				add(4, p)
			}
			k.exp(dz)
			add(1, dz)
		})
		for i, result := range []string{"st", "sz1", "a", "e"} {
			sums.result(i, result)
		}
		if one {
			sums.result(1, "szt")
		} else {
			sums.result(4, "szt")
		}
		f.Ret()
	})
}

func lossGrad(name string, one bool) {
	params := "grad, z, t []float32, mz, mt, invT, a, b, c float32"
	if one {
		params = "grad, z, t []float32, mz, mt, b, c float32"
	}
	generate(name, params, "", func(k *kernel) {
		k.slices("grad", "z", "t")
		k.count("grad")
		mz, mt, b, c := k.scalar("mz"), k.scalar("mt"), k.scalar("b"), k.scalar("c")
		var invT, a V
		if !one {
			invT, a = k.scalar("invT"), k.scalar("a")
		}
		k.loop(1, func() {
			p, q := k.load("t"), k.load("z")
			f.V3(FSUB, p, p, mt)
			f.V3(FSUB, q, q, mz)
			var q1 V
			if !one {
				q1 = k.copyOf(q)
				f.V3(FMUL, p, p, invT)
				f.V3(FMUL, q, q, invT)
			}
			k.exp(p)
			k.exp(q)
			f.V3(FMUL, p, p, c)
			f.V3(FMUL, q, q, b)
			f.V3(FSUB, q, q, p) // both products rounded: equal ones cancel to zero
			if !one {
				k.exp(q1)
				f.V3(FMLA, q, a, q1)
			}
			k.store(q, "grad")
		})
		f.Ret()
	})
}

// centre and mix are the fields of vec.Centre and vec.Mix.
type (
	centre struct{ mz, mt, invT, invSumZ, invSumT, logRatio V }
	mix    struct{ beta, dp, dq, hLog, hp, hq V }
)

// divergenceKernels write hᵢ and return D and Σh.
func divergenceKernels() {
	terms("reverseTerms", false, func(k *kernel, _ mix, p, q, r V) (d, h V) {
		f.V2(FNEG, r, r)
		f.V3(FMUL, r, r, q)
		k.keepNonZero(q, r)
		return k.copyOf(r), r
	})
	terms("tvdTerms", false, tvd)
	terms("mixTerms", true, mixture)
	generate("divGrad", "grad, z, h []float32, c *float32, a, k, sumH float32", "", func(k *kernel) {
		k.slices("grad", "z", "h")
		k.count("grad")
		v := k.fields("c", 6)
		c := centre{v[0], v[1], v[2], v[3], v[4], v[5]}
		a, factor, sumH := k.scalar("a"), k.scalar("k"), k.scalar("sumH")
		k.loop(1, func() {
			q1 := k.load("z")
			f.V3(FSUB, q1, q1, c.mz)
			q := k.vec()
			f.V3(FMUL, q, q1, c.invT)
			k.exp(q)
			f.V3(FMUL, q, q, c.invSumZ)
			h := k.load("h")
			f.V3(FMLS, h, q, sumH)
			f.V3(FMUL, h, h, factor)
			k.exp(q1)
			f.V3(FMLA, h, a, q1)
			k.store(h, "grad")
		})
		f.Ret()
	})
}

// terms makes p, Q and r = ln(p/Q) of each logit pair for body, which returns the terms of D and of h.
func terms(name string, mixed bool, body func(k *kernel, m mix, p, q, r V) (d, h V)) {
	params := "h, z, t []float32, c *float32"
	if mixed {
		params += ", m *float32"
	}
	generate(name, params, "(d, sumH float64)", func(k *kernel) {
		k.slices("h", "z", "t")
		k.count("h")
		v := k.fields("c", 6)
		c, m := centre{v[0], v[1], v[2], v[3], v[4], v[5]}, mix{}
		if mixed {
			v := k.fields("m", 6)
			m = mix{v[0], v[1], v[2], v[3], v[4], v[5]}
		}
		sums := k.totals(2)
		k.loop(1, func() {
			p, q := k.load("t"), k.load("z")
			f.V3(FSUB, p, p, c.mt)
			f.V3(FSUB, q, q, c.mz)
			diff, r := k.vec(), k.copyOf(c.logRatio)
			f.V3(FSUB, diff, p, q)
			f.V3(FMLA, r, diff, c.invT)
			k.free(diff)
			f.V3(FMUL, p, p, c.invT)
			f.V3(FMUL, q, q, c.invT)
			k.exp(p)
			k.exp(q)
			f.V3(FMUL, p, p, c.invSumT)
			f.V3(FMUL, q, q, c.invSumZ)
			d, h := body(k, m, p, q, r)
			k.store(h, "h")
			k.inTail(d)
			k.inTail(h)
			f.V3(FADD, sums.small[0], sums.small[0], d)
			f.V3(FADD, sums.small[1], sums.small[1], h)
		})
		sums.result(0, "d")
		sums.result(1, "sumH")
		f.Ret()
	})
}

// tvd: h = ½·sign(Q−p)·Q, D = ½|p−Q|.
func tvd(k *kernel, _ mix, p, q, r V) (d, h V) {
	diff := r
	f.V3(FSUB, diff, q, p)
	k.with(FMUL, q, q, 0.5)
	sign := p
	k.withBits(AND, sign, diff, 0x80000000)
	f.V3(EOR, q, q, sign)
	k.keepNonZero(diff, q)
	f.V2(FABS, diff, diff)
	k.with(FMUL, diff, diff, 0.5)
	return diff, q
}

// mixture: see mixTerms of the package, whose names these are.
func mixture(k *kernel, m mix, p, q, r V) (d, h V) {
	neg, pos, e, zero := k.vec(), k.vec(), k.vec(), k.zero()
	f.V3(FMIN, neg, r, zero) // min(r,0)
	f.V2(FNEG, pos, r)
	f.V3(FMIN, pos, pos, zero) // min(−r,0)
	f.V3(FADD, e, neg, pos)    // −|r|
	f.V3(FCMGT, r, r, zero)    // r > 0
	k.free(zero)
	k.exp(e)
	rest, lower := k.held(1), k.vec()
	f.V3(FSUB, rest, rest, m.beta)
	big := k.copyOf(r)
	f.V3(BSL, big, m.beta, rest)
	f.Move(lower, r)
	f.V3(BSL, lower, rest, m.beta)
	f.V3(FMLA, big, lower, e)
	k.free(rest, lower)
	q2m, one := r, k.constant(1)
	f.V3(BSL, q2m, e, one)
	k.free(one, e)
	f.V3(FDIV, q2m, q2m, big)
	k.log(big)
	f.V3(FSUB, neg, neg, big) // ln(p/M)
	f.V3(FSUB, pos, pos, big) // ln(Q/M)
	k.free(big)
	f.V3(FMUL, neg, neg, p)
	k.keepNonZero(p, neg)
	f.V3(FMUL, pos, pos, q)
	k.keepNonZero(q, pos)
	f.V3(FMUL, neg, neg, m.dp)
	f.V3(FMLA, neg, pos, m.dq) // of D
	f.V3(FMUL, p, p, m.hp)
	f.V3(FMUL, q, q, m.hq)
	f.V3(FADD, p, p, q)
	f.V3(FMUL, q, p, q2m)
	k.keepNonZero(p, q)
	f.V3(FMLA, q, pos, m.hLog)
	return neg, q
}
