package cpu

import "apr/device"

// span returns rows [lo,hi) of m.
func (m mat) span(lo, hi int) mat {
	if m.stride > 0 {
		m.d = m.d[lo*m.stride:]
	}
	m.rows = hi - lo
	return m
}

// fromRow is a weight from one of its rows on.
type fromRow struct {
	w     *weight
	first int
}

// DecodeRow writes columns [lo,hi) of a row to dst.
func (f *fromRow) DecodeRow(dst []float32, row, lo, hi int) { f.w.DecodeRow(dst, f.first+row, lo, hi) }

// GroupedMatMul: y[j] = W_e·x[j] (+ bias[e]) for the slots j of each expert e.
func (s *Stream) GroupedMatMul(y, x device.Tensor, dw device.Weight, bias device.Tensor, r device.Routing) {
	device.CheckGroupedMatMul(y, x, dw, bias, r)
	if !s.begin() {
		return
	}
	w, c, a, b, starts := dw.(*weight), floats(y), floats(x), optional(bias), ints(r.Starts)
	for e := range r.Experts {
		if lo, hi := int(starts[e]), int(starts[e+1]); hi > lo {
			var row []float32
			if b.rows > 0 {
				row = b.row(e)
			}
			s.multiply(c.span(lo, hi), a.span(lo, hi), w, e*c.cols, row, false)
		}
	}
	s.end(device.OpGroupedMatMul, 2*int64(c.rows)*int64(c.cols)*int64(a.cols))
}

// GroupedInputGrad: dx[j] = W_eᵀ·dy[j], or with add dx[j] += it, for the slots j of each expert e.
func (s *Stream) GroupedInputGrad(dx, dy device.Tensor, dw device.Weight, r device.Routing, add bool) {
	device.CheckGroupedInputGrad(dx, dy, dw, r)
	if !s.begin() {
		return
	}
	w, c, a, starts := dw.(*weight), floats(dx), floats(dy), ints(r.Starts)
	for e := range r.Experts {
		if lo, hi := int(starts[e]), int(starts[e+1]); hi > lo {
			s.inputGrad(c.span(lo, hi), a.span(lo, hi), w, e*a.cols, add)
		}
	}
	s.end(device.OpGroupedInputGrad, 2*int64(c.rows)*int64(c.cols)*int64(a.cols))
}

// GroupedWeightGrad: dW_e += Σ_j dy[j]ᵀ·x[j] over the slots j of each expert e, and dbias[e] += Σ_j dy[j] unless dbias is zero.
func (s *Stream) GroupedWeightGrad(dw, dbias, dy, x device.Tensor, r device.Routing) {
	device.CheckGroupedWeightGrad(dw, dbias, dy, x, r)
	if !s.begin() {
		return
	}
	c, a, b, starts := floats(dw), floats(dy), floats(x), ints(r.Starts)
	bias := optional(dbias)
	for e := range r.Experts {
		lo, hi := int(starts[e]), int(starts[e+1])
		if lo == hi {
			continue
		}
		var sum mat
		if bias.rows > 0 {
			sum = bias.span(e, e+1)
		}
		s.weightGrad(c.span(e*a.cols, (e+1)*a.cols), sum, a.span(lo, hi), b.span(lo, hi))
	}
	s.end(device.OpGroupedWeightGrad, 2*int64(a.rows)*int64(a.cols)*int64(b.cols))
}
