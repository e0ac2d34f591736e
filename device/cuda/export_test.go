package cuda

import (
	"maps"
	"slices"

	"apr/device"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
	"apr/device/cuda/kernel/manifest"
)

// LoadFallback loads the modules of this program's own products too, which a device with cublasLt leaves out, and
// returns how many.
func (d *Device) LoadFallback() (n int, err error) {
	err = d.ctx.Do(func(t *driver.Thread) error {
		for _, m := range kernel.Modules() {
			if !m.Has(manifest.Products) || !d.runs(&m) || d.kernels.modules[m.Name] {
				continue
			}
			if err := d.kernels.load(t, m); err != nil {
				return err
			}
			n++
		}
		return nil
	})
	return n, err
}

// Expand expands all of a weight in blocks, as products do, and nothing else.
func (s *Stream) Expand(w device.Weight) {
	m := w.(*weight)
	if !s.expandsHere(m) {
		return
	}
	s.dev.eachSlab(m, m.t.Rows, func(lo, hi int) {
		if o := s.begin("Expand", device.Tensor{}); o != nil {
			o.expand(m, lo, hi)
			o.end()
		}
	})
}

// Capability returns the target of modules for the device's compute capability.
func (d *Device) Capability() string { return d.capability() }

// LoadedModules returns the names of the modules that are loaded.
func (d *Device) LoadedModules() (names []string) {
	_ = d.ctx.Do(func(*driver.Thread) error {
		names = slices.Sorted(maps.Keys(d.kernels.modules))
		return nil
	})
	return names
}

// Pretend makes the device choose kernels as one of another compute capability would, until undo is called. Nothing may be queued.
func (d *Device) Pretend(major int) (undo func()) {
	was := d.desc.Major
	d.desc.Major = major
	return func() { d.desc.Major = was }
}

// LimitExpansion lets products expand a weight in n bytes, which are taken at once.
func (d *Device) LimitExpansion(w device.Weight, n int64) error {
	w.(*weight).expands = n
	return d.growExpansion(n)
}

// Expansion returns the bytes in which products expand matrices.
func (d *Device) Expansion() int64 {
	if b := d.expansion.Load(); b != nil {
		return b.bytes
	}
	return 0
}

// FinishCopies waits for what comes from the host, which does not wait for products but where it was told to.
func (d *Device) FinishCopies() error {
	return d.ctx.Do(func(t *driver.Thread) error { return t.StreamSync(d.stages.copies) })
}
