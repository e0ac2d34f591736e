package cuda

import (
	"apr/device"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
	"apr/tensor"
)

// Two things are put off until somebody looks, and mostly nobody does. A gradient that is set to zero is first written
// by a product, which can as well overwrite it: that saves writing it once and reading it once. And the bfloat16 copy of
// a bias that cublasLt wants stays valid until the bias changes.

// putOff notes that a gradient shall be zero instead of writing it, and reports whether it did.
func (s *Stream) putOff(t device.Tensor) bool {
	b := t.Buf.(*buffer)
	if s.failed() || !b.live || b.temp || b.void != nil || b.comp != device.Gradients || !all(t, b) {
		return false
	}
	s.athome("Zero", b)
	b.owed = true
	return true
}

// all reports whether t is all of its buffer.
func all(t device.Tensor, b *buffer) bool {
	return t.Off == 0 && t.Dense() && int64(t.Rows)*int64(t.Cols)*int64(t.DType.BlockBytes()) == b.bytes
}

// settle writes the zeros that b owes.
func (s *Stream) settle(b *buffer) {
	if !b.owed {
		return
	}
	b.owed = false
	s.clear(b, 0)
}

// clear zeroes b from a byte on.
func (s *Stream) clear(b *buffer, from int64) {
	if from == b.bytes {
		return
	}
	d, at := s.dev, b.place.address()+uint64(from)
	o := &operation{dev: d, stream: s, name: "Zero"}
	o.call(func(t *driver.Thread) error { return t.Memset8(at, 0, b.bytes-from, d.stream) })
	o.end()
}

// overwrites reports whether a product may overwrite dw, the first rows of its buffer, because what it would add to is
// zero and not yet written. The rest of the buffer is zeroed.
func (s *Stream) overwrites(dw device.Tensor) bool {
	b := dw.Buf.(*buffer)
	if !b.owed || s.failed() || dw.Off != 0 || !dw.Dense() {
		return false
	}
	b.owed = false
	s.clear(b, int64(dw.Rows)*int64(dw.Cols)*int64(dw.DType.BlockBytes()))
	return true
}

// touched prepares a buffer for an operation: zeros that it owes are written, and copies of it are no longer valid.
func (s *Stream) touched(b *buffer) {
	s.settle(b)
	if b.narrow != nil && !b.stale {
		s.dev.replays.changed()
	}
	b.stale = true
}

// touchAll does it for parameters that a kernel reaches through a table.
func (s *Stream) touchAll(params []*device.Param) {
	for _, p := range params {
		for _, t := range []device.Tensor{p.Value, p.Grad, p.M, p.V} {
			b := t.Buf.(*buffer)
			s.athome("an operation on parameters", b)
			s.touched(b)
		}
		if b, ok := p.Weight.(*weight).t.Buf.(*buffer); ok {
			s.athome("an operation on parameters", b)
		}
	}
}

// narrowBias returns a float32 bias in type d, from a copy that is made again when the bias may have changed.
func (o *operation) narrowBias(bias device.Tensor, d tensor.DType) kernel.Mat {
	b := bias.Buf.(*buffer)
	if b.temp {
		return o.rounded(mat(bias), d)
	}
	n := int(b.bytes) / bias.DType.BlockBytes()
	if b.narrow == nil {
		var err error
		if b.narrow, err = o.dev.take("the bfloat16 copy of "+b.name, device.Scratch, device.TensorBytes(device.OpMatMul, d, 1, n), false); err != nil {
			b.narrow = nil
			return o.rounded(mat(bias), d)
		}
		b.copies = append(b.copies, b.narrow)
		b.stale = true
	}
	c := kernel.Mat{Ptr: b.narrow.place.address(), Rows: 1, Cols: n, Stride: n, Type: d}
	if b.stale {
		b.stale = false // so it has to be copied even if this stream fails before
		q := &operation{dev: o.dev, stream: o.dev.internal(), name: "the copy of a bias"}
		kernel.Copy(q, c, kernel.Mat{Ptr: b.place.address(), Rows: 1, Cols: n, Stride: n, Type: bias.DType})
		q.end()
	}
	c.Ptr += uint64(bias.Off * d.BlockBytes())
	c.Cols = bias.Cols
	return c
}
