package devicetest

import (
	"math"

	"apr/device"
	"apr/internal/ref"
)

var _ device.NextDrawer = (*slowStream)(nil)

// DrawNext is that of device.NextDrawer.
func (s *slowStream) DrawNext(ids, out, x, never, keys device.Tensor) {
	device.CheckDrawNext(ids, out, x, never, keys)
	var bias []float64
	if !never.IsZero() {
		bias = s.read(never).V
	}
	halves := s.ints(keys)
	all := make([]uint64, x.Rows)
	for r := range all {
		all[r] = uint64(uint32(halves[2*r])) | uint64(uint32(halves[2*r+1]))<<32
	}
	at, logs := s.ops.drawNext(s.read(x), bias, all)
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
func drawn(x ref.Mat, never []float64, keys []uint64) (ids []int, logs []float64) {
	scores := ref.DrawNext(x, never, keys)
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
	type draw = func(x ref.Mat, never []float64, keys []uint64) ([]int, []float64)
	change := func(f draw) func(*ops) { return func(o *ops) { o.drawNext = f } }
	mutants = append(mutants,
		mutant{"the likeliest id for one that is drawn", "draw next/", change(
			func(x ref.Mat, never []float64, keys []uint64) ([]int, []float64) {
				ids, logs := drawn(x, never, keys)
				for r, id := range ref.ArgMax(x) {
					ids[r], logs[r] = id, ref.LogSoftmax(x.Row(r), 1)[id]
				}
				return ids, logs
			})},
		mutant{"ids that are never drawn, drawn", "draw next/", change(
			func(x ref.Mat, _ []float64, keys []uint64) ([]int, []float64) {
				return drawn(x, nil, keys)
			})},
		mutant{"the probability among the ids that are left", "draw next/", change(
			func(x ref.Mat, never []float64, keys []uint64) ([]int, []float64) {
				if never == nil {
					return drawn(x, nil, keys)
				}
				y := ref.New(x.Rows, x.Cols)
				for i, v := range x.V {
					y.V[i] = v + never[i%x.Cols]
				}
				return drawn(y, nil, keys)
			})},
		mutant{"half of a key", "draw next/", change(
			func(x ref.Mat, never []float64, keys []uint64) ([]int, []float64) {
				low := make([]uint64, len(keys))
				for i, k := range keys {
					low[i] = k & math.MaxUint32
				}
				return drawn(x, never, low)
			})},
		mutant{"one key for all rows", "draw next/", change(
			func(x ref.Mat, never []float64, keys []uint64) ([]int, []float64) {
				same := make([]uint64, len(keys))
				for i := range same {
					same[i] = keys[0]
				}
				return drawn(x, never, same)
			})},
		mutant{"a probability where a logit is not finite", "draw next/", change(
			func(x ref.Mat, never []float64, keys []uint64) ([]int, []float64) {
				ids, logs := drawn(x, never, keys)
				for r := range logs {
					if math.IsNaN(logs[r]) {
						logs[r] = -1
					}
				}
				return ids, logs
			})},
	)
}
