// Package cuda is the device for NVIDIA GPUs of compute capability 8.0 and later.
//
// A Device owns one driver context, whose thread it feeds with operations. A Stream checks shapes and computes addresses
// on the calling goroutine, turns the operation into kernel launches (package kernel) and matrix products (package
// blas), and queues them; order is kept. The host waits in Wait and Download only. Activations and the weights that
// products read are bfloat16, or float32 if Options.Compute says so; masters, gradients, moments, logits, norm weights
// and biases are float32 always.
//
// Memory comes from slabs: one for the temps of streams and one for each component, which Prepare takes as a plan says,
// or more on demand; they are not given back to the driver before Close. Prepare also loads kernels and plans products;
// after Seal a further load is counted and logged.
//
// Beside opens a second Device on the same GPU, with a thread, a CUDA stream and memory of its own, to which weights of
// the first one are lent: their operations run beside each other.
//
// Caveats. All streams of a device share one CUDA stream, so their operations run in the order in which they were
// given. Ids that the host uploaded are checked before anything is queued; ids that the device computed are checked by
// the kernels, and then what follows in the stream has run by the time the error is seen, except that AdamW leaves
// parameters alone. A tensor for which there was no memory makes the operations on it fail. An error of the driver
// after which its context is unusable ("device lost") is returned by everything from then on.
package cuda

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"apr/device"
	"apr/device/cuda/blas"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
	"apr/internal/fault"
	"apr/tensor"
)

// Compute says in which arithmetic matrix products and attention run, and so in which type activations are.
type Compute int

// The arithmetics.
const (
	BF16 Compute = iota // bfloat16 activations and weights, float32 sums
	TF32                // float32 in memory, products of 10-bit mantissas on tensor cores
	F32                 // float32 throughout
)

// String returns the arithmetic's name as flags have it.
func (c Compute) String() string { return [...]string{"bf16", "tf32", "f32"}[c] }

// activations returns the element type of activations and weights.
func (c Compute) activations() tensor.DType {
	if c == BF16 {
		return tensor.BF16
	}
	return tensor.F32
}

// Options choose the device and how it works. The zero value is the first device in bfloat16, with memory on demand.
type Options struct {
	Index   int     // of the device, as the driver counts
	Compute Compute // arithmetic of products
	Managed *bool   // allocate managed memory, or not; nil: as the class of the device wants, see ClassifyDeviceMemory

	ForceFallbackGEMM bool      // do not look for cublasLt
	TuningDir         string    // where measured choices of product algorithms are kept; empty: nothing is measured
	KernelLog         io.Writer // told of every load of a kernel or product; nil: nobody
	// NoGraphs launches a generation's kernels one by one.
	NoGraphs bool
	// StrictSeal makes a load after Seal an error of the stream.
	StrictSeal bool
}

// Device is one GPU; see Open.
type Device struct {
	opts    Options
	driver  *driver.Driver
	ctx     *driver.Context
	desc    driver.DeviceInfo
	managed bool
	maps    bool // the driver can make tensor maps
	act     tensor.DType
	stream  driver.Stream
	gemm    *blas.Library
	kernels *cache
	// unplanned are the products that cublasLt does not serve.
	unplanned map[blas.Shape]bool
	scratch   scratch
	expansion atomic.Pointer[buffer] // in which products expand matrices in blocks; nil: none did
	expandAll int64                  // bytes in which each matrix so far could be expanded
	uploads   ring
	pieces    pieces // of weights on their way to the device
	down      downloads
	fetches   fetches
	slots     recordSlots
	own       recordSlot // of operations that belong to no stream
	libraries []LibraryUse
	rotary    rotaryTables
	params    paramTables
	replays   replays
	stages    stages
	blocked   named

	share    device.Share
	group    *group         // of ranks; nil: it has not joined any
	pairs    map[int]*group // with single other ranks, by rank
	pairing  sync.Mutex     // of changes of these two
	nccl     *driver.Nccl
	ncclErr  error
	ncclOnce sync.Once

	mem     device.Accounts
	poolsMu sync.Mutex
	growMu  sync.Mutex // growExpansion, and expandAll
	temps   pool
	statics map[device.Component]*pool

	expansions pool // for expansion alone, so that a plan's memory for it is exact

	first *Device // beside whose operations those of this one run; nil: this is a first one
	room  room    // in which all of its memory is, of one that has a first
	lent  lent    // the first one's tensors that its operations read
	pace  pace    // while one is open beside this one

	counts counters
	prof   atomic.Pointer[profile]  // nil: operations are not timed
	doing  atomic.Pointer[string]   // the operation at work, or the last one
	lost   atomic.Pointer[sentinel] // why the device can no longer be used
	issued atomic.Int64             // operations queued so far
	synced atomic.Int64             // of them, those known to be complete
}

