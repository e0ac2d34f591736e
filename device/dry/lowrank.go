package dry

import "apr/device"

// Operations of adapters are recorded as the products that they are, one for each matrix, with Op.Thin: a device may have kernels
// that do several of them at once.

// thin records y (+)= in·other with M, N, K and the rank.
func (s *Stream) thin(kind device.Op, y, in device.Tensor, add bool, m, n, k, rank int, other float64, w *weight) {
	o := Op{M: m, N: n, K: k, Thin: rank}
	if w != nil {
		s.with(w, &o, false)
	} else {
		o.Weight = in.DType.String()
	}
	s.product(kind, y, in, device.Tensor{}, add, o, other)
}

// LowRank records its products, and the gated unit as GLU.
func (s *Stream) LowRank(y, m, u, x device.Tensor, l device.LowRank, act device.Activation) {
	device.CheckLowRank(y, m, u, x, l, act)
	a := l.A.(*weight)
	s.thin(device.OpMatMul, u, x, false, x.Rows, u.Cols, x.Cols, u.Cols, a.moved(u.Cols), a)
	if y.IsZero() {
		return
	}
	for _, p := range l.Parts {
		b, v := p.B.(*weight), u.ColRange(p.From, p.To)
		if p.Scale != 1 {
			v.Stride = v.Cols // of a scaled copy
		}
		s.thin(device.OpMatMul, y.ColRange(p.Lo, p.Hi), v, true, y.Rows, p.Hi-p.Lo, p.To-p.From, p.To-p.From, b.moved(p.Hi-p.Lo), b)
	}
	if !m.IsZero() {
		s.GLU(m, y, act)
	}
}

// LowRankWeightGrad records its products.
func (s *Stream) LowRankWeightGrad(du, dy, x, u device.Tensor, l device.LowRank) {
	device.CheckLowRankWeightGrad(du, dy, x, u, l)
	for _, p := range l.Parts {
		b, d, v := p.B.(*weight), dy.ColRange(p.Lo, p.Hi), u.ColRange(p.From, p.To)
		s.thin(device.OpMatMulWeightGrad, p.GradB, d, true, d.Cols, v.Cols, d.Rows, v.Cols, use(device.OpMatMulWeightGrad, v), nil)
		s.thin(device.OpMatMulInputGrad, du.ColRange(p.From, p.To), d, false, d.Rows, v.Cols, d.Cols, v.Cols, b.moved(d.Cols), b)
	}
	s.thin(device.OpMatMulWeightGrad, l.GradA, du, true, du.Cols, x.Cols, x.Rows, du.Cols, use(device.OpMatMulWeightGrad, x), nil)
}

// LowRankInputGrad records the product.
func (s *Stream) LowRankInputGrad(dx, du device.Tensor, l device.LowRank, add bool) {
	device.CheckLowRankInputGrad(dx, du, l)
	a := l.A.(*weight)
	s.thin(device.OpMatMulInputGrad, dx, du, add, dx.Rows, dx.Cols, du.Cols, du.Cols, a.moved(du.Cols), a)
}
