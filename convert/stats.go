package convert

import (
	"context"
	"math"

	"apr/tensor"
)

// Stats are the statistics of one tensor's values. Mean, Std, Min and Max are over the finite values; Std is the
// population's. They are NaN when there is no finite value.
type Stats struct {
	Mean, Std, Min, Max float64
	NaN, Inf, Zero, N   int64

	First, Last  int64 // of the values that are not finite
	MinAt, MaxAt int64 // the first of each
}

// ReadStats computes the statistics of a stored tensor of the file path: Welford's update, chunk by chunk in row order.
func ReadStats(ctx context.Context, path string, t tensor.Stored) (Stats, error) {
	r, err := newRowReader(path, t)
	if err != nil {
		return Stats{}, err
	}
	return r.stats(ctx)
}

// stats is ReadStats.
func (r *rowReader) stats(ctx context.Context) (Stats, error) {
	s := Stats{Min: math.Inf(1), Max: math.Inf(-1)}
	var mean, m2 float64
	var finite int64
	err := r.each(func(lo int, values []float32) error {
		for _, v := range values {
			at := s.N
			s.N++
			x := float64(v)
			switch {
			case math.IsNaN(x):
				s.NaN++
				s.notFinite(at)
				continue
			case math.IsInf(x, 0):
				s.Inf++
				s.notFinite(at)
				continue
			case x == 0:
				s.Zero++
			}
			finite++
			d := x - mean
			mean += d / float64(finite)
			m2 += d * (x - mean)
			if x < s.Min {
				s.Min, s.MinAt = x, at
			}
			if x > s.Max {
				s.Max, s.MaxAt = x, at
			}
		}
		return ctx.Err()
	})
	if finite == 0 {
		s.Mean, s.Std, s.Min, s.Max = math.NaN(), math.NaN(), math.NaN(), math.NaN()
		return s, err
	}
	s.Mean, s.Std = mean, math.Sqrt(m2/float64(finite))
	return s, err
}

// notFinite notes that the value at an index is not finite.
func (s *Stats) notFinite(at int64) {
	if s.NaN+s.Inf == 1 {
		s.First = at
	}
	s.Last = at
}
