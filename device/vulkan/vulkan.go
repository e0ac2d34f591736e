// Package vulkan is the device for graphics cards of any make, by way of Vulkan 1.1 or later. It computes in float32.
//
// A Device opens an adapter through package driver. A Stream checks shapes on the calling goroutine, turns the
// operation into launches (package kernel) and records them in command buffers, which are submitted when they are
// long enough or the host waits. A barrier stands behind every launch, so that each sees what the ones before wrote.
//
// Weights stay as they are stored where kernels expand them: float32, bfloat16, float16, Q8_0, Q4_K and Q6_K; blocks
// of other types are decoded to float32 when they are loaded. The sums of a step's loss and its gradient norm come
// back to the host, which has float64 and WGSL does not, once a step: Verdict waits. AdamW is then launched with the
// step's numbers, or not at all.
//
// Caveats. All streams of a device share one queue, so their operations run in the order in which they were given.
// Ids that the host uploaded are checked before anything is queued; those that the device computed are checked by
// kernels, and the error is seen by the next wait. Temps come from free lists in size classes, as those of package
// cpu. An error after which the device is unusable is returned by everything from then on.
package vulkan

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"apr/device"
	"apr/device/vulkan/driver"
	"apr/device/vulkan/kernel"
	"apr/internal/atomicfile"
	"apr/tensor"
)

// Options choose the adapter. The zero value is the best real card.
type Options struct {
	// Adapter is a part of the adapter's or its driver's name, or its number; adapters that a program imitates are taken
	// by name alone.
	Adapter  string
	CacheDir string // where compiled pipelines are kept; empty: nowhere
	// Binding is how many bytes a binding may span, if it is less than the adapter's limit; 0: the adapter's limit.
	Binding int64
}

// Device is one adapter; see Open.
type Device struct {
	adapter Adapter
	limit   int64 // bytes of a binding
	wide    bool  // products take wide tiles: LLVM compiles these for minutes, so that programs do without
	dev     *driver.Device
	cache   string // file of compiled pipelines; empty: none

	mem device.Accounts

	mu        sync.Mutex // of all that follows
	pipelines map[string]*driver.Pipeline
	compiled  int // pipelines made so far
	commands  [2]*driver.Commands
	staging   [2]*driver.Buffer
	staged    int64 // bytes of the current staging buffer that are taken
	current   int
	down      *driver.Buffer
	none      *driver.Buffer // what is bound where an operand is none
	slabs     []*slab
	held      int64 // bytes of all slabs, and the most there were
	mostHeld  int64
	unused    map[int64][]place // of Alloc, by size
	free      [numClasses][]*buffer
	made      int // temps so far
	faults    *buffer
	noted     bool // a kernel may have noted a fault
	lost      error
	stuck     bool          // it has not ended what it was given: nothing may be freed, and nobody waits for it
	patience  time.Duration // for a submission
	most      int64         // work of a submission, in units of kernel.Work; 0: any
	recorded  int64         // work that is not submitted yet

	ended      atomic.Int64 // submissions and compiled kernels so far, for whoever does not hold mu
	dispatches int          // so far
	rotary     rotaryTables

	// Of tests: what changes a launch, and a kernel before it is compiled.
	sabotage func(*launch)
	mutate   func(name string, code []uint32) []uint32
}

var (
	_ device.Device = (*Device)(nil)
	_ device.Pulse  = (*Device)(nil)
	_ device.Stream = (*Stream)(nil)
)

