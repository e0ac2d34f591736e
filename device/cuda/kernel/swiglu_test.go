//go:build emulate

package kernel

import (
	"testing"

	"apr/device"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

func TestSwiGLU(t *testing.T) {
	eachCase(t, append([][2]int{{5, 4864}, {3, 1001}}, shapes...), func(t *testing.T, l *lab, d tensor.DType, rows, cols int) {
		for _, scale := range []float64{1, 60} { // at 60 σ underflows
			mgu, mdm := l.random(rows, 2*cols, scale), l.random(rows, cols, 1)
			gu, dm := l.apart().in(d, mgu), l.apart().in(d, mdm)
			m, dgu, inPlace := l.apart().out(d, rows, cols), l.apart().out(d, rows, 2*cols), l.apart().inout(d, mgu)
			SwiGLU(l.op(), m, gu)
			SwiGLUBackward(l.op(), dgu, dm, gu)
			SwiGLUBackward(l.op(), inPlace, dm, inPlace)
			tol := tolerance(d, 1, 8, 1)
			near.CheckRel(t, "m", l.get(m).V, ref.GLU(mgu, device.SiLU).V, tol)
			near.CheckRel(t, "dgu", l.get(dgu).V, ref.GLUBackward(mdm, mgu, device.SiLU).V, tol)
			checkSame(t, l, "dgu over gu", dgu, inPlace)
		}
	})
}
