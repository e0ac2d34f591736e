package cpu

import "apr/device"

// gluOp is a gated unit and its backward.
type gluOp struct {
	s          *Stream
	m, gu, dgu mat
	act        device.Activation
	fwd, bwd   func(worker, lo, hi int)
}

// GLU: m = act(g)·u, gu [n, 2f] holding g then u.
func (s *Stream) GLU(m, gu device.Tensor, act device.Activation) {
	device.CheckGLU(m, gu, act)
	if !s.begin() {
		return
	}
	o := &s.ops.glu
	o.m, o.gu, o.act = floats(m), floats(gu), act
	s.split(o.m.rows, rowGrain(o.m.cols), o.fwd)
	s.end(device.OpGLU, 0)
}

func (o *gluOp) forward(_, lo, hi int) {
	f, isa := o.m.cols, o.s.isa
	for r := lo; r < hi; r++ {
		gu := o.gu.row(r)
		m, g, u := o.m.row(r), gu[:f], gu[f:]
		switch o.act {
		case device.GELUTanh:
			isa.GeluMul(m, g, u)
		case device.OSS:
			isa.OSSMul(m, g, u)
		case device.Sigmoid:
			isa.SigmoidMul(m, g, u)
		default:
			isa.SiluMul(m, g, u)
		}
	}
}

// MatMulGLU: gu = x·Wᵀ and m = act(g)·u. gu is kept in any case.
func (s *Stream) MatMulGLU(m, gu, x device.Tensor, w device.Weight, act device.Activation, _ bool) {
	device.CheckMatMulGLU(m, gu, x, w, act)
	s.MatMul(gu, x, w, device.Tensor{}, false)
	s.GLU(m, gu, act)
}

// GLUBackward writes dgu: dg = dm·u·act'(g), du = dm·act(g). dgu may be gu itself.
func (s *Stream) GLUBackward(dgu, dm, gu device.Tensor, act device.Activation) {
	device.CheckGLUBackward(dgu, dm, gu, act)
	if !s.begin() {
		return
	}
	o := &s.ops.glu
	o.dgu, o.m, o.gu, o.act = floats(dgu), floats(dm), floats(gu), act
	s.split(o.m.rows, rowGrain(o.m.cols), o.bwd)
	s.end(device.OpGLUBackward, 0)
}

func (o *gluOp) backward(_, lo, hi int) {
	f, isa := o.m.cols, o.s.isa
	for r := lo; r < hi; r++ {
		gu, dgu := o.gu.row(r), o.dgu.row(r)
		dg, du, dm, g, u := dgu[:f], dgu[f:], o.m.row(r), gu[:f], gu[f:]
		switch o.act {
		case device.GELUTanh:
			isa.GeluMulGrad(dg, du, dm, g, u)
		case device.OSS:
			isa.OSSMulGrad(dg, du, dm, g, u)
		case device.Sigmoid:
			isa.SigmoidMulGrad(dg, du, dm, g, u)
		default:
			isa.SiluMulGrad(dg, du, dm, g, u)
		}
	}
}

// elementsOp is an operation on elements of y and x, with a number.
type elementsOp struct {
	s               *Stream
	y, x            mat
	f               float32
	drop            device.Drop
	add, scale, cap func(worker, lo, hi int)
	dropout         func(worker, lo, hi int)
}

// elements runs one of the loops of an elementsOp.
func (s *Stream) elements(op device.Op, y, x device.Tensor, f float64, loop func(worker, lo, hi int)) {
	if !s.begin() {
		return
	}
	o := &s.ops.elements
	o.y, o.x, o.f = floats(y), floats(x), float32(f)
	s.split(o.x.rows, rowGrain(o.x.cols), loop)
	s.end(op, 0)
}

// Add: dst += src.
func (s *Stream) Add(dst, src device.Tensor) {
	device.CheckAdd(dst, src)
	s.elements(device.OpAdd, dst, src, 0, s.ops.elements.add)
}

// Scale: y = f·x.
func (s *Stream) Scale(y, x device.Tensor, f float64) {
	device.CheckScale(y, x, f)
	s.elements(device.OpScale, y, x, f, s.ops.elements.scale)
}

// SoftCap: y = c·tanh(x/c).
func (s *Stream) SoftCap(y, x device.Tensor, c float64) {
	device.CheckSoftCap(y, x, c)
	s.elements(device.OpSoftCap, y, x, c, s.ops.elements.cap)
}

// Dropout: y = x/(1−rate) where d keeps a value, else 0.
func (s *Stream) Dropout(y, x device.Tensor, d device.Drop) {
	device.CheckDropout(y, x, d)
	s.ops.elements.drop = d
	s.elements(device.OpDropout, y, x, 0, s.ops.elements.dropout)
}

func (o *elementsOp) dropped(_, lo, hi int) {
	below, scale := o.drop.Threshold()
	for r := lo; r < hi; r++ {
		x, y := o.x.row(r), o.y.row(r)
		at := uint64(o.drop.First+r) * uint64(len(x))
		for c, v := range x {
			if y[c] = v * scale; device.DropNumber(o.drop.Key, at+uint64(c)) < below {
				y[c] = 0
			}
		}
	}
}

func (o *elementsOp) added(_, lo, hi int) {
	for r := lo; r < hi; r++ {
		o.s.isa.Add(o.y.row(r), o.x.row(r))
	}
}

func (o *elementsOp) scaled(_, lo, hi int) {
	for r := lo; r < hi; r++ {
		y := o.y.row(r)
		copy(y, o.x.row(r))
		o.s.isa.Scale(y, o.f)
	}
}

func (o *elementsOp) capped(_, lo, hi int) {
	for r := lo; r < hi; r++ {
		o.s.isa.SoftCap(o.y.row(r), o.x.row(r), o.f)
	}
}
