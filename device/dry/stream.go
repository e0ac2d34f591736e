package dry

import (
	"context"
	"maps"
	"slices"
	"strings"
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
	b := &buffer{name: name, comp: c, bytes: device.TensorBytes(device.OpTemp, t, rows, cols), temp: true, live: true}
	b.size, b.place = d.target.Temps.Size(b.bytes), d.target.Temps.Place(b.bytes)
	d.placed++
	d.both.Add(c, b.size)
	d.holding[b] = struct{}{}
	if d.live += b.size; d.live > d.most {
		d.most, d.fresh = d.live, true
	}
	return device.Whole(b, t, rows, cols)
}

// Release gives temps back.
func (s *Stream) Release(ts ...device.Tensor) {
	d := s.dev
	d.describePeak()
	for _, t := range ts {
		device.CheckRelease(t)
		if t.IsZero() {
			continue
		}
		b := t.Buf.(*buffer)
		b.live = false
		d.target.Temps.Release(b.place)
		d.both.Add(b.comp, -b.size)
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

// use returns the bytes of tensors, which must be of a dry device. Zero tensors count 0.
func use(op device.Op, ts ...device.Tensor) (bytes float64) {
	for _, t := range ts {
		if t.IsZero() {
			continue
		}
		if _, ok := t.Buf.(*buffer); !ok {
			panic("dry: " + op.String() + ": " + t.Buf.Name() + " is of another device")
		}
		bytes += float64(t.Rows) * float64(t.DType.RowBytes(t.Cols))
	}
	return bytes
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
	device.CheckUpload(t, src)
	use(device.OpUpload, t)
}

// UploadInts takes any ids of the tensor's size.
func (s *Stream) UploadInts(t device.Tensor, src []int32) {
	device.CheckUploadInts(t, src)
	use(device.OpUploadInts, t)
}

// Download is an error: there are no values.
func (s *Stream) Download(dst []float32, t device.Tensor) error {
	device.CheckDownload(dst, t)
	use(device.OpDownload, t)
	return s.values()
}

// values is what comes to the host: an error.
func (s *Stream) values() error {
	s.dev.waits++
	if s.err == nil {
		s.err = fault.New(fault.Unavailable, "a dry device has no values to download").WithID("E-DRY-003")
	}
	return s.err
}

// Fetch is Download in two parts: see device.Fetcher.
func (s *Stream) Fetch(t device.Tensor) func(dst []float32) error {
	device.CheckFetch(t)
	use(device.OpFetch, t)
	n := t.Rows * t.Cols
	return func(dst []float32) error {
		device.CheckFetched(dst, n)
		return s.values()
	}
}

var _ device.Quantizer = (*Stream)(nil)

// Quantize records the operation: it reads values, and writes blocks and what they decode to.
func (s *Stream) Quantize(params []*device.Param, _ bool) {
	device.CheckQuantize(params)
	var n float64
	matrices := 0
	types := map[string]bool{}
	for _, p := range params {
		if len(p.Blocks) == 0 {
			continue
		}
		n, matrices = n+use(device.OpQuantize, p.Value, p.Stored, p.Rounded)+float64(p.Weight.(*weight).Kept.Bytes), matrices+1
		for _, b := range p.Blocks {
			types[b.DType.String()] = true
		}
	}
	if matrices > 0 {
		s.count(Op{Kind: device.OpQuantize, In: tensor.F32, Rows: matrices, Weight: strings.Join(slices.Sorted(maps.Keys(types)), "+")}, 0, n)
	}
}

// StoredBytes has no bytes to copy.
func (s *Stream) StoredBytes(dst []byte, p *device.Param) error {
	device.CheckStoredBytes(p, len(dst))
	return s.err
}

// SetStored records nothing: a step does not do it.
func (s *Stream) SetStored(p *device.Param, src []byte) { device.CheckStoredBytes(p, len(src)) }

// RefreshRead records nothing, as SetStored.
func (s *Stream) RefreshRead(p *device.Param) { device.CheckRefreshRead(p) }

// RefreshWeight counts the copy, if there is one.
func (s *Stream) RefreshWeight(p *device.Param) {
	device.CheckRefreshWeight(p)
	if len(p.Blocks) > 0 {
		s.Quantize([]*device.Param{p}, true)
		return
	}
	if w := p.Weight.(*weight); w.Kept.Bytes > 0 {
		n := use(device.OpRefreshWeight, p.Value)
		s.count(Op{Kind: device.OpRefreshWeight, Weight: w.Types, In: tensor.F32, Rows: p.Rows, Cols: p.Cols}, 0, n+float64(w.Kept.Bytes))
	}
}

// SetScalars starts a step's record.
func (s *Stream) SetScalars(sc device.Scalars) {
	s.scalars = sc
	s.scalars.Phases = [device.NumPhases]time.Duration{}
	s.phase = device.PhaseData
}

// Phase says to which phase the next operations belong.
func (s *Stream) Phase(p device.Phase) {
	device.CheckPhase(p)
	s.phase = p
}

// Wait returns the record of a step whose loss is 0, and the stream's error, which it clears.
func (s *Stream) Wait(context.Context) (device.Scalars, error) {
	s.dev.waits++
	err := s.err
	s.err = nil
	return s.scalars, err
}
