package devicetest

import (
	"slices"

	"apr/device"
	"apr/internal/fault"
	"apr/internal/ref"
)

var _ device.DrawsLoss = (*slowStream)(nil)

// LossOfDraws is that of device.DrawsLoss, by logits of the teacher.
func (s *slowStream) LossOfDraws(grad, z, drawn, targets device.Tensor, n int, spec device.LossSpec) {
	device.CheckLossOfDraws(grad, z, drawn, targets, n, spec)
	ids, own := s.ints(targets), s.ints(drawn)
	for _, id := range slices.Concat(ids, own) {
		if s.ops.checkDrawn && (id < 0 || id >= z.Cols) {
			s.fail(fault.New(fault.Invalid, "an id outside the vocabulary"))
			return
		}
	}
	for i := range own { // of a device that does not check
		own[i] = min(max(own[i], 0), z.Cols-1)
	}
	s.addLoss(grad, s.read(z), s.ops.drawsLogits(own, n, z.Cols, spec.Temperature), ids, spec)
}

func init() {
	type logits = func(drawn []int, n, cols int, temperature float64) ref.Mat
	change := func(f func(right logits) logits) func(*ops) {
		return func(o *ops) { o.drawsLogits = f(ref.DrawsLogits) }
	}
	mutants = append(mutants,
		mutant{"each drawn id counts once", "loss of draws/", change(func(right logits) logits {
			return func(drawn []int, n, cols int, temperature float64) ref.Mat {
				t := right(drawn, n, cols, temperature)
				for i, v := range t.V {
					if v != negativeInfinity {
						t.V[i] = 0
					}
				}
				return t
			}
		})},
		mutant{"the draws of the row before", "loss of draws/", change(func(right logits) logits {
			return func(drawn []int, n, cols int, temperature float64) ref.Mat {
				if len(drawn) == 0 {
					return right(drawn, n, cols, temperature)
				}
				return right(slices.Concat(drawn[len(drawn)-n:], drawn[:len(drawn)-n]), n, cols, temperature)
			}
		})},
		mutant{"draws at another temperature", "loss of draws/", change(func(right logits) logits {
			return func(drawn []int, n, cols int, _ float64) ref.Mat { return right(drawn, n, cols, 1) }
		})},
		mutant{"the last draw is forgotten", "loss of draws/", change(func(right logits) logits {
			return func(drawn []int, n, cols int, temperature float64) ref.Mat {
				drawn = slices.Clone(drawn)
				for i := n - 1; n > 1 && i < len(drawn); i += n {
					drawn[i] = drawn[i-1]
				}
				return right(drawn, n, cols, temperature)
			}
		})},
		mutant{"drawn ids that are not checked", "loss of draws/ids outside", func(o *ops) { o.checkDrawn = false }})
}
