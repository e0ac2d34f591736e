package modelfile

import (
	"io"
	"slices"
	"sync"

	"apr/arch"
	"apr/internal/fault"
	"apr/quant"
	"apr/tensor"
)

// mover reads a slot whose rows a file has elsewhere than one behind the other: split off a fused tensor, in another order,
// one expert after the other, transposed, or with other values. It reads a row at a time, never the whole file's tensor;
// quantised rows stay as they are, byte for byte.
type mover struct {
	slot       arch.Slot
	place      arch.Place
	files      []tensor.Stored
	rows, cols int   // of an expert
	from, to   int64 // bytes of a row in the file, and in the slot
	dtype      tensor.DType
	decoded    bool // rows become float32: their values change, or their columns' order inside blocks

	lock   sync.Mutex // of the matrix that was transposed last
	expert int
	turned []byte
}

// moved makes slot s of the tensors of its place.
func moved(path string, s arch.Slot, p arch.Place, files []tensor.Stored) (tensor.Stored, error) {
	experts, rows, cols := s.Dims()
	d := files[0].DType
	if cols == 1 && experts == 1 && p.Rows == (arch.Order{}) && int64(rows) == files[0].Elements() {
		rows, cols = 1, rows // a vector in its order
	}
	m := &mover{slot: s, place: p, files: files, rows: rows, cols: cols, dtype: d, expert: -1}
	for _, t := range files {
		if !slices.Equal(t.Shape, p.Shape) {
			return tensor.Stored{}, misshapen(path, t, p.Shape)
		}
		if !d.IsFloat() && !d.IsQuantized() || t.DType != d {
			return tensor.Stored{}, fault.In(fault.Load, path, "has type %s, which no weight can have", t.DType).At("tensor %q", t.Name).WithID("E-MODEL-003")
		}
		if t.Size != t.Elements()/int64(d.BlockLen())*int64(d.BlockBytes()) || d.IsQuantized() && (d == tensor.AprQ8 || cols%d.BlockLen() != 0) {
			return tensor.Stored{}, fault.In(fault.Load, path, "stores rows of %d values in blocks of %s, from which no rows can be taken", cols, d).
				At("tensor %q", t.Name).WithHint("convert the model first").WithID("E-MODEL-005")
		}
		if d.IsQuantized() && p.Transposed {
			return tensor.Stored{}, fault.In(fault.Load, path, "stores rows as columns in blocks of %s", d).
				At("tensor %q", t.Name).WithHint("a file of another type can be read").WithID("E-MODEL-006")
		}
	}
	m.from, m.to = d.RowBytes(cols), d.RowBytes(cols)
	info := tensor.Info{Name: s.Name, DType: d, Shape: s.Shape}
	inside := d.IsQuantized() && p.Values == arch.Same && !p.MovesBlocks(d.BlockLen())
	if m.decoded = p.Values != arch.Same || inside; m.decoded {
		info.DType, m.to = tensor.F32, 4*int64(cols)
	}
	info.Size = int64(experts*rows) * m.to
	if inside {
		return tensor.Stored{Info: info, ReaderAt: reordered{m}}, nil
	}
	return tensor.Stored{Info: info, ReaderAt: m}, nil
}

// reordered is a mover of a tensor whose blocks hold columns in another order: K-quants of Qwen3.5's ssm_out, where a block of
// 256 holds two value heads.
type reordered struct{ *mover }

// Held describes the blocks.
func (r reordered) Held() tensor.Info { return r.files[0].Info }

