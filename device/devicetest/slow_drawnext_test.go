package devicetest

import (
	"math"

	"apr/device"
	"apr/internal/ref"
)

var _ device.NextDrawer = (*slowStream)(nil)

// DrawNext is that of device.NextDrawer.
func (s *slowStream) DrawNext(ids, out, x, never, keys, limits device.Tensor) {
	device.CheckDrawNext(ids, out, x, never, keys, limits)
	var bias []float64
	if !never.IsZero() {
		bias = s.read(never).V
	}
	halves := s.ints(keys)
	all := make([]uint64, x.Rows)
	for r := range all {
		all[r] = uint64(uint32(halves[2*r])) | uint64(uint32(halves[2*r+1]))<<32
	}
	var rows []ref.NextLimits
	if !limits.IsZero() {
		m := s.read(limits)
		for r := range x.Rows {
			rows = append(rows, ref.NextLimits{T: m.Row(r)[0], P: m.Row(r)[1], K: m.Row(r)[2]})
		}
	}
	at, logs := s.ops.drawNext(s.read(x), bias, all, rows)
	told := ref.New(x.Rows, 2)
	for r, id := range at {
		told.Row(r)[0], told.Row(r)[1] = float64(id), logs[r]
	}
	m := ref.New(ids.Rows, ids.Cols)
	for i, id := range at {
		m.V[i] = float64(id)
	}
	s.write(ids, m)
	s.write(out, told)
}

// drawn returns what DrawNext does: the id of the largest score, and ln softmax(x) of it.
func drawn(x ref.Mat, never []float64, keys []uint64, limits []ref.NextLimits) (ids []int, logs []float64) {
	return drawnOf(x, never, keys, limits, ref.Left)
}

// drawnOf is drawn from the ids that left leaves.
func drawnOf(
	x ref.Mat, never []float64, keys []uint64, limits []ref.NextLimits, left func([]float64, ref.NextLimits) []bool,
) (ids []int, logs []float64) {
	scores := ref.DrawNext(x, never, keys, limits, left)
	ids = ref.ArgMax(scores)
	for r, id := range ids {
		ln := ref.LogSoftmax(x.Row(r), 1)[id]
		for _, v := range x.Row(r) {
			if math.IsNaN(v) || math.IsInf(v, 1) {
				ln = math.NaN()
			}
		}
		logs = append(logs, ln)
	}
	return ids, logs
}

func init() {
	type draw = func(ref.Mat, []float64, []uint64, []ref.NextLimits) ([]int, []float64)
	change := func(f draw) func(*ops) { return func(o *ops) { o.drawNext = f } }
	mutants = append(mutants,
		mutant{"the likeliest id for one that is drawn", "draw next/", change(
			func(x ref.Mat, never []float64, keys []uint64, limits []ref.NextLimits) ([]int, []float64) {
				ids, logs := drawn(x, never, keys, limits)
				for r, id := range ref.ArgMax(x) {
					ids[r], logs[r] = id, ref.LogSoftmax(x.Row(r), 1)[id]
				}
				return ids, logs
			})},
		mutant{"ids that are never drawn, drawn", "draw next/", change(
			func(x ref.Mat, _ []float64, keys []uint64, limits []ref.NextLimits) ([]int, []float64) {
				return drawn(x, nil, keys, limits)
			})},
		mutant{"the probability among the ids that are left", "draw next/", change(
			func(x ref.Mat, never []float64, keys []uint64, limits []ref.NextLimits) ([]int, []float64) {
				if never == nil {
					return drawn(x, nil, keys, limits)
				}
				y := ref.New(x.Rows, x.Cols)
				for i, v := range x.V {
					y.V[i] = v + never[i%x.Cols]
				}
				return drawn(y, nil, keys, limits)
			})},
		mutant{"half of a key", "draw next/", change(
			func(x ref.Mat, never []float64, keys []uint64, limits []ref.NextLimits) ([]int, []float64) {
				low := make([]uint64, len(keys))
				for i, k := range keys {
					low[i] = k & math.MaxUint32
				}
				return drawn(x, never, low, limits)
			})},
		mutant{"one key for all rows", "draw next/", change(
			func(x ref.Mat, never []float64, keys []uint64, limits []ref.NextLimits) ([]int, []float64) {
				same := make([]uint64, len(keys))
				for i := range same {
					same[i] = keys[0]
				}
				return drawn(x, never, same, limits)
			})},
		mutant{"a probability where a logit is not finite", "draw next/", change(
			func(x ref.Mat, never []float64, keys []uint64, limits []ref.NextLimits) ([]int, []float64) {
				ids, logs := drawn(x, never, keys, limits)
				for r := range logs {
					if math.IsNaN(logs[r]) {
						logs[r] = -1
					}
				}
				return ids, logs
			})},
	)
	leave := func(left func([]float64, ref.NextLimits) []bool) func(*ops) {
		return change(func(x ref.Mat, never []float64, keys []uint64, limits []ref.NextLimits) ([]int, []float64) {
			return drawnOf(x, never, keys, limits, left)
		})
	}
	limited := "draw next, limits/"
	mutants = append(mutants,
		mutant{"one id more than p leaves", limited, leave(func(y []float64, l ref.NextLimits) []bool {
			in := ref.Left(y, l)
			next := -1
			for i, v := range y {
				if !in[i] && (next < 0 || v > y[next]) {
					next = i
				}
			}
			if l.P > 0 && l.P < 1 && next >= 0 {
				in[next] = true
			}
			return in
		})},
		mutant{"one id less than p leaves", limited, leave(func(y []float64, l ref.NextLimits) []bool {
			in := ref.Left(y, l)
			last, n := -1, 0
			for i, v := range y {
				if in[i] {
					n++
					if last < 0 || v <= y[last] {
						last = i
					}
				}
			}
			in[last] = !(l.P > 0 && l.P < 1 && n > 1)
			return in
		})},
		mutant{"p of the weights before temperature", limited, leave(func(y []float64, l ref.NextLimits) []bool {
			l.T = 1
			return ref.Left(y, l)
		})},
		mutant{"p of all ids for p of the first k", limited, leave(func(y []float64, l ref.NextLimits) []bool {
			in := ref.Left(y, ref.NextLimits{T: l.T, P: l.P})
			for i, first := range ref.Left(y, ref.NextLimits{T: l.T, K: l.K}) {
				in[i] = in[i] && first
			}
			return in
		})},
		mutant{"all ids that are equal to the last of k", limited, leave(func(y []float64, l ref.NextLimits) []bool {
			in := ref.Left(y, l)
			if l.P > 0 && l.P < 1 || l.K == 0 {
				return in
			}
			for i, v := range y {
				for j, w := range y {
					in[i] = in[i] || in[j] && v == w
				}
			}
			return in
		})},
		mutant{"the limits of the first row for all", limited, change(
			func(x ref.Mat, never []float64, keys []uint64, limits []ref.NextLimits) ([]int, []float64) {
				same := make([]ref.NextLimits, len(limits))
				for i := range same {
					same[i] = limits[0]
				}
				if limits == nil {
					same = nil
				}
				return drawn(x, never, keys, same)
			})},
		mutant{"no temperature", limited, change(
			func(x ref.Mat, never []float64, keys []uint64, limits []ref.NextLimits) ([]int, []float64) {
				return drawn(x, never, keys, nil)
			})},
	)
}
