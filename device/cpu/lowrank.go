package cpu

import "apr/device"

// LowRank: u = x·Aᵀ, y += Scale·u·Bᵀ of each part, and m = act(g)·u' of y unless m is zero.
func (s *Stream) LowRank(y, m, u, x device.Tensor, l device.LowRank, act device.Activation) {
	device.CheckLowRank(y, m, u, x, l, act)
	if !s.begin() {
		return
	}
	c, a := floats(u), floats(x)
	s.multiply(c, a, l.A.(*weight), 0, nil, false)
	flops := 2 * int64(c.rows) * int64(c.cols) * int64(a.cols)
	if !y.IsZero() {
		for _, p := range l.Parts {
			c, a := floats(y.ColRange(p.Lo, p.Hi)), s.times(floats(u.ColRange(p.From, p.To)), p.Scale)
			s.multiply(c, a, p.B.(*weight), 0, nil, true)
			flops += 2 * int64(c.rows) * int64(c.cols) * int64(a.cols)
		}
	}
	s.end(device.OpLowRank, flops)
	if !m.IsZero() {
		s.GLU(m, y, act)
	}
}

// LowRankWeightGrad: dB += Scale·dyᵀ·u, du = Scale·dy·B of each part, then dA += duᵀ·x.
func (s *Stream) LowRankWeightGrad(du, dy, x, u device.Tensor, l device.LowRank) {
	device.CheckLowRankWeightGrad(du, dy, x, u, l)
	if !s.begin() {
		return
	}
	flops := int64(0)
	for _, p := range l.Parts {
		d, c := floats(dy.ColRange(p.Lo, p.Hi)), floats(du.ColRange(p.From, p.To))
		s.weightGrad(floats(p.GradB), mat{}, d, s.times(floats(u.ColRange(p.From, p.To)), p.Scale))
		s.inputGrad(c, d, p.B.(*weight), 0, false)
		if p.Scale != 1 {
			s.scaleInto(c, c, p.Scale)
		}
		flops += 4 * int64(c.rows) * int64(c.cols) * int64(d.cols)
	}
	a, b := floats(du), floats(x)
	s.weightGrad(floats(l.GradA), mat{}, a, b)
	s.end(device.OpLowRankWeightGrad, flops+2*int64(a.rows)*int64(a.cols)*int64(b.cols))
}

// LowRankInputGrad: dx = du·A, or dx += du·A with add.
func (s *Stream) LowRankInputGrad(dx, du device.Tensor, l device.LowRank, add bool) {
	device.CheckLowRankInputGrad(dx, du, l)
	if !s.begin() {
		return
	}
	c, a := floats(dx), floats(du)
	s.inputGrad(c, a, l.A.(*weight), 0, add)
	s.end(device.OpLowRankInputGrad, 2*int64(c.rows)*int64(c.cols)*int64(a.cols))
}

// times returns f·x, in memory that the next call uses too.
func (s *Stream) times(x mat, f float64) mat {
	if f == 1 {
		return x
	}
	s.ops.thin = grow(s.ops.thin, x.rows*x.cols)
	y := mat{d: s.ops.thin, rows: x.rows, cols: x.cols, stride: x.cols}
	s.scaleInto(y, x, f)
	return y
}

// scaleInto writes y = f·x.
func (s *Stream) scaleInto(y, x mat, f float64) {
	o := &s.ops.elements
	o.y, o.x, o.f = y, x, float32(f)
	s.split(x.rows, rowGrain(x.cols), o.scale)
}
