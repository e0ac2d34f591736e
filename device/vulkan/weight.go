package vulkan

import (
	"encoding/binary"
	"math"
	"slices"

	"apr/device"
	"apr/device/dry"
	"apr/device/vulkan/kernel"
	"apr/internal/fault"
	"apr/quant"
	"apr/tensor"
)

// weight is a matrix of one part or more below each other, each as kernels read it.
type weight struct {
	rows, cols int
	bytes      int64
	parts      []part
}

// part is rows [first, first+Rows) of a weight.
type part struct {
	kernel.Weight
	first int

	dtype    tensor.DType
	rowBytes int // as stored; 0: a flat stream of blocks whose rows may start inside a block
}

func (w *weight) Rows() int    { return w.rows }
func (w *weight) Cols() int    { return w.cols }
func (w *weight) Bytes() int64 { return w.bytes }

// Frozen returns a weight that reads t, which is float32.
func (d *Device) Frozen(t device.Tensor) device.Weight {
	device.CheckFrozen(t)
	w := &weight{rows: t.Rows, cols: t.Cols}
	if t.Rows > 0 {
		w.parts = []part{{Weight: kernel.Weight{Data: mat(t), Form: "f32", Rows: t.Rows, Cols: t.Cols}, dtype: tensor.F32}}
	}
	return w
}

// Weight reads a frozen matrix from its sources. Parts stay as they are stored if kernels expand them, in whole
// words: rows of bfloat16 and float16 end with a word, those of Q8_0 and Q6_K have all scales before the blocks. Others
// become float32. Errors name the source's tensor.
func (d *Device) Weight(spec device.WeightSpec) (device.Weight, error) {
	w, err := d.layOut(spec)
	if err != nil {
		return nil, err
	}
	b := &buffer{name: spec.Name, comp: spec.Component, n: w.bytes, state: device.Lasting}
	d.mu.Lock()
	err = d.lost
	if err == nil && w.bytes > 0 {
		err = d.placeBuffer(b)
	}
	d.mu.Unlock()
	if err != nil {
		return nil, outOfMemory(err, spec.Name, spec.Component)
	}
	at := 0
	for i := range w.parts {
		p := &w.parts[i]
		words := kernel.Words(p.Form, w.cols)
		p.Data = kernel.Mat{Buf: b, At: at, Rows: p.Rows, Cols: words, Row: words}
		at = evenly(at + p.Rows*words)
		if err := d.load(p, spec.Parts[i]); err != nil {
			d.mu.Lock()
			err = d.finishLoading(err)
			d.mu.Unlock()
			if w.bytes > 0 {
				d.freeBuffer(b)
			}
			return nil, err
		}
	}
	return w, nil
}

// evenly rounds words up, so that kernels may read the first four of a part at once.
func evenly(words int) int { return (words + 3) &^ 3 }

// finishLoading lets the copies of a weight that could not be read end before its memory is given back.
func (d *Device) finishLoading(err error) error {
	_ = d.finish() // err says more
	return err
}

