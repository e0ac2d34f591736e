package device

import "apr/tensor"

// CheckRMSNorm checks a call of RMSNorm.
func CheckRMSNorm(y, rstd, sum, x, delta, w Tensor) {
	const op = OpRMSNorm
	views(op, x)
	optional(op, y, rstd, sum, delta, w)
	need(delta.IsZero() == sum.IsZero(), op, "sum and delta come together")
	floats(op, x)
	typed(op, x.DType, wrongTypes, y, sum, delta)
	typed(op, tensor.F32, noFloat32, rstd, w)
	shaped(op, x.Rows, x.Cols, y, sum, delta)
	shaped(op, x.Rows, 1, rstd)
	need(y.IsZero() || !w.IsZero(), op, noTensor)
	if !y.IsZero() {
		vectors(op, x.Cols, w)
	}
}

// CheckRMSNormBackward checks a call of RMSNormBackward.
func CheckRMSNormBackward(dx, dw, dy, x, rstd, w Tensor) {
	const op = OpRMSNormBackward
	views(op, dx, dw, dy, x, rstd, w)
	floats(op, x)
	typed(op, x.DType, wrongTypes, dx, dy)
	typed(op, tensor.F32, noFloat32, dw, rstd, w)
	shaped(op, x.Rows, x.Cols, dx, dy)
	shaped(op, x.Rows, 1, rstd)
	vectors(op, x.Cols, w, dw)
}

// CheckMatMul checks a call of MatMul.
func CheckMatMul(y, x Tensor, w Weight, bias Tensor) {
	const op = OpMatMul
	need(w != nil, op, noWeight)
	views(op, y, x)
	optional(op, bias)
	floats(op, y, x)
	typed(op, tensor.F32, noFloat32, bias)
	need(x.Rows == y.Rows && x.Cols == w.Cols() && y.Cols <= w.Rows(), op, wrongShapes)
	vectors(op, y.Cols, bias)
}

// CheckMatMulInputGrad checks a call of MatMulInputGrad.
func CheckMatMulInputGrad(dx, dy Tensor, w Weight) {
	const op = OpMatMulInputGrad
	need(w != nil, op, noWeight)
	views(op, dx, dy)
	floats(op, dx, dy)
	need(dy.Rows == dx.Rows && dx.Cols == w.Cols() && dy.Cols <= w.Rows(), op, wrongShapes)
}

// CheckMatMulWeightGrad checks a call of MatMulWeightGrad.
func CheckMatMulWeightGrad(dw, dbias, dy, x Tensor) {
	const op = OpMatMulWeightGrad
	views(op, dw, dy, x)
	optional(op, dbias)
	floats(op, dy, x)
	typed(op, tensor.F32, noFloat32, dw, dbias)
	need(dy.Rows == x.Rows && dw.Rows == dy.Cols && dw.Cols == x.Cols, op, wrongShapes)
	vectors(op, dy.Cols, dbias)
}

// CheckHeadNorm checks a call of HeadNorm.
func CheckHeadNorm(y, rstd, x, w Tensor, headDim int) {
	const op = OpHeadNorm
	views(op, y, x)
	optional(op, rstd, w)
	typed(op, x.DType, wrongTypes, y)
	shaped(op, x.Rows, x.Cols, y)
	headNorm(op, rstd, x, w, headDim)
}

// CheckHeadNormBackward checks a call of HeadNormBackward.
func CheckHeadNormBackward(dx, dw, dy, x, rstd, w Tensor, headDim int) {
	const op = OpHeadNormBackward
	views(op, dx, dy, x, rstd)
	optional(op, dw, w)
	typed(op, x.DType, wrongTypes, dx, dy)
	shaped(op, x.Rows, x.Cols, dx, dy)
	headNorm(op, rstd, x, w, headDim)
	need(dw.IsZero() == w.IsZero(), op, "dw and w come together")
	typed(op, tensor.F32, noFloat32, dw)
	vectors(op, headDim, dw)
}