// Open opens an adapter and lets it answer known questions. Faults: kind Unavailable without a loader, a driver, an
// adapter that was meant, or one that answers right; kind Memory if it has no room for staging.
func Open(o Options) (*Device, error) {
	_, all, err := Adapters()
	if err != nil {
		return nil, err
	}
	a, err := choose(all, o.Adapter)
	if err != nil {
		return nil, err
	}
	i, err := driver.Open()
	if err != nil {
		return nil, err
	}
	d := &Device{adapter: a, limit: a.Limits.Binding, pipelines: map[string]*driver.Pipeline{},
		unused: map[int64][]place{}}
	d.wide = !a.ByName && a.Limits.Invocations >= kernel.WideLanes && a.Limits.Shared >= kernel.WideShared
	if d.patience, d.most = hungProgram, mostOfProgram; !a.ByName {
		d.patience, d.most = hungHardware, 0 // probeRate measures
	}
	if o.Binding > 0 {
		d.limit = min(d.limit, o.Binding)
	}
	var compiled []byte
	if o.CacheDir != "" {
		d.cache = filepath.Join(o.CacheDir, fmt.Sprintf("vulkan-%04x-%04x-%x-%08x.cache", a.Vendor, a.Device,
			a.CacheID[:6], a.DriverVersion))
		compiled, _ = os.ReadFile(d.cache) // a cache that cannot be read is none
	}
	if d.dev, err = i.NewDevice(a.Adapter, compiled); err != nil {
		return nil, unavailable(a.Name+" cannot be opened", err)
	}
	if err := d.prepare(); err != nil {
		d.Close()
		return nil, err
	}
	if err := d.probe(); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// stagingBytes is the size of the host's buffers for copies.
const stagingBytes = 4 << 20

// prepare makes what every operation needs.
func (d *Device) prepare() (err error) {
	for k := range d.commands {
		if d.commands[k], err = d.dev.NewCommands(); err != nil {
			return unavailable(d.adapter.Name+" takes no commands", err)
		}
		if d.staging[k], err = d.buffer(driver.Host, stagingBytes); err != nil {
			return err
		}
	}
	if d.down, err = d.buffer(driver.Host, stagingBytes); err != nil {
		return err
	}
	if d.none, err = d.buffer(driver.Local, 4096); err != nil {
		return err
	}
	t := d.Alloc("faults", device.Scratch, tensor.I32, 1, 4)
	d.faults = t.Buf.(*buffer)
	return d.lost
}

// Info describes the adapter.
func (d *Device) Info() device.Info {
	return device.Info{
		Kind: "vulkan", Name: d.adapter.Name, ISA: "vulkan " + d.adapter.APIText(), Workers: 1, Activations: tensor.F32,
		Lacks: []device.Feature{device.Experts, device.DeltaNet, device.Quantizes, device.Maps, device.Projects,
			device.Pages, device.DrawsNext, device.DrawsMany, device.DrawsTeach},
	}
}

// Adapter returns what the device was opened on.
func (d *Device) Adapter() Adapter { return d.adapter }

// Compiled returns how many pipelines were made so far.
func (d *Device) Compiled() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.compiled
}

// Ended counts the submissions that have ended and the kernels that were compiled; see device.Pulse.
func (d *Device) Ended() int64 { return d.ended.Load() }

// NewStream returns a stream; one goroutine at a time may use it.
func (d *Device) NewStream() device.Stream { return newStream(d) }

// Memory returns the bytes in use now and at the highest point, by component; Held says what was taken for them.
func (d *Device) Memory() (now, peak map[device.Component]int64) { return d.mem.Memory() }

// Close gives everything back. Tensors and streams must not be used afterwards. Compiled pipelines are kept for the
// next process.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lost == nil {
		_ = d.finish() // what fails is kept in lost
	}
	if d.stuck {
		return d.lost
	}
	if d.lost == nil && d.cache != "" && d.compiled > 0 {
		d.keepCache()
	}
	for _, p := range d.pipelines {
		d.dev.FreePipeline(p)
	}
	for k := range d.commands {
		if d.commands[k] != nil {
			d.commands[k].Close()
		}
	}
	for _, b := range []*driver.Buffer{d.staging[0], d.staging[1], d.down, d.none} {
		if b != nil {
			b.Free()
		}
	}
	for _, s := range d.slabs {
		s.buf.Free()
	}
	d.dev.Close()
	return d.lost
}

// keepCache writes compiled pipelines to the cache. It is no error if that fails: they are compiled again.
func (d *Device) keepCache() {
	data, err := d.dev.CacheData()
	if err != nil || len(data) == 0 || os.MkdirAll(filepath.Dir(d.cache), 0o755) != nil {
		return
	}
	_ = atomicfile.WriteFile(d.cache, data, true) // see above
}
