package vulkan

import (
	"errors"
	"time"

	"apr/device/vulkan/driver"
	"apr/device/vulkan/kernel"
	"apr/internal/fault"
)

// batch is how many dispatches are recorded before they are submitted, so that the device works while the host
// records.
const batch = 64

// How long submitted work may take before the device is taken for hung. On hardware, work that is submitted at once
// takes a tenth of a second; a program that imitates a card has no such measure.
const (
	hungHardware = time.Minute
	hungProgram  = 10 * time.Minute
)

// submission is how long the work of one submission may take: the drivers of cards with a display end what takes
// seconds.
const submission = 100 * time.Millisecond

// mostOfProgram bounds the work of one submission to an adapter that a program imitates, in units of kernel.Work:
// about a second on two cores. A watchdog sees submissions end, so one must take far less than a minute, on a busy
// machine too.
const mostOfProgram = 1 << 30

// lose keeps the first error after which the device is unusable, and returns it.
func (d *Device) lose(err error) error {
	if d.lost == nil {
		d.lost = err
	}
	return d.lost
}

// check explains an error of the driver, after which the device is unusable.
func (d *Device) check(err error) error {
	if err == nil {
		return d.lost
	}
	var e *driver.Error
	switch {
	case !errors.As(err, &e):
		return d.lose(err)
	case e.OutOfMemory():
		return d.lose(fault.New(fault.Memory, "no memory on %s", d.adapter.Name).WithID("E-VULKAN-020").Because(err))
	case e.Hung():
		d.stuck = true
		return d.lose(fault.New(fault.Hung, "%s has not ended what it was given %v ago", d.adapter.Name, d.patience).
			WithID("E-VULKAN-035").Because(err).
			WithHint("another program may hold the card, or a kernel hangs; a run can be resumed from its last checkpoint"))
	case e.DeviceLost():
		return d.lose(fault.New(fault.Hung, "%s was lost", d.adapter.Name).WithID("E-VULKAN-030").Because(err).
			WithHint("look at the kernel log for messages of the driver; a run can be resumed from its last checkpoint"))
	}
	return d.lose(fault.New(fault.Inference, "%s failed", d.adapter.Name).WithID("E-VULKAN-031").Because(err))
}

// record returns the commands to record in.
func (d *Device) record() *driver.Commands { return d.commands[d.current] }

// submit gives what was recorded to the device and goes on with the other commands, once those have ended.
func (d *Device) submit() error {
	if d.lost != nil {
		return d.lost
	}
	if err := d.check(d.record().Submit()); err != nil {
		return err
	}
	d.current, d.staged, d.recorded = 1-d.current, 0, 0
	return d.wait(d.record())
}

// wait waits until what was submitted with c has ended.
func (d *Device) wait(c *driver.Commands) error {
	if !c.Pending() {
		return d.lost
	}
	err := d.check(c.Wait(d.patience))
	if err == nil {
		d.ended.Add(1)
	}
	return err
}

// finish submits and waits for everything.
func (d *Device) finish() error {
	if err := d.submit(); err != nil {
		return err
	}
	for _, c := range d.commands {
		if err := d.wait(c); err != nil {
			return err
		}
	}
	return nil
}

// launch is a kernel.Launch with what is bound.
type launch struct {
	kernel.Launch
	bindings [driver.MaxBindings]driver.Binding
	push     [driver.MaxPush]uint32
	words    int
}

// bind finds the pieces of memory of a launch and writes its push constants. A piece that launchers cannot split,
// such as the keys of one sequence, and that no binding spans, is a fault of kind Unavailable.
func (d *Device) bind(l *launch) error {
	l.push[0] = uint32(l.Groups)
	for i, m := range l.Bind {
		at, row := uint32(0), uint32(0)
		if b, ok := m.Buf.(*buffer); ok && b.buf != nil {
			first := b.at + 4*int64(m.At)
			begin := first / alignment * alignment
			n := first - begin + 4*int64(max(1, m.Span()))
			if n > d.limit {
				return fault.New(fault.Unavailable, "kernel %s: %d bytes of one piece, and a binding of %s spans %d", l.Kernel, n,
					d.adapter.Name, d.limit).WithHint("shorter sequences help; --backend cpu works everywhere").
					WithID("E-VULKAN-034")
			}
			l.bindings[i] = driver.Binding{Buffer: b.buf, At: begin, N: n}
			at, row = uint32(first-begin)/4, uint32(m.Row)
		} else {
			l.bindings[i] = driver.Binding{Buffer: d.none, N: d.none.Bytes()}
		}
		l.push[2+2*i], l.push[3+2*i] = at, row
	}
	l.words = 2 + 2*len(l.Bind)
	l.words += copy(l.push[l.words:], l.Args)
	return nil
}

