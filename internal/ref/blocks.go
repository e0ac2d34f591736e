package ref

import (
	"math"

	"apr/device"
)

// Rotate returns x with the rotary embedding applied to each head: see device.Rotary. positions are those of the rows; nil:
// Offset + n mod SeqLen. Inverse turns by −φ, which is also the backward.
func Rotate(x Mat, r device.Rotary, positions []int) Mat {
	y, pairs := x.Clone(), len(r.Table.Inv)
	for n := range x.Rows {
		p := r.Offset + n%r.SeqLen
		if positions != nil {
			p = positions[n]
		}
		scale := r.QScale(p)
		for head := 0; head < x.Cols; head += r.HeadDim {
			xs, ys := x.Row(n)[head:head+r.HeadDim], y.Row(n)[head:head+r.HeadDim]
			for i := range pairs {
				phi := float64(p) * r.Table.Inv[i]
				if r.Inverse {
					phi = -phi
				}
				sin, cos := math.Sincos(phi)
				sin, cos = r.Table.Gain()*sin, r.Table.Gain()*cos
				ys[i] = xs[i]*cos - xs[i+pairs]*sin
				ys[i+pairs] = xs[i+pairs]*cos + xs[i]*sin
			}
			for i := range ys {
				ys[i] *= scale
			}
		}
	}
	return y
}

// HeadNorm is RMSNorm over each group of headDim columns; the zero Mat w is ones. rstd is [n, heads].
func HeadNorm(x, w Mat, headDim int, eps float64) (y, rstd Mat) {
	y, rstd = RMSNorm(heads(x, headDim), onesUnless(w, headDim), eps)
	return Mat{x.Rows, x.Cols, y.V}, Mat{x.Rows, x.Cols / headDim, rstd.V}
}

// HeadNormBackward returns the gradients of x and w, given rstd as it was kept.
func HeadNormBackward(dy, x, rstd, w Mat, headDim int) (dx, dw Mat) {
	dx, dw = RMSNormBackward(heads(dy, headDim), heads(x, headDim), rstd, onesUnless(w, headDim))
	return Mat{x.Rows, x.Cols, dx.V}, dw
}

// heads returns x with a row for each head.
func heads(x Mat, headDim int) Mat { return Mat{x.Rows * x.Cols / headDim, headDim, x.V} }

func onesUnless(w Mat, n int) Mat {
	if w.V != nil {
		return w
	}
	w = New(1, n)
	for i := range w.V {
		w.V[i] = 1
	}
	return w
}

// Scale returns f·x.
func Scale(x Mat, f float64) Mat {
	y := x.Clone()
	for i := range y.V {
		y.V[i] *= f
	}
	return y
}

// SoftCap returns c·tanh(x/c).
func SoftCap(x Mat, c float64) Mat {
	y := x.Clone()
	for i, v := range y.V {
		y.V[i] = c * math.Tanh(v/c)
	}
	return y
}

// Dropout returns x/(1−rate) where d keeps a value, else 0.
func Dropout(x Mat, d device.Drop) Mat {
	y := x.Clone()
	for i := range y.V {
		if y.V[i] /= 1 - d.Rate; d.Drops(uint64(d.First*x.Cols + i)) {
			y.V[i] = 0
		}
	}
	return y
}

// sigmoid is 1/(1+e^−x).
func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// gates are the activations as device names them.
var gates = map[device.Activation]activation{device.SiLU: silu, device.GELUTanh: geluTanh, device.OSS: oss, device.Sigmoid: sigmoidGate}

// sigmoidGate: σ(g)·u.
var sigmoidGate = activation{
	func(g, u float64) float64 { return sigmoid(g) * u },
	func(g, u, dy float64) (dg, du float64) {
		s := sigmoid(g)
		return dy * u * s * (1 - s), dy * s
	},
}

// Deinterleave returns the even and the odd groups of width columns of x.
func Deinterleave(x Mat, width int) (a, b Mat) {
	a, b = New(x.Rows, x.Cols/2), New(x.Rows, x.Cols/2)
	for r := range x.Rows {
		for c, v := range x.Row(r) {
			to := a
			if c/width%2 == 1 {
				to = b
			}
			to.Row(r)[c/(2*width)*width+c%width] = v
		}
	}
	return a, b
}

// GLU returns act(g)·u for gu = [g | u].
func GLU(gu Mat, act device.Activation) Mat {
	f := gu.Cols / 2
	m := New(gu.Rows, f)
	for r := range gu.Rows {
		for c := range f {
			m.Row(r)[c] = gates[act].f(gu.Row(r)[c], gu.Row(r)[f+c])
		}
	}
	return m
}

// GLUBackward returns [dg | du]: dg = dm·u·act'(g), du = dm·act(g).
func GLUBackward(dm, gu Mat, act device.Activation) Mat {
	f := gu.Cols / 2
	dgu := New(gu.Rows, gu.Cols)
	for r := range gu.Rows {
		for c := range f {
			dgu.Row(r)[c], dgu.Row(r)[f+c] = gates[act].backward(gu.Row(r)[c], gu.Row(r)[f+c], dm.Row(r)[c])
		}
	}
	return dgu
}
