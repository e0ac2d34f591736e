package vec

import "math"

// Gated units that are computed in pieces, by way of the loops for e^x and for SiLU.

const (
	piece    = 256   // elements
	ossLimit = 7     // where gate and up are clamped
	ossAlpha = 1.702 // factor of the gate in σ
)

// scaled writes x = α·G and y = (U+1)/α, of which SiLU makes x·σ(x)·y = (U+1)·G·σ(α·G).
func scaled(x, y, g, u []float32) {
	for i := range x {
		x[i] = float32(ossAlpha * min(float64(g[i]), ossLimit))
		y[i] = float32((max(-ossLimit, min(float64(u[i]), ossLimit)) + 1) / ossAlpha)
	}
}

// OSSMul computes m[i] = (U+1)·G·σ(1.702·G), G = min(g[i],7), U = max(−7, min(u[i],7)).
func (i ISA) OSSMul(m, g, u []float32) {
	var x, y [piece]float32
	for lo := 0; lo < len(m); lo += piece {
		hi := min(lo+piece, len(m))
		scaled(x[:hi-lo], y[:hi-lo], g[lo:hi], u[lo:hi])
		i.SiluMul(m[lo:hi], x[:hi-lo], y[:hi-lo])
	}
}

// OSSMulGrad computes the backward of OSSMul: with σ = σ(1.702·G), dg = dm·(U+1)·σ(1+1.702·G(1−σ)), 0 where g > 7, and
// du = dm·G·σ, 0 where |u| > 7. dg may be g and du may be u.
func (i ISA) OSSMulGrad(dg, du, dm, g, u []float32) {
	var x, y [piece]float32
	for lo := 0; lo < len(dm); lo += piece {
		hi := min(lo+piece, len(dm))
		scaled(x[:hi-lo], y[:hi-lo], g[lo:hi], u[lo:hi])
		i.SiluMulGrad(x[:hi-lo], y[:hi-lo], dm[lo:hi], x[:hi-lo], y[:hi-lo])
		for j := lo; j < hi; j++ {
			a, b := g[j], u[j]
			dg[j], du[j] = ossAlpha*x[j-lo], y[j-lo]*float32(1/ossAlpha)
			if a > ossLimit {
				dg[j] = 0
			}
			if b > ossLimit || b < -ossLimit {
				du[j] = 0
			}
		}
	}
}

// sigmoids writes e^−|x| to e and σ(x) to s.
func (i ISA) sigmoids(s, e, x []float32) {
	for j, v := range x {
		e[j] = -float32(math.Abs(float64(v)))
	}
	i.ExpSum(e, e, 0)
	for j, v := range x {
		s[j] = 1 / (1 + e[j])
		if v < 0 {
			s[j] *= e[j]
		} else if v != v {
			s[j] = v
		}
	}
}

// SigmoidMul computes m[i] = σ(g[i])·u[i].
func (i ISA) SigmoidMul(m, g, u []float32) {
	var s, e [piece]float32
	for lo := 0; lo < len(m); lo += piece {
		hi := min(lo+piece, len(m))
		i.sigmoids(s[:hi-lo], e[:hi-lo], g[lo:hi])
		for j := lo; j < hi; j++ {
			m[j] = s[j-lo] * u[j]
		}
	}
}

// SigmoidMulGrad computes dg = dm·u·σ(1−σ) and du = dm·σ, σ = σ(g). dg may be g and du may be u.
func (i ISA) SigmoidMulGrad(dg, du, dm, g, u []float32) {
	var s, e [piece]float32
	for lo := 0; lo < len(dm); lo += piece {
		hi := min(lo+piece, len(dm))
		i.sigmoids(s[:hi-lo], e[:hi-lo], g[lo:hi])
		for j := lo; j < hi; j++ {
			v, a, d := s[j-lo], e[j-lo], dm[j]
			slope := a / ((1 + a) * (1 + a)) // σ(1−σ), without the difference
			if v != v {
				slope = v
			}
			dg[j], du[j] = d*u[j]*slope, d*v
		}
	}
}
