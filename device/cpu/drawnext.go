package cpu

import (
	"cmp"
	"math"
	"slices"

	"apr/device"
)

var _ device.NextDrawer = (*Stream)(nil)

// drawOp draws an id of each row.
type drawOp struct {
	s        *Stream
	x, out   mat
	limits   mat
	never    []float32 // nil: none
	ids, key []int32
	run      func(worker, lo, hi int)
}

// DrawNext draws an id of each row: see device.NextDrawer. Two logarithms an id, in float64; where a row has a p or
// a k, its ids are sorted.
func (s *Stream) DrawNext(ids, out, x, never, keys, limits device.Tensor) {
	device.CheckDrawNext(ids, out, x, never, keys, limits)
	if !s.begin() {
		return
	}
	o := &s.ops.draw
	o.x, o.out, o.ids, o.key, o.never = floats(x), floats(out), ints(ids), ints(keys), nil
	if m := optional(never); m.cols > 0 {
		o.never = m.row(0)
	}
	o.limits = optional(limits)
	s.split(o.x.rows, 1, o.run)
	s.end(device.OpDrawNext, 0)
}

func (o *drawOp) piece(_, lo, hi int) {
	for r := lo; r < hi; r++ {
		x, out := o.x.row(r), o.out.row(r)
		key := uint64(uint32(o.key[2*r])) | uint64(uint32(o.key[2*r+1]))<<32
		best, most, fit, inverse := 0, math.Inf(-1), true, 1.
		try := func(i int) {
			score := o.logit(x, i)*inverse - math.Log(-math.Log1p(-device.NextUniform(key, i)))
			if score > most || score == most && i < best {
				best, most = i, score
			}
		}
		for _, v := range x {
			fit = fit && float64(v) < math.Inf(1)
		}
		var left []int
		if o.limits.cols > 0 {
			l := o.limits.row(r)
			inverse = 1 / float64(l[0])
			if p, k := l[1], l[2]; fit && (p > 0 && p < 1 || k > 0 && int(k) < len(x)) {
				left = o.left(x, l)
			}
		}
		if left == nil {
			for i := range x {
				try(i)
			}
		}
		for _, i := range left {
			try(i)
		}
		o.ids[r], out[0], out[1] = int32(best), float32(best), float32(math.NaN())
		if fit {
			top := o.s.isa.Max(x)
			sum := 0.0
			for _, v := range x {
				sum += math.Exp(float64(v - top))
			}
			out[1] = float32(float64(x[best]-top) - math.Log(sum))
		}
	}
}

// logit returns a logit of a row, −∞ where it is never drawn.
func (o *drawOp) logit(x []float32, i int) float64 {
	if o.never == nil {
		return float64(x[i])
	}
	return float64(x[i]) + float64(o.never[i])
}

// left returns the ids that the limits of a row leave.
func (o *drawOp) left(x, limits []float32) []int {
	ids := make([]int, len(x))
	for i := range ids {
		ids[i] = i
	}
	slices.SortStableFunc(ids, func(a, b int) int { return cmp.Compare(o.logit(x, b), o.logit(x, a)) })
	if k := int(limits[2]); k > 0 {
		ids = ids[:min(k, len(ids))]
	}
	weights, sum, top := make([]float64, len(ids)), 0., o.logit(x, ids[0])
	for n, i := range ids {
		weights[n] = math.Exp((o.logit(x, i) - top) / float64(limits[0]))
		sum += weights[n]
	}
	if p := float64(limits[1]); p > 0 && p < 1 {
		n, mass := 0, 0.
		for n < len(ids) && (n == 0 || mass < p*sum) {
			mass += weights[n]
			n++
		}
		ids = ids[:n]
	}
	return ids
}
