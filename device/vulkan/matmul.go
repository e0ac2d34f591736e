package vulkan

import (
	"apr/device"
	"apr/device/dry"
	"apr/device/vulkan/kernel"
)

// MatMul: y = x·Wᵀ (+ bias) or, with add, y += x·Wᵀ (+ bias), over the first y.Cols rows of W.
func (s *Stream) MatMul(y, x device.Tensor, w device.Weight, bias device.Tensor, add bool) {
	device.CheckMatMul(y, x, w, bias)
	if s.begin() {
		s.multiply(mat(y), mat(x), w.(*weight), mat(bias), add)
		s.end()
	}
}

func (s *Stream) multiply(y, x kernel.Mat, w *weight, bias kernel.Mat, add bool) {
	for _, p := range w.parts {
		lo, hi := p.first, min(p.first+p.Rows, y.Cols)
		if lo < hi {
			kernel.MatMul(s, y.Columns(lo, hi), x, p.Weight, bias.Columns(lo, hi), add)
		}
	}
}

// MatMulInputGrad: dx = dy·W, or dx += dy·W with add, over the first dy.Cols rows of W.
func (s *Stream) MatMulInputGrad(dx, dy device.Tensor, w device.Weight, add bool) {
	device.CheckMatMulInputGrad(dx, dy, w)
	if s.begin() {
		s.inputGrad(mat(dx), mat(dy), w.(*weight), add)
		s.end()
	}
}

func (s *Stream) inputGrad(dx, dy kernel.Mat, w *weight, add bool) {
	if dy.Cols == 0 && !add {
		kernel.Fill(s, dx, 0)
	}
	for _, p := range w.parts {
		lo, hi := p.first, min(p.first+p.Rows, dy.Cols)
		if lo < hi {
			kernel.InputGrad(s, dx, dy.Columns(lo, hi), p.Weight, add || lo > 0)
		}
	}
}

// MatMulWeightGrad: dw += dyᵀ·x, and dbias += Σ_rows dy unless dbias is zero.
func (s *Stream) MatMulWeightGrad(dw, dbias, dy, x device.Tensor) {
	device.CheckMatMulWeightGrad(dw, dbias, dy, x)
	if !s.begin() {
		return
	}
	kernel.WeightGrad(s, mat(dw), mat(dy), mat(x))
	if !dbias.IsZero() {
		kernel.Columns(s, mat(dbias), mat(dy))
	}
	s.end()
}

// LowRank: u = x·Aᵀ, y += Scale·u·Bᵀ of each part, and m = act(g)·u' of y unless m is zero.
func (s *Stream) LowRank(y, m, u, x device.Tensor, l device.LowRank, act device.Activation) {
	device.CheckLowRank(y, m, u, x, l, act)
	if !s.begin() {
		return
	}
	s.multiply(mat(u), mat(x), l.A.(*weight), kernel.Mat{}, false)
	if !y.IsZero() {
		for _, p := range l.Parts {
			s.multiply(mat(y.ColRange(p.Lo, p.Hi)), s.times(mat(u.ColRange(p.From, p.To)), p.Scale), p.B.(*weight),
				kernel.Mat{}, true)
		}
	}
	if !m.IsZero() {
		kernel.GLU(s, mat(m), mat(y), act)
	}
	s.end()
}

// LowRankWeightGrad: dB += Scale·dyᵀ·u, du = Scale·dy·B of each part, then dA += duᵀ·x.
func (s *Stream) LowRankWeightGrad(du, dy, x, u device.Tensor, l device.LowRank) {
	device.CheckLowRankWeightGrad(du, dy, x, u, l)
	if !s.begin() {
		return
	}
	for _, p := range l.Parts {
		d, c := mat(dy.ColRange(p.Lo, p.Hi)), mat(du.ColRange(p.From, p.To))
		kernel.WeightGrad(s, mat(p.GradB), d, s.times(mat(u.ColRange(p.From, p.To)), p.Scale))
		s.inputGrad(c, d, p.B.(*weight), false)
		if p.Scale != 1 {
			kernel.Scale(s, c, c, p.Scale)
		}
	}
	kernel.WeightGrad(s, mat(l.GradA), mat(du), mat(x))
	s.end()
}

// LowRankInputGrad: dx = du·A, or dx += du·A with add.
func (s *Stream) LowRankInputGrad(dx, du device.Tensor, l device.LowRank, add bool) {
	device.CheckLowRankInputGrad(dx, du, l)
	if s.begin() {
		s.inputGrad(mat(dx), mat(du), l.A.(*weight), add)
		s.end()
	}
}

// times returns f·x.
func (s *Stream) times(x kernel.Mat, f float64) kernel.Mat {
	if f == 1 {
		return x
	}
	y := s.Scratch(x.Rows, x.Cols)
	kernel.Scale(s, y, x, f)
	return y
}

var _ dry.Multiplier = (*Stream)(nil)

// PrepareProducts does nothing: there are no plans of products.
func (s *Stream) PrepareProducts([]dry.Op) error { return nil }

// Multiply runs a recorded product over float32 operands.
func (s *Stream) Multiply(o dry.Op, m dry.Operands) {
	switch o.Kind {
	case device.OpMatMul, device.OpMatMulGLU:
		s.MatMul(m.Out, m.In, s.dev.Frozen(m.Other), m.Bias, o.Add)
	case device.OpMatMulInputGrad:
		s.MatMulInputGrad(m.Out, m.In, s.dev.Frozen(m.Other), o.Add)
	case device.OpMatMulWeightGrad:
		s.MatMulWeightGrad(m.Out, device.Tensor{}, m.In, m.Other)
	default:
		s.fail(dry.NotAlone(o))
	}
}
