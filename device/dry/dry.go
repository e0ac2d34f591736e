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
	// Link is how many bytes a second come from page-locked memory of the host, as is assumed; 0: they need not come.
	Link  float64
	Share device.Share // of the training state of models
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
	Types string // as the device keeps it: a type, or several, as "q4_k+q6_k"
	// Expands says that products expand quantised blocks each time, FP8 that they multiply in 8-bit floats.
	Expands, FP8 bool
	// Scratch is what a product with it takes besides, to expand it; all matrices share the most of it. In 8-bit floats it is taken
	// when the matrix comes.
	Scratch int64
	// Reads is up to how many rows of x a product reads the blocks as they are and takes no Scratch; Arranged, if it is more, the same
	// after device.Arranger.Arrange. Gathers says that Embed takes none.
	Reads, Arranged int
	// Host is how many bytes stay in memory of the host, from where each product fetches them; Staging the memory on
	// the device in which they arrive, of which the most is taken once for all matrices, when the first one comes. With
	// Layered both are parts of those of WeightSpec.Layer, which the first product with a matrix of the layer fetches.
	Host, Staging int64
	Layered       bool
	Gathers       bool
}

// Device records what is asked of it; see Target.
type Device struct {
	target  Target
	static  device.Accounts // what lives long
	both    device.Accounts // and temps
	live    int64           // bytes of temps
	most    int64
	fresh   bool // most was reached by the last Temp and is not described yet
	holding map[*buffer]struct{}
	atPeak  []*buffer
	staging int64        // the most of Kept.Staging
	layers  []*hostLayer // in the order in which they came
	fetched *hostLayer   // that a product used last
	host    int64        // bytes of all Kept.Host
	expand  int64        // the most of Kept.Scratch that was needed
	ops     map[Op]int   // index in list
	list    []Count
	waits   int
	placed  int64 // temps so far
	decode  *device.Decode
	few     int // the most positions of a Decode
	repeats map[any]repetition

	exchange Exchange
}

var (
	_ device.Device = (*Device)(nil)
	_ device.Stream = (*Stream)(nil)
	_ Placer        = (*arena.Arena)(nil)

	_ device.Arranger = (*Stream)(nil)
	_ device.Decoder  = (*Stream)(nil)
	_ device.Fetcher  = (*Stream)(nil) // so that a dry generation has the memory of one that is an id ahead
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
	return &Device{target: t, holding: map[*buffer]struct{}{}, ops: map[Op]int{}, repeats: map[any]repetition{}}
}

// Share is the target's.
func (d *Device) Share() device.Share { return d.target.Share }

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

// Bytes returns the size that was asked for.
func (b *buffer) Bytes() int64 { return b.bytes }

// Name is what Temp or Alloc called it.
func (b *buffer) Name() string { return b.name }

// State says whether b was given back.
func (b *buffer) State() device.State {
	switch {
	case !b.live:
		return device.Gone
	case b.temp:
		return device.Temporary
	}
	return device.Lasting
}

// hold counts n bytes that live long and returns them as counted.
func (d *Device) hold(c device.Component, n int64) int64 {
	n = (n + d.target.Align - 1) / d.target.Align * d.target.Align
	d.static.Add(c, n)
	d.both.Add(c, n)
	return n
}

// Alloc returns a tensor that lives until Free.
func (d *Device) Alloc(name string, c device.Component, t tensor.DType, rows, cols int) device.Tensor {
	b := &buffer{name: name, comp: c, bytes: device.TensorBytes(device.OpAlloc, t, rows, cols), live: true}
	b.size = d.hold(c, b.bytes)
	return device.Whole(b, t, rows, cols)
}

