package dry

import (
	"apr/device"
	"apr/tensor"
)

// whole records an operation that passes over its operands, the first of which gives rows and columns.
func (s *Stream) whole(op device.Op, out, in device.Tensor, others ...device.Tensor) {
	n := use(op, append(others, out, in)...)
	s.count(Op{Kind: op, In: in.DType, Out: out.DType, Rows: out.Rows, Cols: out.Cols}, 0, n)
}

// Zero records the operation.
func (s *Stream) Zero(t device.Tensor) {
	device.CheckZero(t)
	s.whole(device.OpZero, t, device.Tensor{})
}

// Copy records the operation.
func (s *Stream) Copy(dst, src device.Tensor) {
	device.CheckCopy(dst, src)
	s.whole(device.OpCopy, dst, src)
}

// Embed records the operation.
func (s *Stream) Embed(dst device.Tensor, w device.Weight, rows device.Tensor) {
	device.CheckEmbed(dst, w, rows)
	m := w.(*weight)
	n := use(device.OpEmbed, dst, rows) + m.moved(dst.Rows)
	s.count(Op{Kind: device.OpEmbed, Out: dst.DType, Weight: m.Types, Rows: dst.Rows, Cols: dst.Cols}, 0, n)
}

// EmbedBackward records the operation.
func (s *Stream) EmbedBackward(grad, rows, dx device.Tensor) {
	device.CheckEmbedBackward(grad, rows, dx)
	use(device.OpEmbedBackward, grad)
	n := use(device.OpEmbedBackward, rows, dx) + 8*float64(dx.Rows)*float64(dx.Cols)
	s.count(Op{Kind: device.OpEmbedBackward, In: dx.DType, Out: grad.DType, Rows: dx.Rows, Cols: dx.Cols}, 0, n)
}

// RMSNorm records the operation.
func (s *Stream) RMSNorm(y, rstd, sum, x, delta, w device.Tensor, _ float64) {
	device.CheckRMSNorm(y, rstd, sum, x, delta, w)
	n := use(device.OpRMSNorm, y, rstd, sum, x, delta, w)
	s.count(Op{Kind: device.OpRMSNorm, In: x.DType, Out: x.DType, Add: !delta.IsZero(), Rows: x.Rows, Cols: x.Cols}, 0, n)
}

// RMSNormBackward records the operation.
func (s *Stream) RMSNormBackward(dx, dw, dy, x, rstd, w device.Tensor) {
	device.CheckRMSNormBackward(dx, dw, dy, x, rstd, w)
	s.whole(device.OpRMSNormBackward, dx, dy, dx, x, rstd, w, dw)
}

// MatMul records the operation.
func (s *Stream) MatMul(y, x device.Tensor, w device.Weight, bias device.Tensor, add bool) {
	device.CheckMatMul(y, x, w, bias)
	m := w.(*weight)
	s.product(device.OpMatMul, y, x, bias, add, Op{Weight: m.Types, Expands: m.Expands, FP8: m.FP8, M: x.Rows, N: y.Cols, K: x.Cols}, m.moved(y.Cols))
}

// MatMulInputGrad records the operation.
func (s *Stream) MatMulInputGrad(dx, dy device.Tensor, w device.Weight, add bool) {
	device.CheckMatMulInputGrad(dx, dy, w)
	m := w.(*weight)
	s.product(device.OpMatMulInputGrad, dx, dy, device.Tensor{}, add, Op{Weight: m.Types, Expands: m.Expands, FP8: m.FP8, M: dy.Rows, N: dx.Cols, K: dy.Cols}, m.moved(dy.Cols))
}

// MatMulWeightGrad records the operation. The op's input is dy; x has its type.
func (s *Stream) MatMulWeightGrad(dw, dbias, dy, x device.Tensor) {
	device.CheckMatMulWeightGrad(dw, dbias, dy, x)
	s.product(device.OpMatMulWeightGrad, dw, dy, dbias, true, Op{Weight: x.DType.String(), M: dy.Cols, N: x.Cols, K: x.Rows}, use(device.OpMatMulWeightGrad, x))
}

// product records y (+)= in·other, other moving otherBytes.
func (s *Stream) product(op device.Op, y, in, bias device.Tensor, add bool, o Op, otherBytes float64) {
	n := use(op, y, in, bias) + otherBytes
	if add {
		n += use(op, y)
	}
	o.Kind, o.In, o.Out, o.InStride, o.OutStride, o.Bias, o.Add = op, in.DType, y.DType, in.Stride, y.Stride, !bias.IsZero(), add
	s.count(o, 2*float64(o.M)*float64(o.N)*float64(o.K), n)
}

// Rotate records the operation.
func (s *Stream) Rotate(x device.Tensor, r device.Rotary) {
	device.CheckRotate(x, r)
	n := 2 * use(device.OpRotate, x)
	s.count(Op{Kind: device.OpRotate, In: x.DType, Out: x.DType, Rows: x.Rows, Cols: x.Cols, Attn: device.Attn{HeadDim: r.HeadDim}}, 0, n)
}

