package dry

import (
	"apr/device"
	"apr/tensor"
)

// whole records an operation that passes over its operands, the first of which gives rows and columns.
func (s *Stream) whole(name string, out, in device.Tensor, others ...device.Tensor) {
	n := use(name, append(others, out, in)...)
	s.count(Op{Name: name, In: in.DType, Out: out.DType, Rows: out.Rows, Cols: out.Cols}, 0, n)
}

func sameShape(a, b device.Tensor) bool { return a.Rows == b.Rows && a.Cols == b.Cols }

// ids returns the number of ids in t.
func ids(op string, t device.Tensor) int {
	need(t.DType == tensor.I32 && (t.Cols == 1 || t.Rows == 1), op, "ids must be an int32 vector")
	return t.Rows * t.Cols
}

// Zero records the operation.
func (s *Stream) Zero(t device.Tensor) { s.whole("Zero", t, device.Tensor{}) }

// Copy records the operation.
func (s *Stream) Copy(dst, src device.Tensor) {
	need(sameShape(dst, src) && dst.DType == src.DType, "Copy", "shapes or types differ")
	s.whole("Copy", dst, src)
}

// Embed records the operation.
func (s *Stream) Embed(dst device.Tensor, w device.Weight, rows device.Tensor) {
	m := w.(*weight)
	need(ids("Embed", rows) == dst.Rows && dst.Cols == m.cols, "Embed", "shapes differ")
	n := use("Embed", dst, rows) + m.moved(dst.Rows)
	s.count(Op{Name: "Embed", Out: dst.DType, Weight: m.Types, Rows: dst.Rows, Cols: dst.Cols}, 0, n)
}

// EmbedBackward records the operation.
func (s *Stream) EmbedBackward(grad, rows, dx device.Tensor) {
	need(ids("EmbedBackward", rows) == dx.Rows && grad.Cols == dx.Cols, "EmbedBackward", "shapes differ")
	use("EmbedBackward", grad)
	n := use("EmbedBackward", rows, dx) + 8*float64(dx.Rows)*float64(dx.Cols)
	s.count(Op{Name: "EmbedBackward", In: dx.DType, Out: grad.DType, Rows: dx.Rows, Cols: dx.Cols}, 0, n)
}

// RMSNorm records the operation.
func (s *Stream) RMSNorm(y, rstd, sum, x, delta, w device.Tensor, _ float64) {
	need(delta.IsZero() == sum.IsZero(), "RMSNorm", "sum and delta come together")
	for _, t := range []device.Tensor{y, sum, delta} {
		need(t.IsZero() || sameShape(t, x), "RMSNorm", "shapes differ")
	}
	need(y.IsZero() || w.Rows == 1 && w.Cols == x.Cols, "RMSNorm", "w is not [1, h]")
	n := use("RMSNorm", y, rstd, sum, x, delta, w)
	s.count(Op{Name: "RMSNorm", In: x.DType, Out: x.DType, Add: !delta.IsZero(), Rows: x.Rows, Cols: x.Cols}, 0, n)
}

// RMSNormBackward records the operation.
func (s *Stream) RMSNormBackward(dx, dw, dy, x, rstd, w device.Tensor) {
	need(sameShape(dx, x) && sameShape(dy, x) && dw.Cols == x.Cols && w.Cols == x.Cols && rstd.Rows == x.Rows, "RMSNormBackward", "shapes differ")
	s.whole("RMSNormBackward", dx, dy, dx, x, rstd, w, dw)
}

// MatMul records the operation.
func (s *Stream) MatMul(y, x device.Tensor, w device.Weight, bias device.Tensor, add bool) {
	m := w.(*weight)
	need(x.Cols == m.cols && y.Rows == x.Rows && y.Cols <= m.rows, "MatMul", "shapes differ")
	need(bias.IsZero() || bias.Rows == 1 && bias.Cols == y.Cols, "MatMul", "bias is not [1, out]")
	s.product("MatMul", y, x, bias, add, Op{Weight: m.Types, M: x.Rows, N: y.Cols, K: x.Cols}, m.moved(y.Cols))
}

