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
	isa, temp, invT := o.s.isa, o.temperature, float32(1/o.temperature)
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
		for s := range y {
			from, to := o.starts[s], o.starts[s+1]
			ln := math.Inf(-1)
			switch {
			case to == from+1:
				ln = float64(t[o.ids[from]]-m)/temp - lnS
				if w := o.weights[from]; w != 1 {
					ln += math.Log(float64(w))
				}
			case to > from:
				sum := 0.0
				for k := from; k < to; k++ {
					sum += float64(o.weights[k]) * float64(e[o.ids[k]])
				}
				ln = math.Log(sum) - lnS
			}
			if !(ln < device.ProjectFloor) { // NaN stays one
				y[s] = float32(temp * ln)
				continue
			}
			y[s] = float32(temp * device.ProjectFloor)
		}
	}
}
