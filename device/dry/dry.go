// Package dry is a device that computes nothing and records everything: what a step allocates and when, which operations
// it runs in which types and sizes, how many floating-point operations and bytes they cost.
//
// The code that trains runs on it unchanged; a plan is made from its Record. A Target says what matters about the real
// device: the type of activations, how it keeps weights, how it places temps. Sources of weights are asked for their
// description only, so a plan needs the headers of files, not their content.
//
// Parts that a step repeats in equal shapes (device.Repeat) are run until nothing new can come of them, and counted from then on.
//
// Caveats. Tensors have no values: Download is an error of the stream, and the scalars of a step are those of a loss of
// 0 with a finite gradient. Every operand is checked: it must lie inside its buffer, and the buffer must be alive.
// Costs count what an operation must do at least: products and attention in floating-point operations (the causal half
// of attention), each operand once in bytes moved.
package dry

import (
	"fmt"
	"math"

	"apr/device"
	"apr/device/arena"
	"apr/internal/fault"
	"apr/tensor"
)

// Target describes the device that a dry one stands for.
type Target struct {
	Info     device.Info  // its Kind and Activations count
	Matrices tensor.DType // type in which products read trainable matrices; not F32: a copy beside the float32 masters
	// Keep says how a frozen matrix is kept; nil: as it is stored, see Stored.
	Keep func(device.WeightSpec) (Kept, error)
	// Temps places temps; nil: an arena of 256-byte places.
	Temps Placer
	// Align is what the sizes of other tensors are multiples of; 0: 1.
	Align int64
	// Reserved is memory that the device needs for itself: workspaces, scratch of operations.
	Reserved int64
	// Budget is the memory that the device holds now or could still get; 0: unknown.
	Budget int64
	// Reserve is what is free beyond Budget, bytes: for other programs and for what no plan sees.
	Reserve int64
}

// Planned is a device that plans can be made for.
type Planned interface {
	device.Device
	// Target describes the device, afresh for each dry run.
	Target() Target
}

// Preparer is a device that can take memory and load code for a step before it runs.
type Preparer interface {
	// Prepare takes what a step needs by its record.
	Prepare(*Record) error
}

// Placer decides where temps stand. An arena is one.
type Placer interface {
	Size(n int64) int64 // bytes that a temp of n bytes takes
	Place(n int64) (place int64)
	Release(place int64)
	Peak() int64 // bytes needed for all so far
}

// Kept says how a device keeps a frozen matrix.
type Kept struct {
	Bytes int64
	Types string // what products read: a type, or several, as "q4_k+q6_k"
	// Scratch is what a product with it takes besides, to expand it; all matrices share the most of it.
	Scratch int64
}

// Device records what is asked of it; see Target.
type Device struct {
	target  Target
	static  map[device.Component]*level // what lives long
	both    map[device.Component]*level // and temps
	live    int64                       // bytes of temps
	most    int64
	fresh   bool // most was reached by the last Temp and is not described yet
	holding map[*buffer]struct{}
	atPeak  []*buffer
	expand  int64      // the most of Kept.Scratch
	ops     map[Op]int // index in list
	list    []Count
	waits   int
	placed  int64 // temps so far
	repeats map[any]repetition
}

// level is a number of bytes and the highest it was.
type level struct{ now, peak int64 }

func (l *level) add(n int64) {
	l.now += n
	l.peak = max(l.peak, l.now)
}

var (
	_ device.Device = (*Device)(nil)
	_ device.Stream = (*Stream)(nil)
	_ Placer        = (*arena.Arena)(nil)

	_ device.Fetcher = (*Stream)(nil) // so that a dry generation has the memory of one that is an id ahead
)

// New returns a device that stands for t.
func New(t Target) *Device {
	if t.Keep == nil {
		t.Keep = Stored
	}
	if t.Temps == nil {
		t.Temps = arena.New(256)
	}
	t.Align = max(1, t.Align)
	return &Device{
		target: t, static: map[device.Component]*level{}, both: map[device.Component]*level{},
		holding: map[*buffer]struct{}{}, ops: map[Op]int{}, repeats: map[any]repetition{},
	}
}

// Info is the target's.
func (d *Device) Info() device.Info { return d.target.Info }

// buffer is a piece of memory that is not there.
type buffer struct {
	name  string
	comp  device.Component
	bytes int64 // asked for
	size  int64 // counted
	place int64
	more  int64 // bytes of copies that go with it
	temp  bool
	live  bool
}

// Bytes returns the size of the buffer.
func (b *buffer) Bytes() int64 { return b.size }

func at(m map[device.Component]*level, c device.Component) *level {
	l := m[c]
	if l == nil {
		l = &level{}
		m[c] = l
	}
	return l
}

// hold counts n bytes that live long and returns them as counted.
func (d *Device) hold(c device.Component, n int64) int64 {
	n = (n + d.target.Align - 1) / d.target.Align * d.target.Align
	at(d.static, c).add(n)
	at(d.both, c).add(n)
	return n
}

