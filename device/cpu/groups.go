package cpu

import "apr/device"

// groupsOp moves groups of width columns between x, where those of a and b take turns, and a and b.
type groupsOp struct {
	x, a, b     mat
	width       int
	split, join func(worker, lo, hi int)
}

// Deinterleave: a and b are the even and the odd groups of width columns of x.
func (s *Stream) Deinterleave(a, b, x device.Tensor, width int) {
	device.CheckDeinterleave(a, b, x, width)
	s.grouped(device.OpDeinterleave, a, b, x, width, s.ops.groups.split)
}

// Interleave writes x, of which a and b are the even and the odd groups of width columns.
func (s *Stream) Interleave(x, a, b device.Tensor, width int) {
	device.CheckInterleave(x, a, b, width)
	s.grouped(device.OpInterleave, a, b, x, width, s.ops.groups.join)
}

func (s *Stream) grouped(op device.Op, a, b, x device.Tensor, width int, loop func(worker, lo, hi int)) {
	if !s.begin() {
		return
	}
	o := &s.ops.groups
	o.x, o.a, o.b, o.width = floats(x), floats(a), floats(b), width
	s.split(o.x.rows, rowGrain(o.x.cols), loop)
	s.end(op, 0)
}

func (o *groupsOp) deinterleave(_, lo, hi int) {
	for r := lo; r < hi; r++ {
		x, a, b, w := o.x.row(r), o.a.row(r), o.b.row(r), o.width
		for c := 0; c < len(a); c += w {
			copy(a[c:c+w], x[2*c:])
			copy(b[c:c+w], x[2*c+w:])
		}
	}
}

func (o *groupsOp) interleave(_, lo, hi int) {
	for r := lo; r < hi; r++ {
		x, a, b, w := o.x.row(r), o.a.row(r), o.b.row(r), o.width
		for c := 0; c < len(a); c += w {
			copy(x[2*c:], a[c:c+w])
			copy(x[2*c+w:], b[c:c+w])
		}
	}
}
