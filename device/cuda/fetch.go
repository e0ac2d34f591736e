package cuda

import (
	"errors"
	"sync"
	"unsafe"

	"apr/device"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
)

var _ device.Fetcher = (*Stream)(nil)

// fetches are places in pinned memory for values on their way to the host.
type fetches struct {
	mu        sync.Mutex
	free, all []*fetched
}

// fetched has a stream's record, then values. The event is recorded behind the copies.
type fetched struct {
	p     unsafe.Pointer
	bytes int
	event driver.Event
}

func (f *fetches) take() *fetched {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.free); n > 0 {
		r := f.free[n-1]
		f.free = f.free[:n-1]
		return r
	}
	r := &fetched{}
	f.all = append(f.all, r)
	return r
}

func (f *fetches) give(r *fetched) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.free = append(f.free, r)
}

// release gives the memory and the events back.
func (f *fetches) release(t *driver.Thread) (err error) {
	for _, r := range f.all {
		if r.p != nil {
			err = errors.Join(err, t.HostFree(r.p), t.DestroyEvent(r.event))
		}
	}
	return err
}

// grow sees to it that n bytes fit.
func (r *fetched) grow(d *Device, t *driver.Thread, n int) (err error) {
	if r.bytes >= n {
		return nil
	}
	if r.p != nil {
		err = errors.Join(t.HostFree(r.p), t.DestroyEvent(r.event))
	}
	if *r = (fetched{}); err != nil {
		return err
	}
	p, err := d.pin(t, n)
	if err != nil {
		return err
	}
	event, err := t.NewEvent(false)
	if err != nil {
		return errors.Join(err, t.HostFree(p))
	}
	*r = fetched{p: p, bytes: n, event: event}
	return nil
}

// Fetch begins to copy t, float32 without gaps, to the host, and returns what waits for it: see device.Fetcher.
func (s *Stream) Fetch(t device.Tensor) func(dst []float32) error {
	device.CheckFetch(t)
	o := s.begin("Fetch", t)
	if o == nil {
		return func([]float32) error { return s.err.get() }
	}
	d, r, m, n := s.dev, s.dev.fetches.take(), mat(t), t.Rows*t.Cols
	o.call(func(th *driver.Thread) error {
		if err := r.grow(d, th, slotBytes+4*n); err != nil {
			return err
		}
		if err := th.CopyDtoH(r.p, s.slot.device, int64(unsafe.Sizeof(kernel.Record{})), d.stream); err != nil {
			return err
		}
		if err := th.CopyDtoH(unsafe.Add(r.p, slotBytes), m.Ptr, int64(4*n), d.stream); err != nil {
			return err
		}
		return th.Record(r.event, d.stream)
	})
	d.uploads.mu.Lock() // what others upload from now on is behind the event
	o.end()
	issued := d.issued.Load()
	d.uploads.mu.Unlock()
	return func(dst []float32) error {
		device.CheckFetched(dst, n)
		defer d.fetches.give(r)
		d.counts.waits.Add(1)
		err := d.ctx.Do(func(th *driver.Thread) error {
			if d.lost.Load() != nil || s.failed() {
				return nil
			}
			return th.EventSync(r.event)
		})
		if err != nil {
			s.fail(d.explain(d.after("Fetch"), err))
		} else if err := d.lostError(); err != nil {
			s.fail(err)
		} else if !s.failed() {
			advance(&d.synced, issued)
			s.fail(d.recordedFault((*kernel.Record)(r.p)))
			copy(dst, unsafe.Slice((*float32)(unsafe.Add(r.p, slotBytes)), n))
		}
		return s.err.get()
	}
}
