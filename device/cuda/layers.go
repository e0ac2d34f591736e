package cuda

import (
	"apr/device"
	"apr/device/cuda/kernel"
	"apr/device/cuda/kernel/manifest"
)

// RMSNorm: with delta, sum = x + delta and v = sum, else v = x; rstd = (mean(v²)+eps)^−½ and y = v·rstd·w by row.
func (s *Stream) RMSNorm(y, rstd, sum, x, delta, w device.Tensor, eps float64) {
	device.CheckRMSNorm(y, rstd, sum, x, delta, w)
	if o := s.begin("RMSNorm", y, rstd, sum, x, delta, w); o != nil {
		o.sized(x.Rows, x.Cols)
		kernel.RMSNorm(o, mat(y), mat(rstd), mat(sum), mat(x), mat(delta), mat(w), eps)
		o.end()
	}
}

// RMSNormBackward: with x̂ = x·rstd, dx += rstd·(dy·w − x̂·mean(dy·w·x̂)) and dw += Σ_rows dy·x̂.
func (s *Stream) RMSNormBackward(dx, dw, dy, x, rstd, w device.Tensor) {
	device.CheckRMSNormBackward(dx, dw, dy, x, rstd, w)
	if o := s.begin("RMSNormBackward", dx, dw, dy, x, rstd, w); o != nil {
		o.sized(x.Rows, x.Cols)
		kernel.RMSNormBackward(o, mat(dx), mat(dw), mat(dy), mat(x), mat(rstd), mat(w))
		o.end()
	}
}

// SwiGLU: m = silu(g)·u, gu [n, 2f] holding g then u.
func (s *Stream) SwiGLU(m, gu device.Tensor) {
	device.CheckSwiGLU(m, gu)
	if o := s.begin("SwiGLU", m, gu); o != nil {
		o.sized(m.Rows, m.Cols)
		kernel.SwiGLU(o, mat(m), mat(gu))
		o.end()
	}
}

// SwiGLUBackward writes dgu: dg = dm·u·σ(g)(1+g(1−σ(g))), du = dm·g·σ(g). dgu may be gu itself.
func (s *Stream) SwiGLUBackward(dgu, dm, gu device.Tensor) {
	device.CheckSwiGLUBackward(dgu, dm, gu)
	if o := s.begin("SwiGLUBackward", dgu, dm, gu); o != nil {
		o.sized(dm.Rows, dm.Cols)
		kernel.SwiGLUBackward(o, mat(dgu), mat(dm), mat(gu))
		o.end()
	}
}

// Rotate applies the rotary embedding in place to x [n, heads·HeadDim].
func (s *Stream) Rotate(x device.Tensor, r device.Rotary) {
	device.CheckRotate(x, r)
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
	device.CheckAttention(o, lse, q, k, v, a)
	if op := s.begin("Attention", o, lse, q, k, v); op != nil {
		op.sized(a.Batch, a.QLen, a.Heads, a.HeadDim)
		attend := kernel.Attention
		if s.dev.target() == manifest.Hopper && kernel.AttentionSM90Serves(mat(o), mat(q), mat(k), mat(v), a) {
			attend = kernel.AttentionSM90
		}
		attend(op, mat(o), mat(lse), mat(q), mat(k), mat(v), a)
		op.end()
	}
}

// AttentionBackward writes dq, dk, dv.
func (s *Stream) AttentionBackward(dq, dk, dv, do, o, lse, q, k, v device.Tensor, a device.Attn) {
	device.CheckAttentionBackward(dq, dk, dv, do, o, lse, q, k, v, a)
	if op := s.begin("AttentionBackward", dq, dk, dv, do, o, lse, q, k, v); op != nil {
		op.sized(a.Batch, a.QLen, a.Heads, a.HeadDim)
		back := kernel.AttentionBackward
		if s.dev.target() == manifest.Hopper && kernel.AttentionBackwardSM90Serves(mat(dq), mat(dk), mat(dv), mat(do), mat(o), mat(q), mat(k), mat(v), a) {
			back = kernel.AttentionBackwardSM90
		}
		back(op, mat(dq), mat(dk), mat(dv), mat(do), mat(o), mat(lse), mat(q), mat(k), mat(v), a)
		op.end()
	}
}