// Attention records the operation.
func (s *Stream) Attention(o, lse, q, k, v device.Tensor, a device.Attn) {
	device.CheckAttention(o, lse, q, k, v, a)
	s.count(Op{Kind: device.OpAttention, In: q.DType, Out: o.DType, Attn: a}, 4*pairs(a), use(device.OpAttention, o, lse, q, k, v))
}

// AttentionBackward records the operation.
func (s *Stream) AttentionBackward(dq, dk, dv, do, o, lse, q, k, v device.Tensor, a device.Attn) {
	device.CheckAttentionBackward(dq, dk, dv, do, o, lse, q, k, v, a)
	s.count(Op{Kind: device.OpAttentionBackward, In: q.DType, Out: dq.DType, Attn: a}, 10*pairs(a), use(device.OpAttentionBackward, dq, dk, dv, do, o, lse, q, k, v))
}

// pairs returns the pairs of a query and a key it sees, over all rows and heads, times the head dimension.
func pairs(a device.Attn) float64 {
	q, offset := float64(a.QLen), float64(a.QOffset)
	return float64(a.Batch) * float64(a.Heads) * float64(a.HeadDim) * (q*offset + q*(q+1)/2)
}

// SwiGLU records the operation.
func (s *Stream) SwiGLU(m, gu device.Tensor) {
	device.CheckSwiGLU(m, gu)
	s.whole(device.OpSwiGLU, m, gu)
}

// MatMulSwiGLU records the operation as one product. What a device that has no such kernel moves beyond the operands is
// not counted.
func (s *Stream) MatMulSwiGLU(m, gu, x device.Tensor, w device.Weight, keep bool) {
	device.CheckMatMulSwiGLU(m, gu, x, w)
	d := w.(*weight)
	o := Op{
		Kind: device.OpMatMulSwiGLU, In: x.DType, Out: gu.DType, Weight: d.Types, Expands: d.Expands, FP8: d.FP8, M: x.Rows, N: gu.Cols, K: x.Cols,
		InStride: x.Stride, OutStride: gu.Stride, Keep: keep,
	}
	n := use(device.OpMatMulSwiGLU, m, x) + d.moved(gu.Cols)
	if kept := use(device.OpMatMulSwiGLU, gu); keep {
		n += kept
	}
	s.count(o, 2*float64(o.M)*float64(o.N)*float64(o.K), n)
}

// SwiGLUBackward records the operation.
func (s *Stream) SwiGLUBackward(dgu, dm, gu device.Tensor) {
	device.CheckSwiGLUBackward(dgu, dm, gu)
	s.whole(device.OpSwiGLUBackward, dgu, dm, gu)
}

// Gather records the operation.
func (s *Stream) Gather(dst, src, rows device.Tensor) {
	device.CheckGather(dst, src, rows)
	use(device.OpGather, src)
	s.whole(device.OpGather, dst, dst, rows)
}

// Scatter records the operation.
func (s *Stream) Scatter(dst, src, rows device.Tensor) {
	device.CheckScatter(dst, src, rows)
	s.whole(device.OpScatter, dst, src, rows)
}

// Loss records the operation and counts its rows.
func (s *Stream) Loss(grad, z, t, targets device.Tensor, spec device.LossSpec) {
	device.CheckLoss(grad, z, t, targets, spec)
	n := use(device.OpLoss, grad, z, t, targets)
	if !grad.IsZero() {
		n += use(device.OpLoss, z, t) // a second pass
	}
	s.count(Op{Kind: device.OpLoss, In: z.DType, Out: grad.DType, Rows: z.Rows, Cols: z.Cols}, 0, n)
	s.scalars.Positions += int64(z.Rows)
}

// Verdict finds everything finite.
func (s *Stream) Verdict(params []*device.Param) {
	device.CheckVerdict(params)
	var n float64
	for _, p := range params {
		n += use(device.OpVerdict, p.Grad)
	}
	s.count(Op{Kind: device.OpVerdict, In: tensor.F32, Rows: len(params)}, 0, n)
	s.scalars.Scale, s.scalars.Finite = 1, true
}

// AdamW records the operation.
func (s *Stream) AdamW(params []*device.Param, _ device.AdamW) {
	device.CheckAdamW(params)
	var n float64
	for _, p := range params {
		n += use(device.OpAdamW, p.Grad) + 2*use(device.OpAdamW, p.Value, p.M, p.V) + float64(p.Weight.Bytes())
	}
	s.count(Op{Kind: device.OpAdamW, In: tensor.F32, Rows: len(params)}, 0, n)
}

// ArgMax records the operation.
func (s *Stream) ArgMax(rows, best, x device.Tensor) {
	device.CheckArgMax(rows, best, x)
	s.count(Op{Kind: device.OpArgMax, In: x.DType, Rows: x.Rows, Cols: x.Cols}, 0, use(device.OpArgMax, rows, best, x))
}
