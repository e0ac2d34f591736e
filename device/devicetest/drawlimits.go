package devicetest

import (
	"math"
	"slices"

	"apr/device"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// nextLimits are limits of DrawNext over cols ids: each alone, and together.
func nextLimits(cols int) []ref.NextLimits {
	return []ref.NextLimits{
		{T: .8, P: .95}, {T: 1}, {T: 2}, {T: .8, P: .9, K: 20}, {T: 3, K: 3}, {T: .25, P: .3},
		{T: 4, P: .6, K: float64(cols)},
		{T: 1, P: 1, K: 1}, {T: .25, P: .3, K: float64(3 * cols / 4)},
		{T: 1.3, P: .999}, {T: 2.5, P: .55, K: 9}, {T: 1, P: 1e-9}, {T: 5, P: .5, K: 1 << 20},
	}
}

// limits uploads limits.
func (l *lab) limits(all []ref.NextLimits) device.Tensor {
	m := ref.New(len(all), device.NextLimits)
	for r, a := range all {
		copy(m.Row(r), []float64{a.T, a.P, a.K})
	}
	return l.in(tensor.F32, m)
}

// checkDrawLimits: the id that is drawn is one that the limits leave, has the largest score of those but for rounding,
// and its own probability. Where a sum of weights is within 1e-5 of p, an id more or less may be left. Many logits are
// equal.
func checkDrawLimits(l *lab, cols, each int) {
	d := l.nextDrawer()
	if d == nil {
		return
	}
	var all []ref.NextLimits
	for range each {
		all = append(all, nextLimits(cols)...)
	}
	bias := make([]float64, cols)
	for i := 2; i < cols; i += 3 {
		bias[i] = math.Inf(-1)
	}
	for _, scale := range []float64{4, 0} { // the second: all are equal
		for _, masked := range []bool{false, true} {
			x := l.random(len(all), cols, scale)
			keys := make([]uint64, len(all))
			for r := range keys {
				keys[r] = l.rng.Uint64()
				for i := range cols {
					x.Row(r)[i] = math.Round(x.Row(r)[i]) / 2
					if masked && bias[i] != 0 && scale > 0 {
						x.Row(r)[i] += 9
					}
				}
			}
			var never device.Tensor
			var without []float64
			if masked {
				without, never = bias, l.in(tensor.F32, ref.Mat{Rows: 1, Cols: cols, V: bias})
			}
			xt := l.in(tensor.F32, x)
			ids, logs := l.draw(d, xt, never, keys, l.limits(all))
			if !l.leftAndBest(x, without, keys, all, ids) {
				return
			}
			for r, id := range ids {
				l.note(near.Abs("ln p", logs[r:r+1], []float64{ref.LogSoftmax(x.Row(r), 1)[id]}, 2e-5))
			}
		}
	}
}

// leftAndBest reports whether drawn ids are the best of those that limits leave.
func (l *lab) leftAndBest(x ref.Mat, never []float64, keys []uint64, all []ref.NextLimits, ids []int) bool {
	part := func(by float64) ref.Mat {
		return ref.DrawNext(x, never, keys, all, func(y []float64, a ref.NextLimits) []bool {
			if a.P < 1 {
				a.P *= by
			}
			return ref.Left(y, a)
		})
	}
	fewer, more := part(1-1e-5), part(1+1e-5)
	for r, id := range ids {
		best := slices.Max(fewer.Row(r))
		if id < 0 || id >= x.Cols || math.IsInf(more.Row(r)[id], -1) || !(more.Row(r)[id] >= best-1e-4) {
			l.errorf("row %d of limits %+v: id %d is drawn, left out or not the best", r, all[r], id)
			return false
		}
	}
	return true
}

// checkDrawUnlimited: limits that leave all ids, at temperature 1, change no bit.
func checkDrawUnlimited(l *lab) {
	d := l.nextDrawer()
	if d == nil {
		return
	}
	const rows, cols = 4, 3001
	xt := l.in(tensor.F32, l.random(rows, cols, 2))
	keys := []uint64{1, 2, 3, l.rng.Uint64()}
	ids, logs := l.draw(d, xt, device.Tensor{}, keys, device.Tensor{})
	none := l.limits([]ref.NextLimits{{T: 1}, {T: 1, P: 1}, {T: 1, K: cols}, {T: 1, P: 2, K: 1 << 20}})
	if same, told := l.draw(d, xt, device.Tensor{}, keys, none); !slices.Equal(same, ids) || !slices.Equal(told, logs) {
		l.errorf("limits that leave all: ids %v, ln p %v; without limits %v, %v", same, told, ids, logs)
	}
}

// checkDrawLimitedShares: under limits ids are drawn as often as they are likely: see checkDrawNextShares. Six of ten
// ids are left, so there are 5 degrees of freedom, of which χ² exceeds 25.7 once in 10,000 seeds.
func checkDrawLimitedShares(l *lab) {
	d := l.nextDrawer()
	if d == nil {
		return
	}
	const rows, rounds, cols = 500, 8, 10
	limit := ref.NextLimits{T: 1.5, P: .9, K: 8}
	x, all := ref.New(rows, cols), make([]ref.NextLimits, rows)
	for r := range rows {
		copy(x.Row(r), []float64{0, 1.5, -3, 1, .5, 2, -9, .25, -2, 1})
		all[r] = limit
	}
	xt, lt := l.in(tensor.F32, x), l.limits(all)
	counts := make([]float64, cols)
	for round := range rounds {
		keys := make([]uint64, rows)
		for i := range keys {
			keys[i] = uint64(round*rows+i) * 0x9e3779b97f4a7c15
		}
		ids, _ := l.draw(d, xt, device.Tensor{}, keys, lt)
		for _, id := range ids {
			counts[min(max(id, 0), cols-1)]++
		}
	}
	y := slices.Clone(x.Row(0))
	for i, in := range ref.Left(y, limit) {
		if !in {
			y[i] = math.Inf(-1)
		}
	}
	chi := 0.0
	for i, ln := range ref.LogSoftmax(y, limit.T) {
		if want := rows * rounds * math.Exp(ln); want > 0 {
			chi += (counts[i] - want) * (counts[i] - want) / want
		} else if counts[i] > 0 {
			l.errorf("id %d is left out, and drawn %g times", i, counts[i])
		}
	}
	if !(chi < 25.7) {
		l.errorf("χ² of %d draws is %g: %v", rows*rounds, chi, counts)
	}
}
