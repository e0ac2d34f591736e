package devicetest

import (
	"apr/device"
	"apr/internal/ref"
)

// firsts returns the values of First, or nil.
func (s *slowStream) firsts(c device.Sequences) []int {
	if c.First.IsZero() {
		return nil
	}
	return s.ints(c.First)
}

func (s *slowStream) Conv(y, x, w, from, to device.Tensor, c device.Sequences) {
	device.CheckConv(y, x, w, from, to, c)
	out, last := s.ops.conv(s.read(x), s.read(w), c, s.firsts(c), s.optional(from))
	s.write(y, out)
	if !to.IsZero() {
		s.write(to, last)
	}
}

func (s *slowStream) ConvBackward(dx, dw, dy, x, w device.Tensor, c device.Sequences) {
	device.CheckConvBackward(dx, dw, dy, x, w, c)
	a, b := s.ops.convBack(s.read(dy), s.read(x), s.read(w), c, s.firsts(c))
	s.write(dx, a)
	s.add(dw, b)
}

func (s *slowStream) DeltaNet(o, u, ba, logA, dt, from, to device.Tensor, d device.Delta) {
	device.CheckDeltaNet(o, u, ba, logA, dt, from, to, d)
	out, last := s.ops.delta(s.read(u), s.read(ba), s.read(logA), s.read(dt), d, s.firsts(d.Sequences), s.optional(from))
	s.write(o, out)
	if !to.IsZero() {
		s.write(to, last)
	}
}

func (s *slowStream) DeltaNetBackward(du, dba, dLogA, ddt, do, u, ba, logA, dt, states device.Tensor, d device.Delta) {
	device.CheckDeltaNetBackward(du, dba, dLogA, ddt, do, u, ba, logA, dt, states, d)
	w, x, y, z := s.ops.deltaBack(s.read(do), s.read(u), s.read(ba), s.read(logA), s.read(dt), d, s.firsts(d.Sequences))
	s.write(du, w)
	s.write(dba, x)
	s.add(dLogA, y)
	s.add(ddt, z)
}

// linearMutants are mistakes in linear attention.
var linearMutants = []mutant{
	{"convolution without its oldest tap", "conv/", func(o *ops) {
		o.conv = func(x, w ref.Mat, c device.Sequences, first []int, from ref.Mat) (y, to ref.Mat) {
			less := w.Clone()
			for r := range w.Rows {
				less.Row(r)[0] = 0
			}
			return ref.Conv(x, less, c, first, from)
		}
	}},
	{"convolution across documents", "conv/", func(o *ops) {
		o.conv = func(x, w ref.Mat, c device.Sequences, _ []int, from ref.Mat) (y, to ref.Mat) {
			return ref.Conv(x, w, c, nil, from)
		}
	}},
	{"convolution that forgets the inputs before", "conv/", func(o *ops) {
		o.conv = func(x, w ref.Mat, c device.Sequences, first []int, _ ref.Mat) (y, to ref.Mat) {
			return ref.Conv(x, w, c, first, ref.Mat{})
		}
	}},
	{"gradient of a convolution across documents", "conv/", func(o *ops) {
		o.convBack = func(dy, x, w ref.Mat, c device.Sequences, _ []int) (dx, dw ref.Mat) {
			return ref.ConvBackward(dy, x, w, c, nil)
		}
	}},
	{"value heads tiled over key heads", "delta/", func(o *ops) { o.delta = tiledHeads }},
	{"state kept across documents", "delta/", func(o *ops) {
		o.delta = func(u, ba, logA, dt ref.Mat, d device.Delta, _ []int, from ref.Mat) (x, to ref.Mat) {
			return ref.DeltaNet(u, ba, logA, dt, d, nil, from)
		}
	}},
	{"gradient of the state kept across documents", "delta/", func(o *ops) {
		o.deltaBack = func(do, u, ba, logA, dt ref.Mat, d device.Delta, _ []int) (a, b, c, e ref.Mat) {
			return ref.DeltaNetBackward(do, u, ba, logA, dt, d, nil)
		}
	}},
	{"state before forgotten", "delta/", func(o *ops) {
		o.delta = func(u, ba, logA, dt ref.Mat, d device.Delta, first []int, _ ref.Mat) (x, to ref.Mat) {
			return ref.DeltaNet(u, ba, logA, dt, d, first, ref.Mat{})
		}
	}},
	{"l2 without eps", "delta/tiny", func(o *ops) {
		o.delta = func(u, ba, logA, dt ref.Mat, d device.Delta, first []int, from ref.Mat) (x, to ref.Mat) {
			large := u.Clone() // beside 1e6 times a vector eps is nothing
			for r := range u.Rows {
				for c := range 2 * d.KeyHeads * d.KeyDim {
					large.Row(r)[c] *= 1e6
				}
			}
			return ref.DeltaNet(large, ba, logA, dt, d, first, from)
		}
	}},
	{"beta missing", "delta/", func(o *ops) {
		o.delta = func(u, ba, logA, dt ref.Mat, d device.Delta, first []int, from ref.Mat) (x, to ref.Mat) {
			ones := ba.Clone() // σ(40) is 1
			for r := range ba.Rows {
				for h := range d.ValueHeads {
					ones.Row(r)[h] = 40
				}
			}
			return ref.DeltaNet(u, ones, logA, dt, d, first, from)
		}
	}},
	{"decay behind the update", "delta/", func(o *ops) {
		o.delta = func(u, ba, logA, dt ref.Mat, d device.Delta, first []int, from ref.Mat) (x, to ref.Mat) {
			return ref.DeltaNetLate(u, ba, logA, dt, d, first, from)
		}
	}},
	{"gradients of the decay overwritten", "delta/", func(o *ops) { o.accumulate = func(into, m ref.Mat) { copy(into.V, m.V) } }},
}

// tiledHeads is the delta rule with value head h at key head h mod KeyHeads.
func tiledHeads(u, ba, logA, dt ref.Mat, d device.Delta, first []int, from ref.Mat) (o, to ref.Mat) {
	if d.KeyHeads == d.ValueHeads || from.V != nil {
		return ref.DeltaNet(u, ba, logA, dt, d, first, from)
	}
	hv, keys := d.ValueHeads, 2*d.KeyHeads*d.KeyDim
	at := func(h int) int { return h%d.KeyHeads*(hv/d.KeyHeads) + h/d.KeyHeads } // where grouped heads have h's key head
	move := func(m ref.Mat, width int, back bool) ref.Mat {
		out := m.Clone()
		for r := range m.Rows {
			for h := range hv {
				a, b := at(h), h
				if back {
					a, b = b, a
				}
				copy(out.Row(r)[a*width:(a+1)*width], m.Row(r)[b*width:(b+1)*width])
			}
		}
		return out
	}
	u = ref.Beside(u.ColRange(0, keys), move(u.ColRange(keys, u.Cols), d.ValueDim, false))
	ba = ref.Beside(move(ba.ColRange(0, hv), 1, false), move(ba.ColRange(hv, 2*hv), 1, false))
	o, to = ref.DeltaNet(u, ba, move(logA, 1, false), move(dt, 1, false), d, first, from)
	return move(o, d.ValueDim, true), to
}
