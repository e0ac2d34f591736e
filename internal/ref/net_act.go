package ref

import (
	"math"

	"apr/arch"
)

// activation is y = f(g, u) with its derivatives over g and u.
type activation func(g, u float64) (y, dg, du float64)

var activations = map[arch.Activation]activation{arch.SiLU: silu, arch.GELUTanh: geluTanh, arch.OSS: oss}

// silu: g·σ(g)·u.
func silu(g, u float64) (y, dg, du float64) {
	s := sigmoid(g)
	return g * s * u, u * s * (1 + g*(1-s)), g * s
}

// geluTanh: ½g(1+t)·u, t = tanh(√(2/π)(g+0.044715g³)).
func geluTanh(g, u float64) (y, dg, du float64) {
	k := math.Sqrt(2 / math.Pi)
	t := math.Tanh(k * (g + .044715*g*g*g))
	act := .5 * g * (1 + t)
	return act * u, u * (.5*(1+t) + .5*g*(1-t*t)*k*(1+.134145*g*g)), act
}

// oss: (clip(u,±7)+1)·G·σ(1.702G), G = min(g,7).
func oss(g, u float64) (y, dg, du float64) {
	const limit, alpha = 7, 1.702
	G, U := min(g, limit), max(min(u, limit), -limit)
	s := sigmoid(alpha * G)
	if g <= limit {
		dg = (U + 1) * s * (1 + alpha*G*(1-s))
	}
	if math.Abs(u) <= limit {
		du = G * s
	}
	return (U + 1) * G * s, dg, du
}

// gated: y = act(g, u), element by element.
func (t *tape) gated(g, u *node, act arch.Activation) *node {
	f := activations[act]
	y := New(g.Rows, g.Cols)
	for i := range y.V {
		y.V[i], _, _ = f(g.V[i], u.V[i])
	}
	return t.of(y, func(dy Mat) {
		for i, d := range dy.V {
			_, dg, du := f(g.V[i], u.V[i])
			g.grad().V[i] += d * dg
			u.grad().V[i] += d * du
		}
	})
}
