package cpu

import (
	"math"

	"apr/device"
)

var _ device.NextDrawer = (*Stream)(nil)

// drawOp draws an id of each row.
type drawOp struct {
	s        *Stream
	x, out   mat
	never    []float32 // nil: none
	ids, key []int32
	run      func(worker, lo, hi int)
}

// DrawNext draws an id of softmax(x+never) for each row: see device.NextDrawer. Two logarithms an id, in float64.
func (s *Stream) DrawNext(ids, out, x, never, keys device.Tensor) {
	device.CheckDrawNext(ids, out, x, never, keys)
	if !s.begin() {
		return
	}
	o := &s.ops.draw
	o.x, o.out, o.ids, o.key, o.never = floats(x), floats(out), ints(ids), ints(keys), nil
	if m := optional(never); m.cols > 0 {
		o.never = m.row(0)
	}
	s.split(o.x.rows, 1, o.run)
	s.end(device.OpDrawNext, 0)
}

func (o *drawOp) piece(_, lo, hi int) {
	for r := lo; r < hi; r++ {
		x, out := o.x.row(r), o.out.row(r)
		key := uint64(uint32(o.key[2*r])) | uint64(uint32(o.key[2*r+1]))<<32
		best, most, fit := 0, math.Inf(-1), true
		for i, v := range x {
			score := float64(v)
			fit = fit && score < math.Inf(1)
			if o.never != nil {
				score += float64(o.never[i])
			}
			score -= math.Log(-math.Log1p(-device.NextUniform(key, i)))
			if score > most {
				best, most = i, score
			}
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