// dispatch records a launch. The caller holds d.mu.
func (d *Device) dispatch(k kernel.Launch) error {
	if d.lost != nil || k.Groups == 0 {
		return d.lost
	}
	p, err := d.pipeline(k.Kernel)
	if d.check(err) != nil {
		return d.lost
	}
	m := kernel.Modules()[k.Kernel]
	if len(k.Bind) != len(m.Bindings) || len(k.Args) != len(m.Args) {
		panic("vulkan: " + k.Kernel + " has other bindings or arguments")
	}
	l := &launch{Launch: k}
	if err := d.bind(l); err != nil {
		return err
	}
	if d.sabotage != nil {
		d.sabotage(l)
	}
	work, step := kernel.Work(k), l.Groups
	if d.most > 0 && work > d.most/int64(step) {
		step = int(max(1, d.most/work))
	}
	for first := 0; first < l.Groups && err == nil; first += step {
		n := min(step, l.Groups-first)
		if step < l.Groups {
			l.push[0], l.push[1] = uint32(first+n), uint32(first)
		}
		err = d.runGroups(p, l, n, work*int64(n))
	}
	return err
}

// runGroups records n groups of a launch, which are so much work. What was recorded is submitted when it is long
// enough.
func (d *Device) runGroups(p *driver.Pipeline, l *launch, n int, work int64) error {
	x := min(n, leastGroups)
	y := (n + x - 1) / x
	if d.most > 0 && d.recorded > 0 && d.recorded+work > d.most {
		if err := d.submit(); err != nil {
			return err
		}
	}
	err := d.check(d.record().Dispatch(p, l.bindings[:len(l.Bind)], l.push[:l.words], x, y))
	d.recorded += work
	d.dispatches++
	if err == nil && d.record().Dispatches() >= batch {
		err = d.submit()
	}
	return err
}

// pipeline returns a compiled kernel.
func (d *Device) pipeline(name string) (*driver.Pipeline, error) {
	if p := d.pipelines[name]; p != nil {
		return p, nil
	}
	m := kernel.Modules()[name]
	if m == nil {
		panic("vulkan: there is no kernel " + name)
	}
	code := m.Code
	if d.mutate != nil {
		code = d.mutate(name, code)
	}
	p, err := d.dev.NewPipeline(code, len(m.Bindings))
	if err != nil {
		return nil, err
	}
	d.pipelines[name] = p
	d.compiled++
	d.ended.Add(1)
	return p, nil
}

// write copies bytes to a place of the device, after everything recorded before. The caller holds d.mu.
func (d *Device) write(to place, at int64, src []byte) {
	for len(src) > 0 && d.lost == nil && to.buf != nil {
		room := d.staging[d.current]
		n := min(int64(len(src)), room.Bytes()-d.staged)
		if n < min(int64(len(src)), 4096) {
			if d.submit() != nil {
				return
			}
			continue
		}
		copy(room.Host()[d.staged:], src[:n])
		if d.check(d.record().Copy(to.buf, to.at+at, room, d.staged, n)) != nil {
			return
		}
		d.staged, at, src = d.staged+n, at+n, src[n:]
		d.staged = (d.staged + 15) &^ 15
		if d.staged > room.Bytes() {
			d.staged = room.Bytes()
		}
	}
}

// piece is a range of device memory.
type piece struct {
	place
	n int64
}

// read copies pieces of device memory to dst, one after the other, when everything recorded before has ended. The
// caller holds d.mu.
func (d *Device) read(dst []byte, pieces []piece) error {
	for len(pieces) > 0 {
		var got int64
		for len(pieces) > 0 && got < d.down.Bytes() {
			p := &pieces[0]
			n := min(p.n, d.down.Bytes()-got)
			if p.buf != nil && n > 0 {
				if err := d.check(d.record().Copy(d.down, got, p.buf, p.at, n)); err != nil {
					return err
				}
			}
			p.at, p.n, got = p.at+n, p.n-n, got+n
			if p.n == 0 {
				pieces = pieces[1:]
			}
		}
		if err := d.finish(); err != nil {
			return err
		}
		copy(dst, d.down.Host()[:got])
		dst = dst[got:]
	}
	return d.lost
}

// takeFault returns what a kernel noted, and forgets it. Everything has ended.
func (d *Device) takeFault() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.noted || d.lost != nil {
		return d.lost
	}
	d.noted = false
	b := make([]byte, 16)
	if err := d.read(b, []piece{{d.faults.place, 16}}); err != nil {
		return err
	}
	code, value, limit := word(b, 0), word(b, 1), word(b, 2)
	if code == kernel.FaultNone {
		return nil
	}
	d.write(d.faults.place, 0, make([]byte, 16))
	op := map[uint32]string{kernel.FaultID: "Embed", kernel.FaultRow: "Gather or Scatter",
		kernel.FaultPosition: "Rotate", kernel.FaultTarget: "Loss"}[code]
	return outside(op, int64(int32(value)), int64(limit))
}

// outside is the fault of an id that no row has.
func outside(op string, id, limit int64) *fault.Error {
	return fault.New(fault.Invalid, "%s: id %d outside [0, %d)", op, id, limit).WithID("E-VULKAN-032")
}
