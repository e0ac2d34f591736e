package cpu

import (
	"apr/device"
	"apr/device/cpu/q8"
	"apr/device/cpu/vec"
	"apr/internal/fault"
	"apr/quant"
	"apr/tensor"
)

// weight is a frozen matrix: float32 in memory, stored parts that are decoded row by row, or the same packed.
type weight struct {
	rows, cols int
	bytes      int64
	f32        mat // if f32.d is not nil
	parts      []part
	packed     []*q8.Matrix // of the parts, instead of their data
	each       int          // rows of an expert, which is a part; 0: parts of any size
	isa        vec.ISA
}

// part holds the stored bytes of rows [first, first+rows) of a weight.
type part struct {
	first, rows int
	dtype       tensor.DType
	data        []byte
	rowBytes    int // 0: a flat stream of blocks whose rows may start inside a block
}

func (w *weight) Rows() int    { return w.rows }
func (w *weight) Cols() int    { return w.cols }
func (w *weight) Bytes() int64 { return w.bytes }

// DecodeRow writes columns [lo,hi) of a row to dst[0:hi-lo]. It is safe for concurrent use.
func (w *weight) DecodeRow(dst []float32, row, lo, hi int) {
	dst = dst[:hi-lo]
	if w.f32.d != nil {
		copy(dst, w.f32.row(row)[lo:hi])
		return
	}
	p := w.partOf(row)
	row -= w.parts[p].first
	if w.packed != nil {
		w.packed[p].DecodeRow(dst, row, lo, hi)
		return
	}
	w.parts[p].decode(w.isa, dst, row, lo, w.cols)
}

// partOf returns the part that has a row.
func (w *weight) partOf(row int) (p int) {
	if w.each > 0 {
		return row / w.each
	}
	for row >= w.parts[p].first+w.parts[p].rows {
		p++
	}
	return p
}

// packedFrom returns the packed parts from the one on that begins with row first.
func (w *weight) packedFrom(first int) []*q8.Matrix {
	if first == 0 {
		return w.packed
	}
	p := w.partOf(first)
	if w.parts[p].first != first {
		panic("cpu: a packed matrix of experts that WeightSpec.Experts did not name")
	}
	return w.packed[p:]
}

// decode writes len(dst) columns of a row of the part, from column lo on.
func (p *part) decode(isa vec.ISA, dst []float32, row, lo, cols int) {
	if p.rowBytes == 0 {
		quant.DequantizeRange(dst, p.data, row*cols+lo, p.dtype)
		return
	}
	data := p.data[row*p.rowBytes : (row+1)*p.rowBytes]
	switch p.dtype {
	case tensor.BF16:
		isa.WidenBF16(dst, data[2*lo:])
	case tensor.F16:
		isa.WidenF16(dst, data[2*lo:])
	case tensor.F32, tensor.F64:
		tensor.Widen(dst, data[lo*p.dtype.BlockBytes():], p.dtype)
	default:
		quant.DequantizeRange(dst, data, lo, p.dtype)
	}
}

// Frozen returns a weight that reads t, which is float32.
func (d *Device) Frozen(t device.Tensor) device.Weight {
	device.CheckFrozen(t)
	return &weight{rows: t.Rows, cols: t.Cols, f32: floats(t), isa: d.isa}
}

// Weight reads a frozen matrix from its sources and keeps it as stored; float32 and float64 parts, and others while
// Options.KeepExpanded has room, become one float32 matrix. Errors name the source's tensor.
func (d *Device) Weight(spec device.WeightSpec) (device.Weight, error) {
	spec, err := byExpert(spec)
	if err != nil {
		return nil, err
	}
	w, plain, err := layOut(spec)
	if err != nil {
		return nil, err
	}
	w.isa = d.isa
	if spec.Experts > 0 && len(w.parts) > 0 {
		w.each = w.parts[0].rows
	}
	if d.packs(w) {
		if err := w.pack(d, spec); err != nil {
			return nil, err
		}
		d.mem.Add(spec.Component, w.bytes)
		return w, nil
	}
	taken := int64(0) // of what may be expanded
	if !plain {
		taken = d.takeExpanded(w)
	}
	if err := w.read(spec, plain || taken > 0); err != nil {
		d.giveExpanded(taken)
		return nil, err
	}
	d.mem.Add(spec.Component, w.bytes)
	return w, nil
}

