package modelfile

import (
	"apr/internal/fault"
	"apr/quant"
	"apr/tensor"
)

// stretchReader reads rows of a tensor of a file, as the model computes with them, with the bounds that their type gives.
type stretchReader struct {
	path   string
	t      tensor.Stored
	layout quant.Layout
}

// stretches returns a reader of the named tensor. A payload that does not have the size of its shape is refused.
func (f *Files) stretches(name string) (*stretchReader, error) {
	t, err := f.stored(name)
	if err != nil {
		return nil, err
	}
	r := &stretchReader{path: f.Path, t: t}
	switch {
	case t.DType.IsQuantized():
		if r.layout, err = quant.LayoutOf(t.Size, t.Rows(), t.Cols(), t.DType); err != nil {
			return nil, fault.In(fault.Format, f.Path, "cannot be decoded").At("tensor %q", name).Because(err)
		}
	case !t.DType.IsFloat() || t.Size != t.Elements()*int64(t.DType.BlockBytes()):
		return nil, fault.In(fault.Format, f.Path, "%d bytes of type %s are no weights of shape %v", t.Size, t.DType, t.Shape).At("tensor %q", name).WithID("E-MODEL-003")
	}
	return r, nil
}

// decodes reports whether the file holds 8-bit floats. Under one scale they have so few values that the errors of rounding them
// again are not spread, but nothing that was trained lies on them: that all values are met says enough.
func (r *stretchReader) decodes() bool { return r.t.Held().DType == tensor.F8_E4M3 }

// stretch is some rows of a tensor.
type stretch struct {
	values []float32
	bounds []quant.Rounding
	dtype  tensor.DType
	cols   int
}

// read returns rows [lo,hi).
func (r *stretchReader) read(lo, hi int) (*stretch, error) {
	cols := r.t.Cols()
	s := &stretch{make([]float32, (hi-lo)*cols), make([]quant.Rounding, (hi-lo)*cols), r.t.DType, cols}
	return s, r.rows(s, 0, len(s.values), lo)
}

// rows fills elements [from,to) of s with rows of the file from row on.
func (r *stretchReader) rows(s *stretch, from, to, row int) error {
	d, cols := r.t.DType, r.t.Cols()
	values, bounds := s.values[from:to], s.bounds[from:to]
	first := int64(row) * int64(cols)
	switch {
	case !d.IsQuantized():
		raw, err := r.bytes(first*int64(d.BlockBytes()), int64(len(values))*int64(d.BlockBytes()))
		if err != nil {
			return err
		}
		tensor.Widen(values, raw, d)
		if of, ok := r.t.ReaderAt.(interface {
			Roundings(dst []quant.Rounding, values []float32, first int64)
		}); ok { // decoded on the way
			of.Roundings(bounds, values, first)
		} else {
			floatBounds(bounds, values, d)
		}
	case d == tensor.AprQ8:
		scale, err := r.bytes(0, 4)
		if err != nil {
			return err
		}
		raw, err := r.bytes(4+first, int64(len(values)))
		if err != nil {
			return err
		}
		decode(values, bounds, append(scale, raw...), d)
	case r.layout == quant.RowPadded:
		rowBytes := d.RowBytes(cols)
		raw, err := r.bytes(int64(row)*rowBytes, int64(len(values)/max(cols, 1))*rowBytes)
		if err != nil {
			return err
		}
		for i := 0; i*cols < len(values); i++ {
			decode(values[i*cols:(i+1)*cols], bounds[i*cols:(i+1)*cols], raw[int64(i)*rowBytes:int64(i+1)*rowBytes], d)
		}
	default:
		return r.flat(values, bounds, first)
	}
	return nil
}

// flat reads elements of one stream of blocks, in which rows may begin inside a block.
func (r *stretchReader) flat(values []float32, bounds []quant.Rounding, first int64) error {
	d := r.t.DType
	block, size := int64(d.BlockLen()), int64(d.BlockBytes())
	from, to := first/block, (first+int64(len(values))+block-1)/block
	raw, err := r.bytes(from*size, (to-from)*size)
	if err != nil {
		return err
	}
	x, b := make([]float32, (to-from)*block), make([]quant.Rounding, (to-from)*block)
	decode(x, b, raw, d)
	copy(values, x[first-from*block:])
	copy(bounds, b[first-from*block:])
	return nil
}

func decode(values []float32, bounds []quant.Rounding, raw []byte, d tensor.DType) {
	quant.Dequantize(values, raw, d)
	quant.Roundings(bounds, values, raw, d)
}

func (r *stretchReader) bytes(off, n int64) ([]byte, error) {
	raw := make([]byte, n)
	if m, err := r.t.ReadAt(raw, off); int64(m) < n {
		return nil, unreadable(r.path, r.t, err)
	}
	return raw, nil
}

// recoded returns the stretch as it comes out of type d, by our own encoder, with the bounds of d; false where d cannot hold it.
func (s *stretch) recoded(d tensor.DType) (*stretch, bool) {
	out := &stretch{make([]float32, len(s.values)), make([]quant.Rounding, len(s.values)), d, s.cols}
	if !d.IsQuantized() {
		raw := make([]byte, len(s.values)*d.BlockBytes())
		tensor.Narrow(raw, s.values, d)
		tensor.Widen(out.values, raw, d)
		floatBounds(out.bounds, out.values, d)
		return out, true
	}
	size, ok := quant.PackedLen(len(s.values), d)
	if s.cols%d.BlockLen() != 0 || !ok || !quant.CanQuantize(d) {
		return nil, false
	}
	raw := make([]byte, size)
	if quant.Quantize(raw, s.values, d) != nil { // not finite, or too large
		return nil, false
	}
	decode(out.values, out.bounds, raw, d)
	return out, true
}

// exact returns the stretch as values that were not rounded, but to float32.
func (s *stretch) exact() *stretch {
	out := &stretch{s.values, make([]quant.Rounding, len(s.values)), tensor.F32, s.cols}
	floatBounds(out.bounds, out.values, tensor.F32)
	return out
}

// head returns the first rows of s, about n values.
func (s *stretch) head(n int) *stretch {
	n = min(len(s.values), max(1, n/max(1, s.cols))*s.cols)
	return &stretch{s.values[:n], s.bounds[:n], s.dtype, s.cols}
}
