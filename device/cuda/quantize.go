package cuda

import (
	"iter"
	"sync"

	"apr/device"
	"apr/device/cuda/kernel"
	"apr/internal/fault"
	"apr/quant"
	"apr/tensor"
)

// Blocks of a trainable matrix are made by kernels, with the bytes that package quant makes of the same weights.
// Rounded is what they decode to, as on every device; products read that, or in bfloat16 a copy of it, rounded once, as
// they read a matrix whose blocks were expanded from a file.

var _ device.Quantizer = (*Stream)(nil)

// named are the parameters with blocks, by what faults tell them by.
type named struct {
	mu    sync.Mutex
	names []string
	ids   map[*device.Param]int64
}

// add names a parameter.
func (n *named) add(p *device.Param) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ids == nil {
		n.ids = map[*device.Param]int64{}
	}
	n.ids[p] = int64(len(n.names))
	n.names = append(n.names, p.Name)
}

func (n *named) id(p *device.Param) int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ids[p]
}

func (n *named) name(id int64) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.names[id]
}

// unfit is the error of a weight that no block can hold.
func (d *Device) unfit(element, id int64) error {
	return fault.New(fault.Invalid, "a weight is not finite, or its magnitude is above %d: no block holds it", quant.MaxAbs).
		At("tensor %q, element %d", d.blocked.name(id), element).WithID("E-CUDA-072")
}

// Quantize makes Stored of params from Value, and Rounded from Stored, unless the verdict refused the step.
func (s *Stream) Quantize(params []*device.Param, search bool) {
	device.CheckQuantize(params)
	for _, p := range params {
		s.makeBlocks("Quantize", p, kernel.QuantizeHow{Search: search, Verdict: true})
	}
}

// makeBlocks makes the blocks of a parameter that has some.
func (s *Stream) makeBlocks(op string, p *device.Param, how kernel.QuantizeHow) {
	if len(p.Blocks) == 0 {
		return
	}
	o := s.begin(op, p.Value, p.Stored, p.Rounded, p.Weight.(*weight).t)
	if o == nil {
		return
	}
	for r := range s.dev.rowsOf(p) {
		kernel.MakeBlocks(o, r, how)
	}
	o.end()
}

// rowsOf returns the rows of one type after the other.
func (d *Device) rowsOf(p *device.Param) iter.Seq[kernel.QuantizedRows] {
	return func(yield func(kernel.QuantizedRows) bool) {
		w := p.Weight.(*weight)
		r := kernel.QuantizedRows{
			Value: mat(p.Value).Ptr, Stored: mat(p.Stored).Ptr, Rounded: mat(p.Rounded).Ptr, Name: d.blocked.id(p),
		}
		if w.t != p.Rounded {
			r.Copy = mat(w.t).Ptr
		}
		for _, b := range p.Blocks {
			r.Type, r.N = b.DType, b.Rows*p.Cols
			if !yield(r) {
				return
			}
			n := uint64(r.N)
			r.Value, r.Rounded, r.Stored, r.First = r.Value+4*n, r.Rounded+4*n, r.Stored+uint64(b.Bytes(p.Cols)), r.First+r.N
			if r.Copy != 0 {
				r.Copy += 2 * n
			}
		}
	}
}

// StoredBytes copies p.Stored to dst and waits.
func (s *Stream) StoredBytes(dst []byte, p *device.Param) (err error) {
	device.CheckStoredBytes(p, len(dst))
	return s.downloadBytes("StoredBytes", dst, p.Stored)
}

// SetStored copies src to p.Stored, and makes what is read from it. That happens when a run goes on, and on the host.
func (s *Stream) SetStored(p *device.Param, src []byte) {
	device.CheckStoredBytes(p, len(src))
	if s.begin("SetStored", p.Stored, p.Rounded) == nil {
		return
	}
	s.uploadBytes("SetStored", p.Stored.Buf.(*buffer), src)
	row := 0
	for _, b := range p.Blocks {
		size := int(b.DType.RowBytes(p.Cols))
		step := max(1, ringBytes/(4*p.Cols))
		for lo := 0; lo < b.Rows; lo += step {
			n := min(step, b.Rows-lo)
			values := make([]float32, n*p.Cols)
			if b.DType.IsQuantized() {
				quant.Dequantize(values, src[:n*size], b.DType)
			} else {
				tensor.Widen(values, src[:n*size], b.DType)
			}
			s.Upload(p.Rounded.RowRange(row, row+n), values)
			row, src = row+n, src[n*size:]
		}
	}
	s.RefreshRead(p)
}

// RefreshRead makes p.Weight agree with p.Rounded after an Upload to Rounded.
func (s *Stream) RefreshRead(p *device.Param) {
	device.CheckRefreshRead(p)
	if w := p.Weight.(*weight); w.t != p.Rounded {
		s.cast("RefreshRead", w.t, p.Rounded)
	}
}