// byExpert returns spec with a part for each of its experts, so that an expert's rows are whole panels where they are packed.
func byExpert(spec device.WeightSpec) (device.WeightSpec, error) {
	if spec.Experts == 0 {
		return spec, nil
	}
	if len(spec.Parts) != 1 || spec.Rows != nil || spec.Parts[0].Info().Rows()%spec.Experts != 0 {
		return spec, fault.New(fault.Load, "is not one stack of %d matrices", spec.Experts).At("tensor %q", spec.Name).WithID("E-CPU-011")
	}
	whole := spec.Parts[0]
	info := whole.Info()
	rows := info.Rows() / spec.Experts
	if info.DType == tensor.AprQ8 || info.DType.IsQuantized() && info.Cols()%info.DType.BlockLen() != 0 { // rows that do not begin with a block stay together
		spec.Experts = 0
		return spec, nil
	}
	spec.Parts = nil
	for e := range spec.Experts {
		spec.Parts = append(spec.Parts, rowsOf{whole, e * rows, rows})
	}
	return spec, nil
}

// rowsOf are some rows of a source.
type rowsOf struct {
	device.Source
	first, rows int
}

// Info describes these rows.
func (r rowsOf) Info() tensor.Info {
	info := r.Source.Info()
	info.Shape, info.Size = []int{r.rows, info.Cols()}, int64(r.rows)*info.DType.RowBytes(info.Cols())
	return info
}

// ReadRows reads rows [lo,hi) of these.
func (r rowsOf) ReadRows(dst []byte, lo, hi int) error {
	return r.Source.ReadRows(dst, r.first+lo, r.first+hi)
}

// layOut checks what spec claims to be; plain: all parts are float32 or float64.
func layOut(spec device.WeightSpec) (w *weight, plain bool, err error) {
	if spec.Form.FP8 {
		return nil, false, fault.New(fault.Unavailable, "a CPU has no products in 8-bit floats").WithHint("--teacher-gemm bf16 works everywhere").WithID("E-CPU-009")
	}
	if spec.Form.HostExperts {
		return nil, false, fault.New(fault.Unavailable, "a CPU reads experts where they are: there is no other memory").WithHint("--teacher-experts device works everywhere").WithID("E-CPU-012")
	}
	if spec.Form.HostLayers {
		return nil, false, fault.New(fault.Unavailable, "a CPU reads layers where they are: there is no other memory").
			WithHint("--teacher-backend auto works everywhere").WithID("E-CPU-013")
	}
	w, plain = &weight{}, true
	for i, src := range spec.Parts {
		p, cols, err := describe(src.Info(), spec, i)
		if err != nil {
			return nil, false, err
		}
		if i > 0 && cols != w.cols {
			return nil, false, fault.New(fault.Load, "%d columns, the part before has %d", cols, w.cols).
				At("tensor %q", src.Info().Name).WithID("E-CPU-003")
		}
		p.first, w.cols = w.rows, cols
		w.rows += p.rows
		w.parts = append(w.parts, p)
		plain = plain && (p.dtype == tensor.F32 || p.dtype == tensor.F64)
	}
	return w, plain, nil
}

// packs reports whether the device keeps w for products with rounded activations.
func (d *Device) packs(w *weight) bool {
	for _, p := range w.parts {
		if p.rowBytes == 0 || !q8.CanPack(p.dtype, w.cols) {
			return false
		}
	}
	return d.round && len(w.parts) > 0
}

// pack reads the parts and packs them.
func (w *weight) pack(d *Device, spec device.WeightSpec) error {
	for i, src := range spec.Parts {
		p := &w.parts[i]
		m, err := q8.Pack(&d.packed, d.pool, p.dtype, p.rows, w.cols, src.ReadRows)
		if err != nil {
			return err
		}
		w.packed = append(w.packed, m)
		w.bytes += m.Bytes()
	}
	return nil
}

// packedBytes is what pack will need.
func (w *weight) packedBytes() (n int64) {
	for _, p := range w.parts {
		n += q8.PackedBytes(p.dtype, p.rows, w.cols)
	}
	return n
}

// expandedBytes returns the bytes of w as float32.
func (w *weight) expandedBytes() int64 { return 4 * int64(w.rows) * int64(w.cols) }

