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
		param(OpAdamW, p, p.Value, p.Grad, p.M, p.V)
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

// CheckDecode checks a call of Decoder.Decode.
func CheckDecode(y, x Tensor, d Decode) {
	const op = OpDecode
	views(op, y, x, d.Norm)
	need(x.Rows == 1 && y.Rows == 1, op, "of several positions")
	shaped(op, 1, x.Cols, y, d.Norm)
	typed(op, x.DType, wrongTypes, y)
	need(d.HeadDim > 0 && d.HeadDim%2 == 0 && d.KVHeads > 0 && d.Heads%d.KVHeads == 0, op, "heads do not divide, or are not of even size")
	for i := range d.Layers {
		l := &d.Layers[i]
		need(l.QKV != nil && l.O != nil && l.GateUp != nil && l.Down != nil, op, noWeight)
		views(op, l.InputNorm, l.PostNorm, l.Cache)
		optional(op, l.Bias)
		vectors(op, x.Cols, l.InputNorm, l.PostNorm)
		need(l.Cache.Cols == 2*d.KVHeads*d.HeadDim, op, wrongShapes)
		need(d.Position >= 0 && d.Position < l.Cache.Rows, op, "the cache is full")
	}
}
