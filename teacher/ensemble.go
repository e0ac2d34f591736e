package teacher

import (
	"math"

	"apr/device"
	"apr/internal/fault"
	"apr/model"
)

// Ensemble is a teacher made of teachers over one vocabulary. With Temperature T > 0 it teaches the mixture
//
//	p = Σₖ wₖ·softmax(tₖ/T),  as logits T·ln p
//
// whose softmax at T is p, so that the loss stays what it is; with Temperature 0 the logits Σₖ wₖ·tₖ. It costs what its teachers
// cost, and one more chunk of logits.
type Ensemble struct {
	Teachers    []Teacher
	Weights     []float64 // of each, positive, with sum 1: see CheckWeights
	Temperature float64
}

// weightTolerance is how far the sum of weights may be from one: they are written in decimal.
const weightTolerance = 1e-6

// CheckWeights refuses weights of an ensemble of n teachers that are not positive or do not sum to one. Only then is the mixture a
// distribution.
func CheckWeights(weights []float64, n int) error {
	if len(weights) != n {
		return fault.New(fault.Usage, "--teacher-weights has %d weights for %d teachers", len(weights), n).WithID("E-TEACHER-010")
	}
	sum := 0.0
	for _, w := range weights {
		if !(w > 0 && w <= 1) {
			return fault.New(fault.Usage, "--teacher-weights: %g is not between 0 and 1", w).WithID("E-TEACHER-011")
		}
		sum += w
	}
	if !(math.Abs(sum-1) <= weightTolerance) {
		return fault.New(fault.Usage, "--teacher-weights sum to %.6g; they must sum to 1", sum).WithID("E-TEACHER-012")
	}
	return nil
}

// Equal returns n equal weights.
func Equal(n int) []float64 {
	w := make([]float64, n)
	for i := range w {
		w[i] = 1 / float64(n)
	}
	return w
}

// Begin runs all bodies.
func (e *Ensemble) Begin(s device.Stream, b *model.Batch) {
	for _, t := range e.Teachers {
		t.Begin(s, b)
	}
}

// Logits joins those of all teachers.
func (e *Ensemble) Logits(s device.Stream, lo, hi int, dst device.Tensor) {
	e.Teachers[0].Logits(s, lo, hi, dst)
	e.join(s, dst, dst, 0)
	if len(e.Teachers) == 1 {
		return
	}
	own := s.Temp("logits.member", device.Logits, dst.DType, dst.Rows, dst.Stride).ColRange(0, dst.Cols)
	for i, t := range e.Teachers[1:] {
		t.Logits(s, lo, hi, own)
		e.join(s, dst, own, i+1)
	}
	s.Release(own)
}

// join adds the logits t of teacher i to y; those of the first are y.
func (e *Ensemble) join(s device.Stream, y, t device.Tensor, i int) {
	if e.Temperature > 0 {
		s.Mix(y, t, e.Weights[i], e.Temperature, i > 0)
		return
	}
	s.Scale(t, t, e.Weights[i])
	if i > 0 {
		s.Add(y, t)
	}
}

// End gives the step's memory back.
func (e *Ensemble) End(s device.Stream) {
	for _, t := range e.Teachers {
		t.End(s)
	}
}

// Routed is a teacher of which each sequence of a step has its own: rows of model.Batch.Routed go to the teacher that the part
// names, and to no other. It costs what the chosen ones cost.
type Routed struct {
	Teachers []Teacher

	parts []model.RoutedPart
}

// Begin runs each body over the rows that are its own. Parts without targets have nothing to teach.
func (r *Routed) Begin(s device.Stream, b *model.Batch) {
	r.parts = r.parts[:0]
	for _, p := range b.Routed {
		if p.Hi > p.Lo {
			r.Teachers[p.Route].Begin(s, p.Batch())
			r.parts = append(r.parts, p)
		}
	}
}

// Logits writes those of the parts that hold rows [lo,hi).
func (r *Routed) Logits(s device.Stream, lo, hi int, dst device.Tensor) {
	for _, p := range r.parts {
		if from, to := max(lo, p.Lo), min(hi, p.Hi); from < to {
			r.Teachers[p.Route].Logits(s, from-p.Lo, to-p.Lo, dst.RowRange(from-lo, to-lo))
		}
	}
}

// End gives the step's memory back.
func (r *Routed) End(s device.Stream) {
	for _, p := range r.parts {
		r.Teachers[p.Route].End(s)
	}
	r.parts = r.parts[:0]
}