// layOut checks what spec claims to be and says how its parts are kept.
func (d *Device) layOut(spec device.WeightSpec) (*weight, error) {
	switch {
	case spec.Form.FP8:
		return nil, fault.New(fault.Unavailable, "the Vulkan device has no products in 8-bit floats").
			WithHint("--teacher-gemm bf16 works everywhere").WithID("E-VULKAN-041")
	case spec.Form.HostLayers:
		return nil, fault.New(fault.Unavailable, "the Vulkan device keeps all layers in its memory").
			WithHint("--teacher-backend auto works everywhere").WithID("E-VULKAN-042")
	case spec.Form.HostExperts || spec.Experts > 0:
		return nil, fault.New(fault.Unavailable, "%s: the Vulkan device does not have it", device.Experts).
			At("tensor %q", spec.Name).WithID("E-VULKAN-040")
	}
	w := &weight{}
	for i, src := range spec.Parts {
		info := src.Info()
		p, err := describe(info, spec, i)
		if err != nil {
			return nil, err
		}
		if i > 0 && p.Cols != w.cols {
			return nil, fault.New(fault.Load, "%d columns, the part before has %d", p.Cols, w.cols).At("tensor %q",
				info.Name).WithID("E-VULKAN-042")
		}
		w.cols = p.Cols
		p.first = w.rows
		w.rows += p.Rows
		words := kernel.Words(p.Form, p.Cols)
		if int64(4*words)+alignment > d.limit {
			return nil, fault.New(fault.Unavailable,
				"a row of %d values is longer than the %d bytes that a binding of %s spans", p.Cols, d.limit, d.adapter.Name).
				At("tensor %q", info.Name).WithHint("--backend cpu works everywhere").WithID("E-VULKAN-043")
		}
		w.bytes = 4*int64(evenly(int(w.bytes/4))) + 4*int64(words)*int64(p.Rows)
		w.parts = append(w.parts, p)
	}
	return w, nil
}

// describe checks what part i of spec claims to be and says how it is kept.
func describe(info tensor.Info, spec device.WeightSpec, i int) (p part, err error) {
	rows, cols := info.Rows(), info.Cols()
	p = part{Weight: kernel.Weight{Form: "f32", Rows: rows, Cols: cols}, dtype: info.DType}
	if spec.Rows != nil {
		p.Rows = spec.Rows[i]
	}
	bad := func(kind fault.Kind, format string, args ...any) error {
		return fault.New(kind, format, args...).At("tensor %q", info.Name).WithID("E-VULKAN-044")
	}
	if p.Rows < 0 || p.Rows > rows {
		return p, bad(fault.Load, "%d rows wanted, %d stored", p.Rows, rows)
	}
	switch {
	case info.DType.IsFloat():
		p.rowBytes = int(info.DType.RowBytes(cols))
		if want := int64(rows) * int64(p.rowBytes); info.Size != want {
			return p, bad(fault.Format, "%d bytes for %d×%d elements of %v, want %d", info.Size, rows, cols, info.DType, want)
		}
	case info.DType.IsQuantized():
		layout, err := quant.LayoutOf(info.Size, rows, cols, info.DType)
		if err != nil {
			return p, fault.New(fault.KindOf(err), "cannot be laid out").At("tensor %q", info.Name).WithID("E-VULKAN-045").
				Because(err)
		}
		if layout == quant.RowPadded || cols%info.DType.BlockLen() == 0 && info.DType != tensor.AprQ8 {
			p.rowBytes = int(info.DType.RowBytes(cols))
		}
	default:
		return p, bad(fault.Load, "a weight cannot be of type %v", info.DType)
	}
	form, ok := forms[info.DType]
	if ok && p.rowBytes > 0 && cols%info.DType.BlockLen() == 0 {
		p.Form = form
	}
	return p, nil
}

// forms are the types that kernels expand.
var forms = map[tensor.DType]string{tensor.BF16: "bf16", tensor.F16: "f16", tensor.Q8_0: "q8_0",
	tensor.Q4_K: "q4_k", tensor.Q6_K: "q6_k"}

// readBytes bounds the stored bytes that are in host memory at a time.
const readBytes = 1 << 20

// load reads a part, some rows at a time, and copies it to its place in the form that kernels read.
func (d *Device) load(p *part, src device.Source) error {
	to, info := p.Data.Buf.(*buffer), src.Info()
	if p.rowBytes == 0 { // rows that are not whole blocks come whole
		stored := make([]byte, info.Size)
		if err := src.ReadRows(stored, 0, info.Rows()); err != nil {
			return err
		}
		values := make([]float32, p.Rows*p.Cols)
		if len(values) > 0 {
			quant.DequantizeRange(values, stored, 0, p.dtype)
		}
		d.copyTo(to, p.Data.At, singles(nil, values))
		return d.lostError()
	}
	step := max(1, readBytes/max(1, p.rowBytes))
	stored, words := make([]byte, min(step, p.Rows)*p.rowBytes), kernel.Words(p.Form, p.Cols)
	var out []byte
	for lo := 0; lo < p.Rows; lo += step {
		hi := min(p.Rows, lo+step)
		b := stored[:(hi-lo)*p.rowBytes]
		if err := src.ReadRows(b, lo, hi); err != nil {
			return err
		}
		out = out[:0]
		for r := range hi - lo {
			out = p.pack(out, b[r*p.rowBytes:][:p.rowBytes])
		}
		d.copyTo(to, p.Data.At+lo*words, out)
	}
	return d.lostError()
}

