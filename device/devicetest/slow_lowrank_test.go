package devicetest

import (
	"apr/device"
	"apr/internal/ref"
)

// lowOps are the operations of adapters that a mutant may replace: of a part, but for down and the last two.
type lowOps struct {
	down     func(x, a ref.Mat) ref.Mat
	up       func(u, b ref.Mat, scale float64) ref.Mat
	gradB    func(dy, u ref.Mat, scale float64) ref.Mat
	gradU    func(dy, b ref.Mat, scale float64) ref.Mat
	gradA    func(du, x ref.Mat) ref.Mat
	gradX    func(du, a ref.Mat) ref.Mat
	allParts bool                                   // not the first one alone
	addsB    bool                                   // gradients of B are added
	addsX    bool                                   // LowRankInputGrad adds where it is told to
	factor   func(b ref.Mat, scale float64) ref.Mat // of MatMulLowRankGLU
	gates    bool                                   // MatMulLowRankGLU makes the unit of what adapters have added
}

func rightLow() lowOps {
	product := func(a, b ref.Mat) ref.Mat { return ref.Linear(a, b, ref.Mat{}) }
	weight := func(dy, x ref.Mat) ref.Mat {
		_, dw, _ := ref.LinearBackward(dy, x, ref.New(dy.Cols, x.Cols))
		return dw
	}
	input := func(dy, w ref.Mat) ref.Mat {
		dx, _, _ := ref.LinearBackward(dy, ref.New(dy.Rows, w.Cols), w)
		return dx
	}
	return lowOps{
		down: product, gradA: weight, gradX: input, allParts: true, addsB: true, addsX: true, gates: true, factor: ref.Scale,
		up:    func(u, b ref.Mat, scale float64) ref.Mat { return ref.Scale(product(u, b), scale) },
		gradB: func(dy, u ref.Mat, scale float64) ref.Mat { return ref.Scale(weight(dy, u), scale) },
		gradU: func(dy, b ref.Mat, scale float64) ref.Mat { return ref.Scale(input(dy, b), scale) },
	}
}

// parts are those of l that are computed.
func (o *lowOps) parts(l device.LowRank) []device.LowRankPart {
	if o.allParts {
		return l.Parts
	}
	return l.Parts[:1]
}

// lowB returns the rows of B that are used.
func lowB(p device.LowRankPart) ref.Mat { return p.B.(*slowWeight).m().RowRange(0, p.Hi-p.Lo) }

func (s *slowStream) LowRank(y, m, u, x device.Tensor, l device.LowRank, act device.Activation) {
	device.CheckLowRank(y, m, u, x, l, act)
	s.write(u, s.ops.low.down(s.read(x), l.A.(*slowWeight).m()))
	if y.IsZero() {
		return
	}
	for _, p := range s.ops.low.parts(l) {
		s.add(y.ColRange(p.Lo, p.Hi), s.ops.low.up(s.read(u.ColRange(p.From, p.To)), lowB(p), p.Scale))
	}
	if !m.IsZero() {
		s.write(m, s.ops.gated(s.read(y), act))
	}
}

func (s *slowStream) LowRankWeightGrad(du, dy, x, u device.Tensor, l device.LowRank) {
	device.CheckLowRankWeightGrad(du, dy, x, u, l)
	o := &s.ops.low
	for _, p := range o.parts(l) {
		d := s.read(dy.ColRange(p.Lo, p.Hi))
		db := o.gradB(d, s.read(u.ColRange(p.From, p.To)), p.Scale)
		if o.addsB {
			s.add(p.GradB, db)
		} else {
			s.write(p.GradB, db)
		}
		s.write(du.ColRange(p.From, p.To), o.gradU(d, lowB(p), p.Scale))
	}
	s.add(l.GradA, o.gradA(s.read(du), s.read(x)))
}

func (s *slowStream) LowRankInputGrad(dx, du device.Tensor, l device.LowRank, add bool) {
	device.CheckLowRankInputGrad(dx, du, l)
	out := s.ops.low.gradX(s.read(du), l.A.(*slowWeight).m())
	if add && s.ops.low.addsX {
		s.add(dx, out)
	} else {
		s.write(dx, out)
	}
}

func (s *slowStream) ServesLowRankGLU(
	m, gu, x, u device.Tensor, w device.Weight, l device.LowRank, act device.Activation,
) bool {
	device.CheckMatMulLowRankGLU(m, gu, x, u, w, l, act)
	return true
}

func (s *slowStream) MatMulLowRankGLU(
	m, gu, x, u device.Tensor, w device.Weight, l device.LowRank, act device.Activation,
) {
	device.CheckMatMulLowRankGLU(m, gu, x, u, w, l, act)
	out := s.ops.linear(s.read(x), w.(*slowWeight).m(), ref.Mat{})
	plain := out.Clone()
	for _, p := range s.ops.low.parts(l) {
		addColumns(out, p.Lo, ref.Linear(s.read(u.ColRange(p.From, p.To)), s.ops.low.factor(lowB(p), p.Scale), ref.Mat{}))
	}
	s.write(gu, out)
	if s.ops.low.gates {
		s.write(m, s.ops.gated(s.read(gu), act))
		return
	}
	round(plain, gu.DType)
	s.write(m, s.ops.gated(plain, act))
}
