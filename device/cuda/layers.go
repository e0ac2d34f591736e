package cuda

import (
	"apr/device"
	"apr/device/cuda/kernel"
	"apr/tensor"
)

// RMSNorm: with delta, sum = x + delta and v = sum, else v = x; rstd = (mean(v²)+eps)^−½ and y = v·rstd·w by row.
func (s *Stream) RMSNorm(y, rstd, sum, x, delta, w device.Tensor, eps float64) {
	need(delta.IsZero() == sum.IsZero(), "RMSNorm", "sum and delta come together")
	same("RMSNorm", x, y, sum, delta)
	floats("RMSNorm", x.DType, y, sum, delta)
	floats("RMSNorm", tensor.F32, rstd, w)
	need(y.IsZero() || w.Rows == 1 && w.Cols == x.Cols, "RMSNorm", "w is not [1, h]")
	need(rstd.IsZero() || rstd.Rows == x.Rows && rstd.Cols == 1, "RMSNorm", "rstd is not [n, 1]")
	if o := s.begin("RMSNorm", y, rstd, sum, x, delta, w); o != nil {
		o.sized(x.Rows, x.Cols)
		kernel.RMSNorm(o, mat(y), mat(rstd), mat(sum), mat(x), mat(delta), mat(w), eps)
		o.end()
	}
}

// RMSNormBackward: with x̂ = x·rstd, dx += rstd·(dy·w − x̂·mean(dy·w·x̂)) and dw += Σ_rows dy·x̂.
func (s *Stream) RMSNormBackward(dx, dw, dy, x, rstd, w device.Tensor) {
	same("RMSNormBackward", x, dx, dy)
	floats("RMSNormBackward", x.DType, dx, dy)
	floats("RMSNormBackward", tensor.F32, dw, rstd, w)
	need(w.Rows == 1 && dw.Rows == 1 && w.Cols == x.Cols && dw.Cols == x.Cols && rstd.Rows == x.Rows,
		"RMSNormBackward", "shapes differ")
	if o := s.begin("RMSNormBackward", dx, dw, dy, x, rstd, w); o != nil {
		o.sized(x.Rows, x.Cols)
		kernel.RMSNormBackward(o, mat(dx), mat(dw), mat(dy), mat(x), mat(rstd), mat(w))
		o.end()
	}
}

// SwiGLU: m = silu(g)·u, gu [n, 2f] holding g then u.
func (s *Stream) SwiGLU(m, gu device.Tensor) {
	need(m.Rows == gu.Rows && 2*m.Cols == gu.Cols, "SwiGLU", "shapes differ")
	floats("SwiGLU", gu.DType, m)
	if o := s.begin("SwiGLU", m, gu); o != nil {
		o.sized(m.Rows, m.Cols)
		kernel.SwiGLU(o, mat(m), mat(gu))
		o.end()
	}
}

// SwiGLUBackward writes dgu: dg = dm·u·σ(g)(1+g(1−σ(g))), du = dm·g·σ(g). dgu may be gu itself.
func (s *Stream) SwiGLUBackward(dgu, dm, gu device.Tensor) {
	need(dm.Rows == gu.Rows && 2*dm.Cols == gu.Cols, "SwiGLUBackward", "shapes differ")
	same("SwiGLUBackward", gu, dgu)
	floats("SwiGLUBackward", gu.DType, dgu, dm)
	if o := s.begin("SwiGLUBackward", dgu, dm, gu); o != nil {
		o.sized(dm.Rows, dm.Cols)
		kernel.SwiGLUBackward(o, mat(dgu), mat(dm), mat(gu))
		o.end()
	}
}

// Rotate applies the rotary embedding in place to x [n, heads·HeadDim].
func (s *Stream) Rotate(x device.Tensor, r device.Rotary) {
	need(r.HeadDim > 0 && r.HeadDim%2 == 0 && x.Cols%r.HeadDim == 0, "Rotate", "columns are not whole heads of even size")
	need(r.SeqLen > 0 && r.Offset >= 0, "Rotate", "no positions")
	o := s.begin("Rotate", x)
	if o == nil {
		return
	}
	o.sized(x.Rows, x.Cols)
	table, err := s.rotary(r, r.Offset+min(r.SeqLen, max(1, x.Rows)))
	if err != nil {
		s.fail(err)
		return
	}
	kernel.Rotate(o, mat(x), r, mat(table).Ptr)
	o.end()
}

// Attention: o = softmax(q·kᵀ/√d, causal)·v per head.
func (s *Stream) Attention(o, lse, q, k, v device.Tensor, a device.Attn) {
	checkAttention("Attention", o, lse, q, k, v, a)
	if op := s.begin("Attention", o, lse, q, k, v); op != nil {
		op.sized(a.Batch, a.QLen, a.Heads, a.HeadDim)
		attend := kernel.Attention
		if s.dev.target() == "sm_90a" && kernel.AttentionSM90Serves(mat(o), mat(q), mat(k), mat(v), a) {
			attend = kernel.AttentionSM90
		}
		attend(op, mat(o), mat(lse), mat(q), mat(k), mat(v), a)
		op.end()
	}
}

// AttentionBackward writes dq, dk, dv.
func (s *Stream) AttentionBackward(dq, dk, dv, do, o, lse, q, k, v device.Tensor, a device.Attn) {
	checkAttention("AttentionBackward", o, lse, q, k, v, a)
	same("AttentionBackward", q, dq)
	same("AttentionBackward", k, dk)
	same("AttentionBackward", v, dv)
	same("AttentionBackward", o, do)
	floats("AttentionBackward", q.DType, dq, dk, dv, do)
	need(!lse.IsZero(), "AttentionBackward", "no lse")
	if op := s.begin("AttentionBackward", dq, dk, dv, do, o, lse, q, k, v); op != nil {
		op.sized(a.Batch, a.QLen, a.Heads, a.HeadDim)
		back := kernel.AttentionBackward
		if s.dev.target() == "sm_90a" && kernel.AttentionBackwardSM90Serves(mat(dq), mat(dk), mat(dv), mat(do), mat(o), mat(q), mat(k), mat(v), a) {
			back = kernel.AttentionBackwardSM90
		}
		back(op, mat(dq), mat(dk), mat(dv), mat(do), mat(o), mat(lse), mat(q), mat(k), mat(v), a)
		op.end()
	}
}

func checkAttention(op string, o, lse, q, k, v device.Tensor, a device.Attn) {
	need(a.HeadDim > 0 && a.KVHeads > 0 && a.Heads%a.KVHeads == 0, op, "heads do not divide")
	need(a.KStride >= a.KLen && a.QOffset >= 0 && a.QOffset+a.QLen <= a.KLen, op, "queries see keys that are not there")
	rows, keys := a.Batch*a.QLen, 0
	if a.Batch > 0 {
		keys = (a.Batch-1)*a.KStride + a.KLen
	}
	need(q.Rows == rows && o.Rows == rows && q.Cols == a.Heads*a.HeadDim && o.Cols == q.Cols, op, "q or o has another shape")
	need(k.Rows >= keys && v.Rows >= keys && k.Cols == a.KVHeads*a.HeadDim && v.Cols == k.Cols, op, "k or v has another shape")
	need(lse.IsZero() || lse.Rows == rows && lse.Cols == a.Heads, op, "lse has another shape")
	floats(op, q.DType, o, k, v)
	floats(op, tensor.F32, lse)
}
