package cuda

import (
	"context"
	"sync"
	"time"
	"unsafe"

	"apr/device"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
	"apr/tensor"
)

// Stream queues operations on the device's CUDA stream. It has a record of its own.
type Stream struct {
	dev   *Device
	inner bool // its operations are the device's own: all others rely on them
	slot  recordSlot
	err   failure
	marks []mark                          // phases begun since the last Wait
	spare []*driver.Event                 // of dropped marks; made and looked into on the device's thread only
	taken [device.NumPhases]time.Duration // since SetScalars
	waits [kindsOfTravel]bool             // which arrivals were waited for since the last Wait
}

// mark is the beginning of a phase: an event that the device reaches there.
type mark struct {
	phase device.Phase
	event *driver.Event
}

// recordSlot is a record on the device and its mirror in pinned memory.
type recordSlot struct {
	device uint64
	host   *kernel.Record
}

// recordSlots hands out slots; they are few and never given back.
type recordSlots struct {
	mu     sync.Mutex
	free   []recordSlot
	pinned []unsafe.Pointer
}

const (
	slotBytes     = (int(unsafe.Sizeof(kernel.Record{})) + alignment - 1) / alignment * alignment
	slotsPerBlock = 64
)

// take returns a slot whose record is zero.
func (r *recordSlots) take(d *Device) (recordSlot, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.free) == 0 {
		b, err := d.take("records", device.Scratch, slotsPerBlock*int64(slotBytes), false)
		if err != nil {
			return recordSlot{}, err
		}
		d.clear(b)
		var host unsafe.Pointer
		if err := d.ctx.Do(func(t *driver.Thread) (err error) {
			host, err = d.pin(t, slotsPerBlock*slotBytes)
			return err
		}); err != nil {
			return recordSlot{}, d.explain("the allocation of records", err)
		}
		r.pinned = append(r.pinned, host)
		for i := slotsPerBlock - 1; i >= 0; i-- {
			p := (*kernel.Record)(unsafe.Add(host, i*slotBytes))
			*p = kernel.Record{}
			r.free = append(r.free, recordSlot{b.place.address() + uint64(i*slotBytes), p})
		}
	}
	s := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	return s, nil
}

func newStream(d *Device) *Stream {
	s := &Stream{dev: d}
	var err error
	if s.slot, err = d.slots.take(d); err != nil {
		s.slot.host = new(kernel.Record)
		d.lost.CompareAndSwap(nil, &sentinel{err}) // without a record no operation can run
	}
	return s
}

// fail keeps the stream's first error. After one in the device's own operations nothing can be relied on.
func (s *Stream) fail(err error) {
	if err != nil && s.inner {
		s.dev.lost.CompareAndSwap(nil, &sentinel{err})
	}
	s.err.set(err)
}

// failed reports whether operations are no-ops.
func (s *Stream) failed() bool { return s.err.get() != nil || s.dev.lost.Load() != nil }

// Temp returns a tensor with undefined content for use until Release.
func (s *Stream) Temp(name string, c device.Component, d tensor.DType, rows, cols int) device.Tensor {
	b, _ := s.dev.take(name, c, device.TensorBytes(device.OpTemp, d, rows, cols), true)
	return device.Whole(b, d, rows, cols)
}

// Release gives temps back; any view of a temp releases all of it. Zero tensors are ignored.
func (s *Stream) Release(ts ...device.Tensor) {
	for _, t := range ts {
		device.CheckRelease(t)
		if !t.IsZero() {
			s.dev.give(t.Buf.(*buffer))
		}
	}
}

// SetScalars starts a step's record; the clock of its phases starts with PhaseData.
func (s *Stream) SetScalars(sc device.Scalars) {
	s.taken = [device.NumPhases]time.Duration{}
	s.forget(0)
	o := s.begin("SetScalars")
	if o == nil {
		return
	}
	r := kernel.Record{
		LR: sc.LR, InvN: sc.InvN, Bias1: sc.BiasCorr1, Bias2: sc.BiasCorr2, MaxNorm: sc.MaxNorm,
		CEWeight: sc.CEWeight, DWeight: sc.DWeight, MaxLoss: sc.MaxLoss, Weights: sc.Weights,
		CE: sc.CE, D: sc.D, Entropy: sc.Entropy, Positions: sc.Positions, Agree: sc.Agree, Sums: sc.Sums,
	}
	const n = int(unsafe.Sizeof(r))
	at, d := s.slot.device, s.dev
	d.uploads.send(o, n, func(dst []byte) { *(*kernel.Record)(unsafe.Pointer(unsafe.SliceData(dst))) = r },
		func(o *operation, p unsafe.Pointer) {
			o.call(func(t *driver.Thread) error { return t.CopyHtoD(at, p, int64(n), d.stream) })
		})
	s.Phase(device.PhaseData)
}