// headNorm is what HeadNorm and its backward have in common.
func headNorm(op Op, rstd, x, w Tensor, headDim int) {
	need(headDim > 0 && x.Cols%headDim == 0, op, "columns are not whole heads")
	floats(op, x)
	typed(op, tensor.F32, noFloat32, rstd, w)
	shaped(op, x.Rows, x.Cols/headDim, rstd)
	vectors(op, headDim, w)
}

// CheckAdd checks a call of Add.
func CheckAdd(dst, src Tensor) {
	views(OpAdd, dst, src)
	alike(OpAdd, dst, src)
}

// CheckScale checks a call of Scale.
func CheckScale(y, x Tensor, f float64) {
	views(OpScale, y, x)
	alike(OpScale, y, x)
	need(finite(f), OpScale, noFactor)
}

// CheckMix checks a call of Mix.
func CheckMix(y, t Tensor, w, temperature float64) {
	views(OpMix, y, t)
	typed(OpMix, tensor.F32, noFloat32, y, t)
	shaped(OpMix, y.Rows, y.Cols, t)
	need(w > 0 && finite(w), OpMix, "a weight is not positive and finite")
	need(temperature > 0 && finite(temperature), OpMix, "temperature is not positive")
}

// CheckSoftCap checks a call of SoftCap.
func CheckSoftCap(y, x Tensor, c float64) {
	views(OpSoftCap, y, x)
	alike(OpSoftCap, y, x)
	need(c > 0 && finite(c), OpSoftCap, noCap)
}

// alike demands float tensors of one shape and type.
func alike(op Op, y, x Tensor) {
	floats(op, x)
	typed(op, x.DType, wrongTypes, y)
	shaped(op, x.Rows, x.Cols, y)
}

func finite(f float64) bool { return f-f == 0 }

const noCap = "a soft-cap is not finite and positive"

// CheckRotate checks a call of Rotate, but for the values of the positions.
func CheckRotate(x Tensor, r Rotary) {
	const op = OpRotate
	views(op, x)
	floats(op, x)
	need(r.HeadDim > 0 && r.HeadDim%2 == 0 && x.Cols%r.HeadDim == 0, op, "columns are not whole heads of even size")
	table(op, r.Table, r.HeadDim)
	need(r.SeqLen > 0 && r.Offset >= 0, op, noPositions)
	if !r.Positions.IsZero() {
		ids(op, r.Positions, x.Rows)
	}
	queryScale(op, r.QBeta, r.QLength)
}

// table demands frequencies for heads of headDim values.
func table(op Op, f *Frequencies, headDim int) {
	need(f != nil && len(f.Inv) > 0 && 2*len(f.Inv) <= headDim, op, "the table of frequencies is missing, or of more pairs than a head has")
	need(f.Factor >= 0 && finite(f.Factor), op, noFactor)
}

// queryScale demands a scale of queries by their positions, or none.
func queryScale(op Op, beta float64, length int) {
	need(beta >= 0 && finite(beta) && (beta == 0 || length > 0), op, "the scale of positions is not finite, or has no length")
}

// scores demands a factor and a cap of scores.
func scores(op Op, scale, limit float64) {
	need(scale >= 0 && finite(scale), op, noFactor)
	need(limit >= 0 && finite(limit), op, noCap)
}

// activation demands one that there is.
func activation(op Op, act Activation) {
	need(act >= 0 && act < numActivations, op, "there is no such activation")
}

// CheckAttention checks a call of Attention, but for the values of First.
func CheckAttention(o, lse, q, k, v Tensor, a Attn) {
	views(OpAttention, o, q, k, v)
	optional(OpAttention, lse)
	need(a.DSinks.IsZero(), OpAttention, "a gradient of sinks without a backward")
	attention(OpAttention, o, lse, q, k, v, a)
}

// CheckAttentionBackward checks a call of AttentionBackward, but for the values of First.
func CheckAttentionBackward(dq, dk, dv, do, o, lse, q, k, v Tensor, a Attn) {
	const op = OpAttentionBackward
	views(op, dq, dk, dv, do, o, lse, q, k, v)
	attention(op, o, lse, q, k, v, a)
	typed(op, q.DType, wrongTypes, dq, dk, dv, do)
	shaped(op, q.Rows, q.Cols, dq, do)
	shaped(op, k.Rows, k.Cols, dk)
	shaped(op, v.Rows, v.Cols, dv)
	optional(op, a.DSinks)
	need(a.DSinks.IsZero() || !a.Sinks.IsZero(), op, "a gradient of sinks that are not there")
	typed(op, tensor.F32, noFloat32, a.DSinks)
	vectors(op, a.Heads, a.DSinks)
}

