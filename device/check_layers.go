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

// CheckRotate checks a call of Rotate.
func CheckRotate(x Tensor, r Rotary) {
	const op = OpRotate
	views(op, x)
	floats(op, x)
	need(r.HeadDim > 0 && r.HeadDim%2 == 0 && x.Cols%r.HeadDim == 0, op, "columns are not whole heads of even size")
	need(r.SeqLen > 0 && r.Offset >= 0, op, "there are no such positions")
}

// CheckAttention checks a call of Attention.
func CheckAttention(o, lse, q, k, v Tensor, a Attn) {
	views(OpAttention, o, q, k, v)
	optional(OpAttention, lse)
	attention(OpAttention, o, lse, q, k, v, a)
}

// CheckAttentionBackward checks a call of AttentionBackward.
func CheckAttentionBackward(dq, dk, dv, do, o, lse, q, k, v Tensor, a Attn) {
	const op = OpAttentionBackward
	views(op, dq, dk, dv, do, o, lse, q, k, v)
	attention(op, o, lse, q, k, v, a)
	typed(op, q.DType, wrongTypes, dq, dk, dv, do)
	shaped(op, q.Rows, q.Cols, dq, do)
	shaped(op, k.Rows, k.Cols, dk)
	shaped(op, v.Rows, v.Cols, dv)
}

// attention is what Attention and its backward have in common.
func attention(op Op, o, lse, q, k, v Tensor, a Attn) {
	need(a.HeadDim > 0 && a.KVHeads > 0 && a.Heads > 0 && a.Heads%a.KVHeads == 0, op, "heads do not divide")
	need(min(a.Batch, a.QLen, a.KLen) >= 0, op, "a number of rows is negative")
	need(a.KStride >= a.KLen && a.QOffset >= 0 && a.QOffset+a.QLen <= a.KLen, op, "queries see keys that are not there")
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
}

// CheckSwiGLU checks a call of SwiGLU.
func CheckSwiGLU(m, gu Tensor) {
	views(OpSwiGLU, m, gu)
	gated(OpSwiGLU, m, gu)
}

// gated demands m [n, f] and gu [n, 2f] of one type.
func gated(op Op, m, gu Tensor) {
	floats(op, gu)
	typed(op, gu.DType, wrongTypes, m)
	need(m.Rows == gu.Rows && 2*m.Cols == gu.Cols, op, wrongShapes)
}

// CheckMatMulSwiGLU checks a call of MatMulSwiGLU.
func CheckMatMulSwiGLU(m, gu, x Tensor, w Weight) {
	const op = OpMatMulSwiGLU
	need(w != nil, op, noWeight)
	views(op, m, gu, x)
	floats(op, x)
	gated(op, m, gu)
	need(x.Rows == gu.Rows && x.Cols == w.Cols() && gu.Cols == w.Rows(), op, wrongShapes)
}

// CheckSwiGLUBackward checks a call of SwiGLUBackward.
func CheckSwiGLUBackward(dgu, dm, gu Tensor) {
	const op = OpSwiGLUBackward
	views(op, dgu, dm, gu)
	gated(op, dm, gu)
	typed(op, gu.DType, wrongTypes, dgu)
	shaped(op, gu.Rows, gu.Cols, dgu)
}
