package ref

import (
	"math"

	"apr/arch"
)

// activation is y = f(g, u), and its backward from dy.
type activation struct {
	f        func(g, u float64) float64
	backward func(g, u, dy float64) (dg, du float64)
}

var activations = map[arch.Activation]activation{arch.SiLU: silu, arch.GELUTanh: geluTanh, arch.OSS: oss}

// silu: g·σ(g)·u.
var silu = activation{
	func(g, u float64) float64 { return g * sigmoid(g) * u },
	func(g, u, dy float64) (dg, du float64) {
		s := sigmoid(g)
		return dy * u * s * (1 + g*(1-s)), dy * g * s
	},
}

// geluTanh: ½g(1+t)·u, t = tanh(√(2/π)(g+0.044715g³)).
var geluTanh = activation{
	func(g, u float64) float64 { return .5 * g * (1 + geluT(g)) * u },
	func(g, u, dy float64) (dg, du float64) {
		k, t := math.Sqrt(2/math.Pi), geluT(g)
		return dy * u * (.5*(1+t) + .5*g*(1-t*t)*k*(1+.134145*g*g)), dy * .5 * g * (1 + t)
	},
}

func geluT(g float64) float64 { return math.Tanh(math.Sqrt(2/math.Pi) * (g + .044715*g*g*g)) }

// oss: (clip(u,±7)+1)·G·σ(1.702G), G = min(g,7).
var oss = activation{
	func(g, u float64) float64 {
		g, u = ossClamp(g, u)
		return (u + 1) * g * sigmoid(1.702*g)
	},
	func(g, u, dy float64) (dg, du float64) {
		G, U := ossClamp(g, u)
		s := sigmoid(1.702 * G)
		if g <= ossLimit {
			dg = dy * (U + 1) * s * (1 + 1.702*G*(1-s))
		}
		if math.Abs(u) <= ossLimit {
			du = dy * G * s
		}
		return dg, du
	},
}

const ossLimit = 7

func ossClamp(g, u float64) (G, U float64) {
	return min(g, ossLimit), max(min(u, ossLimit), -ossLimit)
}

// gated: y = act(g, u), element by element.
func (t *tape) gated(g, u *node, act arch.Activation) *node {
	f := activations[act]
	y := New(g.Rows, g.Cols)
	for i := range y.V {
		y.V[i] = f.f(g.V[i], u.V[i])
	}
	return t.of(y, func(dy Mat) {
		gradG, gradU := g.grad(), u.grad()
		for i, d := range dy.V {
			dg, du := f.backward(g.V[i], u.V[i], d)
			gradG.V[i] += dg
			gradU.V[i] += du
		}
	})
}
