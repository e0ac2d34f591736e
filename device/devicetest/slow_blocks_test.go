package devicetest

import (
	"errors"
	"math"

	"apr/device"
	"apr/internal/ref"
)

func (s *slowStream) HeadNorm(y, rstd, x, w device.Tensor, headDim int, eps float64) {
	device.CheckHeadNorm(y, rstd, x, w, headDim)
	out, r := s.ops.headNorm(s.read(x), s.optional(w), headDim, eps)
	s.write(y, out)
	if !rstd.IsZero() {
		s.write(rstd, r)
	}
}

func (s *slowStream) HeadNormBackward(dx, dw, dy, x, rstd, w device.Tensor, headDim int) {
	device.CheckHeadNormBackward(dx, dw, dy, x, rstd, w, headDim)
	a, b := s.ops.headNormBack(s.read(dy), s.read(x), s.read(rstd), s.optional(w), headDim)
	if s.ops.headNormAdds {
		s.add(dx, a)
	} else {
		s.write(dx, a)
	}
	if !dw.IsZero() {
		s.add(dw, b)
	}
}

func (s *slowStream) Rotate(x device.Tensor, r device.Rotary) {
	device.CheckRotate(x, r)
	var at []int
	if !r.Positions.IsZero() {
		at = s.ints(r.Positions)
	}
	for _, p := range at {
		if p < 0 || p >= r.Offset+r.SeqLen {
			s.fail(errors.New("a position outside the table"))
			return
		}
	}
	s.write(x, s.ops.rotate(s.read(x), r, at))
}

// first returns the values of First, or nil.
func (s *slowStream) first(a device.Attn) []int {
	if a.First.IsZero() {
		return nil
	}
	return s.ints(a.First)
}

// sinks returns the values of Sinks, or nil.
func (s *slowStream) sinks(a device.Attn) []float64 {
	if a.Sinks.IsZero() {
		return nil
	}
	return s.read(a.Sinks).V
}

func (s *slowStream) Attention(o, lse, q, k, v device.Tensor, a device.Attn) {
	device.CheckAttention(o, lse, q, k, v, a)
	out, l := s.ops.attention(s.read(q), s.read(k), s.read(v), a, s.first(a), s.sinks(a))
	s.write(o, out)
	if !lse.IsZero() {
		s.write(lse, l)
	}
}

func (s *slowStream) AttentionBackward(dq, dk, dv, do, o, lse, q, k, v device.Tensor, a device.Attn) {
	device.CheckAttentionBackward(dq, dk, dv, do, o, lse, q, k, v, a)
	x, y, z := s.ops.attentionBack(s.read(do), s.read(o), s.read(q), s.read(k), s.read(v), a, s.first(a), s.sinks(a))
	s.write(dq, x)
	s.write(dk, y)
	s.write(dv, z)
	if !a.DSinks.IsZero() {
		s.add(a.DSinks, s.ops.sinkGrad(s.read(do), s.read(o), s.read(q), s.read(k), a, s.first(a), s.sinks(a)))
	}
}

func (s *slowStream) Deinterleave(a, b, x device.Tensor, width int) {
	device.CheckDeinterleave(a, b, x, width)
	even, odd := s.ops.deinterleave(s.read(x), width)
	s.write(a, even)
	s.write(b, odd)
}

func (s *slowStream) Interleave(x, a, b device.Tensor, width int) {
	device.CheckInterleave(x, a, b, width)
	s.write(x, s.ops.interleave(s.read(a), s.read(b), width))
}

func (s *slowStream) GLU(m, gu device.Tensor, act device.Activation) {
	device.CheckGLU(m, gu, act)
	s.write(m, s.ops.glu(s.read(gu), act))
}

func (s *slowStream) MatMulGLU(m, gu, x device.Tensor, w device.Weight, act device.Activation, keep bool) {
	device.CheckMatMulGLU(m, gu, x, w, act)
	out := s.ops.linear(s.read(x), w.(*slowWeight).m(), ref.Mat{})
	if keep && s.ops.keepsProduct {
		s.write(gu, out)
	}
	if s.ops.gatesStored {
		round(out, gu.DType)
	}
	s.write(m, s.ops.gated(out, act))
	if !keep {
		for i := range out.V {
			out.V[i] = math.NaN() // as the interface allows
		}
		s.write(gu, out)
	}
}

func (s *slowStream) GLUBackward(dgu, dm, gu device.Tensor, act device.Activation) {
	device.CheckGLUBackward(dgu, dm, gu, act)
	if s.ops.readsFirst {
		s.write(dgu, s.ops.gluBack(s.read(dm), s.read(gu), act))
		return
	}
	f := dm.Cols
	s.write(dgu.ColRange(0, f), s.ops.gluBack(s.read(dm), s.read(gu), act).ColRange(0, f))
	s.write(dgu.ColRange(f, 2*f), s.ops.gluBack(s.read(dm), s.read(gu), act).ColRange(f, 2*f))
}

func (s *slowStream) Add(dst, src device.Tensor) {
	device.CheckAdd(dst, src)
	sum := s.read(dst)
	s.ops.plus(sum, s.read(src))
	s.write(dst, sum)
}

func (s *slowStream) Scale(y, x device.Tensor, f float64) {
	device.CheckScale(y, x, f)
	s.write(y, s.ops.scale(s.read(x), f))
}

func (s *slowStream) Mix(y, t device.Tensor, w, temperature float64, add bool) {
	device.CheckMix(y, t, w, temperature)
	var before ref.Mat
	if add {
		before = s.read(y)
	}
	s.write(y, s.ops.mix(before, s.read(t), w, temperature))
}

func (s *slowStream) SoftCap(y, x device.Tensor, c float64) {
	device.CheckSoftCap(y, x, c)
	s.write(y, s.ops.softCap(s.read(x), c))
}

func (s *slowStream) Dropout(y, x device.Tensor, d device.Drop) {
	device.CheckDropout(y, x, d)
	s.write(y, s.ops.dropout(s.read(x), d))
}