// sentinel wraps an error for atomic pointers.
type sentinel struct{ err error }

var (
	_ device.Device = (*Device)(nil)
	_ device.Pulse  = (*Device)(nil)
	_ device.Stream = (*Stream)(nil)
	_ kernel.Queue  = (*operation)(nil)
)

// oldest is the least compute capability whose instructions the kernels use.
const oldest = 8

// Open opens a device. Faults: kind Unavailable without a driver, a device of that index, or one that is new enough;
// kind Memory if it has no room for the scratch memory of operations.
func Open(o Options) (*Device, error) {
	drv, err := driver.Open()
	if err != nil {
		return nil, err
	}
	n, err := drv.DeviceCount()
	if err != nil {
		return nil, unavailable("the CUDA devices cannot be counted", err)
	}
	if o.Index < 0 || o.Index >= n {
		return nil, fault.New(fault.Unavailable, "there is no CUDA device %d: the driver has %d", o.Index, n).WithID("E-CUDA-001")
	}
	desc, err := drv.Describe(o.Index)
	if err != nil {
		return nil, unavailable(fmt.Sprintf("CUDA device %d cannot be described", o.Index), err)
	}
	if desc.Major < oldest {
		return nil, fault.New(fault.Unavailable, "%s has compute capability %d.%d", desc.Name, desc.Major, desc.Minor).
			WithHint("%d.0 or later is needed (Ampere and newer); --backend cpu works everywhere", oldest).WithID("E-CUDA-002")
	}
	ctx, err := drv.NewContext(o.Index)
	if err != nil {
		return nil, unavailable(desc.Name+" cannot be opened", err)
	}
	d := &Device{opts: o, driver: drv, ctx: ctx, desc: desc, maps: drv.TensorMaps(), act: o.Compute.activations()}
	d.init()
	if err := d.prepare(); err != nil {
		ctx.Close()
		return nil, err
	}
	return d, nil
}

// init makes the maps of a new device.
func (d *Device) init() {
	d.statics, d.unplanned = map[device.Component]*pool{}, map[blas.Shape]bool{}
}

func unavailable(what string, err error) error {
	return fault.New(fault.Unavailable, "%s", what).WithID("E-CUDA-003").Because(err)
}

// Info describes the card.
func (d *Device) Info() device.Info {
	return device.Info{
		Kind: "cuda", Name: d.desc.Name, ISA: fmt.Sprintf("sm_%d%d", d.desc.Major, d.desc.Minor),
		Workers: d.desc.Multiprocessors, Activations: d.act, Adds: true, TF32: d.opts.Compute == TF32,
		Lacks: []device.Feature{device.WideDelta},
	}
}

// NewStream returns a stream; one goroutine at a time may use it.
func (d *Device) NewStream() device.Stream { return newStream(d) }

// Close ends the device's thread and gives everything back. Tensors and streams must not be used afterwards.
func (d *Device) Close() error {
	if d.first != nil {
		d.first.pace.beside.Add(-1)
	}
	err := d.ctx.Do(func(t *driver.Thread) error {
		if d.lost.Load() != nil {
			return nil // nothing can be freed any more; the driver does it when the context goes
		}
		return d.release(t)
	})
	if e := d.ctx.Close(); err == nil {
		err = e
	}
	return d.explain("Close", err)
}
