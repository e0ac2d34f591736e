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

// HeadNorm: over groups of headDim columns rstd = (mean(x²)+eps)^−½ and y = x·rstd·w.
func (s *Stream) HeadNorm(y, rstd, x, w device.Tensor, headDim int, eps float64) {
	device.CheckHeadNorm(y, rstd, x, w, headDim)
	if o := s.begin("HeadNorm", y, rstd, x, w); o != nil {
		o.sized(x.Rows, x.Cols, headDim)
		kernel.HeadNorm(o, mat(y), mat(rstd), mat(x), mat(w), headDim, eps)
		o.end()
	}
}

// HeadNormBackward writes dx, which may be dy, and adds to dw: see device.Stream.
func (s *Stream) HeadNormBackward(dx, dw, dy, x, rstd, w device.Tensor, headDim int) {
	device.CheckHeadNormBackward(dx, dw, dy, x, rstd, w, headDim)
	if o := s.begin("HeadNormBackward", dx, dw, dy, x, rstd, w); o != nil {
		o.sized(x.Rows, x.Cols, headDim)
		kernel.HeadNormBackward(o, mat(dx), mat(dw), mat(dy), mat(x), mat(rstd), mat(w), headDim)
		o.end()
	}
}

// GLU: m = act(g)·u, gu [n, 2f] holding g then u.
func (s *Stream) GLU(m, gu device.Tensor, act device.Activation) {
	device.CheckGLU(m, gu, act)
	if o := s.begin("GLU", m, gu); o != nil {
		o.sized(m.Rows, m.Cols)
		kernel.GLU(o, mat(m), mat(gu), act)
		o.end()
	}
}

// GLUBackward writes dgu: dg = dm·u·act'(g), du = dm·act(g). dgu may be gu itself.
func (s *Stream) GLUBackward(dgu, dm, gu device.Tensor, act device.Activation) {
	device.CheckGLUBackward(dgu, dm, gu, act)
	if o := s.begin("GLUBackward", dgu, dm, gu); o != nil {
		o.sized(dm.Rows, dm.Cols)
		kernel.GLUBackward(o, mat(dgu), mat(dm), mat(gu), act)
		o.end()
	}
}

// Deinterleave: a and b are the even and the odd groups of width columns of x.
func (s *Stream) Deinterleave(a, b, x device.Tensor, width int) {
	device.CheckDeinterleave(a, b, x, width)
	if o := s.begin("Deinterleave", a, b, x); o != nil {
		o.sized(x.Rows, x.Cols, width)
		kernel.Deinterleave(o, mat(a), mat(b), mat(x), width)
		o.end()
	}
}

// Interleave writes x, of which a and b are the even and the odd groups of width columns.
func (s *Stream) Interleave(x, a, b device.Tensor, width int) {
	device.CheckInterleave(x, a, b, width)
	if o := s.begin("Interleave", x, a, b); o != nil {
		o.sized(x.Rows, x.Cols, width)
		kernel.Interleave(o, mat(x), mat(a), mat(b), width)
		o.end()
	}
}

// Add: dst += src.
func (s *Stream) Add(dst, src device.Tensor) {
	device.CheckAdd(dst, src)
	if o := s.begin("Add", dst, src); o != nil {
		o.sized(dst.Rows, dst.Cols)
		kernel.Add(o, mat(dst), mat(src))
		o.end()
	}
}

// Scale: y = f·x; y may be x.
func (s *Stream) Scale(y, x device.Tensor, f float64) {
	device.CheckScale(y, x, f)
	if o := s.begin("Scale", y, x); o != nil {
		o.sized(y.Rows, y.Cols)
		kernel.Scale(o, mat(y), mat(x), f)
		o.end()
	}
}

// Dropout: y = x/(1−rate) where d keeps a value, else 0; y may be x.
func (s *Stream) Dropout(y, x device.Tensor, d device.Drop) {
	device.CheckDropout(y, x, d)
	if o := s.begin("Dropout", y, x); o != nil {
		o.sized(y.Rows, y.Cols)
		kernel.Dropout(o, mat(y), mat(x), d)
		o.end()
	}
}

// Mix: y = T·ln(w·softmax(t/T)), or with add y = T·ln(e^{y/T} + w·softmax(t/T)).
func (s *Stream) Mix(y, t device.Tensor, w, temperature float64, add bool) {
	device.CheckMix(y, t, w, temperature)
	if o := s.begin("Mix", y, t); o != nil {
		o.sized(y.Rows, y.Cols)
		kernel.Mix(o, mat(y), mat(t), w, temperature, add)
		o.end()
	}
}

// SoftCap: y = c·tanh(x/c); y may be x.
func (s *Stream) SoftCap(y, x device.Tensor, c float64) {
	device.CheckSoftCap(y, x, c)
	if o := s.begin("SoftCap", y, x); o != nil {
		o.sized(y.Rows, y.Cols)
		kernel.SoftCap(o, mat(y), mat(x), c)
		o.end()
	}
}