// heads demands query heads that share key-value heads evenly, of a size that there is.
func heads(op Op, n, kv, size int) {
	need(size > 0 && kv > 0 && n > 0 && n%kv == 0, op, "heads do not divide")
	need(size <= MaxHeadDim, op, "heads have more than 512 values")
}

// attention is what Attention and its backward have in common.
func attention(op Op, o, lse, q, k, v Tensor, a Attn) {
	heads(op, a.Heads, a.KVHeads, a.HeadDim)
	need(min(a.Batch, a.QLen, a.KLen) >= 0, op, "a number of rows is negative")
	need(a.KStride >= a.KLen && a.QOffset >= 0 && a.QOffset+a.QLen <= a.KLen, op, "queries see keys that are not there")
	need(a.Window >= 0, op, "the window is negative")
	scores(op, a.Scale, a.Cap)
	rows, keys := a.Batch*a.QLen, 0
	if a.Batch > 0 {
		keys = (a.Batch-1)*a.KStride + a.KLen
	}
	floats(op, q)
	typed(op, q.DType, wrongTypes, o, k, v)
	typed(op, tensor.F32, noFloat32, lse)
	shaped(op, rows, a.Heads*a.HeadDim, q, o)
	need(k.Rows >= keys && v.Rows >= keys && k.Cols == a.KVHeads*a.HeadDim && v.Cols == k.Cols, op, wrongShapes)
	shaped(op, rows, a.Heads, lse)
	if !a.First.IsZero() {
		ids(op, a.First, rows)
	}
	optional(op, a.Sinks)
	typed(op, tensor.F32, noFloat32, a.Sinks)
	vectors(op, a.Heads, a.Sinks)
}

// CheckDeinterleave checks a call of Deinterleave.
func CheckDeinterleave(a, b, x Tensor, width int) { interleaved(OpDeinterleave, a, b, x, width) }

// CheckInterleave checks a call of Interleave.
func CheckInterleave(x, a, b Tensor, width int) { interleaved(OpInterleave, a, b, x, width) }

func interleaved(op Op, a, b, x Tensor, width int) {
	views(op, a, b, x)
	floats(op, x)
	typed(op, x.DType, wrongTypes, a, b)
	need(x.Rows == a.Rows && x.Cols == 2*a.Cols, op, wrongShapes)
	shaped(op, a.Rows, a.Cols, b)
	need(width > 0 && a.Cols%width == 0, op, "columns are not whole groups")
}

// CheckGLU checks a call of GLU.
func CheckGLU(m, gu Tensor, act Activation) {
	views(OpGLU, m, gu)
	gated(OpGLU, m, gu, act)
}

// gated demands m [n, f] and gu [n, 2f] of one type.
func gated(op Op, m, gu Tensor, act Activation) {
	activation(op, act)
	floats(op, gu)
	typed(op, gu.DType, wrongTypes, m)
	need(m.Rows == gu.Rows && 2*m.Cols == gu.Cols, op, wrongShapes)
}

// CheckMatMulGLU checks a call of MatMulGLU.
func CheckMatMulGLU(m, gu, x Tensor, w Weight, act Activation) {
	const op = OpMatMulGLU
	need(w != nil, op, noWeight)
	views(op, m, gu, x)
	floats(op, x)
	gated(op, m, gu, act)
	need(x.Rows == gu.Rows && x.Cols == w.Cols() && gu.Cols == w.Rows(), op, wrongShapes)
}

// CheckGLUBackward checks a call of GLUBackward.
func CheckGLUBackward(dgu, dm, gu Tensor, act Activation) {
	const op = OpGLUBackward
	views(op, dgu, dm, gu)
	gated(op, dm, gu, act)
	typed(op, gu.DType, wrongTypes, dgu)
	shaped(op, gu.Rows, gu.Cols, dgu)
}
