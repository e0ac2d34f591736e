package vec

// LossSums returns the sums of the distillation loss over the logits z of the student and t of the teacher, with
// maxima mz and mt. Where e^{(t−mt)/T} is 0 the terms of A and E are 0.
func (i ISA) LossSums(z, t []float32, mz, mt, invT float32) (s LossSums) {
	t = t[:len(z)]
	switch {
	case i == Generic:
		return lossSums(z, t, mz, mt, invT)
	case i == AVX512 && invT == 1:
		s.T, s.ZT, s.Z1, s.A, s.E = lossSums1AVX512(z, t, mz, mt)
	case i == AVX512:
		s.T, s.ZT, s.Z1, s.A, s.E = lossSumsAVX512(z, t, mz, mt, invT)
	case i == NEON && invT == 1:
		s.T, s.ZT, s.Z1, s.A, s.E = lossSums1NEON(z, t, mz, mt)
	case i == NEON:
		s.T, s.ZT, s.Z1, s.A, s.E = lossSumsNEON(z, t, mz, mt, invT)
	case invT == 1:
		s.T, s.ZT, s.Z1, s.A, s.E = lossSums1AVX2(z, t, mz, mt)
	default:
		s.T, s.ZT, s.Z1, s.A, s.E = lossSumsAVX2(z, t, mz, mt, invT)
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
	case i == NEON && invT == 1:
		lossGrad1NEON(grad, z, t, mz, mt, a+b, c)
	case i == NEON:
		lossGradNEON(grad, z, t, mz, mt, invT, a, b, c)
	case invT == 1:
		lossGrad1AVX2(grad, z, t, mz, mt, a+b, c)
	default:
		lossGradAVX2(grad, z, t, mz, mt, invT, a, b, c)
	}
}

// ReverseTerms computes h = Q·ln(Q/p) and returns Σ h twice, the divergence being the same sum. h may be z or t.
func (i ISA) ReverseTerms(h, z, t []float32, c *Centre) (d, sumH float64) {
	z, t = z[:len(h)], t[:len(h)]
	switch i {
	case AVX512:
		return reverseTermsAVX512(h, z, t, &c.MZ)
	case AVX2:
		return reverseTermsAVX2(h, z, t, &c.MZ)
	case NEON:
		return reverseTermsNEON(h, z, t, &c.MZ)
	}
	return reverseTerms(h, z, t, c)
}

// TVDTerms computes h = ½·sign(Q−p)·Q and returns ½Σ|p−Q| and Σ h. h may be z or t.
func (i ISA) TVDTerms(h, z, t []float32, c *Centre) (d, sumH float64) {
	z, t = z[:len(h)], t[:len(h)]
	switch i {
	case AVX512:
		return tvdTermsAVX512(h, z, t, &c.MZ)
	case AVX2:
		return tvdTermsAVX2(h, z, t, &c.MZ)
	case NEON:
		return tvdTermsNEON(h, z, t, &c.MZ)
	}
	return tvdTerms(h, z, t, c)
}

// MixTerms computes h and returns D and Σ h as m says. h may be z or t.
func (i ISA) MixTerms(h, z, t []float32, c *Centre, m *Mix) (d, sumH float64) {
	z, t = z[:len(h)], t[:len(h)]
	switch i {
	case AVX512:
		return mixTermsAVX512(h, z, t, &c.MZ, &m.Beta)
	case AVX2:
		return mixTermsAVX2(h, z, t, &c.MZ, &m.Beta)
	case NEON:
		return mixTermsNEON(h, z, t, &c.MZ, &m.Beta)
	}
	return mixTerms(h, z, t, c, m)
}
