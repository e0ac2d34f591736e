package devicetest

import "apr/internal/ref"

func init() {
	right := rightLow()
	mutants = append(mutants,
		mutant{"scale of adapters missing", "lowrank/", func(o *ops) {
			o.low.up = func(u, b ref.Mat, _ float64) ref.Mat { return right.up(u, b, 1) }
		}},
		mutant{"scale of adapters squared in the gradient of B", "lowrank/", func(o *ops) {
			o.low.gradB = func(dy, u ref.Mat, scale float64) ref.Mat { return right.gradB(dy, u, scale*scale) }
		}},
		mutant{"scale of adapters missing in the gradient over u", "lowrank/", func(o *ops) {
			o.low.gradU = func(dy, b ref.Mat, _ float64) ref.Mat { return right.gradU(dy, b, 1) }
		}},
		mutant{"only the first adapter of a stack", "lowrank/", func(o *ops) { o.low.allParts = false }},
		mutant{"gradients of B overwritten", "lowrank/", func(o *ops) { o.low.addsB = false }},
		mutant{"dx of adapters overwritten", "lowrank/", func(o *ops) { o.low.addsX = false }},
		mutant{"the last rank forgotten", "lowrank/", func(o *ops) {
			o.low.up = func(u, b ref.Mat, scale float64) ref.Mat {
				return right.up(u.ColRange(0, u.Cols-1), b.ColRange(0, b.Cols-1), scale)
			}
		}},
		mutant{"the last row forgotten in the gradient of A", "lowrank/", func(o *ops) {
			o.low.gradA = func(du, x ref.Mat) ref.Mat {
				last := max(0, du.Rows-1)
				return right.gradA(du.RowRange(0, last), x.RowRange(0, last))
			}
		}},
		mutant{"u of another A", "lowrank/", func(o *ops) {
			o.low.down = func(x, a ref.Mat) ref.Mat { return right.down(x, ref.Scale(a, 1.03)) }
		}},
		mutant{"scale of adapters missing in a gated product", "lowrank/", func(o *ops) {
			o.low.factor = func(b ref.Mat, _ float64) ref.Mat { return b }
		}},
		mutant{"a gated unit of the product without its adapters", "lowrank/", func(o *ops) { o.low.gates = false }},
		mutant{"dx through a scaled A", "lowrank/", func(o *ops) {
			o.low.gradX = func(du, a ref.Mat) ref.Mat { return right.gradX(du, ref.Scale(a, 1.03)) }
		}},
	)
}
