package cuda

import (
	"sync/atomic"

	"apr/device"
)

// Memory returns the bytes of tensors and scratch held now and at the highest point, by component. Slabs that hold no
// tensor are not part of it; Stats().Allocated counts them.
func (d *Device) Memory() (now, peak map[device.Component]int64) { return d.mem.Memory() }

// counters are what Stats reports.
type counters struct {
	fetched, launches, products, attentions, waits, allocations, allocated, pinned atomic.Int64
}

// Stats are counts since Open.
type Stats struct {
	Launches    int64 // kernels started one by one
	Products    int64 // matrix products started
	Attentions  int64 // attention started, forward or backward
	Graphs      int64 // CUDA graphs launched
	GraphSets   int64 // kernels of them whose arguments changed
	Recalled    int64 // replays whose operations were known without a call
	GraphNanos  int64 // that the device's thread took to compare, set and launch them
	HostWaits   int64 // times that the host waited for the device
	Allocations int64 // of device memory and of pinned memory
	Loads       int64 // modules loaded and products planned
	LateLoads   int64 // of them after Seal
	Allocated   int64 // bytes of device memory
	Pinned      int64 // bytes of pinned host memory
	Fetched     int64 // bytes of experts that came from the host
}

// Ended counts launches, of which the driver takes about a thousand before it waits for the device, and the operations
// known to be complete; see device.Pulse.
func (d *Device) Ended() int64 { return d.counts.launches.Load() + d.synced.Load() }

// Stats returns the device's counts.
func (d *Device) Stats() Stats {
	c := &d.counts
	loads, late := d.kernels.counted()
	return Stats{
		Graphs: d.replays.counts.launched.Load(), GraphSets: d.replays.counts.updated.Load(), GraphNanos: d.replays.counts.nanos.Load(),
		Recalled: d.replays.counts.recalled.Load(),
		Launches: c.launches.Load(), Products: c.products.Load(), Attentions: c.attentions.Load(), HostWaits: c.waits.Load(),
		Allocations: c.allocations.Load(), Loads: loads, LateLoads: late,
		Allocated: c.allocated.Load(), Pinned: c.pinned.Load(), Fetched: c.fetched.Load(),
	}
}
