package cpu

import (
	"math"

	"apr/device"
)

var _ device.Projector = (*Stream)(nil)

// projectOp moves a teacher's distribution to other ids, by rows.
type projectOp struct {
	s                 *Stream
	y, t              mat
	rows, starts, ids []int32
	weights           []float32
	temperature       float64
	run               func(worker, lo, hi int)
}

// Project: y[rows[r], s] = T·max(ln Σ_k W[k,s]·p[r,k], −80), p = softmax(t/T).
//
// With m the maximum of a row and S = Σe^{(t−m)/T}, a column of one entry is (t−m)/T − ln S + ln w, in which
// nothing is rounded that a constant added to t could move, and no probability becomes zero; sums of more are of
// e^{(t−m)/T}, in float64, in order of the teacher's ids.
func (s *Stream) Project(y, t device.Tensor, w device.Projection, rows device.Tensor, temperature float64) {
	device.CheckProject(y, t, w, rows, temperature)
	if !s.begin() {
		return
	}
	o := &s.ops.project
	o.y, o.t, o.rows, o.temperature = floats(y), floats(t), ints(rows), temperature
	o.starts, o.ids, o.weights = ints(w.Starts), ints(w.IDs), nil
	if len(o.ids) > 0 {
		m := floats(w.Weights)
		o.weights = m.row(0)
	}
	if !s.inRange("Project", o.rows, o.y.rows) || !s.inRange("Project", o.ids, w.Teacher) ||
		!s.inRange("Project", o.starts, len(o.ids)+1) {
		return
	}
	s.split(o.t.rows, lossGrain, o.run)
	s.end(device.OpProject, 0)
}

func (o *projectOp) piece(worker, lo, hi int) {
	isa, invT := o.s.isa, float32(1/o.temperature)
	l := &o.s.local[worker]
	for r := lo; r < hi; r++ {
		t, y := o.t.row(r), o.y.row(int(o.rows[r]))
		m := isa.Max(t)
		l.row = grow(l.row, len(t))
		e := l.row
		for i, v := range t {
			e[i] = (v - m) * invT
		}
		lnS := math.Log(isa.ExpSum(e, e, 0))
		o.columns(y, t, e, m, lnS)
	}
}

// columns writes a row of y: of one of t with its maximum m, e = e^{(t−m)/T} and the logarithm of their sum.
func (o *projectOp) columns(y, t, e []float32, m float32, lnS float64) {
	ids, weights, temp := o.ids, o.weights, o.temperature
	c, floor := temp*lnS, temp*device.ProjectFloor
	from := o.starts[0]
	for s := range y {
		to := o.starts[s+1]
		ln := math.Inf(-1) // times T
		switch {
		case to == from+1:
			ln = float64(t[ids[from]]-m) - c
			if w := weights[from]; w != 1 {
				ln += temp * math.Log(float64(w))
			}
		case to > from:
			sum := 0.0
			for k := from; k < to; k++ {
				sum += float64(weights[k]) * float64(e[ids[k]])
			}
			ln = temp * (math.Log(sum) - lnS)
		}
		if ln < floor { // not so of NaN, which stays
			ln = floor
		}
		y[s] = float32(ln)
		from = to
	}
}
