package cuda

import (
	"apr/device"
	"apr/device/cuda/kernel"
	"apr/internal/fault"
	"apr/quant"
	"apr/tensor"
)

// weight is a frozen matrix, or a view of a parameter.
type weight struct {
	t     device.Tensor // the matrix, dense; of one that products expand its shape and their type only
	parts []kept        // of a matrix that products expand; nil: t is all of it
	runs  []kept        // the parts, as few as they can be
	tiled bool          // the blocks of all parts are in tiles: see tile
	bytes int64

	frozen  bool // nothing changes t
	experts bool // the matrices of experts, of grouped products alone: they are not put into tiles

	expands int64 // bytes in which products expand it

	host *hosted // experts in memory of the host; blocks of parts are offsets there

	fp8 *fp8Matrix // of a matrix that is multiplied in 8-bit floats
}

func (w *weight) Rows() int    { return w.t.Rows }
func (w *weight) Cols() int    { return w.t.Cols }
func (w *weight) Bytes() int64 { return w.bytes }

// reading returns a weight that reads t.
func reading(t device.Tensor) *weight { return &weight{t: t, bytes: t.Buf.(*buffer).size} }

// Frozen returns a weight with the present values of t, which is float32: t itself, or a copy in the device's activation
// type that lives as long as t.
func (d *Device) Frozen(t device.Tensor) device.Weight {
	device.CheckFrozen(t)
	if d.act == tensor.F32 {
		return reading(t)
	}
	b := t.Buf.(*buffer)
	narrow, err := d.take(b.name+"."+d.act.String(), b.comp, device.TensorBytes(device.OpFrozen, d.act, t.Rows, t.Cols), false)
	w := reading(device.Whole(narrow, d.act, t.Rows, t.Cols))
	b.copies = append(b.copies, narrow)
	if err == nil && b.void == nil {
		d.internal().cast("Frozen", w.t, t)
	}
	return w
}

// RefreshWeight makes p.Weight agree with p.Value after an Upload to Value.
func (s *Stream) RefreshWeight(p *device.Param) {
	device.CheckRefreshWeight(p)
	if len(p.Blocks) > 0 {
		s.makeBlocks("RefreshWeight", p, kernel.QuantizeHow{Search: true})
		return
	}
	if w := p.Weight.(*weight); w.t != p.Value {
		s.cast("RefreshWeight", w.t, p.Staging(device.OfValue))
	}
	if p.Shared(device.OfValue) {
		s.TakeShare(p, device.OfValue)
	}
}

// part is a stored matrix of which rows go to a weight.
type part struct {
	src    device.Source
	info   tensor.Info
	first  int // row of the weight
	rows   int
	size   int          // bytes of a stored row; 0: flat, all of the payload is in data
	data   []byte       // of a flat part
	as     tensor.DType // how the device keeps it
	offset int64        // of its first row in the weight's memory
}

// Weight reads a frozen matrix from its sources and keeps it in the device's activation type, whatever that of the file,
// or, as spec.Form says, in blocks. Errors name the source's tensor.
func (d *Device) Weight(spec device.WeightSpec) (device.Weight, error) {
	l, err := d.layout(spec)
	if err != nil {
		return nil, err
	}
	if l.host {
		return d.hostWeight(spec, l)
	}
	b, err := d.take(spec.Name, spec.Component, l.bytes, false)
	if err != nil {
		return nil, err
	}
	w := &weight{t: device.Whole(b, d.act, l.rows, l.cols), bytes: b.size, frozen: true, experts: l.experts > 0}
	if l.expands || l.scratch() > 0 {
		w.t.Buf = nil
		w.expands = l.scratch()
		d.growMu.Lock()
		d.expandAll = max(d.expandAll, w.expands)
		d.growMu.Unlock()
	}
	if l.fp8 {
		err = d.growExpansion(l.scratch())
	}
	if err == nil {
		err = d.fill(w, l, b)
	}
	if err != nil {
		d.give(b)
		return nil, err
	}
	return w, nil
}

// fill reads a weight into its memory, as its layout says.
func (d *Device) fill(w *weight, l *layout, b *buffer) error {
	if l.fp8 && !l.expands {
		return d.loadFP8(w, l, b)
	}
	for _, p := range l.parts {
		if err := d.read(p.place(b), p); err != nil {
			return err
		}
		if l.expands {
			w.parts = append(w.parts, p.kept(b))
		}
	}
	w.runs = runsOf(w.parts)
	if l.fp8 {
		d.scaleBlocks(w, l, b)
	}
	return nil
}

// describe checks what part i of spec claims to be.
func describe(src device.Source, spec device.WeightSpec, i int) (*part, error) {
	info := src.Info()
	rows, cols := info.Rows(), info.Cols()
	p := &part{src: src, info: info, rows: rows}
	if spec.Rows != nil {
		p.rows = spec.Rows[i]
	}
	bad := func(kind fault.Kind, format string, args ...any) error {
		return fault.New(kind, format, args...).At("tensor %q", info.Name).WithID("E-CUDA-031")
	}
	if p.rows < 0 || p.rows > rows {
		return nil, bad(fault.Load, "%d rows wanted, %d stored", p.rows, rows)
	}
	switch {
	case info.DType.IsFloat():
		p.size = int(info.DType.RowBytes(cols))
		if want := int64(rows) * int64(p.size); info.Size != want {
			return nil, bad(fault.Format, "%d bytes for %d×%d elements of %v, want %d", info.Size, rows, cols, info.DType, want)
		}
	case info.DType.IsQuantized():
		layout, err := quant.LayoutOf(info.Size, rows, cols, info.DType)
		if err != nil {
			return nil, fault.New(fault.KindOf(err), "cannot be laid out").At("tensor %q", info.Name).WithID("E-CUDA-032").Because(err)
		}
		if layout == quant.RowPadded || cols%info.DType.BlockLen() == 0 && info.DType != tensor.AprQ8 {
			p.size = int(info.DType.RowBytes(cols))
		}
	default:
		return nil, bad(fault.Load, "a weight cannot be of type %v", info.DType)
	}
	return p, nil
}

// decode writes rows rows of data, stored rows from row lo of the part on, to dst in type d.
func (p *part) decode(dst []byte, d tensor.DType, data []byte, lo, rows int, row []float32) {
	cols := p.info.Cols()
	size := int(d.RowBytes(cols))
	for r := range rows {
		switch {
		case p.size == 0:
			quant.DequantizeRange(row, p.data, (lo+r)*cols, p.info.DType)
		case p.info.DType.IsFloat():
			tensor.Widen(row, data[r*p.size:], p.info.DType)
		default:
			quant.DequantizeRange(row, data[r*p.size:(r+1)*p.size], 0, p.info.DType)
		}
		tensor.Narrow(dst[r*size:(r+1)*size], row, d)
	}
}
