package cpu

import (
	"math"

	"apr/device"
)

// mixOp adds a teacher's distribution to a mixture, by rows.
type mixOp struct {
	s              *Stream
	y, t           mat
	w, temperature float64
	add            bool
	run            func(worker, lo, hi int)
}

// Mix: y = T·ln(w·softmax(t/T)), or with add y = T·ln(e^{y/T} + w·softmax(t/T)).
//
// With m the maximum of a row and S = Σe^{(t−m)/T}, the logarithm of a probability is (t−m)/T − ln S, so that a constant added
// to t cancels before anything is rounded, and no probability becomes zero.
func (s *Stream) Mix(y, t device.Tensor, w, temperature float64, add bool) {
	device.CheckMix(y, t, w, temperature)
	if !s.begin() {
		return
	}
	o := &s.ops.mix
	o.y, o.t, o.w, o.temperature, o.add = floats(y), floats(t), w, temperature, add
	s.split(o.t.rows, lossGrain, o.run)
	s.end(device.OpMix, 0)
}

func (o *mixOp) rows(_, lo, hi int) {
	isa, temperature, invT := o.s.isa, float32(o.temperature), float32(1/o.temperature)
	for r := lo; r < hi; r++ {
		y, t := o.y.row(r), o.t.row(r)
		m := isa.Max(t)
		c := float32(o.temperature * (math.Log(o.w) - math.Log(isa.ExpTotal(t, m, invT))))
		if o.add {
			isa.LogAddExp(y, t, m, c, invT, temperature)
		} else {
			isa.Shift(y, t, m, c)
		}
	}
}

// squaredOp is a squared error by rows. The sums of rows are added up in ascending order afterwards.
type squaredOp struct {
	s          *Stream
	grad, u, t mat
	f          float32
	sums       []float64
	run        func(worker, lo, hi int)
}

// SquaredError adds Σ_r ‖u[r]−t[r]‖²/m to the record and writes grad = weight·InvN·2/m·(u−t).
func (s *Stream) SquaredError(grad, u, t device.Tensor, weight float64) {
	device.CheckSquaredError(grad, u, t, weight)
	if !s.begin() {
		return
	}
	o := &s.ops.squared
	o.grad, o.u, o.t = floats(grad), floats(u), floats(t)
	o.f = float32(weight * s.scalars.InvN * 2 / float64(u.Cols))
	if cap(o.sums) < u.Rows {
		o.sums = make([]float64, u.Rows)
	}
	o.sums = o.sums[:u.Rows]
	s.split(u.Rows, rowGrain(u.Cols), o.run)
	total := 0.0
	for _, v := range o.sums {
		total += v
	}
	s.scalars.Sums[device.HiddenStates] += total / float64(u.Cols)
	s.end(device.OpSquaredError, 0)
}

func (o *squaredOp) rows(_, lo, hi int) {
	for r := lo; r < hi; r++ {
		grad, u, t := o.grad.row(r), o.u.row(r), o.t.row(r)
		sum := 0.0
		for i, v := range u {
			d := v - t[i]
			sum += float64(d) * float64(d)
			grad[i] = o.f * d
		}
		o.sums[r] = sum
	}
}
