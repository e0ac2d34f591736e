package cuda

import (
	"errors"
	"sync/atomic"

	"apr/device"
	"apr/device/cuda/driver"
)

var (
	_ device.Besider = (*Device)(nil)
	_ device.Beside  = (*Device)(nil)
)

// A second queue is a Device of its own on the same GPU and in the same context of the driver: a thread that calls the
// driver, a CUDA stream, pinned memory, scratch memory, a handle and a workspace of cublasLt, modules with their global
// variables, graphs, records, counters. So no operation of one shares anything with one of the other but the weights
// that are lent, and those are ordered by an event (Follow) and by waits of the host.
//
// Its stream is urgent: what it computes are long chains of short kernels, each of which waits for the one before,
// while the first device's kernels mostly fill the GPU. Wherever one of their thread blocks ends, the short ones come
// first.

// room is the memory of the first device in which all of a second one's is.
type room struct{ at, end uint64 }

// lent are the first device's buffers as the second one sees them.
type lent struct {
	buffers map[*buffer]*buffer
	weights map[*weight]*weight
	begins  driver.Event // see Follow
}

// Beside opens a device whose operations run beside d's: see device.Besider.
func (d *Device) Beside(memory device.Tensor) (device.Beside, error) {
	device.CheckBeside(memory)
	if d.first != nil {
		panic("cuda: a device beside one that is beside another")
	}
	b := memory.Buf.(*buffer)
	if b.void != nil {
		return nil, b.void
	}
	ctx, err := d.driver.NewContext(d.opts.Index)
	if err != nil {
		return nil, unavailable(d.desc.Name+" cannot be opened a second time", err)
	}
	at := b.place.address()
	s := &Device{
		opts: d.opts, driver: d.driver, ctx: ctx, desc: d.desc, maps: d.maps, act: d.act, managed: d.managed,
		first: d, room: room{at, at + uint64(b.bytes)},
		lent: lent{buffers: map[*buffer]*buffer{}, weights: map[*weight]*weight{}},
	}
	s.opts.Managed = &s.managed
	d.pace.beside.Add(1)
	s.init()
	if err = s.prepare(); err == nil {
		err = d.explain("Beside", ctx.Do(func(t *driver.Thread) (err error) {
			s.lent.begins, err = t.NewEvent(false)
			return err
		}))
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// pace keeps a device with another one beside it less than a thousand launches ahead of the GPU. That is about how many
// the driver takes of a stream; then the thread that launches waits within the driver, and launches of another thread
// into another stream may have to wait with it. So the thread waits for an event instead.
type pace struct {
	beside atomic.Int32 // devices that are open beside this one
	// Of the device's thread alone.
	steps, turn int
	events      [2]driver.Event
}

// paceSteps are the launches after which the device's thread waits for as many before them.
const paceSteps = 256

// keepPace counts launches, and waits.
func (d *Device) keepPace(t *driver.Thread, launches int) (err error) {
	p := &d.pace
	if p.beside.Load() == 0 {
		return nil
	}
	if p.steps += launches; p.steps < paceSteps {
		return nil
	}
	p.steps = 0
	if e := &p.events[p.turn]; *e == 0 {
		if *e, err = t.NewEvent(false); err != nil {
			return err
		}
	}
	if err := t.Record(p.events[p.turn], d.stream); err != nil {
		return err
	}
	if p.turn = 1 - p.turn; p.events[p.turn] == 0 {
		return nil
	}
	return t.EventSync(p.events[p.turn])
}

// release gives the events back.
func (p *pace) release(t *driver.Thread) (err error) {
	for _, e := range p.events {
		if e != 0 {
			err = errors.Join(err, t.DestroyEvent(e))
		}
	}
	return err
}

// newStream makes the device's CUDA stream.
func (d *Device) newStream(t *driver.Thread) (driver.Stream, error) {
	if d.first != nil {
		return t.NewUrgentStream()
	}
	return t.NewStream()
}

// allocateBeside is allocate of a device whose memory is the first one's. The caller holds poolsMu.
func (d *Device) allocateBeside(name string, c device.Component, size, wanted int64) (p uint64, got int64, err error) {
	free := int64(d.room.end - d.room.at)
	if size > free {
		size = aligned(wanted) // less reserve for later
	}
	if size > free {
		return 0, 0, outOfMemory(d, name, c, wanted, free, nil)
	}
	p = d.room.at
	d.room.at += uint64(size)
	d.counts.allocations.Add(1)
	d.counts.allocated.Add(size)
	return p, size, nil
}

// Lend returns the first device's t as this one reads it.
func (d *Device) Lend(t device.Tensor) device.Tensor {
	if t.IsZero() {
		return t
	}
	b := t.Buf.(*buffer)
	if b.dev != d.first || b.temp || !b.live {
		panic("cuda: only a tensor of Alloc of the first device is lent, not " + b.name)
	}
	l := d.lent.buffers[b]
	if l == nil {
		l = &buffer{
			dev: d, name: b.name, comp: b.comp, bytes: b.bytes, size: b.size, place: b.place, live: true, void: b.void,
		}
		d.lent.buffers[b] = l
	}
	t.Buf = l
	return t
}

// LendWeight returns the first device's w as this one reads it.
func (d *Device) LendWeight(w device.Weight) device.Weight {
	own := w.(*weight)
	if own.parts != nil || own.host != nil || own.fp8 != nil || own.t.Buf == nil {
		panic("cuda: only a dense matrix is lent")
	}
	l := d.lent.weights[own]
	if l == nil {
		c := *own
		c.t = d.Lend(own.t)
		l = &c
		d.lent.weights[own] = l
	}
	return l
}

// Follow lets operations that are queued here from now on wait for all that the first device was given before.
func (d *Device) Follow() {
	first, begins := d.first, d.lent.begins
	first.queue("Follow", func(t *driver.Thread) error { return t.Record(begins, first.stream) })
	// The event is the one recorded now only once the first device's thread has come to it.
	if err := first.explain("Follow", first.ctx.Do(func(*driver.Thread) error { return nil })); err != nil {
		d.internal().fail(err)
		return
	}
	d.queue("Follow", func(t *driver.Thread) error { return t.WaitEvent(d.stream, begins) })
	s := d.internal()
	for _, b := range d.lent.buffers { // copies of biases were made from what was there before
		s.touched(b)
	}
}

// release gives the event back.
func (l *lent) release(t *driver.Thread) error {
	if l.begins == 0 {
		return nil
	}
	return t.DestroyEvent(l.begins)
}
