package cuda

import (
	"sync/atomic"
	"unsafe"

	"apr/device"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
	"apr/tensor"
)

// scratch is the memory that operations share, one after the other.
type scratch struct {
	base     uint64 // kernel.MaxScratch bytes
	products uint64 // the workspace of cublasLt
}

// workspace is the size of cublasLt's own scratch: what its algorithms for Hopper ask for.
const workspace = 32 << 20

// operation collects what one call of a Stream method does and queues it as a whole. It is the kernel.Queue of the
// launchers that the method calls.
type operation struct {
	dev    *Device
	stream *Stream // whose first error it may become
	name   string
	sizes  string // in a profile: which of its kind
	steps  []step
	used   int // bytes of scratch taken
}

// step is a launch, or a call on the device's thread.
type step struct {
	launch kernel.Launch
	call   func(t *driver.Thread) error // if not nil
	key    any                          // of a call that gives the stream the same work whenever its key is the same; nil: it may not
}

// begin starts an operation on tensors, or returns nil if the stream has failed or fails because one of them has no
// memory. Tensors that are not alive are a mistake of the program.
func (s *Stream) begin(name string, ts ...device.Tensor) *operation {
	if s.failed() {
		return nil
	}
	for i, t := range ts {
		if t.IsZero() {
			continue
		}
		b := t.Buf.(*buffer)
		if !b.live { // of a weight: operands were checked
			panic("cuda: " + name + ": the weight " + b.name + " is used after it was given back")
		}
		if b.dev != s.dev {
			panic("cuda: " + name + ": tensor " + b.name + " is of another device")
		}
		if b.void != nil {
			s.fail(b.void)
			return nil
		}
		s.athome(name, b)
		if name != "MatMul" || i == 0 || b.owed { // of a product's tensors only the first is written
			s.touched(b)
		}
	}
	return &operation{dev: s.dev, stream: s, name: name}
}

// end queues the operation, or lets Replay collect it.
func (o *operation) end() {
	if len(o.steps) > 0 {
		o.dev.replays.take(o)
	}
}

// queue gives the operation to the device's thread.
func (o *operation) queue() {
	o.dev.issued.Add(1)
	o.dev.ctx.Go(o.run)
}

// run performs the steps on the device's thread.
func (o *operation) run(t *driver.Thread) {
	if o.stream.failed() {
		return
	}
	o.dev.doing.Store(&o.name)
	perform := o.perform
	if p := o.dev.prof.Load(); p != nil {
		perform = func(t *driver.Thread) error { return p.time(t, o) }
	}
	err := perform(t)
	if err == nil {
		err = o.dev.keepPace(t, len(o.steps))
	}
	o.stream.fail(o.dev.explain(o.name, err))
}

// perform makes the steps, until one fails.
func (o *operation) perform(t *driver.Thread) error {
	for i := range o.steps {
		if err := o.step(t, &o.steps[i]); err != nil {
			return err
		}
	}
	return nil
}

// step makes one step.
func (o *operation) step(t *driver.Thread, s *step) error {
	if s.call != nil {
		return s.call(t)
	}
	f, err := o.dev.resolve(t, s)
	if err != nil {
		return err
	}
	o.dev.counts.launches.Add(1)
	return start(t, f, o.dev.stream, &s.launch)
}

// resolve returns the kernel of a launch, which may become another one that does the same.
func (d *Device) resolve(t *driver.Thread, s *step) (driver.Function, error) {
	if d.kernels.modules[kernel.EarlyModule] {
		s.launch = kernel.Overlap(s.launch)
	}
	return d.kernels.get(t, &s.launch)
}

// encodeMaps makes the tensor maps that a launch's arguments begin with. Beside a launch they cost little enough to be
// made each time.
func encodeMaps(t *driver.Thread, l *kernel.Launch) error {
	maps := unsafe.Slice((*driver.TensorMap)(l.Args), len(l.Maps))
	for i, m := range l.Maps {
		a := driver.Matrix{
			Ptr: m.Mat.Ptr, Rows: m.Mat.Rows, Cols: m.Mat.Cols, Stride: m.Mat.Stride * m.Mat.Type.BlockBytes(), BoxRows: m.BoxRows,
			Bytes: m.Mat.Type == tensor.U8,
		}
		if err := t.EncodeTensorMap(&maps[i], a); err != nil {
			return err
		}
	}
	return nil
}

// start launches a kernel.
func start(t *driver.Thread, f driver.Function, s driver.Stream, l *kernel.Launch) error {
	if err := encodeMaps(t, l); err != nil {
		return err
	}
	if l.Together {
		return t.LaunchTogether(f, l.Grid, l.Block, l.Shared, s, l.Args)
	}
	if l.Early {
		return t.LaunchEarly(f, l.Grid, l.Block, l.Shared, s, l.Args)
	}
	if l.Cluster > 0 {
		return t.LaunchCluster(f, l.Grid, l.Cluster, l.Block, l.Shared, s, l.Args)
	}
	return t.Launch(f, l.Grid, l.Block, l.Shared, s, l.Args)
}

// Launch adds a kernel launch.
func (o *operation) Launch(l kernel.Launch) { o.steps = append(o.steps, step{launch: l}) }

// callKeyed adds a call on the device's thread that gives the stream the same work whenever key is the same.
func (o *operation) callKeyed(key any, f func(t *driver.Thread) error) {
	o.steps = append(o.steps, step{call: f, key: key})
}

// call adds a call on the device's thread.
func (o *operation) call(f func(t *driver.Thread) error) { o.steps = append(o.steps, step{call: f}) }

// Scratch returns the address of n bytes that are the operation's until its end.
func (o *operation) Scratch(n int) uint64 {
	at := (o.used + alignment - 1) &^ (alignment - 1)
	if n < 0 || n > kernel.MaxScratch-at {
		panic("cuda: " + o.name + ": more scratch than an operation may take")
	}
	o.used = at + n
	return o.dev.scratch.base + uint64(at)
}

// Record returns the address of the stream's record.
func (o *operation) Record() uint64 { return o.stream.slot.device }

// Multiprocessors returns how many the device has.
func (o *operation) Multiprocessors() int { return o.dev.desc.Multiprocessors }

// mat returns where a tensor stands; the zero Mat for the zero tensor.
func mat(t device.Tensor) kernel.Mat {
	if t.IsZero() {
		return kernel.Mat{}
	}
	b := t.Buf.(*buffer)
	return kernel.Mat{
		Ptr: b.place.address() + uint64(t.Off*t.DType.BlockBytes()), Rows: t.Rows, Cols: t.Cols, Stride: t.Stride, Type: t.DType,
	}
}

// limit panics with the operation's name where a call that keeps all preconditions is beyond what this device has kernels for.
func limit(ok bool, op device.Op, what string) {
	if !ok {
		panic("cuda: a limit of this device: " + op.String() + ": " + what)
	}
}

// failure is the first error of a stream, set from the caller's goroutine or from the device's thread.
type failure struct{ first atomic.Pointer[sentinel] }

func (f *failure) set(err error) {
	if err != nil {
		f.first.CompareAndSwap(nil, &sentinel{err})
	}
}

func (f *failure) get() error {
	if s := f.first.Load(); s != nil {
		return s.err
	}
	return nil
}
