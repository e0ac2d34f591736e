package cuda

import (
	"cmp"
	"slices"

	"apr/device/cuda/kernel"
)

// Probe loads the smallest module, so that it is known whether driver and GPU take the kernels before anything else is
// done with the device. If they do not it is a fault of kind Unavailable.
func (d *Device) Probe() error {
	return d.prewarm([]kernel.Module{slices.MinFunc(d.modules(nil), func(a, b kernel.Module) int {
		return cmp.Compare(a.Bytes, b.Bytes)
	})}, nil)
}
