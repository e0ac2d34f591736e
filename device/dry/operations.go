package dry

import (
	"errors"

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
	if m.Expands && !m.Gathers {
		s.dev.expands(m)
	}
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
	o := Op{M: x.Rows, N: y.Cols, K: x.Cols}
	s.with(m, &o, m.reads(x.Rows))
	s.product(device.OpMatMul, y, x, bias, add, o, m.moved(y.Cols))
}

// MatMulInputGrad records the operation.
func (s *Stream) MatMulInputGrad(dx, dy device.Tensor, w device.Weight, add bool) {
	device.CheckMatMulInputGrad(dx, dy, w)
	m := w.(*weight)
	o := Op{M: dy.Rows, N: dx.Cols, K: dy.Cols}
	s.with(m, &o, false)
	s.product(device.OpMatMulInputGrad, dx, dy, device.Tensor{}, add, o, m.moved(dy.Cols))
}

// with says of a product how its matrix is kept and read, and counts the memory that it is expanded in.
func (s *Stream) with(m *weight, o *Op, direct bool) {
	o.Weight, o.Expands, o.FP8 = m.Types, m.Expands, m.FP8
	o.Direct, o.Arranged, o.Host = direct, direct && m.arranged, s.dev.fetches(m)
	if m.Expands && !direct {
		s.dev.expands(m)
	}
}

// errDecode is why Decode does nothing.
var errDecode = errors.New("operations of a dry run are recorded one by one")

// Decode notes what is asked for, and leaves it to the operations: whether a device computes the layers at once depends on the device.
func (s *Stream) Decode(y, x device.Tensor, d device.Decode) error {
	device.CheckDecode(y, x, d)
	s.dev.decode, s.dev.few = &d, max(s.dev.few, x.Rows)
	return errDecode
}