// Phase marks the beginning of a phase; the previous one ends there.
func (s *Stream) Phase(p device.Phase) {
	device.CheckPhase(p)
	o := s.begin("Phase")
	if o == nil {
		return
	}
	e, d := s.event(), s.dev
	s.marks = append(s.marks, mark{p, e})
	o.call(func(t *driver.Thread) (err error) {
		if *e == 0 {
			if *e, err = t.NewEvent(true); err != nil {
				return err
			}
		}
		return t.Record(*e, d.stream)
	})
	o.end()
}

// event returns a timing event, which the device's thread makes at its first use.
func (s *Stream) event() *driver.Event {
	if n := len(s.spare); n > 0 {
		e := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return e
	}
	return new(driver.Event)
}

// forget drops all marks but the last keep.
func (s *Stream) forget(keep int) {
	n := len(s.marks) - keep
	for _, m := range s.marks[:n] {
		s.spare = append(s.spare, m.event)
	}
	s.marks = append(s.marks[:0], s.marks[n:]...)
}

// Wait runs everything to the end and returns the record and the stream's first error, which it clears.
func (s *Stream) Wait(context.Context) (device.Scalars, error) {
	if n := len(s.marks); n > 0 {
		s.Phase(s.marks[n-1].phase)
	}
	err := s.sync("Wait", nil)
	if err == nil {
		err = s.addPhases()
	}
	r := s.slot.host
	sc := device.Scalars{
		LR: r.LR, InvN: r.InvN, BiasCorr1: r.Bias1, BiasCorr2: r.Bias2, MaxNorm: r.MaxNorm,
		CEWeight: r.CEWeight, DWeight: r.DWeight, MaxLoss: r.MaxLoss, Weights: r.Weights, Sums: r.Sums,
		Positions: r.Positions, CE: r.CE, D: r.D, Agree: r.Agree, Entropy: r.Entropy,
		Loss: r.Loss, GradNorm: r.GradNorm, Scale: r.Scale, Finite: r.Finite != 0, Diverged: r.Diverged != 0, Phases: s.taken,
	}
	if err != nil {
		s.recover()
	}
	return sc, err
}

// sync waits until everything queued is done, after copies that more asks for, and returns the stream's first error.
func (s *Stream) sync(op string, more func(t *driver.Thread) error) error {
	d := s.dev
	if err := d.lostError(); err != nil {
		s.fail(err)
		return s.err.get()
	}
	d.uploads.mu.Lock()
	issued := d.issued.Load() // what is counted here is queued
	d.uploads.mu.Unlock()
	d.counts.waits.Add(1)
	err := d.ctx.Do(func(t *driver.Thread) error {
		if d.lost.Load() != nil {
			return d.lostError()
		}
		if more != nil && s.err.get() == nil {
			if err := more(t); err != nil {
				return err
			}
		}
		if err := t.CopyDtoH(unsafe.Pointer(s.slot.host), s.slot.device, int64(unsafe.Sizeof(kernel.Record{})), d.stream); err != nil {
			return err
		}
		return t.StreamSync(d.stream)
	})
	if err == nil {
		advance(&d.synced, issued)
		if err = d.recordedFault(s.slot.host); err == nil {
			err = d.parted() // what an aborted sum left is not a result
		}
	} else {
		err = d.explain(d.after(op), err)
	}
	s.fail(err)
	return s.err.get()
}

// after names an operation that met an error, and the last one that was queued before, which may have caused it.
func (d *Device) after(op string) string {
	if last := d.doing.Load(); last != nil {
		return *last + " or before, seen by " + op
	}
	return op
}

// Doing names the operation that the device's thread works at, or the last one; it waits for nothing.
func (d *Device) Doing() string {
	if last := d.doing.Load(); last != nil {
		return *last
	}
	return "none"
}

// recover makes the stream usable after its error was told.
func (s *Stream) recover() {
	s.err.first.Store(nil)
	s.forget(0)
	s.dev.group.settled()
	if s.slot.host.Fault == kernel.FaultNone || s.slot.device == 0 {
		return
	}
	*s.slot.host = kernel.Record{}
	d, at := s.dev, s.slot.device
	d.queue("Wait", func(t *driver.Thread) error {
		return t.Memset8(at, 0, int64(unsafe.Sizeof(kernel.Record{})), d.stream)
	})
}

// addPhases adds up the times between the marks, all of which the device has passed. The last one stays: it begins the
// time that belongs to its phase after the Wait.
func (s *Stream) addPhases() error {
	n, waits := len(s.marks), s.waits
	s.waits = [kindsOfTravel]bool{}
	if n < 2 {
		return nil
	}
	err := s.dev.ctx.Do(func(t *driver.Thread) error {
		exposed, err := s.dev.group.exposed(t, waits)
		if err != nil {
			return err
		}
		s.taken[device.PhaseExchange] += exposed
		for i, m := range s.marks[:n-1] {
			took, err := t.Elapsed(*m.event, *s.marks[i+1].event)
			if err != nil {
				return err
			}
			s.taken[m.phase] += took
		}
		return nil
	})
	s.forget(1)
	return s.dev.explain("Wait", err)
}
