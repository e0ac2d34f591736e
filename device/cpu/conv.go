package cpu

import (
	"apr/device"
)

// convGrain is how many channels of a convolution's backward make a task.
const convGrain = 64

// convOp is a causal convolution with SiLU, and its backward. A task of the forward is some rows; one of the backward is some
// channels of all rows, since all of them add to the same dw.
type convOp struct {
	s              *Stream
	y, x, from, to mat
	dx, dw, dy     mat
	w              mat       // [C, K]
	ones           []float32 // what SiLU's loops multiply by
	c              device.Sequences
	begins         []int // of each row, where its document begins; nil: with its sequence
	fwd, bwd       func(worker, lo, hi int)
}

// set takes what forward and backward have in common.
func (o *convOp) set(x, w device.Tensor, c device.Sequences) {
	o.x, o.w, o.c = floats(x), floats(w), c
	o.begins = begins(o.begins, c)
	for len(o.ones) < o.x.cols {
		o.ones = append(o.ones, 1)
	}
}

// begins returns the row at which the document of each row begins, in b if it has room; nil if documents are sequences.
func begins(b []int, c device.Sequences) []int {
	if c.First.IsZero() {
		return nil
	}
	b = b[:0]
	for n, first := range ints(c.First) {
		at := n % c.Len
		if at == 0 || int(first) >= at {
			b = append(b, n)
		} else {
			b = append(b, b[n-1])
		}
	}
	return b
}

// Conv: y_t = silu(Σ_j w_j·x_{t−K+1+j}) by channel.
func (s *Stream) Conv(y, x, w, from, to device.Tensor, c device.Sequences) {
	device.CheckConv(y, x, w, from, to, c)
	if !s.begin() {
		return
	}
	o := &s.ops.conv
	o.set(x, w, c)
	o.y, o.from, o.to = floats(y), optional(from), optional(to)
	s.split(o.x.rows, rowGrain(o.x.cols), o.fwd)
	if !to.IsZero() {
		o.carry()
	}
	s.end(device.OpConv, 0)
}

// input returns the input back rows before row n; nil: it is 0.
func (o *convOp) input(n, back int) []float32 {
	at, seq := n%o.c.Len, n/o.c.Len
	switch {
	case o.begins != nil && n-back < o.begins[n]:
		return nil
	case at >= back:
		return o.x.row(n - back)
	case o.from.cols > 0:
		k := o.w.cols - 1
		return o.from.row(seq*k + k + at - back)
	}
	return nil
}

// sum writes Σ_j w_j·x_{n−K+1+j} of channels [lo, lo+len(y)), the oldest tap first.
func (o *convOp) sum(y []float32, n, lo int) {
	clear(y)
	taps := o.w.cols
	for j := range taps {
		x := o.input(n, taps-1-j)
		if x == nil {
			continue
		}
		x, w := x[lo:lo+len(y)], o.w.d[lo*o.w.stride+j:]
		for c := range y {
			y[c] += w[c*o.w.stride] * x[c]
		}
	}
}

func (o *convOp) forward(_, lo, hi int) {
	for n := lo; n < hi; n++ {
		y := o.y.row(n)
		o.sum(y, n, 0)
		o.s.isa.SiluMul(y, y, o.ones[:len(y)])
	}
}

// carry writes the last K−1 inputs of each sequence to to, which may be from: the oldest first.
func (o *convOp) carry() {
	k := o.w.cols - 1
	for b := range o.c.Batch {
		for i := range k {
			to := o.to.row(b*k + i)
			switch at := o.c.Len - k + i; { // in the sequence
			case at >= 0:
				copy(to, o.x.row(b*o.c.Len+at))
			case o.from.cols > 0:
				copy(to, o.from.row(b*k+k+at))
			default:
				clear(to)
			}
		}
	}
}

// ConvBackward writes dx and adds dw. The sum of dw runs over all rows in ascending order.
func (s *Stream) ConvBackward(dx, dw, dy, x, w device.Tensor, c device.Sequences) {
	device.CheckConvBackward(dx, dw, dy, x, w, c)
	if !s.begin() {
		return
	}
	o := &s.ops.conv
	o.set(x, w, c)
	o.from, o.dx, o.dw, o.dy = mat{}, floats(dx), floats(dw), floats(dy)
	s.split(o.x.cols, convGrain, o.bwd)
	s.end(device.OpConvBackward, 0)
}

// backward goes over the rows of channels [lo, hi): a row of dx is begun before later rows add to it.
func (o *convOp) backward(worker, lo, hi int) {
	l, taps, wide := &o.s.local[worker], o.w.cols, hi-lo
	l.row, l.capped = grow(l.row, wide), grow(l.capped, wide)
	l.sums = growWide(l.sums, wide*taps)
	clear(l.sums)
	z, unused := l.row, l.capped
	for n := range o.x.rows {
		o.sum(z, n, lo)
		o.s.isa.SiluMulGrad(z, unused, o.dy.row(n)[lo:hi], z, o.ones[:wide])
		clear(o.dx.row(n)[lo:hi])
		for j := range taps {
			back := taps - 1 - j
			x := o.input(n, back)
			if x == nil {
				continue
			}
			x, dx, w := x[lo:hi], o.dx.row(n - back)[lo:hi], o.w.d[lo*o.w.stride+j:]
			for c, d := range z {
				dx[c] += w[c*o.w.stride] * d
				l.sums[c*taps+j] += float64(d) * float64(x[c])
			}
		}
	}
	for c := range wide {
		dw := o.dw.row(lo + c)
		for j := range dw {
			dw[j] += float32(l.sums[c*taps+j])
		}
	}
}

// growWide is grow for float64.
func growWide(s []float64, n int) []float64 {
	if cap(s) >= n {
		return s[:n]
	}
	return make([]float64, n)
}
