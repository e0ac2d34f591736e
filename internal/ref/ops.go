package ref

import "math"

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
