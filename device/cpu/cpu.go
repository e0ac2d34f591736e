// Package cpu is the device that every machine has: float32 activations, all cores, vector assembly where the
// processor has it.
//
// An operation is cut into tasks by the size of its tensors alone, a pool of workers takes the tasks, and every output
// element is computed by one task in a fixed order. Matrix products come from device/cpu/gemm, the loops between them
// from device/cpu/vec; to generate, products with quantised weights come from device/cpu/q8 (Options.RoundActivations).
// Otherwise weights stay in the type of the file; matrix products decode them block by block while packing, or read them
// directly if they are float32 or Options.KeepExpanded left room to expand them.
//
// Caveats. Streams run everything before they return, so nothing is left for Wait to wait for. Results depend on the
// instruction set in the last bits, never on the number of workers. Temps come from free lists in size classes and are
// counted as memory while in use, rounded up to their class (at most a quarter more). The scratch of workers and the
// packed panels of matrix products, some MiB together, are not counted.
package cpu

import (
	"bufio"
	"os"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"apr/device"
	"apr/device/cpu/par"
	"apr/device/cpu/q8"
	"apr/device/cpu/vec"
	"apr/tensor"
)

// Options choose how the device computes. The zero value is the fastest.
type Options struct {
	Workers int    // threads; 0: GOMAXPROCS
	ISA     string // "avx512", "avx2", "neon" or "generic"; empty: the best of this processor
	// KeepExpanded is the number of bytes that may be spent on float32 copies of weights stored in narrower types.
	// A weight that still fits is expanded when it is loaded, instead of in every matrix product.
	KeepExpanded int64
	// RoundActivations rounds the activations that meet quantised weights to 16 bits and multiplies in integers (package
	// q8): many times faster, and meant for generating text. The weights are put in another order as they are loaded, and
	// not expanded. Training and evaluation do without it, in float32.
	RoundActivations bool
}

// Device computes on the processor; see New.
type Device struct {
	isa    vec.ISA
	pool   *par.Pool
	mem    device.Accounts
	rotary rotaryCache

	round  bool
	packed q8.Memory // of weights, if round

	mu     sync.Mutex
	expand int64 // bytes left for expanded weights
}

var (
	_ device.Device = (*Device)(nil)
	_ device.Pulse  = (*Device)(nil)
	_ device.Stream = (*Stream)(nil)
)

// New returns a device. An unknown or missing instruction set is a fault of kind Usage or Unavailable.
func New(o Options) (*Device, error) {
	isa, err := vec.Parse(o.ISA)
	if err != nil {
		return nil, err
	}
	return &Device{isa: isa, pool: par.New(o.Workers), expand: o.KeepExpanded, round: o.RoundActivations}, nil
}

// Info describes the processor.
func (d *Device) Info() device.Info {
	return device.Info{
		Kind: "cpu", Name: processorName(), ISA: d.isa.String(), Workers: d.pool.Workers(), Activations: tensor.F32,
	}
}

// processorName returns the model as the operating system tells it, or the architecture.
func processorName() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// Alloc returns a zeroed tensor that lives until Free or Close.
func (d *Device) Alloc(name string, c device.Component, t tensor.DType, rows, cols int) device.Tensor {
	b := newBuffer(name, c, device.TensorBytes(device.OpAlloc, t, rows, cols))
	b.state = device.Lasting
	d.mem.Add(c, b.size)
	return device.Whole(b, t, rows, cols)
}

// Free gives tensors of Alloc back.
func (d *Device) Free(ts ...device.Tensor) {
	for _, t := range ts {
		device.CheckFree(t)
		b := t.Buf.(*buffer)
		d.mem.Add(b.comp, -b.size)
		b.state, b.data = device.Gone, nil
	}
}

// Param makes a trainable tensor, all zero. Its weight reads Value itself.
func (d *Device) Param(spec device.ParamSpec) *device.Param {
	return device.NewParam(spec, false, d.Alloc, d.Frozen)
}

// NewStream returns a stream; one goroutine at a time may use it.
func (d *Device) NewStream() device.Stream { return d.Stream() }

// Stream returns a stream with its own type, which also has Profile.
func (d *Device) Stream() *Stream { return newStream(d) }

// Memory returns the bytes held now and at the highest point, by component.
func (d *Device) Memory() (now, peak map[device.Component]int64) { return d.mem.Memory() }

// Ended counts the tasks that have ended; see device.Pulse.
func (d *Device) Ended() int64 { return d.pool.Ended() }

// Close ends the workers. Tensors and streams must not be used afterwards.
func (d *Device) Close() error {
	d.pool.Close()
	return nil
}

// buffer is a piece of memory, aligned to a cache line.
type buffer struct {
	name string
	comp device.Component
	data []float32 // all of it; other types view the same bytes
	n    int64     // bytes asked for
	size int64     // bytes counted

	state device.State

	// Of temps:
	class  int // of the free list
	number int // in the order of making
}

// Bytes returns the size that was asked for.
func (b *buffer) Bytes() int64 { return b.n }

// Name is what Temp or Alloc called it.
func (b *buffer) Name() string { return b.name }

// State says whether b was given back.
func (b *buffer) State() device.State { return b.state }

const lineFloats = 16 // float32 in a cache line

// newBuffer returns n zeroed bytes, n rounded up to whole float32.
func newBuffer(name string, c device.Component, n int64) *buffer {
	return &buffer{name: name, comp: c, data: alignedFloats(int((n + 3) / 4)), n: n, size: n}
}

// alignedFloats returns n zeroed float32 that start at a cache line.
func alignedFloats(n int) []float32 {
	d := make([]float32, n+lineFloats)
	skip := int(-(uintptr(unsafe.Pointer(&d[0]))/4)%lineFloats+lineFloats) % lineFloats
	return d[skip : skip+n : skip+n]
}
