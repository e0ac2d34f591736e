package cuda

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"apr/device"
	"apr/device/cuda/driver"
	"apr/internal/fault"
	"apr/tensor"
)

// A device may be joined with single other ones, each by a communicator of its own, over which tensors go from memory
// to memory. What passes is queued on the device's stream like any other operation.

var (
	_ device.Pairer = (*Device)(nil)
	_ device.Passer = (*Stream)(nil)
)

// Pair joins this device with that of another rank; gives says which of the two Pass gives from.
func (d *Device) Pair(peer int, gives bool, id []byte) error {
	var of driver.NcclID
	if len(id) != len(of) {
		return fault.New(fault.Invalid, "the id of a pair has %d bytes instead of %d", len(id), len(of)).WithID("E-CUDA-073")
	}
	n, err := d.openNccl()
	if err != nil {
		return err
	}
	copy(of[:], id)
	g := &group{nccl: n, world: 2, ticker: make(chan struct{})}
	if !gives {
		g.rank = 1
	}
	err = d.ctx.Do(func(t *driver.Thread) (err error) {
		g.comm, err = n.Init(t, 2, g.rank, of)
		return err
	})
	if err != nil {
		return groupFault(fmt.Sprintf("%s cannot be joined with rank %d", d.desc.Name, peer), err)
	}
	d.pairing.Lock()
	defer d.pairing.Unlock()
	if d.pairs == nil {
		d.pairs = map[int]*group{}
	}
	d.pairs[peer] = g
	go g.watch(d)
	return nil
}

// groups are all communicators of the device.
func (d *Device) groups() (all []*group) {
	d.pairing.Lock()
	defer d.pairing.Unlock()
	if d.group != nil {
		all = append(all, d.group)
	}
	for _, peer := range slices.Sorted(maps.Keys(d.pairs)) {
		all = append(all, d.pairs[peer])
	}
	return all
}

// parted is why a group of the device has ended, or nil.
func (d *Device) parted() error {
	for _, g := range d.groups() {
		if err := g.err(); err != nil {
			return err
		}
	}
	return nil
}

// leavePairs gives the communicators of pairs back, on the device's thread.
func (d *Device) leavePairs(t *driver.Thread) (err error) {
	for _, g := range d.groups() {
		if g != d.group {
			err = errors.Join(err, g.destroy(t))
		}
	}
	return err
}

// pass queues a broadcast of x from the rank that gives.
func (s *Stream) pass(name string, peer int, x device.Tensor) {
	device.CheckPass(x)
	o := s.begin(name, x)
	if o == nil {
		return
	}
	g := o.dev.pairs[peer]
	if g == nil {
		panic(fmt.Sprintf("cuda: %s: the device is not joined with that of rank %d", name, peer))
	}
	m, kind := mat(x), driver.NcclF32
	if x.DType == tensor.BF16 {
		kind = driver.NcclBF16
	}
	o.collectIn(g, func(g *group, t *driver.Thread) error {
		return g.nccl.Broadcast(t, g.comm, m.Ptr, m.Rows*m.Cols, kind, 0, o.dev.stream)
	})
	o.end()
}

// Pass gives x to the device of another rank.
func (s *Stream) Pass(peer int, x device.Tensor) { s.pass("Pass", peer, x) }

// Receive: x ← what the device of another rank passes.
func (s *Stream) Receive(peer int, x device.Tensor) { s.pass("Receive", peer, x) }
