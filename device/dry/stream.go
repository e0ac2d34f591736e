package dry

import (
	"context"
	"time"

	"apr/device"
	"apr/internal/fault"
	"apr/tensor"
)

// Stream records operations in order.
type Stream struct {
	dev     *Device
	err     error
	phase   device.Phase
	scalars device.Scalars
}

// Temp places a temp as the target would.
func (s *Stream) Temp(name string, c device.Component, t tensor.DType, rows, cols int) device.Tensor {
	d := s.dev
	b := &buffer{name: name, comp: c, bytes: bytesOf(t, rows, cols), temp: true, live: true}
	b.size, b.place = d.target.Temps.Size(b.bytes), d.target.Temps.Place(b.bytes)
	d.placed++
	at(d.both, c).add(b.size)
	d.holding[b] = struct{}{}
	if d.live += b.size; d.live > d.most {
		d.most, d.fresh = d.live, true
	}
	return view(b, t, rows, cols)
}

// Release gives temps back.
func (s *Stream) Release(ts ...device.Tensor) {
	d := s.dev
	d.describePeak()
	for _, t := range ts {
		if t.IsZero() {
			continue
		}
		b := t.Buf.(*buffer)
		if !b.temp || !b.live {
			panic("dry: release of " + b.name + ", which is no temp in use")
		}
		b.live = false
		d.target.Temps.Release(b.place)
		at(d.both, b.comp).add(-b.size)
		d.live -= b.size
		delete(d.holding, b)
	}
}

// describePeak remembers which temps are alive, if there never were more bytes of them.
func (d *Device) describePeak() {
	if !d.fresh {
		return
	}
	d.fresh = false
	d.atPeak = d.atPeak[:0]
	for b := range d.holding {
		d.atPeak = append(d.atPeak, b)
	}
}

// use checks that each tensor lies in a buffer that is alive, and returns the bytes of them all. Zero tensors count 0.
func use(op string, ts ...device.Tensor) (bytes float64) {
	for _, t := range ts {
		if t.IsZero() {
			continue
		}
		b, ok := t.Buf.(*buffer)
		need(ok, op, "a tensor of another device")
		need(b.live, op, b.name+" was given back")
		need(t.Rows >= 0 && t.Cols >= 0 && t.Off >= 0 && (t.Rows < 2 || t.Stride >= t.Cols), op, b.name+" has no such view")
		if t.Rows > 0 && t.Cols > 0 {
			end := int64(t.Off) + int64(t.Rows-1)*int64(t.Stride) + int64(t.Cols)
			need(end*int64(t.DType.BlockBytes()) <= b.bytes, op, b.name+" is smaller than its view")
		}
		bytes += float64(t.Rows) * float64(t.DType.RowBytes(t.Cols))
	}
	return bytes
}

// need panics with the operation's name if its operands do not fit.
func need(ok bool, op, what string) {
	if !ok {
		panic("dry: " + op + ": " + what)
	}
}

// count records an operation.
func (s *Stream) count(o Op, flops, bytes float64) {
	o.Phase = s.phase
	d := s.dev
	i, ok := d.ops[o]
	if !ok {
		i = len(d.list)
		d.ops[o] = i
		d.list = append(d.list, Count{Op: o, FLOPs: flops, Bytes: bytes})
	}
	d.list[i].Times++
}

// Upload takes any values of the tensor's size.
func (s *Stream) Upload(t device.Tensor, src []float32) {
	need(len(src) == t.Rows*t.Cols, "Upload", "length differs from the tensor's")
	use("Upload", t)
}

// UploadInts takes any ids of the tensor's size.
func (s *Stream) UploadInts(t device.Tensor, src []int32) {
	need(len(src) == t.Rows*t.Cols && t.DType == tensor.I32, "UploadInts", "length or type differs from the tensor's")
	use("UploadInts", t)
}

// Download is an error: there are no values.
func (s *Stream) Download(dst []float32, t device.Tensor) error {
	need(len(dst) == t.Rows*t.Cols, "Download", "length differs from the tensor's")
	use("Download", t)
	s.dev.waits++
	if s.err == nil {
		s.err = fault.New(fault.Unavailable, "a dry device has no values to download").WithID("E-DRY-003")
	}
	return s.err
}

// Fetch is Download in two parts: see device.Fetcher.
func (s *Stream) Fetch(t device.Tensor) func(dst []float32) error {
	return func(dst []float32) error { return s.Download(dst, t) }
}

// RefreshWeight counts the copy, if there is one.
func (s *Stream) RefreshWeight(p *device.Param) {
	if w := p.Weight.(*weight); w.Kept.Bytes > 0 {
		n := use("RefreshWeight", p.Value)
		s.count(Op{Name: "RefreshWeight", Weight: w.Types, In: tensor.F32, Rows: p.Rows, Cols: p.Cols}, 0, n+float64(w.Kept.Bytes))
	}
}

// SetScalars starts a step's record.
func (s *Stream) SetScalars(sc device.Scalars) {
	s.scalars = sc
	s.scalars.Phases = [device.NumPhases]time.Duration{}
	s.phase = device.PhaseData
}

// Phase says to which phase the next operations belong.
func (s *Stream) Phase(p device.Phase) { s.phase = p }

// Wait returns the record of a step whose loss is 0, and the stream's error, which it clears.
func (s *Stream) Wait(context.Context) (device.Scalars, error) {
	s.dev.waits++
	err := s.err
	s.err = nil
	return s.scalars, err
}