// MatMulInputGrad records the operation.
func (s *Stream) MatMulInputGrad(dx, dy device.Tensor, w device.Weight, add bool) {
	m := w.(*weight)
	need(dx.Cols == m.cols && dx.Rows == dy.Rows && dy.Cols <= m.rows, "MatMulInputGrad", "shapes differ")
	s.product("MatMulInputGrad", dx, dy, device.Tensor{}, add, Op{Weight: m.Types, M: dy.Rows, N: dx.Cols, K: dy.Cols}, m.moved(dy.Cols))
}

// MatMulWeightGrad records the operation. The op's input is dy; x has its type.
func (s *Stream) MatMulWeightGrad(dw, dbias, dy, x device.Tensor) {
	need(dw.Rows == dy.Cols && dw.Cols == x.Cols && x.Rows == dy.Rows && dw.DType == tensor.F32, "MatMulWeightGrad", "shapes differ")
	need(dbias.IsZero() || dbias.Cols == dy.Cols, "MatMulWeightGrad", "dbias is not [1, out]")
	s.product("MatMulWeightGrad", dw, dy, dbias, true, Op{Weight: x.DType.String(), M: dy.Cols, N: x.Cols, K: x.Rows}, use("MatMulWeightGrad", x))
}

// product records y (+)= in·other, other moving otherBytes.
func (s *Stream) product(name string, y, in, bias device.Tensor, add bool, o Op, otherBytes float64) {
	n := use(name, y, in, bias) + otherBytes
	if add {
		n += use(name, y)
	}
	o.Name, o.In, o.Out, o.InStride, o.OutStride, o.Bias, o.Add = name, in.DType, y.DType, in.Stride, y.Stride, !bias.IsZero(), add
	s.count(o, 2*float64(o.M)*float64(o.N)*float64(o.K), n)
}

// Rotate records the operation.
func (s *Stream) Rotate(x device.Tensor, r device.Rotary) {
	need(r.HeadDim > 0 && x.Cols%r.HeadDim == 0, "Rotate", "columns are not whole heads")
	n := 2 * use("Rotate", x)
	s.count(Op{Name: "Rotate", In: x.DType, Out: x.DType, Rows: x.Rows, Cols: x.Cols, Attn: device.Attn{HeadDim: r.HeadDim}}, 0, n)
}

// Attention records the operation.
func (s *Stream) Attention(o, lse, q, k, v device.Tensor, a device.Attn) {
	checkAttention("Attention", q, k, v, a)
	need(sameShape(o, q), "Attention", "shapes of o and q differ")
	s.count(Op{Name: "Attention", In: q.DType, Out: o.DType, Attn: a}, 4*pairs(a), use("Attention", o, lse, q, k, v))
}

// AttentionBackward records the operation.
func (s *Stream) AttentionBackward(dq, dk, dv, do, o, lse, q, k, v device.Tensor, a device.Attn) {
	checkAttention("AttentionBackward", q, k, v, a)
	need(sameShape(dq, q) && sameShape(dk, k) && sameShape(dv, v) && sameShape(do, q) && sameShape(o, q), "AttentionBackward", "shapes differ")
	s.count(Op{Name: "AttentionBackward", In: q.DType, Out: dq.DType, Attn: a}, 10*pairs(a), use("AttentionBackward", dq, dk, dv, do, o, lse, q, k, v))
}

func checkAttention(op string, q, k, v device.Tensor, a device.Attn) {
	need(q.Rows == a.Batch*a.QLen && q.Cols == a.Heads*a.HeadDim, op, "q does not fit")
	need(sameShape(k, v) && k.Cols == a.KVHeads*a.HeadDim && a.KStride >= a.KLen && k.Rows >= (a.Batch-1)*a.KStride+a.KLen, op, "k, v do not fit")
}

// pairs returns the pairs of a query and a key it sees, over all rows and heads, times the head dimension.
func pairs(a device.Attn) float64 {
	q, offset := float64(a.QLen), float64(a.QOffset)
	return float64(a.Batch) * float64(a.Heads) * float64(a.HeadDim) * (q*offset + q*(q+1)/2)
}

// SwiGLU records the operation.
func (s *Stream) SwiGLU(m, gu device.Tensor) {
	need(gu.Rows == m.Rows && gu.Cols == 2*m.Cols, "SwiGLU", "shapes differ")
	s.whole("SwiGLU", m, gu)
}

