package vec

// lossBlock bounds the elements that assembly sums in float32 lanes; the sums of blocks are added in float64.
const lossBlock = 1024

// LossSums returns the sums of the distillation loss over the logits z of the student and t of the teacher, with
// maxima mz and mt. Where e^{(t−mt)/T} is 0 the terms of A and E are 0.
func (i ISA) LossSums(z, t []float32, mz, mt, invT float32) (s LossSums) {
	t = t[:len(z)]
	if i == Generic {
		return lossSums(z, t, mz, mt, invT)
	}
	for lo := 0; lo < len(z); lo += lossBlock {
		hi := min(len(z), lo+lossBlock)
		var st, szt, sz1, a, e float32
		switch {
		case i == AVX512 && invT == 1:
			st, szt, sz1, a, e = lossSums1AVX512(z[lo:hi], t[lo:hi], mz, mt)
		case i == AVX512:
			st, szt, sz1, a, e = lossSumsAVX512(z[lo:hi], t[lo:hi], mz, mt, invT)
		case invT == 1:
			st, szt, sz1, a, e = lossSums1AVX2(z[lo:hi], t[lo:hi], mz, mt)
		default:
			st, szt, sz1, a, e = lossSumsAVX2(z[lo:hi], t[lo:hi], mz, mt, invT)
		}
		s.T += float64(st)
		s.ZT += float64(szt)
		s.Z1 += float64(sz1)
		s.A += float64(a)
		s.E += float64(e)
	}
	return s
}

// LossGrad computes grad[i] = a·e^{z[i]−mz} + (b·e^{(z[i]−mz)·invT} − c·e^{(t[i]−mt)·invT}). grad may be z or t. With
// invT = 1 there is one exponential of z: its factor is a+b.
func (i ISA) LossGrad(grad, z, t []float32, mz, mt, invT, a, b, c float32) {
	z, t = z[:len(grad)], t[:len(grad)]
	switch {
	case i == Generic:
		lossGrad(grad, z, t, mz, mt, invT, a, b, c)
	case i == AVX512 && invT == 1:
		lossGrad1AVX512(grad, z, t, mz, mt, a+b, c)
	case i == AVX512:
		lossGradAVX512(grad, z, t, mz, mt, invT, a, b, c)
	case invT == 1:
		lossGrad1AVX2(grad, z, t, mz, mt, a+b, c)
	default:
		lossGradAVX2(grad, z, t, mz, mt, invT, a, b, c)
	}
}

// ReverseTerms computes h = Q·ln(Q/p) and returns Σ h twice, the divergence being the same sum. h may be z or t.
func (i ISA) ReverseTerms(h, z, t []float32, c *Centre) (d, sumH float64) {
	return i.terms(h, z, t, func(h, z, t []float32) (float64, float64) {
		switch i {
		case AVX512:
			return widen2(reverseTermsAVX512(h, z, t, &c.MZ))
		case AVX2:
			return widen2(reverseTermsAVX2(h, z, t, &c.MZ))
		}
		return reverseTerms(h, z, t, c)
	})
}

// TVDTerms computes h = ½·sign(Q−p)·Q and returns ½Σ|p−Q| and Σ h. h may be z or t.
func (i ISA) TVDTerms(h, z, t []float32, c *Centre) (d, sumH float64) {
	return i.terms(h, z, t, func(h, z, t []float32) (float64, float64) {
		switch i {
		case AVX512:
			return widen2(tvdTermsAVX512(h, z, t, &c.MZ))
		case AVX2:
			return widen2(tvdTermsAVX2(h, z, t, &c.MZ))
		}
		return tvdTerms(h, z, t, c)
	})
}

// MixTerms computes h and returns D and Σ h as m says. h may be z or t.
func (i ISA) MixTerms(h, z, t []float32, c *Centre, m *Mix) (d, sumH float64) {
	return i.terms(h, z, t, func(h, z, t []float32) (float64, float64) {
		switch i {
		case AVX512:
			return widen2(mixTermsAVX512(h, z, t, &c.MZ, &m.Beta))
		case AVX2:
			return widen2(mixTermsAVX2(h, z, t, &c.MZ, &m.Beta))
		}
		return mixTerms(h, z, t, c, m)
	})
}

// terms adds up the sums of blocks in float64.
func (ISA) terms(h, z, t []float32, block func(h, z, t []float32) (float64, float64)) (d, sumH float64) {
	z, t = z[:len(h)], t[:len(h)]
	for lo := 0; lo < len(h); lo += lossBlock {
		hi := min(len(h), lo+lossBlock)
		bd, bh := block(h[lo:hi], z[lo:hi], t[lo:hi])
		d += bd
		sumH += bh
	}
	return d, sumH
}

func widen2(a, b float32) (float64, float64) { return float64(a), float64(b) }
