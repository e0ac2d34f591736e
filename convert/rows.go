package convert

import (
	"encoding/binary"
	"math"

	"apr/arch"
	"apr/internal/fault"
	"apr/quant"
	"apr/tensor"
)

// chunkElements is about how many values are read or encoded at a time. Sums of errors are per chunk, so they do not
// depend on the number of workers.
const chunkElements = 1 << 15

// rowReader reads rows of a stored tensor as float32, whatever its type and layout.
type rowReader struct {
	t      tensor.Stored
	path   string
	layout quant.Layout
	order  arch.Order                       // of columns, for reordered
	look   func(raw []byte, at int64) error // gets what is read; may be nil
}

// reordered returns rows with their columns where r.order has them in a file.
func (r *rowReader) reordered(rows []float32) []float32 {
	if r.order == (arch.Order{}) {
		return rows
	}
	cols, out := r.t.Cols(), make([]float32, len(rows))
	for i, x := range rows {
		out[i-i%cols+r.order.ToFile(i%cols)] = x
	}
	return out
}

// newRowReader checks the payload size against shape and type.
func newRowReader(path string, t tensor.Stored) (*rowReader, error) {
	r := &rowReader{t: t, path: path}
	if !t.DType.IsFloat() && !t.DType.IsQuantized() {
		return nil, r.fail(fault.Unavailable, "type %s is no weight's", t.DType).WithID("E-CONVERT-003")
	}
	if !t.DType.IsQuantized() {
		if want := t.Elements() * int64(t.DType.BlockBytes()); t.Size != want {
			return nil, r.fail(fault.Format, "holds %d bytes, its shape needs %d", t.Size, want).WithID("E-CONVERT-004")
		}
		return r, nil
	}
	var err error
	if r.layout, err = quant.LayoutOf(t.Size, t.Rows(), t.Cols(), t.DType); err != nil {
		return nil, r.fail(fault.Format, "cannot be decoded").Because(err)
	}
	return r, nil
}

func (r *rowReader) fail(k fault.Kind, format string, args ...any) *fault.Error {
	return fault.In(k, r.path, format, args...).At("tensor %q", r.t.Name)
}

// upTo returns about how many payload bytes rows [0,n) have; all of them for all rows.
func (r *rowReader) upTo(n int) int64 {
	return int64(float64(r.t.Size) * (float64(n) / float64(r.t.Rows())))
}

// chunk returns how many rows are read at a time.
func (r *rowReader) chunk() int {
	return max(1, chunkElements/max(1, r.t.Cols()))
}

// read decodes rows [lo,hi) into dst, of (hi−lo)·cols values.
func (r *rowReader) read(dst []float32, lo, hi int) error {
	cols := r.t.Cols()
	first, count := int64(lo)*int64(cols), hi-lo
	switch {
	case len(dst) == 0:
		return nil
	case !r.t.DType.IsQuantized():
		size := int64(r.t.DType.BlockBytes())
		raw := make([]byte, int64(len(dst))*size)
		if err := r.bytes(raw, first*size); err != nil {
			return err
		}
		tensor.Widen(dst, raw, r.t.DType)
		if err := r.checkNarrowed(dst, raw); err != nil || r.look == nil {
			return err
		}
		return r.look(raw, first*size)
	case r.t.DType == tensor.AprQ8:
		return r.aprQ8(dst, first)
	case r.layout == quant.RowPadded:
		rowBytes := r.t.DType.RowBytes(cols)
		raw := make([]byte, int64(count)*rowBytes)
		if err := r.looked(raw, int64(lo)*rowBytes); err != nil {
			return err
		}
		for i := range count {
			quant.Dequantize(dst[i*cols:(i+1)*cols], raw[int64(i)*rowBytes:int64(i+1)*rowBytes], r.t.DType)
		}
		return nil
	}
	block := int64(r.t.DType.BlockLen())
	from, to := first/block, (first+int64(len(dst))+block-1)/block
	raw := make([]byte, (to-from)*int64(r.t.DType.BlockBytes()))
	if err := r.looked(raw, from*int64(r.t.DType.BlockBytes())); err != nil {
		return err
	}
	quant.DequantizeRange(dst, raw, int(first-from*block), r.t.DType)
	return nil
}

// checkNarrowed refuses an F64 that no float32 holds.
func (r *rowReader) checkNarrowed(dst []float32, raw []byte) error {
	if r.t.DType != tensor.F64 {
		return nil
	}
	for i, x := range dst {
		if wide := math.Float64frombits(binary.LittleEndian.Uint64(raw[8*i:])); isInf(x) && !math.IsInf(wide, 0) {
			return r.fail(fault.Invalid, "value %g does not fit f32", wide).WithID("E-CONVERT-005")
		}
	}
	return nil
}

// aprQ8 decodes x = d·q with the one scale in front of the tensor.
func (r *rowReader) aprQ8(dst []float32, first int64) error {
	var scale [4]byte
	raw := make([]byte, len(dst))
	if err := r.looked(scale[:], 0); err != nil {
		return err
	}
	if err := r.looked(raw, 4+first); err != nil {
		return err
	}
	quant.DequantizeRange(dst, append(scale[:], raw...), 0, tensor.AprQ8)
	return nil
}

// bytes fills raw from the payload.
func (r *rowReader) bytes(raw []byte, off int64) error {
	if n, err := r.t.ReadAt(raw, off); n < len(raw) {
		return r.fail(fault.IO, "cannot be read at offset %d", off).Because(err)
	}
	return nil
}

// looked is bytes, and looks at them.
func (r *rowReader) looked(raw []byte, off int64) error {
	if err := r.bytes(raw, off); err != nil || r.look == nil {
		return err
	}
	return r.look(raw, off)
}

// each calls f with successive chunks of rows, in order; lo is the first row of a chunk.
func (r *rowReader) each(f func(lo int, values []float32) error) error {
	rows, cols, step := r.t.Rows(), r.t.Cols(), r.chunk()
	buf := make([]float32, min(rows, step)*cols)
	for lo := 0; lo < rows; lo += step {
		hi := min(rows, lo+step)
		part := buf[:(hi-lo)*cols]
		if err := r.read(part, lo, hi); err != nil {
			return err
		}
		if err := f(lo, part); err != nil {
			return err
		}
	}
	return nil
}

// encodeRows turns rows of cols values into the payload of type d; blocks never cross rows, for cols fills them. weights, nil or of each
// value, say how much errors count in blocks.
func encodeRows(values, weights []float32, d tensor.DType) ([]byte, error) {
	if d.IsQuantized() {
		dst := make([]byte, int64(len(values)/d.BlockLen())*int64(d.BlockBytes()))
		return dst, quant.QuantizeWeighted(dst, values, weights, d)
	}
	dst := make([]byte, len(values)*d.BlockBytes())
	tensor.Narrow(dst, values, d)
	return dst, nil
}

// decodeRows is the inverse of encodeRows, for measuring what it lost.
func decodeRows(dst []float32, raw []byte, d tensor.DType) {
	if d.IsQuantized() {
		quant.Dequantize(dst, raw, d)
		return
	}
	tensor.Widen(dst, raw, d)
}
