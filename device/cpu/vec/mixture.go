package vec

// ExpTotal returns Σ e^{(x−shift)·invT}; e^{−∞} is 0. Sums of a few float32 terms are added in float64.
func (i ISA) ExpTotal(x []float32, shift, invT float32) float64 {
	switch i {
	case AVX512:
		return expTotalAVX512(x, shift, invT)
	case AVX2:
		return expTotalAVX2(x, shift, invT)
	case NEON:
		return expTotalNEON(x, shift, invT)
	}
	return expTotal(x, shift, invT)
}

// Shift computes y[i] = (x[i]−m)+c. y may be x.
func (i ISA) Shift(y, x []float32, m, c float32) {
	x = x[:len(y)]
	switch i {
	case AVX512:
		shiftAVX512(y, x, m, c)
	case AVX2:
		shiftAVX2(y, x, m, c)
	case NEON:
		shiftNEON(y, x, m, c)
	default:
		shift(y, x, m, c)
	}
}

// LogAddExp computes y[i] = T·ln(e^{y[i]/T} + e^{v/T}), v = (x[i]−m)+c and invT = 1/T, within a rounding of the larger of both and
// 10⁻⁷·T. Two −∞ give −∞.
func (i ISA) LogAddExp(y, x []float32, m, c, invT, t float32) {
	x = x[:len(y)]
	switch i {
	case AVX512:
		logAddExpAVX512(y, x, m, c, invT, t)
	case AVX2:
		logAddExpAVX2(y, x, m, c, invT, t)
	case NEON:
		logAddExpNEON(y, x, m, c, invT, t)
	default:
		logAddExp(y, x, m, c, invT, t)
	}
}
