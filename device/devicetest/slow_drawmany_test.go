package devicetest

import (
	"math"

	"apr/device"
	"apr/internal/ref"
)

var _ device.ManyDrawer = (*slowStream)(nil)

// DrawMany is that of device.ManyDrawer, with sums of one row that stand for those of integers.
func (s *slowStream) DrawMany(out, z, keys device.Tensor, temperature float64) {
	device.CheckDrawMany(out, z, keys, temperature)
	all, logits, k := s.read(out), s.read(z), s.ints(keys)
	n := out.Cols - device.ManySums
	for r := range z.Rows {
		us := make([]uint64, n)
		for i := range us {
			us[i] = device.ManyFraction([2]uint32{uint32(k[3*r]), uint32(k[3*r+1])}, uint32(k[3*r+2]), i)
		}
		ids, entropy := s.ops.drawMany(logits.Row(r), us, temperature)
		row := all.Row(r)
		clear(row)
		if math.IsNaN(entropy) {
			continue
		}
		for i, id := range ids {
			row[i] = float64(id)
		}
		// S = 2^B, E = S·entropy/ln 2
		sum := uint64(1) << device.ManyBits(z.Cols)
		energy := uint64(float64(sum) * entropy / math.Ln2)
		for i := range 3 {
			row[n+i], row[n+3+i] = float64(sum>>(21*i)&(1<<21-1)), float64(energy>>(21*i)&(1<<21-1))
		}
	}
	s.write(out, all)
}

func init() {
	type draw = func(z []float64, us []uint64, temperature float64) ([]int, float64)
	change := func(f func(right draw) draw) func(*ops) { return func(o *ops) { o.drawMany = f(ref.DrawMany) } }
	mutants = append(mutants,
		mutant{"draws at temperature 1", "draw many/", change(func(right draw) draw {
			return func(z []float64, us []uint64, _ float64) ([]int, float64) { return right(z, us, 1) }
		})},
		mutant{"draws that are one id late", "draw many/", change(func(right draw) draw {
			return func(z []float64, us []uint64, temperature float64) ([]int, float64) {
				ids, h := right(z, us, temperature)
				for i := range ids {
					ids[i] = (ids[i] + 1) % len(z)
				}
				return ids, h
			}
		})},
		mutant{"draws of one uniform number", "draw many/", change(func(right draw) draw {
			return func(z []float64, us []uint64, temperature float64) ([]int, float64) {
				same := make([]uint64, len(us))
				for i := range same {
					same[i] = us[0]
				}
				return right(z, same, temperature)
			}
		})},
		mutant{"a distribution where a logit is not finite", "draw many/not finite", change(func(right draw) draw {
			return func(z []float64, us []uint64, temperature float64) ([]int, float64) {
				ids, h := right(z, us, temperature)
				if math.IsNaN(h) {
					clear(ids)
					h = 1
				}
				return ids, h
			}
		})},
		mutant{"an entropy in bits", "draw many/", change(func(right draw) draw {
			return func(z []float64, us []uint64, temperature float64) ([]int, float64) {
				ids, h := right(z, us, temperature)
				return ids, h / math.Ln2
			}
		})})
}
