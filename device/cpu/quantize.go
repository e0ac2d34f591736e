package cpu

import (
	"cmp"

	"apr/device"
	"apr/internal/fault"
	"apr/quant"
	"apr/tensor"
)

var _ device.Quantizer = (*Stream)(nil)

// How Stored comes about.
const (
	bySearch   = iota // from Value
	byRounding        // from Value, under the scales that it has
	asItIs            // Rounded alone is made
)

// quantizePiece is the number of values that one task takes: whole blocks, and a fraction of a millisecond of the slowest search.
const quantizePiece = 4096

// storedPiece is some values of a parameter and their bytes.
type storedPiece struct {
	name            string
	dtype           tensor.DType
	values, rounded []float32
	stored          []byte
}

type quantizeOp struct {
	how    int
	pieces []storedPiece
	errs   []error
	run    func(worker, lo, hi int)
}

// Quantize makes Stored of params from Value, and Rounded from Stored, unless the verdict refused the step.
func (s *Stream) Quantize(params []*device.Param, search bool) {
	device.CheckQuantize(params)
	switch {
	case s.scalars.Refused():
	case search:
		s.quantize(params, bySearch)
	default:
		s.quantize(params, byRounding)
	}
}

// StoredBytes copies p.Stored to dst.
func (s *Stream) StoredBytes(dst []byte, p *device.Param) error {
	device.CheckStoredBytes(p, len(dst))
	copy(dst, rowBytes(p.Stored, 0))
	return s.err
}

// SetStored copies src to p.Stored, and makes Rounded from it.
func (s *Stream) SetStored(p *device.Param, src []byte) {
	device.CheckStoredBytes(p, len(src))
	copy(rowBytes(p.Stored, 0), src)
	s.quantize([]*device.Param{p}, asItIs)
}

// RefreshRead does nothing: Weight reads Rounded itself.
func (s *Stream) RefreshRead(p *device.Param) { device.CheckRefreshRead(p) }

// quantize works on pieces, which are cut by the shapes of the parameters alone. The error of the first piece counts.
func (s *Stream) quantize(params []*device.Param, how int) {
	if !s.begin() {
		return
	}
	o := &s.ops.quantize
	o.how, o.pieces = how, o.pieces[:0]
	for _, p := range params {
		o.cut(p)
	}
	if cap(o.errs) < len(o.pieces) {
		o.errs = make([]error, len(o.pieces))
	}
	o.errs = o.errs[:len(o.pieces)]
	clear(o.errs)
	s.split(len(o.pieces), 1, o.run)
	if err := cmp.Or(o.errs...); err != nil {
		s.fail(err)
	}
	s.end(device.OpQuantize, 0)
}

// cut lists the pieces of a parameter.
func (o *quantizeOp) cut(p *device.Param) {
	if len(p.Blocks) == 0 {
		return
	}
	value, rounded := floats(p.Value), floats(p.Rounded)
	values, back, stored := value.flat(), rounded.flat(), rowBytes(p.Stored, 0)
	for _, b := range p.Blocks {
		for n := b.Rows * p.Cols; n > 0; n -= quantizePiece {
			k := min(n, quantizePiece)
			size := k / b.DType.BlockLen() * b.DType.BlockBytes()
			o.pieces = append(o.pieces, storedPiece{p.Name, b.DType, values[:k], back[:k], stored[:size]})
			values, back, stored = values[k:], back[k:], stored[size:]
		}
	}
}

func (o *quantizeOp) piece(_, i, _ int) {
	p := &o.pieces[i]
	if !p.dtype.IsQuantized() {
		if o.how != asItIs {
			tensor.Narrow(p.stored, p.values, p.dtype)
		}
		tensor.Widen(p.rounded, p.stored, p.dtype)
		return
	}
	var err error
	switch o.how {
	case bySearch:
		err = quant.Quantize(p.stored, p.values, p.dtype)
	case byRounding:
		err = quant.Round(p.stored, p.values, p.dtype)
	}
	if err != nil {
		o.errs[i] = fault.New(fault.KindOf(err), "a weight cannot be held in blocks of %v", p.dtype).At("tensor %q", p.name).Because(err).WithID("E-CPU-012")
		return
	}
	quant.Dequantize(p.rounded, p.stored, p.dtype)
}
