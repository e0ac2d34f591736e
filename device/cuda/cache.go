package cuda

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
	"apr/internal/fault"
)

// loader is what a cache needs from the driver; *driver.Thread has it.
type loader interface {
	LoadModule(ptx []byte) (driver.Module, error)
	Function(m driver.Module, name string) (driver.Function, error)
	FunctionInfo(f driver.Function) (registers, shared, local int, err error)
	SetMaxDynamicShared(f driver.Function, n int) error
	PreferShared(f driver.Function) error
}

// cache holds the kernels that are ready to be launched, each under its own key, module and entry point. It belongs to
// the device's thread but for seal, so that only its counts are locked.
type cache struct {
	mu      sync.Mutex
	entries map[kernelKey]*entry
	modules map[string]bool
	log     io.Writer
	sealed  bool
	strict  bool // a load after seal is an error
	loads   int64
	late    int64
	bytes   int64
	took    time.Duration
	skipped []Skipped
}

// kernelKey names a kernel: a new target or element type is another module or entry point, never the same key.
type kernelKey struct{ module, entry string }

func (k kernelKey) String() string { return k.module + "." + k.entry }

// entry is a loaded kernel.
type entry struct {
	f      driver.Function
	shared int // bytes of dynamic shared memory that a launch may ask for
	args   int // bytes of its one argument
}

// defaultShared is what every kernel may ask for without SetMaxDynamicShared.
const defaultShared = 48 << 10

func newCache(log io.Writer, strict bool) *cache {
	return &cache{entries: map[kernelKey]*entry{}, modules: map[string]bool{}, log: log, strict: strict}
}

// register adds a kernel. A second one under the same key is a mistake of the program: whichever came later would look
// warm and not be.
func (c *cache) register(k kernelKey, f driver.Function) *entry {
	if c.entries[k] != nil {
		panic("cuda: two kernels under the key " + k.String())
	}
	e := &entry{f: f, shared: defaultShared}
	c.entries[k] = e
	return e
}

// event writes a line of the kernel log.
func (c *cache) event(what, key string, bytes int, d time.Duration, more string) {
	if c.log != nil {
		fmt.Fprintf(c.log, "kernel-cache event=%s key=%s bytes=%d ms=%.3f%s\n", what, key, bytes, float64(d.Microseconds())/1e3, more)
	}
}

// count notes a load and says whether it may be.
func (c *cache) count(key string) (late string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loads++
	if !c.sealed {
		return "", nil
	}
	c.late++
	if c.strict {
		return "", fault.New(fault.Other, "%s was loaded after the kernels were sealed", key).WithID("E-CUDA-020")
	}
	return " late=true", nil
}

// load loads a module and all its kernels.
func (c *cache) load(t loader, m kernel.Module) error {
	if c.modules[m.Name] {
		c.event("hit", m.Name, 0, 0, "")
		return nil
	}
	late, err := c.count(m.Name)
	if err != nil {
		return err
	}
	ptx, start := kernel.PTX(m.Name), time.Now()
	handle, err := t.LoadModule(ptx)
	if err != nil {
		return err
	}
	d := time.Since(start)
	c.event("jit", m.Name, len(ptx), d, late)
	c.modules[m.Name] = true
	c.took += d
	c.bytes += int64(len(ptx))
	args := kernel.ArgBytes(ptx)
	for _, name := range m.Kernels {
		start := time.Now()
		f, err := t.Function(handle, name)
		if err != nil {
			return err
		}
		registers, _, local, err := t.FunctionInfo(f) // also makes a lazy driver load it now
		if err != nil {
			return err
		}
		if m.Name == kernel.EarlyModule { // or a kernel with much of it could not begin beside it
			if err := t.PreferShared(f); err != nil {
				return err
			}
		}
		d := time.Since(start)
		c.took += d
		c.event("load", kernelKey{m.Name, name}.String(), 0, d, fmt.Sprintf(" registers=%d local=%d%s", registers, local, late))
		c.register(kernelKey{m.Name, name}, f).args = args[name]
		if args[name] == 0 {
			return fault.New(fault.Other, "the PTX says nothing of the argument of %s", kernelKey{m.Name, name}).WithID("E-CUDA-021")
		}
	}
	return nil
}

// get returns a launch's kernel, loading its module if nothing did before.
func (c *cache) get(t loader, l *kernel.Launch) (driver.Function, error) {
	k := kernelKey{l.Module, l.Kernel}
	e := c.entries[k]
	if e == nil {
		modules := kernel.Modules()
		i := slices.IndexFunc(modules, func(m kernel.Module) bool { return m.Name == l.Module })
		if i < 0 || c.modules[l.Module] {
			return 0, fault.New(fault.Other, "there is no kernel %s", k).WithID("E-CUDA-021")
		}
		if err := c.load(t, modules[i]); err != nil {
			return 0, err
		}
		if e = c.entries[k]; e == nil {
			return 0, fault.New(fault.Other, "there is no kernel %s", k).WithID("E-CUDA-021")
		}
	}
	if l.Shared > e.shared {
		if err := t.SetMaxDynamicShared(e.f, l.Shared); err != nil {
			return 0, err
		}
		e.shared = l.Shared
	}
	return e.f, nil
}

// planned counts products that were planned.
func (c *cache) planned(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.loads += int64(n)
}

// skip notes a module that need not be loaded, and what that saves.
func (c *cache) skip(m kernel.Module, because string) {
	n := m.Bytes
	c.skipped = append(c.skipped, Skipped{m.Name, len(m.Kernels), n, because})
	c.event("skip", m.Name, n, 0, fmt.Sprintf(" kernels=%d because=%q", len(m.Kernels), because))
}

// seal ends the time of loading and logs what it took.
func (c *cache) seal() {
	c.mu.Lock()
	c.sealed = true
	c.mu.Unlock()
	c.event("total", fmt.Sprintf("%d-modules-%d-kernels", len(c.modules), len(c.entries)), int(c.bytes), c.took, "")
}

// counted returns how many modules were loaded, and how many of them after seal.
func (c *cache) counted() (loads, late int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.loads, c.late
}
