package cuda

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"apr/device"
	"apr/device/cuda/driver"
	"apr/internal/fault"
)

// A device may be joined with those of other ranks by NCCL: each rank is a device of its own, mostly in a process of
// its own. Most of what goes over the ranks is queued like any other operation, on the device's stream. Gradients and
// gathered weights have a stream of their own, so that they are exchanged while the device computes: see travels.

// group is a device's place among the ranks; nil: it has not joined any.
type group struct {
	nccl        *driver.Nccl
	rank, world int
	comm        driver.NcclComm
	travels     travels

	mu     sync.Mutex // of what follows
	over   bool       // the communicator was aborted or given back
	cause  atomic.Pointer[sentinel]
	ticker chan struct{} // closed to end the watch
}

var (
	_ device.Joiner    = (*Device)(nil)
	_ device.Sharer    = (*Device)(nil)
	_ device.Exchanger = (*Stream)(nil)
)

// openNccl finds NCCL, once.
func (d *Device) openNccl() (*driver.Nccl, error) {
	d.ncclOnce.Do(func() {
		n, report, err := driver.OpenNccl()
		use := LibraryUse{Name: string(driver.NCCL), Path: report.Path, Version: report.Version}
		if err != nil {
			use.Missing = whyNot(report, err)
			err = fault.New(fault.Unavailable, "several GPUs need NCCL").WithID("E-CUDA-071").Because(err).
				WithHint("set %s to libnccl.so.2, such as PyTorch's in site-packages/nvidia/nccl/lib", driver.NcclVariable)
		}
		d.uses(use)
		d.nccl, d.ncclErr = n, err
	})
	return d.nccl, d.ncclErr
}

// Devices returns how many devices the driver has.
func (d *Device) Devices() (int, error) { return d.driver.DeviceCount() }

// CanJoin looks for NCCL.
func (d *Device) CanJoin() error {
	_, err := d.openNccl()
	return err
}

// GroupID returns the id of a new group.
func (d *Device) GroupID() (id []byte, err error) {
	n, err := d.openNccl()
	if err != nil {
		return nil, err
	}
	err = d.ctx.Do(func(*driver.Thread) error {
		made, err := n.UniqueID()
		id = made[:]
		return err
	})
	return id, groupFault("no group of GPUs can be made", err)
}

// groupFault is the fault of a call of NCCL.
func groupFault(what string, err error) error {
	if err == nil {
		return nil
	}
	return fault.New(fault.Unavailable, "%s", what).WithID("E-CUDA-072").Because(err).
		WithHint("every rank needs a GPU of its own and a way to the others; NCCL_DEBUG=WARN lets NCCL say more")
}

// asyncPeriod is the time between two looks at NCCL's own errors.
const asyncPeriod = 500 * time.Millisecond

// Join makes this device a rank of a group.
func (d *Device) Join(rank, world int, id []byte) error {
	var of driver.NcclID
	if len(id) != len(of) {
		return fault.New(fault.Invalid, "the id of a group has %d bytes instead of %d", len(id), len(of)).WithID("E-CUDA-073")
	}
	if d.group != nil {
		panic("cuda: the device has joined a group already")
	}
	away, err := newTravels()
	if err != nil {
		return err
	}
	n, err := d.openNccl()
	if err != nil {
		return err
	}
	copy(of[:], id)
	g := &group{nccl: n, rank: rank, world: world, ticker: make(chan struct{}), travels: away}
	err = d.ctx.Do(func(t *driver.Thread) (err error) {
		if err = g.travels.open(t); err == nil {
			g.comm, err = n.Init(t, world, rank, of)
		}
		return err
	})
	if err != nil {
		return groupFault(fmt.Sprintf("rank %d of %d on %s cannot join the others", rank, world, d.desc.Name), err)
	}
	d.pairing.Lock()
	d.group = g
	d.pairing.Unlock()
	go g.watch(d)
	return nil
}

// watch looks for errors that NCCL's own threads and kernels met.
func (g *group) watch(d *Device) {
	t := time.NewTicker(asyncPeriod)
	defer t.Stop()
	for {
		select {
		case <-g.ticker:
			return
		case <-t.C:
		}
		g.mu.Lock()
		var err error
		if !g.over {
			err = g.nccl.AsyncError(g.comm)
		}
		g.mu.Unlock()
		if err != nil {
			d.Part(fault.New(fault.Stopped, "rank %d of %d lost the other GPUs", g.rank, g.world).WithID("E-CUDA-074").
				Because(err))
			return
		}
	}
}

// Part ends the group.
func (d *Device) Part(cause error) {
	for _, g := range d.groups() {
		g.part(cause)
	}
}

func (g *group) part(cause error) {
	g.cause.CompareAndSwap(nil, &sentinel{cause})
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.over {
		g.over = true
		close(g.ticker)
		_ = g.nccl.Abort(g.comm) // nothing is left that could fail because of it
	}
}

// err is why the group has ended, or nil.
func (g *group) err() error {
	if s := g.cause.Load(); s != nil {
		return s.err
	}
	return nil
}

// leave gives the communicator back, on the device's thread.
func (g *group) leave(t *driver.Thread) error {
	if g == nil {
		return nil
	}
	err := t.StreamSync(g.travels.stream)
	return errors.Join(err, g.destroy(t), g.travels.close(t))
}

// destroy gives the communicator back.
func (g *group) destroy(t *driver.Thread) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over {
		return nil
	}
	g.over = true
	close(g.ticker)
	return g.nccl.Destroy(t, g.comm)
}

// collect adds a call of NCCL to an operation.
func (o *operation) collect(f func(g *group, t *driver.Thread) error) {
	g := o.dev.group
	if g == nil {
		panic("cuda: " + o.name + ": the device has joined no group")
	}
	o.collectIn(g, f)
}

// collectIn is collect in one of the device's communicators.
func (o *operation) collectIn(g *group, f func(g *group, t *driver.Thread) error) {
	o.call(func(t *driver.Thread) error {
		if err := g.err(); err != nil {
			return err
		}
		err := f(g, t)
		if cause := g.err(); cause != nil && err != nil {
			return cause
		}
		return groupFault(o.name+" over the ranks failed", err)
	})
}

// SumRanks replaces each tensor by its sum over the ranks.
func (s *Stream) SumRanks(tree bool, ts ...device.Tensor) {
	device.CheckSumRanks(ts...)
	if tree && s.dev.group.world > 2 && len(ts) > 0 {
		s.sumWholeTree(ts)
		return
	}
	o := s.begin("SumRanks", ts...)
	if o == nil || len(ts) == 0 {
		return
	}
	o.collect(func(g *group, t *driver.Thread) error {
		return g.nccl.Together(func() error {
			for _, x := range ts {
				m := mat(x)
				if err := g.nccl.AllReduce(t, g.comm, m.Ptr, m.Ptr, m.Rows*m.Cols, driver.NcclF32, o.dev.stream); err != nil {
					return err
				}
			}
			return nil
		})
	})
	o.end()
}