// Rotate applies the rotary embedding in place to x [n, heads·HeadDim].
func (s *Stream) Rotate(x device.Tensor, r device.Rotary) {
	device.CheckRotate(x, r)
	o := s.begin("Rotate", x, r.Positions)
	if o == nil || !r.Positions.IsZero() && !s.known("Rotate: position", r.Positions, r.Offset+r.SeqLen) {
		return
	}
	o.sized(x.Rows, x.Cols)
	tables, err := s.rotaryFor(r, x.Rows)
	if err != nil {
		s.fail(err)
		return
	}
	kernel.Rotate(o, mat(x), r, tables)
	o.end()
}

var _ device.Finisher = (*Stream)(nil)

// FinishHeads is HeadNorm, Rotate and Copy of a few positions in bfloat16 by one kernel: see device.Finisher.
func (s *Stream) FinishHeads(q, gate, kv, rows, x, qNorm, kNorm device.Tensor, eps float64, r device.Rotary) bool {
	device.CheckFinishHeads(q, gate, kv, rows, x, qNorm, kNorm, r)
	if s.failed() {
		return true // tensors need not have a place
	}
	if !kernel.FinishServes(mat(q), mat(gate), mat(kv), mat(x), mat(qNorm), mat(kNorm), r.HeadDim, r) {
		return false
	}
	o := s.begin("FinishHeads", q, gate, kv, rows, x, qNorm, kNorm, r.Positions)
	if o == nil || !rows.IsZero() && !s.known("FinishHeads", rows, kv.Rows) ||
		!r.Positions.IsZero() && !s.known("FinishHeads: position", r.Positions, r.Offset+r.SeqLen) {
		return true // nothing is done after an error
	}
	o.sized(x.Rows, x.Cols, r.HeadDim)
	tables, err := s.rotaryFor(r, x.Rows)
	if err != nil {
		s.fail(err)
		return true
	}
	kernel.Finish(o, mat(q), mat(gate), mat(kv), mat(rows), mat(x), mat(qNorm), mat(kNorm), r.HeadDim, eps, r, tables)
	o.end()
	return true
}

// Attention: o = softmax(cap(Scale·q·kᵀ), masked, sink)·v per head.
func (s *Stream) Attention(o, lse, q, k, v device.Tensor, a device.Attn) {
	device.CheckAttention(o, lse, q, k, v, a)
	if op := s.begin("Attention", o, lse, q, k, v, a.First, a.Sinks); op != nil {
		op.sized(a.Batch, a.QLen, a.Heads, a.HeadDim)
		s.dev.counts.attentions.Add(1)
		attend := kernel.Attention
		if s.dev.target() == manifest.Hopper && kernel.AttentionSM90Serves(mat(o), mat(q), mat(k), mat(v), a, mat(a.First)) {
			attend = kernel.AttentionSM90
		} else if s.dev.opts.Compute == TF32 && kernel.AttentionTF32Serves(a, mat(a.First), mat(o), mat(q), mat(k), mat(v)) {
			attend = kernel.AttentionTF32
		}
		if a.Sinks.IsZero() {
			attend(op, mat(o), mat(lse), mat(q), mat(k), mat(v), a, mat(a.First))
		} else {
			kernel.AttentionSinks(op, attend, mat(o), mat(lse), mat(q), mat(k), mat(v), a, mat(a.First), mat(a.Sinks))
		}
		op.end()
	}
}

// AttentionBackward writes dq, dk, dv, and adds to a.DSinks. With a log-sum-exp of scores and sinks the first three are computed as
// without sinks.
func (s *Stream) AttentionBackward(dq, dk, dv, do, o, lse, q, k, v device.Tensor, a device.Attn) {
	device.CheckAttentionBackward(dq, dk, dv, do, o, lse, q, k, v, a)
	if op := s.begin("AttentionBackward", dq, dk, dv, do, o, lse, q, k, v, a.First); op != nil {
		op.sized(a.Batch, a.QLen, a.Heads, a.HeadDim)
		s.dev.counts.attentions.Add(1)
		back := kernel.AttentionBackward
		if s.dev.target() == manifest.Hopper && kernel.AttentionBackwardSM90Serves(mat(dq), mat(dk), mat(dv), mat(do), mat(o), mat(q), mat(k), mat(v), a, mat(a.First)) {
			back = kernel.AttentionBackwardSM90
		} else if s.dev.opts.Compute == TF32 && kernel.AttentionTF32Serves(a, mat(a.First), mat(dq), mat(dk), mat(dv), mat(do), mat(o), mat(q), mat(k), mat(v)) {
			back = kernel.AttentionBackwardTF32
		}
		back(op, mat(dq), mat(dk), mat(dv), mat(do), mat(o), mat(lse), mat(q), mat(k), mat(v), a, mat(a.First))
		op.end()
	}
	if a.DSinks.IsZero() {
		return
	}
	if op := s.begin("AttentionBackward", a.DSinks, do, o, lse, a.Sinks); op != nil { // with scratch of its own
		op.sized(a.Batch, a.QLen, a.Heads, a.HeadDim)
		kernel.SinkGrad(op, mat(a.DSinks), mat(do), mat(o), mat(lse), mat(a.Sinks), a.HeadDim)
		op.end()
	}
}
