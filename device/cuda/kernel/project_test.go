//go:build emulate

package kernel

import (
	"fmt"
	"slices"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// columnsOf makes a matrix with columns of these lengths, of ids and weights by chance.
func (l *lab) columnsOf(teacher int, lengths []int) (w Projection, starts, ids []int, weights []float64) {
	starts = []int{0}
	for _, n := range lengths {
		for range n {
			ids, weights = append(ids, l.rng.IntN(teacher)), append(weights, l.rng.Float64())
		}
		starts = append(starts, len(ids))
	}
	if len(lengths) > 1 && lengths[1] == 1 {
		weights[starts[1]] = 1
	}
	for i, v := range weights {
		weights[i] = float64(float32(v))
	}
	return l.matrix(teacher, starts, ids, weights), starts, ids, weights
}

func (l *lab) matrix(teacher int, starts, ids []int, weights []float64) Projection {
	lead, gap := l.lead, l.gap
	l.lead, l.gap = 0, 0 // vectors
	defer func() { l.lead, l.gap = lead, gap }()
	return Projection{
		Teacher: teacher, Starts: l.ids(starts), IDs: l.ids(ids),
		Weights: l.in(tensor.F32, ref.Mat{Rows: 1, Cols: len(weights), V: weights}),
	}
}

// TestProject: columns of every length at which another loop sums them, next to each other and at the ends of blocks,
// in every layout.
func TestProject(t *testing.T) {
	lengths := []int{0, 1, 1, 2, 4, 5, 31, 32, 33, 512, 513, 3, 0, 700, 1, 1025}
	for len(lengths) < 254 {
		lengths = append(lengths, 1+len(lengths)%3)
	}
	lengths = append(lengths, 6, 600, 900, 1, 40)
	defer func() { projectScratch = MaxScratch }()
	eachLayout(t, func(t *testing.T, l *lab) {
		for _, rows := range []int{1, 4, 19} {
			for _, teacher := range []int{1, 33, 2049, 9001} {
				projectScratch = MaxScratch
				if rows == 19 { // several rounds
					projectScratch = 4096 + 80*teacher
				}
				w, starts, ids, weights := l.columnsOf(teacher, lengths)
				x := l.random(rows, teacher, 3)
				at := l.rng.Perm(rows + 1)[:rows]
				z := l.in(tensor.F32, x)
				y := l.out(tensor.F32, rows+1, len(lengths))
				Project(l.op(), y, z, w, l.ids(at), 1.5)
				got, want := l.get(y), ref.Project(x, starts, ids, weights, 1.5)
				for r, v := range at {
					near.Check(t, fmt.Sprintf("row %d of %d, %d ids", r, rows, teacher), got.Row(v), want.Row(r), 2e-5)
				}
				checkFault(t, l, 0, 0, 0)
				contracttest.Cases(t, rows)
			}
		}
	})
}

// TestProjectFaults: what the host cannot check is noted by the kernels, and nothing is read or written outside.
func TestProjectFaults(t *testing.T) {
	for _, c := range []struct {
		name               string
		rows, starts, ids  []int
		code, value, limit int64
		written            []int // rows
	}{
		{"row above", []int{1, 3}, []int{0, 1, 3}, []int{0, 1, 2}, FaultRow, 3, 3, []int{1}},
		{"row below", []int{-1, 0}, []int{0, 1, 3}, []int{0, 1, 2}, FaultRow, -1, 3, []int{0}},
		{"id above", []int{1, 2}, []int{0, 1, 3}, []int{0, 1, 5}, FaultID, 5, 5, []int{1, 2}},
		{"id below", []int{1, 2}, []int{0, 1, 3}, []int{-7, 1, 2}, FaultID, -7, 5, []int{1, 2}},
		{"entries", []int{1, 2}, []int{0, 1, 4}, []int{0, 1, 2}, FaultID, 4, 4, []int{1, 2}},
		{"descending", []int{1, 2}, []int{0, 3, 2}, []int{0, 1, 2}, FaultID, 2, 4, []int{1, 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t)
			w := l.matrix(5, c.starts, c.ids, []float64{1, .5, .5})
			y := l.out(tensor.F32, 3, 2)
			Project(l, y, l.in(tensor.F32, l.random(2, 5, 1)), w, l.ids(c.rows), 1)
			checkFault(t, l, c.code, c.value, c.limit)
			got := l.get(y)
			for r := range got.Rows {
				if v := got.Row(r)[0]; (v != v) == slices.Contains(c.written, r) {
					t.Errorf("row %d is %v", r, got.Row(r))
				}
			}
		})
	}
}