func (d *Device) lostError() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lost
}

// copyTo copies bytes to a place that is counted in words.
func (d *Device) copyTo(to *buffer, word int, b []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.write(to.place, 4*int64(word), b)
}

// pack appends a stored row in the form that kernels read.
func (p *part) pack(out, row []byte) []byte {
	switch p.Form {
	case "bf16", "f16":
		out = append(out, row...)
		return append(out, make([]byte, -len(row)&3)...)
	case "q4_k":
		return append(out, row...)
	case "q6_k": // 208 bytes, a half
		return scalesFirst(out, row, 210, 208, 210)
	case "q8_0": // a half, 32 codes
		return scalesFirst(out, row, 34, 0, 2)
	}
	values := make([]float32, p.Cols)
	if p.dtype.IsFloat() {
		tensor.Widen(values, row, p.dtype)
	} else {
		quant.DequantizeRange(values, row, 0, p.dtype)
	}
	return singles(out, values)
}

// scalesFirst appends what stands at [lo, hi) in each block of a row, a half, zeros up to 16 bytes, and then the blocks
// without it, so that kernels read these 16 bytes at a time.
func scalesFirst(out, row []byte, block, lo, hi int) []byte {
	begin := len(out)
	for b := range slices.Chunk(row, block) {
		out = append(out, b[lo:hi]...)
	}
	out = append(out, make([]byte, -(len(out)-begin)&15)...)
	for b := range slices.Chunk(row, block) {
		out = append(append(out, b[:lo]...), b[hi:]...)
	}
	return out
}

// singles appends values as float32.
func singles(out []byte, values []float32) []byte {
	for _, v := range values {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out
}

var _ dry.Planned = (*Device)(nil)

// Target describes the device for one dry run. Its budget is what the device holds and what it could still get.
func (d *Device) Target() dry.Target {
	t := dry.Target{Info: d.Info(), Matrices: tensor.F32, Temps: &classes{}, Align: alignment,
		Reserved: own}
	t.Keep = func(spec device.WeightSpec) (dry.Kept, error) {
		w, err := d.layOut(spec)
		if err != nil {
			return dry.Kept{}, err
		}
		kept, err := dry.Stored(spec)
		kept.Bytes = w.bytes
		return kept, err
	}
	now, _ := d.Memory()
	if t.Budget = budgetOf(&d.adapter.Adapter); t.Budget > 0 && d.adapter.Type.Hardware() {
		return t // what the driver says includes what the device holds
	}
	for _, n := range now {
		t.Budget += n
	}
	return t
}

// classes places temps as a device's free lists do: released ones serve their own size class only.
type classes struct {
	free [numClasses]int
	peak int64
}

// Size returns the bytes of the class of n.
func (c *classes) Size(n int64) int64 {
	_, size := sizeClass(n)
	return size
}

// Place takes a free buffer of the class, or makes one.
func (c *classes) Place(n int64) int64 {
	class, size := sizeClass(n)
	if c.free[class] > 0 {
		c.free[class]--
	} else {
		c.peak += size
	}
	return int64(class) // all that Release must know
}

// Release gives a buffer back to its class.
func (c *classes) Release(place int64) { c.free[place]++ }

// Peak returns the bytes of all buffers ever made.
func (c *classes) Peak() int64 { return c.peak }
