package ref

import (
	"math"

	"apr/device"
)

// Embed gathers rows: y[i] = w[ids[i]].
func Embed(w Mat, ids []int) Mat {
	y := New(len(ids), w.Cols)
	for i, id := range ids {
		copy(y.Row(i), w.Row(id))
	}
	return y
}

// EmbedBackward adds rows: grad[ids[i]] += dx[i].
func EmbedBackward(grad Mat, ids []int, dx Mat) {
	for i, id := range ids {
		for c, d := range dx.Row(i) {
			grad.Row(id)[c] += d
		}
	}
}

// RMSNorm returns rstd[r] = (mean(x[r]²)+eps)^−½ and y = x·rstd·w.
func RMSNorm(x, w Mat, eps float64) (y, rstd Mat) {
	y, rstd = New(x.Rows, x.Cols), New(x.Rows, 1)
	for r := range x.Rows {
		sum := 0.0
		for _, v := range x.Row(r) {
			sum += v * v
		}
		rstd.V[r] = 1 / math.Sqrt(sum/float64(x.Cols)+eps)
		for c, v := range x.Row(r) {
			y.Row(r)[c] = v * rstd.V[r] * w.V[c]
		}
	}
	return y, rstd
}

// RMSNormBackward returns, with x̂ = x·rstd, dx = rstd·(dy·w − x̂·mean(dy·w·x̂)) and dw = Σ_rows dy·x̂.
func RMSNormBackward(dy, x, rstd, w Mat) (dx, dw Mat) {
	dx, dw = New(x.Rows, x.Cols), New(1, x.Cols)
	for r := range x.Rows {
		s, mean := rstd.V[r], 0.0
		for c, v := range x.Row(r) {
			mean += dy.Row(r)[c] * w.V[c] * v * s / float64(x.Cols)
		}
		for c, v := range x.Row(r) {
			d := dy.Row(r)[c]
			dx.Row(r)[c] = s * (d*w.V[c] - v*s*mean)
			dw.V[c] += d * v * s
		}
	}
	return dx, dw
}

// Linear returns y = x·Wᵀ + bias, w [out, in]; the zero Mat is no bias.
func Linear(x, w, bias Mat) Mat {
	y := New(x.Rows, w.Rows)
	for r := range x.Rows {
		for o := range w.Rows {
			sum := dot(x.Row(r), w.Row(o))
			if bias.V != nil {
				sum += bias.V[o]
			}
			y.Row(r)[o] = sum
		}
	}
	return y
}

// LinearBackward returns dx = dy·W, dw = dyᵀ·x and dbias = Σ_rows dy.
func LinearBackward(dy, x, w Mat) (dx, dw, dbias Mat) {
	dx, dw, dbias = New(x.Rows, x.Cols), New(w.Rows, w.Cols), New(1, w.Rows)
	for r := range dy.Rows {
		dxr := dx.Row(r)
		for o, d := range dy.Row(r) {
			dbias.V[o] += d
			wo, dwo := w.Row(o), dw.Row(o)
			for c, v := range x.Row(r) {
				dxr[c] += d * wo[c]
				dwo[c] += d * v
			}
		}
	}
	return dx, dw, dbias
}

// Rotate returns x with the rotary embedding applied to each head: with half-split pairs i < d/2, j = i+d/2 and
// φ = pos·θ^(−2i/d), (xᵢ, xⱼ) becomes (xᵢcosφ − xⱼsinφ, xⱼcosφ + xᵢsinφ). Row n has position Offset + n mod SeqLen.
// Inverse rotates by −φ, which is also the backward.
func Rotate(x Mat, rot device.Rotary) Mat {
	y := x.Clone()
	d := rot.HeadDim
	for n := range x.Rows {
		pos := float64(rot.Offset + n%rot.SeqLen)
		for head := 0; head < x.Cols; head += d {
			for i := range d / 2 {
				phi := pos * math.Pow(rot.Theta, -2*float64(i)/float64(d))
				if rot.Inverse {
					phi = -phi
				}
				sin, cos := math.Sincos(phi)
				xi, xj := x.Row(n)[head+i], x.Row(n)[head+i+d/2]
				y.Row(n)[head+i] = xi*cos - xj*sin
				y.Row(n)[head+i+d/2] = xj*cos + xi*sin
			}
		}
	}
	return y
}

// sigmoid is 1/(1+e^−x).
func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// SwiGLU returns silu(g)·u for gu = [g | u], silu(g) = g·σ(g).
func SwiGLU(gu Mat) Mat {
	f := gu.Cols / 2
	m := New(gu.Rows, f)
	for r := range gu.Rows {
		for c := range f {
			g, u := gu.Row(r)[c], gu.Row(r)[f+c]
			m.Row(r)[c] = g * sigmoid(g) * u
		}
	}
	return m
}

// SwiGLUBackward returns [dg | du]: dg = dm·u·σ(g)(1+g(1−σ(g))), du = dm·g·σ(g).
func SwiGLUBackward(dm, gu Mat) Mat {
	f := gu.Cols / 2
	dgu := New(gu.Rows, gu.Cols)
	for r := range gu.Rows {
		for c := range f {
			g, u, d := gu.Row(r)[c], gu.Row(r)[f+c], dm.Row(r)[c]
			s := sigmoid(g)
			dgu.Row(r)[c] = d * u * s * (1 + g*(1-s))
			dgu.Row(r)[f+c] = d * g * s
		}
	}
	return dgu
}

// ArgMax returns the column of the largest value of each row, the lowest one on ties. NaN is skipped; a row of NaN alone gives 0.
func ArgMax(x Mat) []int {
	ids := make([]int, x.Rows)
	for r := range ids {
		for c, v := range x.Row(r) {
			if top := x.Row(r)[ids[r]]; v > top || math.IsNaN(top) && !math.IsNaN(v) {
				ids[r] = c
			}
		}
	}
	return ids
}

// Best returns [n,2]: of each row of x the column that ArgMax gives, and the value there, or NaN if the row has NaN or +∞.
func Best(x Mat) Mat {
	best := New(x.Rows, 2)
	for r, id := range ArgMax(x) {
		row := best.Row(r)
		row[0], row[1] = float64(id), x.Row(r)[id]
		for _, v := range x.Row(r) {
			if math.IsNaN(v) || math.IsInf(v, 1) {
				row[1] = math.NaN()
			}
		}
	}
	return best
}
