package vulkan

import (
	"apr/device"
	"apr/device/vulkan/kernel"
)

// RMSNorm: with delta, sum = x + delta and v = sum, else v = x; rstd = (mean(v²)+eps)^−½ and y = v·rstd·w by
// row.
func (s *Stream) RMSNorm(y, rstd, sum, x, delta, w device.Tensor, eps float64) {
	device.CheckRMSNorm(y, rstd, sum, x, delta, w)
	if s.begin() {
		kernel.Norm(s, mat(y), mat(rstd), mat(sum), mat(x), mat(delta), mat(w), x.Cols, eps)
		s.end()
	}
}

// RMSNormBackward: with x̂ = x·rstd, dx += rstd·(dy·w − x̂·mean(dy·w·x̂)) and dw += Σ_rows dy·x̂.
func (s *Stream) RMSNormBackward(dx, dw, dy, x, rstd, w device.Tensor) {
	device.CheckRMSNormBackward(dx, dw, dy, x, rstd, w)
	if s.begin() {
		kernel.NormBackward(s, mat(dx), mat(dw), mat(dy), mat(x), mat(rstd), mat(w), x.Cols, true)
		s.end()
	}
}

// HeadNorm is RMSNorm over each group of headDim columns.
func (s *Stream) HeadNorm(y, rstd, x, w device.Tensor, headDim int, eps float64) {
	device.CheckHeadNorm(y, rstd, x, w, headDim)
	if s.begin() {
		kernel.Norm(s, mat(y), mat(rstd), kernel.Mat{}, mat(x), kernel.Mat{}, mat(w), headDim, eps)
		s.end()
	}
}

// HeadNormBackward writes dx, which may be dy, and adds to dw.
func (s *Stream) HeadNormBackward(dx, dw, dy, x, rstd, w device.Tensor, headDim int) {
	device.CheckHeadNormBackward(dx, dw, dy, x, rstd, w, headDim)
	if s.begin() {
		kernel.NormBackward(s, mat(dx), mat(dw), mat(dy), mat(x), mat(rstd), mat(w), headDim, false)
		s.end()
	}
}

// Rotate applies the rotary embedding in place to x [n, heads·HeadDim].
func (s *Stream) Rotate(x device.Tensor, r device.Rotary) {
	device.CheckRotate(x, r)
	n := r.Offset + min(r.SeqLen, max(1, x.Rows))
	if !r.Positions.IsZero() {
		n = r.Offset + r.SeqLen
	}
	if !s.begin() || !r.Positions.IsZero() && !s.known("Rotate", r.Positions, n) {
		return
	}
	t := s.dev.turns(r, n)
	t.Positions, t.Dim, t.Length, t.Offset, t.Inverse = mat(r.Positions), r.HeadDim, r.SeqLen, r.Offset, r.Inverse
	kernel.Rotate(s, mat(x), t)
	s.end()
}

// attended are the operands of attention; false: the values of First may not be so.
func (s *Stream) attended(o, lse, q, k, v device.Tensor, a device.Attn) (kernel.Attended, bool) {
	if !a.First.IsZero() {
		b := a.First.Buf.(*buffer)
		for i := range a.First.Rows * a.First.Cols {
			if ids := b.ids; ids != nil && i%a.QLen > 0 && ids[a.First.Off+i] < ids[a.First.Off+i-1] {
				s.fail(falling(i, ids[a.First.Off+i], ids[a.First.Off+i-1]))
				return kernel.Attended{}, false
			}
		}
	}
	return kernel.Attended{O: mat(o), LSE: mat(lse), Q: mat(q), K: mat(k), V: mat(v), First: mat(a.First),
		Sinks: mat(a.Sinks), Attn: a}, true
}

// Attention: o = softmax(cap(Scale·q·kᵀ), masked, sink)·v per head.
func (s *Stream) Attention(o, lse, q, k, v device.Tensor, a device.Attn) {
	device.CheckAttention(o, lse, q, k, v, a)
	if !s.begin() {
		return
	}
	if at, ok := s.attended(o, lse, q, k, v, a); ok {
		kernel.Attention(s, at)
	}
	s.end()
}

// AttentionBackward writes dq, dk, dv, and adds to a.DSinks.
func (s *Stream) AttentionBackward(dq, dk, dv, do, o, lse, q, k, v device.Tensor, a device.Attn) {
	device.CheckAttentionBackward(dq, dk, dv, do, o, lse, q, k, v, a)
	if !s.begin() {
		return
	}
	if at, ok := s.attended(o, lse, q, k, v, a); ok {
		kernel.AttentionBackward(s, mat(dq), mat(dk), mat(dv), mat(do), at, mat(a.DSinks))
	}
	s.end()
}

// Deinterleave: a and b are the even and the odd groups of width columns of x.
func (s *Stream) Deinterleave(a, b, x device.Tensor, width int) {
	device.CheckDeinterleave(a, b, x, width)
	if s.begin() {
		kernel.Deinterleave(s, mat(a), mat(b), mat(x), width)
		s.end()
	}
}

// Interleave is its inverse.
func (s *Stream) Interleave(x, a, b device.Tensor, width int) {
	device.CheckInterleave(x, a, b, width)
	if s.begin() {
		kernel.Interleave(s, mat(x), mat(a), mat(b), width)
		s.end()
	}
}

// GLU: m = act(g)·u.
func (s *Stream) GLU(m, gu device.Tensor, act device.Activation) {
	device.CheckGLU(m, gu, act)
	if s.begin() {
		kernel.GLU(s, mat(m), mat(gu), act)
		s.end()
	}
}

// MatMulGLU: gu = x·Wᵀ and m = act(g)·u. gu is kept in any case.
func (s *Stream) MatMulGLU(m, gu, x device.Tensor, w device.Weight, act device.Activation, _ bool) {
	device.CheckMatMulGLU(m, gu, x, w, act)
	s.MatMul(gu, x, w, device.Tensor{}, false)
	s.GLU(m, gu, act)
}

// GLUBackward writes dgu, which may be gu.
func (s *Stream) GLUBackward(dgu, dm, gu device.Tensor, act device.Activation) {
	device.CheckGLUBackward(dgu, dm, gu, act)
	if s.begin() {
		kernel.GLUBackward(s, mat(dgu), mat(dm), mat(gu), act)
		s.end()
	}
}

// Add: dst += src.
func (s *Stream) Add(dst, src device.Tensor) {
	device.CheckAdd(dst, src)
	if s.begin() {
		kernel.Add(s, mat(dst), mat(src))
		s.end()
	}
}

// Scale: y = f·x.
func (s *Stream) Scale(y, x device.Tensor, f float64) {
	device.CheckScale(y, x, f)
	if s.begin() {
		kernel.Scale(s, mat(y), mat(x), f)
		s.end()
	}
}

// SoftCap: y = c·tanh(x/c).
func (s *Stream) SoftCap(y, x device.Tensor, c float64) {
	device.CheckSoftCap(y, x, c)
	if s.begin() {
		kernel.SoftCap(s, mat(y), mat(x), c)
		s.end()
	}
}

// Dropout: y = x/(1−rate) where d keeps a value, else 0.
func (s *Stream) Dropout(y, x device.Tensor, d device.Drop) {
	device.CheckDropout(y, x, d)
	if s.begin() {
		kernel.Dropout(s, mat(y), mat(x), d)
		s.end()
	}
}
