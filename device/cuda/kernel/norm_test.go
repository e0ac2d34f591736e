//go:build emulate

package kernel

import (
	"fmt"
	"testing"

	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// normShapes add to shapes the widths at which the kernels change: 1 to 16 warps of a row, more elements than fit, and
// several rows for each block of the backward.
var normShapes = append([][2]int{
	{9, 896}, {6, 1032}, {3, 1536}, {5, 3584}, {2, 4096}, {2, 4104}, {2, 8192}, {2, 8200}, {1, 16384}, {1, 16392}, {1030, 8},
	{300, 520}, {513, 7},
}, shapes...)

func TestRMSNorm(t *testing.T) {
	eachCase(t, normShapes, func(t *testing.T, l *lab, d tensor.DType, rows, cols int) {
		checkRMSNorm(t, l, d, rows, cols, 1)
	})
	for _, scale := range []float64{1e-4, 1e4, 0} { // eps dominates, large, zeros
		t.Run(fmt.Sprint("scale ", scale), func(t *testing.T) {
			for _, d := range floatTypes {
				checkRMSNorm(t, newLab(t), d, 3, 64, scale)
				checkRMSNorm(t, newLab(t), d, 3, 63, scale)
			}
		})
	}
}

func checkRMSNorm(t *testing.T, l *lab, d tensor.DType, rows, cols int, scale float64) {
	const eps = 1e-6
	mx, md, mw := l.random(rows, cols, scale), l.random(rows, cols, scale), l.random(1, cols, 1)
	x, delta, w := l.apart().in(d, mx), l.apart().in(d, md), l.apart().in(tensor.F32, mw)
	norm := func(name string, sum, x, delta Mat) (y Mat) {
		y, rstd := l.apart().out(d, rows, cols), l.apart().out(tensor.F32, rows, 1)
		RMSNorm(l.op(), y, rstd, sum, x, delta, w, eps)
		v := mx
		if !sum.IsZero() {
			v = l.get(sum) // the norm is of the sum as stored
		}
		wantY, wantR := ref.RMSNorm(v, mw, eps)
		checkRows(t, name+" y", l.get(y), wantY, tolerance(d, 1, 8, cols))
		checkRows(t, name+" rstd", l.get(rstd), wantR, tolerance(tensor.F32, 0, 8, cols))
		return y
	}
	added := mx.Clone()
	added.Add(md)
	rounded := l.apart().inout(d, added)
	plain := norm("plain", Mat{}, x, Mat{})
	sum, inPlace, only := l.apart().out(d, rows, cols), l.apart().inout(d, mx), l.apart().out(d, rows, cols)
	first := norm("delta", sum, x, delta)
	checkSame(t, l, "in place", first, norm("in place", inPlace, inPlace, delta))
	RMSNorm(l.op(), Mat{}, Mat{}, only, x, delta, Mat{}, eps)
	for name, s := range map[string]Mat{"sum": sum, "sum in place": inPlace, "sum alone": only} {
		near.Check(t, name, l.get(s).V, l.get(rounded).V, 0)
	}
	y, rstd := l.apart().out(d, rows, cols), l.apart().out(tensor.F32, rows, 1)
	RMSNorm(l.op(), y, Mat{}, Mat{}, x, Mat{}, w, eps)
	checkSame(t, l, "y without rstd", plain, y)
	RMSNorm(l.op(), Mat{}, rstd, Mat{}, x, Mat{}, w, eps)
	_, wantR := ref.RMSNorm(mx, mw, eps)
	checkRows(t, "rstd alone", l.get(rstd), wantR, tolerance(tensor.F32, 0, 8, cols))
}

func TestRMSNormBackward(t *testing.T) {
	eachCase(t, normShapes, func(t *testing.T, l *lab, d tensor.DType, rows, cols int) {
		mx, mdy, mw := l.random(rows, cols, 1), l.random(rows, cols, 1), l.random(1, cols, 1)
		x, dy, w := l.apart().in(d, mx), l.apart().in(d, mdy), l.apart().in(tensor.F32, mw)
		_, mr := ref.RMSNorm(mx, mw, 1e-6)
		rstd := l.apart().in(tensor.F32, mr)
		mdx, mdw := l.random(rows, cols, 1), l.random(1, cols, 1)
		dx, dw, again, dwAgain := l.apart().inout(d, mdx), l.apart().inout(tensor.F32, mdw), l.apart().inout(d, mdx), l.apart().inout(tensor.F32, mdw)
		RMSNormBackward(l.op(), dx, dw, dy, x, rstd, w)
		RMSNormBackward(l.op(), again, dwAgain, dy, x, rstd, w)
		checkSame(t, l, "dx", dx, again)
		checkSame(t, l, "dw", dw, dwAgain)
		wantDX, wantDW := ref.RMSNormBackward(mdy, mx, mr, mw)
		mdx.Add(wantDX)
		mdw.Add(wantDW)
		checkRows(t, "dx", l.get(dx), mdx, tolerance(d, 1, 8, cols))
		near.CheckRel(t, "dw", l.get(dw).V, mdw.V, tolerance(tensor.F32, 0, 8, rows))
	})
}