// MatMulSwiGLU records the operation as one product. What a device that has no such kernel moves beyond the operands is
// not counted.
func (s *Stream) MatMulSwiGLU(m, gu, x device.Tensor, w device.Weight, keep bool) {
	d := w.(*weight)
	need(x.Cols == d.cols && gu.Cols == d.rows && gu.Rows == x.Rows, "MatMulSwiGLU", "shapes differ")
	need(gu.Rows == m.Rows && gu.Cols == 2*m.Cols && gu.DType == m.DType, "MatMulSwiGLU", "shapes or types differ")
	o := Op{
		Name: "MatMulSwiGLU", In: x.DType, Out: gu.DType, Weight: d.Types, M: x.Rows, N: gu.Cols, K: x.Cols,
		InStride: x.Stride, OutStride: gu.Stride, Keep: keep,
	}
	n := use("MatMulSwiGLU", m, x) + d.moved(gu.Cols)
	if kept := use("MatMulSwiGLU", gu); keep {
		n += kept
	}
	s.count(o, 2*float64(o.M)*float64(o.N)*float64(o.K), n)
}

// SwiGLUBackward records the operation.
func (s *Stream) SwiGLUBackward(dgu, dm, gu device.Tensor) {
	need(sameShape(dgu, gu) && gu.Rows == dm.Rows && gu.Cols == 2*dm.Cols, "SwiGLUBackward", "shapes differ")
	s.whole("SwiGLUBackward", dgu, dm, gu)
}

// Gather records the operation.
func (s *Stream) Gather(dst, src, rows device.Tensor) {
	need(ids("Gather", rows) == dst.Rows && dst.Cols == src.Cols, "Gather", "shapes differ")
	use("Gather", src)
	s.whole("Gather", dst, dst, rows)
}

// Scatter records the operation.
func (s *Stream) Scatter(dst, src, rows device.Tensor) {
	need(ids("Scatter", rows) == src.Rows && dst.Cols == src.Cols, "Scatter", "shapes differ")
	s.whole("Scatter", dst, src, rows)
}

// Loss records the operation and counts its rows.
func (s *Stream) Loss(grad, z, t, targets device.Tensor, spec device.LossSpec) {
	need(ids("Loss", targets) == z.Rows && z.DType == tensor.F32, "Loss", "shapes or types differ")
	need((grad.IsZero() || sameShape(grad, z)) && (t.IsZero() || sameShape(t, z)), "Loss", "shapes differ")
	need(!t.IsZero() || spec.Alpha == 0, "Loss", "alpha without a teacher")
	n := use("Loss", grad, z, t, targets)
	if !grad.IsZero() {
		n += use("Loss", z, t) // a second pass
	}
	s.count(Op{Name: "Loss", In: z.DType, Out: grad.DType, Rows: z.Rows, Cols: z.Cols}, 0, n)
	s.scalars.Positions += int64(z.Rows)
}

// Verdict finds everything finite.
func (s *Stream) Verdict(params []*device.Param) {
	var n float64
	for _, p := range params {
		n += use("Verdict", p.Grad)
	}
	s.count(Op{Name: "Verdict", In: tensor.F32, Rows: len(params)}, 0, n)
	s.scalars.Scale, s.scalars.Finite = 1, true
}

// AdamW records the operation.
func (s *Stream) AdamW(params []*device.Param, _ device.AdamW) {
	var n float64
	for _, p := range params {
		n += use("AdamW", p.Grad) + 2*use("AdamW", p.Value, p.M, p.V) + float64(p.Weight.Bytes())
	}
	s.count(Op{Name: "AdamW", In: tensor.F32, Rows: len(params)}, 0, n)
}

// ArgMax records the operation.
func (s *Stream) ArgMax(rows, best, x device.Tensor) {
	need(ids("ArgMax", rows) == x.Rows && x.Cols > 0, "ArgMax", "shapes differ")
	need(best.IsZero() || best.DType == tensor.F32 && best.Rows == x.Rows && best.Cols == 2, "ArgMax", "best is not [n, 2] float32")
	s.count(Op{Name: "ArgMax", In: x.DType, Rows: x.Rows, Cols: x.Cols}, 0, use("ArgMax", rows, best, x))
}
