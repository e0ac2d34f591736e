package cuda

import (
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
