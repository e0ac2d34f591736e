//go:build emulate

package kernel

import (
	"math"
	"testing"

	"apr/device"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

func TestGLU(t *testing.T) {
	eachCase(t, append([][2]int{{5, 4864}, {3, 1001}}, shapes...), func(t *testing.T, l *lab, d tensor.DType, rows, cols int) {
		for _, act := range []device.Activation{device.SiLU, device.GELUTanh, device.OSS, device.Sigmoid} {
			for _, scale := range []float64{1, 60} { // at 60 σ underflows
				if act == device.OSS {
					scale /= 2 // and with its factor so does what is left of a gate
				}
				mgu, mdm := l.random(rows, 2*cols, scale), l.random(rows, cols, 1)
				gu, dm := l.apart().in(d, mgu), l.apart().in(d, mdm)
				m, dgu, inPlace := l.apart().out(d, rows, cols), l.apart().out(d, rows, 2*cols), l.apart().inout(d, mgu)
				GLU(l.op(), m, gu, act)
				GLUBackward(l.op(), dgu, dm, gu, act)
				GLUBackward(l.op(), inPlace, dm, inPlace, act)
				tol := tolerance(d, 1, 8, 1)
				near.CheckRel(t, act.String()+" m", l.get(m).V, ref.GLU(mgu, act).V, tol)
				near.CheckRel(t, act.String()+" dgu", l.get(dgu).V, ref.GLUBackward(mdm, mgu, act).V, tol)
				checkSame(t, l, "dgu over gu", dgu, inPlace)
			}
		}
	})
}

// TestGLUSmall: the tails of the gate keep their relative accuracy, element by element; what is large overflows nowhere.
func TestGLUSmall(t *testing.T) {
	for _, act := range []device.Activation{device.SiLU, device.GELUTanh, device.OSS, device.Sigmoid} {
		l := newLab(t)
		mgu, one := ref.New(1, 48), ref.New(1, 24)
		for i := range 24 {
			mgu.V[i], mgu.V[24+i], one.V[i] = []float64{-5, -4, -3, -1, -.1, -1e-6, 0, 1e-6, .1, 1, 3, 5}[i%12], 1, 1
			if i >= 12 {
				mgu.V[i] *= 1e10
			}
		}
		gu, dm, m, dgu := l.in(tensor.F32, mgu), l.in(tensor.F32, one), l.out(tensor.F32, 1, 24), l.out(tensor.F32, 1, 48)
		GLU(l.op(), m, gu, act)
		GLUBackward(l.op(), dgu, dm, gu, act)
		want, gradient := ref.GLU(mgu, act), ref.GLUBackward(one, mgu, act)
		for i := range 24 {
			near.Check(t, act.String(), l.get(m).V[i:i+1], want.V[i:i+1], 1e-5*abs(want.V[i])+1e-30)
			near.Check(t, act.String()+" du", l.get(dgu).V[24+i:25+i], gradient.V[24+i:25+i], 1e-5*abs(gradient.V[24+i])+1e-30)
			near.Check(t, act.String()+" dg", l.get(dgu).V[i:i+1], gradient.V[i:i+1], 1e-5)
		}
	}
}

func abs(x float64) float64 { return max(x, -x) }

// TestGLUNotANumber: NaN of a gate or of what it multiplies shows in the product, and in the gradients.
func TestGLUNotANumber(t *testing.T) {
	nan := math.NaN()
	for _, act := range []device.Activation{device.SiLU, device.OSS, device.Sigmoid} {
		for _, d := range floatTypes {
			l := newLab(t)
			gu, dm := l.in(d, ref.Of(1, 6, []float64{nan, 2, 1, 3, nan, 1})), l.in(d, ref.Of(1, 3, []float64{1, 1, nan}))
			m, dgu := l.out(d, 1, 3), l.out(d, 1, 6)
			GLU(l.op(), m, gu, act)
			GLUBackward(l.op(), dgu, dm, gu, act)
			got, back := l.get(m).V, l.get(dgu).V
			if got[0] == got[0] || got[1] == got[1] || got[2] != got[2] {
				t.Errorf("%s of %v: %v", act, d, got)
			}
			if back[0] == back[0] || back[3] == back[3] || back[1] == back[1] || back[4] != back[4] || back[2] == back[2] || back[5] == back[5] {
				t.Errorf("gradient of %s of %v: %v", act, d, back)
			}
		}
	}
}
