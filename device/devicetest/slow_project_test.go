package devicetest

import (
	"slices"

	"apr/device"
	"apr/internal/fault"
	"apr/internal/ref"
)

var _ device.Projector = (*slowStream)(nil)

// Project is that of device.Projector.
func (s *slowStream) Project(y, t device.Tensor, w device.Projection, rows device.Tensor, temperature float64) {
	device.CheckProject(y, t, w, rows, temperature)
	at, starts, ids := s.ints(rows), s.ints(w.Starts), s.ints(w.IDs)
	for _, v := range at {
		if v < 0 || v >= y.Rows {
			s.fail(fault.New(fault.Invalid, "Project: row %d", v))
			return
		}
	}
	for _, v := range starts {
		if v < 0 || v > len(ids) {
			s.fail(fault.New(fault.Invalid, "Project: start %d", v))
			return
		}
	}
	for _, v := range ids {
		if v < 0 || v >= w.Teacher {
			s.fail(fault.New(fault.Invalid, "Project: id %d", v))
			return
		}
	}
	out, all := s.ops.project(s.read(t), starts, ids, s.read(w.Weights).V, temperature), s.read(y)
	for r, v := range at {
		copy(all.Row(v), out.Row(r))
	}
	s.write(y, all)
}

func init() {
	type project = func(t ref.Mat, starts, ids []int, weights []float64, temperature float64) ref.Mat
	change := func(f func(right project) project) func(*ops) {
		return func(o *ops) { o.project = f(ref.Project) }
	}
	mutants = append(mutants,
		mutant{"rows of W that are not normalised", "project/", change(func(right project) project {
			return func(t ref.Mat, starts, ids []int, weights []float64, temperature float64) ref.Mat {
				ones := make([]float64, len(weights))
				for i := range ones {
					ones[i] = 1
				}
				return right(t, starts, ids, ones, temperature)
			}
		})},
		mutant{"a projection of logits", "project/", change(func(project) project {
			return func(t ref.Mat, starts, ids []int, weights []float64, _ float64) ref.Mat {
				out := ref.New(t.Rows, len(starts)-1)
				for r := range t.Rows {
					for s := range out.Cols {
						for k := starts[s]; k < starts[s+1]; k++ {
							out.Row(r)[s] += weights[k] * t.Row(r)[ids[k]]
						}
					}
				}
				return out
			}
		})},
		mutant{"the next row's distribution", "project/", change(func(right project) project {
			return func(t ref.Mat, starts, ids []int, weights []float64, temperature float64) ref.Mat {
				out := right(t, starts, ids, weights, temperature)
				v := out.V[:min(1, out.Rows)*out.Cols]
				return ref.Mat{Rows: out.Rows, Cols: out.Cols, V: slices.Concat(out.V[len(v):], v)}
			}
		})},
		mutant{"only the first entry of a column", "project/", change(func(right project) project {
			return func(t ref.Mat, starts, ids []int, weights []float64, temperature float64) ref.Mat {
				some := make([]float64, len(weights))
				for s := range len(starts) - 1 {
					if starts[s] < starts[s+1] {
						some[starts[s]] = weights[starts[s]]
					}
				}
				return right(t, starts, ids, some, temperature)
			}
		})},
		mutant{"temperature of the projection forgotten", "project/", change(func(right project) project {
			return func(t ref.Mat, starts, ids []int, weights []float64, _ float64) ref.Mat {
				return right(t, starts, ids, weights, 1)
			}
		})},
		mutant{"an uncovered id at logit zero", "project/", change(func(right project) project {
			return func(t ref.Mat, starts, ids []int, weights []float64, temperature float64) ref.Mat {
				out := right(t, starts, ids, weights, temperature)
				for r := range out.Rows {
					for s := range out.Cols {
						if starts[s] == starts[s+1] {
							out.Row(r)[s] = 0
						}
					}
				}
				return out
			}
		})},
	)
}
