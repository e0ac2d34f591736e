package cuda

import (
	"sync"
	"unsafe"

	"apr/device/cuda/driver"
)

// ring is pinned memory through which values of the host travel to the device: one half fills while the copies out of
// the other are on their way.
type ring struct {
	mu   sync.Mutex
	half [2]ringHalf
	turn int // the half at work
	used int // bytes of it
}

type ringHalf struct {
	p     unsafe.Pointer
	event driver.Event // recorded behind the last copy out of it
	left  int64        // value of Device.issued when it was left
}

// ringBytes is the size of a half, and so the largest piece.
const ringBytes = 4 << 20

// init allocates the ring.
func (r *ring) init(d *Device, t *driver.Thread) (err error) {
	for i := range r.half {
		h := &r.half[i]
		if h.p, err = d.pin(t, ringBytes); err != nil {
			return err
		}
		if h.event, err = t.NewEvent(false); err != nil {
			return err
		}
	}
	return nil
}

func (r *ring) free(t *driver.Thread) error {
	for _, h := range r.half {
		if h.p == nil {
			continue
		}
		if err := t.HostFree(h.p); err != nil {
			return err
		}
		if err := t.DestroyEvent(h.event); err != nil {
			return err
		}
	}
	return nil
}

// send fills n ≤ ringBytes bytes of pinned memory and lets use add the copies out of them to o, which is then queued.
// The whole is one turn: no other goroutine's piece comes between.
func (r *ring) send(o *operation, n int, fill func([]byte), use func(o *operation, p unsafe.Pointer)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	const line = 64
	if r.used+n > ringBytes {
		if err := r.change(o.dev); err != nil {
			o.stream.fail(err)
			return
		}
	}
	p := unsafe.Add(r.half[r.turn].p, r.used)
	r.used += (n + line - 1) &^ (line - 1)
	fill(unsafe.Slice((*byte)(p), n))
	use(o, p)
	o.end()
}

// change turns to the other half, and waits until the copies out of it are done unless a wait since then says so.
func (r *ring) change(d *Device) error {
	left, next := &r.half[r.turn], &r.half[1-r.turn]
	left.left = d.issued.Load()
	d.queue("Upload", func(t *driver.Thread) error { return t.Record(left.event, d.stream) })
	r.turn, r.used = 1-r.turn, 0
	if next.left <= d.synced.Load() {
		return nil
	}
	d.counts.waits.Add(1)
	return d.explain("Upload", d.ctx.Do(func(t *driver.Thread) error { return t.EventSync(next.event) }))
}

// pin allocates pinned host memory.
func (d *Device) pin(t *driver.Thread, n int) (unsafe.Pointer, error) {
	p, err := t.HostAlloc(n)
	if err == nil {
		d.counts.allocations.Add(1)
		d.counts.pinned.Add(int64(n))
	}
	return p, err
}