// ReadAt implements io.ReaderAt over the slot's rows.
func (m *mover) ReadAt(p []byte, off int64) (n int, err error) {
	experts, _, _ := m.slot.Dims()
	size := int64(experts*m.rows) * m.to
	if off < 0 || off >= size {
		return 0, io.EOF
	}
	want := p[:min(int64(len(p)), size-off)]
	var row []byte
	for n < len(want) {
		at, within := int((off+int64(n))/m.to), (off+int64(n))%m.to
		if run := m.run(at); within == 0 && run > 0 && int64(len(want)-n) >= m.to {
			k := int(min(int64(run), int64(len(want)-n)/m.to) * m.to)
			if err := m.whole(want[n:n+k], at); err != nil {
				return n, err
			}
			n += k
			continue
		}
		if row == nil {
			row = make([]byte, m.to)
		}
		if err := m.row(row, at); err != nil {
			return n, err
		}
		n += copy(want[n:], row[within:])
	}
	if len(want) < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// run returns how many rows from row at on stand one behind the other in the file as they are.
func (m *mover) run(at int) int {
	if p := m.place; p.Transposed || m.decoded || p.Cols != (arch.Order{}) || p.Rows != (arch.Order{}) || p.Step > 1 {
		return 0
	}
	return m.rows - at%m.rows
}

// offset returns the file, and where in it a row begins.
func (m *mover) offset(at int) (file int, off int64) {
	p := m.place
	p.Cols, p.Transposed = arch.Order{}, false
	file, index := m.slot.Index(p, at/m.rows, at%m.rows, 0)
	return file, int64(index/m.cols) * m.from
}

// whole reads rows that stand one behind the other.
func (m *mover) whole(dst []byte, at int) error {
	file, off := m.offset(at)
	return full(m.files[file], dst, off)
}

// full reads all of dst.
func full(t tensor.Stored, dst []byte, off int64) error {
	if n, err := t.ReadAt(dst, off); n < len(dst) {
		return err
	}
	return nil
}

// row reads one row of the slot.
func (m *mover) row(dst []byte, at int) error {
	if m.place.Transposed {
		return m.turnedRow(dst, at)
	}
	raw := make([]byte, m.from)
	if err := m.whole(raw, at); err != nil {
		return err
	}
	if m.decoded {
		m.decode(dst, raw)
		return nil
	}
	if o := m.place.Cols; o != (arch.Order{}) {
		block, bytes := m.dtype.BlockLen(), m.dtype.BlockBytes()
		ordered := make([]byte, len(raw))
		for i := 0; i < m.cols/block; i++ {
			from := o.ToFile(i*block) / block
			copy(ordered[i*bytes:(i+1)*bytes], raw[from*bytes:])
		}
		raw = ordered
	}
	copy(dst, raw)
	return nil
}

// decode writes a row in float32: with the slot's values, in its order.
func (m *mover) decode(dst, raw []byte) {
	stored, values := make([]float32, m.cols), make([]float32, m.cols)
	widen(stored, raw, m.dtype)
	for i := range values {
		values[i] = float32(m.place.Values.FromFile(float64(stored[m.place.Cols.ToFile(i)])))
	}
	tensor.Narrow(dst, values, tensor.F32)
}

// widen decodes plain elements or whole blocks.
func widen(dst []float32, raw []byte, d tensor.DType) {
	if d.IsQuantized() {
		quant.Dequantize(dst, raw, d)
		return
	}
	tensor.Widen(dst, raw, d)
}

// turnedRow reads a row that is a column of the file's matrix. The expert's matrix is turned once.
func (m *mover) turnedRow(dst []byte, at int) error {
	m.lock.Lock()
	defer m.lock.Unlock()
	size := m.dtype.BlockBytes()
	if e := at / m.rows; m.expert != e || m.turned == nil {
		experts, _, _ := m.slot.Dims()
		file, total, base := 0, int(m.files[0].Elements()), 0
		if m.place.Each > 0 {
			file = e
		} else {
			total /= experts
			base = e * total
		}
		raw := make([]byte, total*size)
		if err := full(m.files[file], raw, int64(base*size)); err != nil {
			return err
		}
		m.expert, m.turned = e, make([]byte, m.rows*m.cols*size)
		columns, out := m.slot.Columns(m.place), m.turned
		for r := range m.rows {
			_, first := m.slot.Index(m.place, e, r, 0)
			for _, c := range columns {
				copy(out[:size], raw[(first-base+c)*size:])
				out = out[size:]
			}
		}
	}
	copy(dst, m.turned[at%m.rows*m.cols*size:])
	return nil
}