// Arrange notes it of matrices that products of n rows read otherwise then.
func (s *Stream) Arrange(n int, ws ...device.Weight) {
	for _, w := range ws {
		if m := w.(*weight); n > 1 && n <= m.Arranged {
			m.arranged = true
		}
	}
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

// HeadNorm records the operation.
func (s *Stream) HeadNorm(y, rstd, x, w device.Tensor, headDim int, _ float64) {
	device.CheckHeadNorm(y, rstd, x, w, headDim)
	n := use(device.OpHeadNorm, y, rstd, x, w)
	s.count(Op{Kind: device.OpHeadNorm, In: x.DType, Out: y.DType, Rows: x.Rows, Cols: x.Cols, Attn: device.Attn{HeadDim: headDim}}, 0, n)
}

// HeadNormBackward records the operation.
func (s *Stream) HeadNormBackward(dx, dw, dy, x, rstd, w device.Tensor, headDim int) {
	device.CheckHeadNormBackward(dx, dw, dy, x, rstd, w, headDim)
	n := use(device.OpHeadNormBackward, dx, dy, x, rstd, w) + 2*use(device.OpHeadNormBackward, dw)
	s.count(Op{Kind: device.OpHeadNormBackward, In: x.DType, Out: dx.DType, Rows: x.Rows, Cols: x.Cols, Attn: device.Attn{HeadDim: headDim}}, 0, n)
}

// Rotate records the operation.
func (s *Stream) Rotate(x device.Tensor, r device.Rotary) {
	device.CheckRotate(x, r)
	n := 2*use(device.OpRotate, x) + use(device.OpRotate, r.Positions)
	partial := 2*len(r.Table.Inv) != r.HeadDim || !r.Positions.IsZero() || r.QBeta != 0
	s.count(Op{Kind: device.OpRotate, In: x.DType, Out: x.DType, Rows: x.Rows, Cols: x.Cols, Attn: device.Attn{HeadDim: r.HeadDim}, Partial: partial}, 0, n)
}

// Attention records the operation. With First fewer keys are seen than it costs here: which ones depends on values.
func (s *Stream) Attention(o, lse, q, k, v device.Tensor, a device.Attn) {
	device.CheckAttention(o, lse, q, k, v, a)
	op := attention(device.OpAttention, q, o, a)
	s.count(op, 4*pairs(a), use(op.Kind, o, lse, q, k, v, a.First, a.Sinks))
}

// AttentionBackward records the operation.
func (s *Stream) AttentionBackward(dq, dk, dv, do, o, lse, q, k, v device.Tensor, a device.Attn) {
	device.CheckAttentionBackward(dq, dk, dv, do, o, lse, q, k, v, a)
	op := attention(device.OpAttentionBackward, q, dq, a)
	s.count(op, 10*pairs(a), use(op.Kind, dq, dk, dv, do, o, lse, q, k, v, a.First, a.Sinks, a.DSinks))
}

// Deinterleave records the operation.
func (s *Stream) Deinterleave(a, b, x device.Tensor, width int) {
	device.CheckDeinterleave(a, b, x, width)
	s.whole(device.OpDeinterleave, a, x, b)
}

// Interleave records the operation.
func (s *Stream) Interleave(x, a, b device.Tensor, width int) {
	device.CheckInterleave(x, a, b, width)
	s.whole(device.OpInterleave, x, a, b)
}

// attention describes one: where its tensors are does not matter.
func attention(kind device.Op, in, out device.Tensor, a device.Attn) Op {
	o := Op{Kind: kind, In: in.DType, Out: out.DType, Attn: a, Documents: !a.First.IsZero(), Sinks: !a.Sinks.IsZero()}
	o.Attn.First, o.Attn.Sinks, o.Attn.DSinks = device.Tensor{}, device.Tensor{}, device.Tensor{}
	return o
}

// pairs returns the pairs of a query and a key it sees, over all rows and heads, times the head dimension.
func pairs(a device.Attn) float64 {
	return float64(a.Batch) * float64(a.Heads) * float64(a.HeadDim) * float64(a.Pairs())
}

// GLU records the operation.
func (s *Stream) GLU(m, gu device.Tensor, act device.Activation) {
	device.CheckGLU(m, gu, act)
	s.count(Op{Kind: device.OpGLU, In: gu.DType, Out: m.DType, Act: act, Rows: m.Rows, Cols: m.Cols}, 0, use(device.OpGLU, m, gu))
}

// MatMulGLU records the operation as one product. What a device that has no such kernel moves beyond the operands is
// not counted.
func (s *Stream) MatMulGLU(m, gu, x device.Tensor, w device.Weight, act device.Activation, keep bool) {
	device.CheckMatMulGLU(m, gu, x, w, act)
	d := w.(*weight)
	o := Op{
		Kind: device.OpMatMulGLU, In: x.DType, Out: gu.DType, M: x.Rows, N: gu.Cols, K: x.Cols,
		InStride: x.Stride, OutStride: gu.Stride, Act: act, Keep: keep,
	}
	s.with(d, &o, d.reads(x.Rows))
	n := use(device.OpMatMulGLU, m, x) + d.moved(gu.Cols)
	if kept := use(device.OpMatMulGLU, gu); keep {
		n += kept
	}
	s.count(o, 2*float64(o.M)*float64(o.N)*float64(o.K), n)
}

// GLUBackward records the operation.
func (s *Stream) GLUBackward(dgu, dm, gu device.Tensor, act device.Activation) {
	device.CheckGLUBackward(dgu, dm, gu, act)
	n := use(device.OpGLUBackward, dgu, dm, gu)
	s.count(Op{Kind: device.OpGLUBackward, In: dm.DType, Out: dgu.DType, Act: act, Rows: dgu.Rows, Cols: dgu.Cols}, 0, n)
}

// Add records the operation.
func (s *Stream) Add(dst, src device.Tensor) {
	device.CheckAdd(dst, src)
	s.whole(device.OpAdd, dst, src, dst)
}

// Scale records the operation.
func (s *Stream) Scale(y, x device.Tensor, f float64) {
	device.CheckScale(y, x, f)
	s.whole(device.OpScale, y, x)
}

// SoftCap records the operation.
func (s *Stream) SoftCap(y, x device.Tensor, c float64) {
	device.CheckSoftCap(y, x, c)
	s.whole(device.OpSoftCap, y, x)
}

// Dropout records the operation.
func (s *Stream) Dropout(y, x device.Tensor, d device.Drop) {
	device.CheckDropout(y, x, d)
	s.whole(device.OpDropout, y, x)
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

// Mix records the operation, which reads t twice.
func (s *Stream) Mix(y, t device.Tensor, w, temperature float64, add bool) {
	device.CheckMix(y, t, w, temperature)
	n := use(device.OpMix, y, t, t)
	if add {
		n += use(device.OpMix, y)
	}
	s.count(Op{Kind: device.OpMix, In: t.DType, Out: y.DType, Rows: y.Rows, Cols: y.Cols, Add: add}, 0, n)
}

var _ device.Projector = (*Stream)(nil)

// Project records the operation, which reads t twice and all of W for each row.
func (s *Stream) Project(y, t device.Tensor, w device.Projection, rows device.Tensor, temperature float64) {
	device.CheckProject(y, t, w, rows, temperature)
	n := use(device.OpProject, t, t, w.Starts, w.IDs, w.Weights, rows)
	s.count(Op{Kind: device.OpProject, In: t.DType, Out: y.DType, Rows: t.Rows, Cols: y.Cols}, 0,
		n+float64(t.Rows)*float64(y.Cols)*4)
}

var _ device.ManyDrawer = (*Stream)(nil)

// DrawMany records the operation, which reads z twice.
func (s *Stream) DrawMany(out, z, keys device.Tensor, temperature float64) {
	device.CheckDrawMany(out, z, keys, temperature)
	n := use(device.OpDrawMany, out, z, z, keys)
	s.count(Op{Kind: device.OpDrawMany, In: z.DType, Out: out.DType, Rows: z.Rows, Cols: z.Cols}, 0, n)
}

// SquaredError records the operation.
func (s *Stream) SquaredError(grad, u, t device.Tensor, weight float64) {
	device.CheckSquaredError(grad, u, t, weight)
	n := use(device.OpSquaredError, grad, u, t)
	s.count(Op{Kind: device.OpSquaredError, In: t.DType, Out: grad.DType, Rows: u.Rows, Cols: u.Cols}, 0, n)
}

// CompareMaps records the operation: the student's scores twice, the teacher's once, and the gradients of q and k.
func (s *Stream) CompareMaps(dq, dk device.Tensor, own, big device.AttnMap, rows device.Tensor, weight float64) {
	device.CheckCompareMaps(dq, dk, own, big, rows, weight)
	o := attention(device.OpCompareMaps, own.Q, dq, own.Attn)
	o.Rows, o.Cols = big.Attn.Heads, big.Attn.HeadDim
	n := use(o.Kind, own.Q, own.K, own.LSE, own.Attn.Sinks, big.Q, big.K, big.LSE, big.Attn.Sinks, own.Attn.First, rows)
	s.count(o, 8*pairs(own.Attn)+2*pairs(big.Attn), n+2*use(o.Kind, dq, dk, own.Attn.DSinks))
}

// Loss records the operation and counts its rows.
func (s *Stream) Loss(grad, z, t, targets device.Tensor, spec device.LossSpec) {
	device.CheckLoss(grad, z, t, targets, spec)
	n := use(device.OpLoss, grad, z, t, targets)
	if !grad.IsZero() {
		n += use(device.OpLoss, z, t) // a second pass
	}
	s.count(Op{Kind: device.OpLoss, In: z.DType, Out: grad.DType, Rows: z.Rows, Cols: z.Cols, Capped: spec.Cap > 0}, 0, n)
	s.scalars.Positions += int64(z.Rows)
}

var _ device.DrawsLoss = (*Stream)(nil)

// LossOfDraws records the operation, which reads z twice.
func (s *Stream) LossOfDraws(grad, z, drawn, targets device.Tensor, draws int, spec device.LossSpec) {
	device.CheckLossOfDraws(grad, z, drawn, targets, draws, spec)
	n := use(device.OpLossOfDraws, grad, z, drawn, targets)
	if !grad.IsZero() {
		n += use(device.OpLossOfDraws, z)
	}
	op := Op{Kind: device.OpLossOfDraws, In: z.DType, Out: grad.DType, Rows: z.Rows, Cols: z.Cols, Capped: spec.Cap > 0}
	s.count(op, 0, n)
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

var _ device.Pager = (*Stream)(nil)

// PutRows records the operation.
func (s *Stream) PutRows(dst, src, rows device.Tensor) {
	device.CheckPutRows(dst, src, rows)
	s.count(Op{Kind: device.OpPutRows, In: src.DType, Out: dst.DType, Rows: src.Rows, Cols: src.Cols}, 0,
		2*use(device.OpPutRows, src)+use(device.OpPutRows, rows))
}

// AttendPages records the operation, as if each row saw the most keys that one may see.
func (s *Stream) AttendPages(o, q, k, v device.Tensor, a device.Paged) {
	device.CheckAttendPages(o, q, k, v, a)
	at := a.Attn(q.Rows, a.Most)
	op := attention(device.OpAttendPages, q, o, at)
	keys := 2 * float64(q.Rows) * float64(a.Most) * float64(k.DType.RowBytes(k.Cols))
	_ = use(op.Kind, k, v)
	s.count(op, 4*pairs(at), keys+use(op.Kind, o, q, a.First, a.Keys, a.Sinks))
}

var _ device.NextDrawer = (*Stream)(nil)

// DrawNext records the operation.
func (s *Stream) DrawNext(rows, out, x, never, keys, limits device.Tensor) {
	device.CheckDrawNext(rows, out, x, never, keys, limits)
	s.count(Op{Kind: device.OpDrawNext, In: x.DType, Rows: x.Rows, Cols: x.Cols}, 0, use(device.OpDrawNext, rows, out, x,
		never, keys, limits))
}

// ArgMax records the operation.
func (s *Stream) ArgMax(rows, best, x device.Tensor) {
	device.CheckArgMax(rows, best, x)
	s.count(Op{Kind: device.OpArgMax, In: x.DType, Rows: x.Rows, Cols: x.Cols}, 0, use(device.OpArgMax, rows, best, x))
}
