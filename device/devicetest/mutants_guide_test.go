package devicetest

import (
	"math"

	"apr/device"
	"apr/internal/ref"
)

func init() {
	mutants = append(mutants,
		mutant{"weights of the mixture do not sum to one", "mix/", func(o *ops) {
			o.mix = func(y, t ref.Mat, w, temperature float64) ref.Mat { return ref.Mix(y, t, w*1.001, temperature) }
		}},
		mutant{"mixture of logits", "mix/", func(o *ops) {
			o.mix = func(y, t ref.Mat, w, temperature float64) ref.Mat {
				out := ref.Scale(t, w)
				if y.V != nil {
					out.Add(y)
				}
				return out
			}
		}},
		mutant{"temperature of the mixture forgotten", "mix/", func(o *ops) {
			o.mix = func(y, t ref.Mat, w, temperature float64) ref.Mat { return ref.Mix(y, t, w, 1) }
		}},
		mutant{"only the last teacher", "mix/", func(o *ops) {
			o.mix = func(_, t ref.Mat, w, temperature float64) ref.Mat { return ref.Mix(ref.Mat{}, t, w, temperature) }
		}},
		mutant{"probabilities that underflow", "mix/", func(o *ops) {
			o.mix = func(y, t ref.Mat, w, temperature float64) ref.Mat {
				out := ref.Mix(y, t, w, temperature)
				for i, v := range out.V {
					out.V[i] = temperature * math.Log(float64(float32(math.Exp(v/temperature))))
				}
				return out
			}
		}},
		mutant{"squared error not divided by the width", "squared/", func(o *ops) {
			o.squared = func(u, t ref.Mat, w, n float64) (float64, ref.Mat) {
				sum, g := ref.SquaredError(u, t, w, n)
				return sum * float64(u.Cols), ref.Scale(g, float64(u.Cols))
			}
		}},
		mutant{"squared error without the factor 2", "squared/", func(o *ops) {
			o.squared = func(u, t ref.Mat, w, n float64) (float64, ref.Mat) {
				sum, g := ref.SquaredError(u, t, w, n)
				return sum, ref.Scale(g, .5)
			}
		}},
		mutant{"squared error normalised by its rows", "squared/", func(o *ops) {
			o.squared = func(u, t ref.Mat, w, _ float64) (float64, ref.Mat) {
				return ref.SquaredError(u, t, w, 1/float64(max(1, u.Rows)))
			}
		}},
		mutant{"weight in the sum", "squared/", func(o *ops) {
			o.squared = func(u, t ref.Mat, w, n float64) (float64, ref.Mat) {
				sum, g := ref.SquaredError(u, t, w, n)
				return w * sum, g
			}
		}},
		mutant{"an objective that is not in the loss", "squared/", func(o *ops) {
			o.stepLoss = func(s device.Scalars) float64 { s.Weights = [device.NumObjectives]float64{}; return stepLoss(s) }
		}},
	)
}