// describe checks what part i of spec claims to be and says how it is kept.
func describe(info tensor.Info, spec device.WeightSpec, i int) (p part, cols int, err error) {
	rows, cols := info.Rows(), info.Cols()
	p = part{rows: rows, dtype: info.DType}
	if spec.Rows != nil {
		p.rows = spec.Rows[i]
	}
	bad := func(kind fault.Kind, format string, args ...any) error {
		return fault.New(kind, format, args...).At("tensor %q", info.Name).WithID("E-CPU-004")
	}
	if p.rows < 0 || p.rows > rows {
		return p, 0, bad(fault.Load, "%d rows wanted, %d stored", p.rows, rows)
	}
	switch {
	case info.DType.IsFloat():
		p.rowBytes = int(info.DType.RowBytes(cols))
		if want := int64(rows) * int64(p.rowBytes); info.Size != want {
			return p, 0, bad(fault.Format, "%d bytes for %d×%d elements of %v, want %d", info.Size, rows, cols, info.DType, want)
		}
	case info.DType.IsQuantized():
		layout, err := quant.LayoutOf(info.Size, rows, cols, info.DType)
		if err != nil {
			return p, 0, fault.New(fault.KindOf(err), "cannot be laid out").At("tensor %q", info.Name).WithID("E-CPU-005").Because(err)
		}
		if layout == quant.RowPadded || cols%info.DType.BlockLen() == 0 && info.DType != tensor.AprQ8 {
			p.rowBytes = int(info.DType.RowBytes(cols))
		}
	default:
		return p, 0, bad(fault.Load, "a weight cannot be of type %v", info.DType)
	}
	return p, cols, nil
}

// takeExpanded takes the bytes of w as float32 from what Options.KeepExpanded has left, and returns 0 if they do not fit.
func (d *Device) takeExpanded(w *weight) int64 {
	n := w.expandedBytes()
	d.mu.Lock()
	defer d.mu.Unlock()
	if n > d.expand {
		return 0
	}
	d.expand -= n
	return n
}

// giveExpanded gives back what takeExpanded took.
func (d *Device) giveExpanded(n int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expand += n
}

// readBytes bounds the stored bytes that are in memory beside an expanded weight.
const readBytes = 1 << 20

// read fills the parts, or the float32 matrix.
func (w *weight) read(spec device.WeightSpec, expand bool) error {
	if expand {
		w.f32 = mat{d: alignedFloats(w.rows * w.cols), rows: w.rows, cols: w.cols, stride: w.cols}
		w.bytes = w.expandedBytes()
	}
	for i, src := range spec.Parts {
		p := &w.parts[i]
		if p.rowBytes == 0 {
			if err := w.readFlat(p, src); err != nil {
				return err
			}
		} else if !expand {
			p.data = make([]byte, p.rows*p.rowBytes)
			if err := src.ReadRows(p.data, 0, p.rows); err != nil {
				return err
			}
		} else if err := w.readExpanded(p, src); err != nil {
			return err
		}
		if expand {
			p.data = nil
		}
		w.bytes += int64(len(p.data))
	}
	if expand {
		w.parts = nil
	}
	return nil
}

// readFlat reads the whole payload of a part whose rows are not whole blocks, and expands it if w is float32.
func (w *weight) readFlat(p *part, src device.Source) error {
	info := src.Info()
	p.data = make([]byte, info.Size)
	if err := src.ReadRows(p.data, 0, info.Rows()); err != nil {
		return err
	}
	if w.f32.d != nil && p.rows > 0 {
		quant.DequantizeRange(w.f32.d[p.first*w.cols:][:p.rows*w.cols], p.data, 0, p.dtype)
	}
	return nil
}

// readExpanded reads a part some rows at a time and decodes them into w.f32.
func (w *weight) readExpanded(p *part, src device.Source) error {
	step := max(1, readBytes/max(1, p.rowBytes))
	all := *p
	buf := make([]byte, min(step, p.rows)*p.rowBytes)
	for lo := 0; lo < p.rows; lo += step {
		hi := min(p.rows, lo+step)
		all.data = buf[:(hi-lo)*p.rowBytes]
		if err := src.ReadRows(all.data, lo, hi); err != nil {
			return err
		}
		for r := lo; r < hi; r++ {
			all.decode(w.isa, w.f32.row(p.first+r), r-lo, 0, w.cols)
		}
	}
	return nil
}