// Alloc returns a tensor that lives until Free.
func (d *Device) Alloc(name string, c device.Component, t tensor.DType, rows, cols int) device.Tensor {
	b := &buffer{name: name, comp: c, bytes: bytesOf(t, rows, cols), live: true}
	b.size = d.hold(c, b.bytes)
	return view(b, t, rows, cols)
}

// Free gives tensors of Alloc back.
func (d *Device) Free(ts ...device.Tensor) {
	for _, t := range ts {
		b := t.Buf.(*buffer)
		if b.temp || !b.live {
			panic("dry: free of " + b.name + ", which is a temp or was freed before")
		}
		b.live = false
		at(d.static, b.comp).add(-b.size - b.more)
		at(d.both, b.comp).add(-b.size - b.more)
	}
}

// Weight counts a frozen matrix as the target keeps it.
func (d *Device) Weight(spec device.WeightSpec) (device.Weight, error) {
	w := &weight{}
	for i, src := range spec.Parts {
		info := src.Info()
		rows, cols := info.Rows(), info.Cols()
		if spec.Rows != nil {
			if spec.Rows[i] < 0 || spec.Rows[i] > rows {
				return nil, fault.New(fault.Load, "%d rows wanted, %d stored", spec.Rows[i], rows).At("tensor %q", info.Name).WithID("E-DRY-001")
			}
			rows = spec.Rows[i]
		}
		if i > 0 && cols != w.cols {
			return nil, fault.New(fault.Load, "%d columns, the part before has %d", cols, w.cols).At("tensor %q", info.Name).WithID("E-DRY-002")
		}
		w.rows, w.cols = w.rows+rows, cols
	}
	var err error
	if w.Kept, err = d.target.Keep(spec); err != nil {
		return nil, err
	}
	w.Kept.Bytes = d.hold(spec.Component, w.Kept.Bytes)
	d.expand = max(d.expand, (w.Kept.Scratch+d.target.Align-1)/d.target.Align*d.target.Align)
	return w, nil
}

// Param counts a trainable tensor: value, gradient and two moments in float32, and the copy of a matrix that products
// read where it is of another type.
func (d *Device) Param(spec device.ParamSpec) *device.Param {
	alloc := func(what string, c device.Component) device.Tensor {
		return d.Alloc(spec.Name+what, c, tensor.F32, spec.Rows, spec.Cols)
	}
	p := &device.Param{
		ParamSpec: spec,
		Value:     alloc("", device.StudentWeights),
		Grad:      alloc(".grad", device.Gradients),
		M:         alloc(".m", device.Moments),
		V:         alloc(".v", device.Moments),
	}
	w := &weight{rows: spec.Rows, cols: spec.Cols, Kept: Kept{Types: tensor.F32.String()}}
	if spec.Rows > 1 {
		w = d.Frozen(p.Value).(*weight)
	}
	p.Weight = w
	return p
}

// Frozen returns a weight that reads t, or counts a copy of it in the type in which products read matrices.
func (d *Device) Frozen(t device.Tensor) device.Weight {
	w := &weight{rows: t.Rows, cols: t.Cols, Kept: Kept{Types: t.DType.String()}}
	if m := d.target.Matrices; m != tensor.Invalid && m != tensor.F32 {
		b := t.Buf.(*buffer)
		w.Kept = Kept{Types: m.String(), Bytes: d.hold(b.comp, bytesOf(m, t.Rows, t.Cols))}
		b.more += w.Kept.Bytes
	}
	return w
}

// weight is a matrix without values.
type weight struct {
	rows, cols int
	Kept
}

func (w *weight) Rows() int    { return w.rows }
func (w *weight) Cols() int    { return w.cols }
func (w *weight) Bytes() int64 { return w.Kept.Bytes }

// moved returns the bytes of the first rows rows, which is what a product reads.
func (w *weight) moved(rows int) float64 {
	if w.Kept.Bytes > 0 {
		return float64(w.Kept.Bytes) * float64(rows) / float64(max(1, w.rows))
	}
	return 4 * float64(rows) * float64(w.cols)
}

// NewStream returns a stream that records.
func (d *Device) NewStream() device.Stream { return &Stream{dev: d} }

// Memory returns the bytes held now and at the highest point, by component.
func (d *Device) Memory() (now, peak map[device.Component]int64) {
	now, peak = map[device.Component]int64{}, map[device.Component]int64{}
	for c, l := range d.both {
		now[c], peak[c] = l.now, l.peak
	}
	return now, peak
}

// Close does nothing.
func (d *Device) Close() error { return nil }

func bytesOf(t tensor.DType, rows, cols int) int64 {
	if rows < 0 || cols < 0 || t.BlockLen() != 1 {
		panic("dry: no tensor of such a shape or type")
	}
	row := t.RowBytes(cols)
	if rows > 0 && row > math.MaxInt64/4/int64(rows) {
		panic(fmt.Sprintf("dry: a tensor of %d rows of %d bytes", rows, row))
	}
	return int64(rows) * row
}

func view(b *buffer, t tensor.DType, rows, cols int) device.Tensor {
	return device.Tensor{Buf: b, Rows: rows, Cols: cols, Stride: cols, DType: t}
}
