package device

import "apr/tensor"

// CheckLoss checks a call of Loss, but for the values of the targets.
func CheckLoss(grad, z, t, targets Tensor, spec LossSpec) {
	const op = OpLoss
	views(op, z)
	optional(op, grad, t)
	floats(op, grad)
	typed(op, tensor.F32, noFloat32, z, t)
	shaped(op, z.Rows, z.Cols, grad, t)
	ids(op, targets, z.Rows)
	need(spec.Divergence >= 0 && spec.Divergence <= SkewReverse, op, "there is no such divergence")
	need(!t.IsZero() || spec.Alpha == 0, op, "a divergence without a teacher")
	need(t.IsZero() || spec.Temperature > 0, op, "temperature is not positive")
	need(spec.Cap >= 0 && finite(spec.Cap), op, noCap)
}

// CheckLossOfDraws checks a call of DrawsLoss.LossOfDraws, but for the values of the ids.
func CheckLossOfDraws(grad, z, drawn, targets Tensor, n int, spec LossSpec) {
	const op = OpLossOfDraws
	views(op, z)
	optional(op, grad)
	floats(op, grad)
	typed(op, tensor.F32, noFloat32, z)
	shaped(op, z.Rows, z.Cols, grad)
	need(n > 0 && n <= MaxMany, op, wrongShapes)
	ids(op, drawn, z.Rows*n)
	ids(op, targets, z.Rows)
	need(spec.Divergence == ForwardKL, op, "draws teach forward KL alone")
	need(spec.Temperature > 0 && finite(spec.Temperature), op, "temperature is not positive")
	need(spec.Cap >= 0 && finite(spec.Cap), op, noCap)
}

// CheckSquaredError checks a call of SquaredError.
func CheckSquaredError(grad, u, t Tensor, weight float64) {
	const op = OpSquaredError
	views(op, grad, u, t)
	floats(op, grad, t)
	typed(op, tensor.F32, noFloat32, u)
	shaped(op, u.Rows, u.Cols, grad, t)
	need(u.Cols > 0, op, "there are no columns")
	need(finite(weight), op, noFactor)
}

// CheckVerdict checks a call of Verdict.
func CheckVerdict(params []*Param) {
	for _, p := range params {
		param(OpVerdict, p, p.Grad)
	}
}

// CheckAdamW checks a call of AdamW.
func CheckAdamW(params []*Param) {
	for _, p := range params {
		need(p.Weight != nil, OpAdamW, noWeight)
		param(OpAdamW, p, p.Grad)
		for _, c := range []Companion{OfValue, OfM, OfV} {
			if t := p.Companion(c); p.Shared(c) {
				kept := p.Share.Kept(p.Rows * p.Cols)
				need(t.Rows == 1 && t.Cols == kept && t.Dense() && t.DType == tensor.F32, OpAdamW, "a share has another size")
			} else {
				param(OpAdamW, p, t)
			}
		}
	}
}

// param demands tensors of a parameter: its shape, float32, without gaps.
func param(op Op, p *Param, ts ...Tensor) {
	views(op, ts...)
	typed(op, tensor.F32, noFloat32, ts...)
	shaped(op, p.Rows, p.Cols, ts...)
	for _, t := range ts {
		need(t.Dense(), op, "a tensor of a parameter has gaps between its rows")
	}
}

// CheckArgMax checks a call of ArgMax.
func CheckArgMax(rows, best, x Tensor) {
	const op = OpArgMax
	views(op, x)
	optional(op, best)
	floats(op, x)
	typed(op, tensor.F32, noFloat32, best)
	ids(op, rows, x.Rows)
	need(x.Cols > 0, op, "there are no columns")
	shaped(op, x.Rows, 2, best)
}
