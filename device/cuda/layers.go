package cuda

import (
	"apr/device"
	"apr/device/cuda/kernel"
	"apr/device/cuda/kernel/manifest"
	"apr/internal/fault"
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

// GLU: m = act(g)·u, gu [n, 2f] holding g then u.
func (s *Stream) GLU(m, gu device.Tensor, act device.Activation) {
	device.CheckGLU(m, gu, act)
	if s.lacks(act != device.SiLU, "the activation "+act.String()) {
		return
	}
	if o := s.begin("GLU", m, gu); o != nil {
		o.sized(m.Rows, m.Cols)
		kernel.SwiGLU(o, mat(m), mat(gu))
		o.end()
	}
}

// GLUBackward writes dgu: dg = dm·u·act'(g), du = dm·act(g). dgu may be gu itself.
func (s *Stream) GLUBackward(dgu, dm, gu device.Tensor, act device.Activation) {
	device.CheckGLUBackward(dgu, dm, gu, act)
	if s.lacks(act != device.SiLU, "the activation "+act.String()) {
		return
	}
	if o := s.begin("GLUBackward", dgu, dm, gu); o != nil {
		o.sized(dm.Rows, dm.Cols)
		kernel.SwiGLUBackward(o, mat(dgu), mat(dm), mat(gu))
		o.end()
	}
}

// Rotate applies the rotary embedding in place to x [n, heads·HeadDim].
func (s *Stream) Rotate(x device.Tensor, r device.Rotary) {
	device.CheckRotate(x, r)
	if s.lacksRotary(r) {
		return
	}
	o := s.begin("Rotate", x)
	if o == nil {
		return
	}
	o.sized(x.Rows, x.Cols)
	table, err := s.rotary(r.Table, r.Offset+min(r.SeqLen, max(1, x.Rows)))
	if err != nil {
		s.fail(err)
		return
	}
	kernel.Rotate(o, mat(x), r, mat(table).Ptr)
	o.end()
}

// lacksRotary reports whether the kernel of Rotate lacks something of r, which fails the stream.
func (s *Stream) lacksRotary(r device.Rotary) bool {
	return s.lacks(2*len(r.Table.Inv) != r.HeadDim, "rotary embeddings of a part of a head") ||
		s.lacks(r.QBeta != 0, "the scale of queries by their positions") || s.lacks(!r.Positions.IsZero(), "rotary embeddings at given positions")
}

// lacksAttention is lacksRotary for the kernels of attention.
func (s *Stream) lacksAttention(a device.Attn) bool {
	return s.lacks(a.Window != 0, "attention windows") || s.lacks(a.Scale != 0, "attention scores with a scale of their own") ||
		s.lacks(a.Cap != 0, "attention soft-caps") || s.lacks(!a.First.IsZero(), "attention to documents") ||
		s.lacks(a.HeadDim > 256, "attention heads of more than 256 values")
}

// lacks fails the stream with what the device has no kernel for, if there is such, and reports it.
func (s *Stream) lacks(missing bool, what string) bool {
	if missing {
		s.fail(fault.New(fault.Unavailable, "the CUDA device does not compute %s yet", what).WithHint("--backend cpu does").WithID("E-CUDA-070"))
	}
	return missing
}

// HeadNorm is not computed yet.
func (s *Stream) HeadNorm(y, rstd, x, w device.Tensor, headDim int, _ float64) {
	device.CheckHeadNorm(y, rstd, x, w, headDim)
	s.lacks(true, "norms of heads")
}

// HeadNormBackward is not computed yet.
func (s *Stream) HeadNormBackward(dx, dw, dy, x, rstd, w device.Tensor, headDim int) {
	device.CheckHeadNormBackward(dx, dw, dy, x, rstd, w, headDim)
	s.lacks(true, "gradients of the norms of heads")
}

// Add is not computed yet.
func (s *Stream) Add(dst, src device.Tensor) {
	device.CheckAdd(dst, src)
	s.lacks(true, "sums of two tensors")
}

// Scale is not computed yet.
func (s *Stream) Scale(y, x device.Tensor, f float64) {
	device.CheckScale(y, x, f)
	s.lacks(true, "tensors times a factor")
}

// SoftCap is not computed yet.
func (s *Stream) SoftCap(y, x device.Tensor, c float64) {
	device.CheckSoftCap(y, x, c)
	s.lacks(true, "soft-caps")
}

// Attention: o = softmax(q·kᵀ/√d, causal)·v per head.
func (s *Stream) Attention(o, lse, q, k, v device.Tensor, a device.Attn) {
	device.CheckAttention(o, lse, q, k, v, a)
	if s.lacksAttention(a) {
		return
	}
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
	if s.lacksAttention(a) {
		return
	}
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
