package dry

import (
	"apr/device"
)

// Conv records the operation.
func (s *Stream) Conv(y, x, w, from, to device.Tensor, c device.Sequences) {
	device.CheckConv(y, x, w, from, to, c)
	s.convolution(device.OpConv, y, x, w, c, use(device.OpConv, from, to))
}

// ConvBackward records the operation.
func (s *Stream) ConvBackward(dx, dw, dy, x, w device.Tensor, c device.Sequences) {
	device.CheckConvBackward(dx, dw, dy, x, w, c)
	s.convolution(device.OpConvBackward, dx, x, w, c, use(device.OpConvBackward, dy)+2*use(device.OpConvBackward, dw))
}

// convolution records one that also moves `more` bytes.
func (s *Stream) convolution(kind device.Op, out, x, w device.Tensor, c device.Sequences, more float64) {
	o := Op{Kind: kind, In: x.DType, Out: out.DType, Rows: x.Rows, Cols: x.Cols, Documents: !c.First.IsZero()}
	s.count(o, 0, use(kind, out, x, w, c.First)+more)
}

// DeltaNet records the operation.
func (s *Stream) DeltaNet(o, u, ba, logA, dt, from, to device.Tensor, d device.Delta) {
	device.CheckDeltaNet(o, u, ba, logA, dt, from, to, d)
	const kind = device.OpDeltaNet
	s.count(delta(kind, u, o, d), 2*float64(d.MulAdds(false)), use(kind, o, u, ba, logA, dt, from, to, d.First))
}

// DeltaNetBackward records the operation.
func (s *Stream) DeltaNetBackward(du, dba, dLogA, ddt, do, u, ba, logA, dt, states device.Tensor, d device.Delta) {
	device.CheckDeltaNetBackward(du, dba, dLogA, ddt, do, u, ba, logA, dt, states, d)
	const kind = device.OpDeltaNetBackward
	n := use(kind, du, dba, do, u, ba, logA, dt, d.First) + 2*use(kind, dLogA, ddt, states)
	s.count(delta(kind, u, du, d), 2*float64(d.MulAdds(true)), n)
}

// delta describes one: where First is does not matter.
func delta(kind device.Op, in, out device.Tensor, d device.Delta) Op {
	o := Op{Kind: kind, In: in.DType, Out: out.DType, Delta: d, Documents: !d.First.IsZero()}
	o.Delta.First = device.Tensor{}
	return o
}