// Free gives tensors of Alloc back.
func (d *Device) Free(ts ...device.Tensor) {
	for _, t := range ts {
		device.CheckFree(t)
		b := t.Buf.(*buffer)
		b.live = false
		d.static.Add(b.comp, -b.size-b.more)
		d.both.Add(b.comp, -b.size-b.more)
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
	d.host += w.Host
	staging := w.Staging
	if w.Layered {
		if n := len(d.layers); n == 0 || d.layers[n-1].number != spec.Layer {
			d.layers = append(d.layers, &hostLayer{number: spec.Layer})
		}
		w.layer = d.layers[len(d.layers)-1]
		w.layer.bytes, w.layer.staging = w.layer.bytes+w.Host, w.layer.staging+staging
		staging = w.layer.staging
	}
	d.staging = max(d.staging, staging)
	if w.FP8 {
		d.expands(w)
	}
	return w, nil
}

// hostLayer is what the matrices of a layer take that come together from the host.
type hostLayer struct {
	number         int
	bytes, staging int64
}

// fetches returns the bytes that a product with w fetches.
func (d *Device) fetches(w *weight) int64 {
	switch {
	case !w.Layered:
		return w.Host
	case d.fetched == w.layer:
		return 0
	}
	d.fetched = w.layer
	return w.layer.bytes
}

// expands counts the memory in which w is expanded.
func (d *Device) expands(w *weight) {
	d.expand = max(d.expand, (w.Kept.Scratch+d.target.Align-1)/d.target.Align*d.target.Align)
}

// Param counts a trainable tensor: value, gradient and two moments in float32, and the copy of a matrix that products
// read where it is of another type.
func (d *Device) Param(spec device.ParamSpec) *device.Param {
	copied := spec.Rows > 1 && d.target.Matrices != tensor.Invalid && d.target.Matrices != tensor.F32
	return device.NewParam(spec, copied, d.Alloc, func(value device.Tensor) device.Weight {
		if copied && value.Rows != spec.Rows { // of which this rank keeps a share
			m := d.target.Matrices
			return &weight{rows: spec.Rows, cols: spec.Cols, Kept: Kept{Types: m.String(),
				Bytes: d.hold(device.StudentWeights, device.TensorBytes(device.OpFrozen, m, spec.Rows, spec.Cols))}}
		}
		if spec.Rows > 1 {
			return d.Frozen(value)
		}
		return &weight{rows: spec.Rows, cols: spec.Cols, Kept: Kept{Types: tensor.F32.String()}}
	})
}

// Frozen returns a weight that reads t, or counts a copy of it in the type in which products read matrices.
func (d *Device) Frozen(t device.Tensor) device.Weight {
	device.CheckFrozen(t)
	w := &weight{rows: t.Rows, cols: t.Cols, Kept: Kept{Types: t.DType.String()}}
	if m := d.target.Matrices; m != tensor.Invalid && m != tensor.F32 {
		b := t.Buf.(*buffer)
		w.Kept = Kept{Types: m.String(), Bytes: d.hold(b.comp, device.TensorBytes(device.OpFrozen, m, t.Rows, t.Cols))}
		b.more += w.Kept.Bytes
	}
	return w
}

// weight is a matrix without values.
type weight struct {
	rows, cols int
	Kept
	arranged bool
	layer    *hostLayer // of Kept.Layered
}

// reads reports whether a product of `rows` rows of x reads blocks without expanding them.
func (w *weight) reads(rows int) bool {
	return w.Expands && (rows <= w.Reads || w.arranged && rows <= w.Arranged)
}

func (w *weight) Rows() int    { return w.rows }
func (w *weight) Cols() int    { return w.cols }
func (w *weight) Bytes() int64 { return w.Kept.Bytes }

// moved returns the bytes of the first rows rows, which is what a product reads.
func (w *weight) moved(rows int) float64 {
	if n := w.Kept.Bytes + w.Host; n > 0 {
		return float64(n) * float64(rows) / float64(max(1, w.rows))
	}
	return 4 * float64(rows) * float64(w.cols)
}

// NewStream returns a stream that records.
func (d *Device) NewStream() device.Stream { return &Stream{dev: d} }

// Memory returns the bytes held now and at the highest point, by component.
func (d *Device) Memory() (now, peak map[device.Component]int64) { return d.both.Memory() }

// Close does nothing.
func (d *Device) Close() error { return nil }

var _ device.Beside = (*Device)(nil)

// Lend returns t: a dry device looks at no memory, so that any one may be beside any other.
func (d *Device) Lend(t device.Tensor) device.Tensor { return t }

// LendWeight returns w.
func (d *Device) LendWeight(w device.Weight) device.Weight { return w }

// Follow does nothing.
func (d *Device) Follow() {}
