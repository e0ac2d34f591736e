package vec

// lossBlock bounds the elements that assembly sums in float32 lanes; blocks are added in float64.
const lossBlock = 1024

// LossSums returns the sums of the distillation loss over the logits z of the student and t of the teacher, with
// running maxima mz and mt. Where e^{(t−mt)/T} is 0 the terms of A and E are 0.
func (i ISA) LossSums(z, t []float32, mz, mt, invT float32) LossSums {
	t = t[:len(z)]
	return lossSums(z, t, mz, mt, invT)
}

// ReverseTerms computes h = Q·ln(Q/p) and returns Σ h twice, the divergence being the same sum. h may be z or t.
func (i ISA) ReverseTerms(h, z, t []float32, c *Centre) (d, sumH float64) {
	z, t = z[:len(h)], t[:len(h)]
	return reverseTerms(h, z, t, c)
}

// TVDTerms computes h = ½·sign(Q−p)·Q and returns ½Σ|p−Q| and Σ h. h may be z or t.
func (i ISA) TVDTerms(h, z, t []float32, c *Centre) (d, sumH float64) {
	z, t = z[:len(h)], t[:len(h)]
	return tvdTerms(h, z, t, c)
}

// MixTerms computes h and returns D and Σ h as m says. h may be z or t.
func (i ISA) MixTerms(h, z, t []float32, c *Centre, m *Mix) (d, sumH float64) {
	z, t = z[:len(h)], t[:len(h)]
	return mixTerms(h, z, t, c, m)
}
