package ref

import (
	"math"
	"slices"

	"apr/device"
)

// Routed are the indices of a device.Routing.
type Routed struct{ Chosen, Slots, Rows, Starts []int }

// Choose returns the k largest logits of each row of z, in falling order, of equal ones the lowest index first; NaN is −∞.
func Choose(z Mat, k int) (chosen []int) {
	for n := range z.Rows {
		taken := map[int]bool{}
		for range k {
			best := -1
			for e := range z.Cols {
				if !taken[e] && (best < 0 || number(z.Row(n)[e]) > number(z.Row(n)[best])) {
					best = e
				}
			}
			taken[best] = true
			chosen = append(chosen, best)
		}
	}
	return chosen
}

func number(x float64) float64 {
	if math.IsNaN(x) {
		return math.Inf(-1)
	}
	return x
}

// Sort gives each choice its slot: slots are sorted by expert, and those of an expert by token.
func Sort(chosen []int, experts, k int) Routed {
	r := Routed{Chosen: chosen, Slots: make([]int, len(chosen)), Starts: []int{0}}
	for e := range experts {
		for i, c := range chosen {
			if c == e {
				r.Slots[i] = len(r.Rows)
				r.Rows = append(r.Rows, i/k)
			}
		}
		r.Starts = append(r.Starts, len(r.Rows))
	}
	return r
}

// probabilities are the softmax of a row of logits, over those of chosen with renorm, and 0 for others.
func probabilities(z []float64, chosen []int, renorm bool) []float64 {
	p, of := make([]float64, len(z)), chosen
	if !renorm {
		of = nil
		for e := range z {
			of = append(of, e)
		}
	}
	var logits []float64
	for _, e := range of {
		logits = append(logits, z[e])
	}
	lse := logSumExp(logits)
	for _, e := range of {
		p[e] = math.Exp(z[e] - lse)
	}
	return p
}

// Route returns the weights [n, Active] of device.Stream's Route; the zero Mat is no scale.
func Route(z, scale Mat, chosen []int, r device.Routing) Mat {
	w := New(z.Rows, r.Active)
	for n := range z.Rows {
		own := chosen[n*r.Active : (n+1)*r.Active]
		p := probabilities(z.Row(n), own, r.Renorm)
		for s, e := range own {
			w.Row(n)[s] = p[e]
			if scale.V != nil {
				w.Row(n)[s] *= scale.V[e]
			}
			if slices.ContainsFunc(z.Row(n), math.IsNaN) {
				w.Row(n)[s] = math.NaN()
			}
		}
	}
	return w
}

// RouteBackward returns the gradients over z and scale.
func RouteBackward(dw, z, scale Mat, chosen []int, r device.Routing) (dz, dscale Mat) {
	dz, dscale = New(z.Rows, z.Cols), New(1, z.Cols)
	for n := range z.Rows {
		own := chosen[n*r.Active : (n+1)*r.Active]
		p, d, mean := probabilities(z.Row(n), own, r.Renorm), make([]float64, z.Cols), 0.0
		for s, e := range own {
			d[e] = dw.Row(n)[s]
			dscale.V[e] += p[e] * d[e]
			if scale.V != nil {
				d[e] *= scale.V[e]
			}
			mean += p[e] * d[e]
		}
		for e := range d {
			dz.Row(n)[e] = p[e] * (d[e] - mean)
		}
	}
	return dz, dscale
}

// Grouped returns y[j] = W_e·x[j] + bias[e] for the slots j of each expert e; w [experts·out, in], bias [experts, out] or the
// zero Mat.
func Grouped(x, w, bias Mat, starts []int) Mat {
	experts := len(starts) - 1
	out := w.Rows / experts
	y := New(x.Rows, out)
	for e := range experts {
		b := Mat{}
		if bias.V != nil {
			b = bias.RowRange(e, e+1)
		}
		lo, hi := starts[e], starts[e+1]
		copy(y.RowRange(lo, hi).V, Linear(x.RowRange(lo, hi), w.RowRange(e*out, (e+1)*out), b).V)
	}
	return y
}

// GroupedBackward returns the gradients over x, w and bias of Grouped.
func GroupedBackward(dy, x, w Mat, starts []int) (dx, dw, dbias Mat) {
	experts := len(starts) - 1
	out := w.Rows / experts
	dx, dw, dbias = New(x.Rows, x.Cols), New(w.Rows, w.Cols), New(experts, out)
	for e := range experts {
		lo, hi := starts[e], starts[e+1]
		a, b, c := LinearBackward(dy.RowRange(lo, hi), x.RowRange(lo, hi), w.RowRange(e*out, (e+1)*out))
		copy(dx.RowRange(lo, hi).V, a.V)
		copy(dw.RowRange(e*out, (e+1)*out).V, b.V)
		copy(dbias.Row(e), c.V)
	}
	return dx, dw, dbias
}

// Combine returns y[t] = Σ_s w[t,s]·x[slots[t·k+s]]; the zero Mat w is ones.
func Combine(x, w Mat, slots []int, k int) Mat {
	y := New(len(slots)/k, x.Cols)
	for i, j := range slots {
		f := 1.0
		if w.V != nil {
			f = w.V[i]
		}
		for c, v := range x.Row(j) {
			y.Row(i / k)[c] += f * v
		}
	}
	return y
}

// CombineBackward returns the gradients over x and w of Combine.
func CombineBackward(dy, x, w Mat, slots []int, k int) (dx, dw Mat) {
	dx, dw = New(x.Rows, x.Cols), New(w.Rows, w.Cols)
	for i, j := range slots {
		dw.V[i] = dot(dy.Row(i/k), x.Row(j))
		for c, d := range dy.Row(i / k) {
			dx.Row(j)[c] = w.V[i] * d
		}
	}
	return dx, dw
}

// CountSlots returns the slots of each expert, [1, experts].
func CountSlots(starts []int) Mat {
	c := New(1, len(starts)-1)
	for e := range c.V {
		c.V[e] = float64(starts[e+1] - starts[e])
	}
	return c
}

// Balance returns f·Σ_t Σ_e c[e]·p[t,e], p[t] the softmax of z[t].
func Balance(z, c Mat, f float64) (sum float64) {
	for t := range z.Rows {
		for e, p := range probabilities(z.Row(t), nil, false) {
			sum += f * c.V[e] * p
		}
	}
	return sum
}

// BalanceBackward returns the gradient of Balance over z.
func BalanceBackward(z, c Mat, f float64) Mat {
	dz := New(z.Rows, z.Cols)
	for t := range z.Rows {
		p := probabilities(z.Row(t), nil, false)
		mean := dot(p, c.V)
		for e := range p {
			dz.Row(t)[e] = f * p[e] * (c.V[e] - mean)
		}
	}
	return dz
}
