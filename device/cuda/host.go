package cuda

import (
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"apr/device"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
	"apr/internal/fault"
)

// Experts of a frozen model may stay in page-locked memory of the host. A product of many tokens uses nearly all
// experts of a layer, so that it fetches the whole stack: into one of two places on the device, by a stream of its own,
// while the product before reads the other place. Behind each product the next stack is fetched, in the order of layers
// and from the last to the first. Whatever is fetched in an order that stays the same could come in this way: a stack
// is an address, its bytes, and its place in that order.

// hosted is a stack in page-locked memory.
type hosted struct {
	p     unsafe.Pointer
	bytes int64
	next  *hosted // that is used after it
}

// stages are the places where stacks arrive.
type stages struct {
	mu     sync.Mutex
	pool   pool // for them alone, so that a plan's memory for it is exact
	copies driver.Stream
	places [2]stage
	bytes  int64     // of each
	all    []*hosted // in the order in which they were loaded
	last   int       // the place used last
}

// stage is a place. Its events are recorded behind the copy to it, and behind the last product that reads it.
type stage struct {
	b             *buffer
	holds         *hosted
	arrived, used driver.Event
}

// aligned returns n as a place takes it.
func aligned(n int64) int64 { return (n + alignment - 1) &^ (alignment - 1) }

// staging returns the bytes of both places, for stacks of at most n bytes.
func staging(n int64) int64 { return int64(len(stages{}.places)) * aligned(n) }

// notHosted is why experts cannot stay on the host, or nil.
func (l *layout) notHosted(name string) error {
	if !l.inBlocks() || len(l.parts) != 1 || l.parts[0].size == 0 {
		return fault.New(fault.Unavailable, "experts stay in host memory in quantised blocks only").At("tensor %q", name).WithID("E-CUDA-064").
			WithHint("--teacher-experts device, or quantise the teacher: apr quantize TEACHER -s q4_k_m -o teacher-q4.apr")
	}
	return nil
}

// hostWeight keeps the experts' matrices on the host.
func (d *Device) hostWeight(spec device.WeightSpec, l *layout) (device.Weight, error) {
	h := &hosted{bytes: l.bytes}
	err := d.explain("the allocation of "+spec.Name, d.ctx.Do(func(t *driver.Thread) (err error) {
		h.p, err = d.pin(t, int(l.bytes))
		return err
	}))
	if err != nil {
		return nil, fault.New(fault.Memory, "no page-locked host memory for %s: %s wanted", spec.Name, mebibytes(l.bytes)).WithID("E-CUDA-065").
			WithHint("ulimit -l bounds it in some containers").Because(err)
	}
	g := &d.stages
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.all); n > 0 {
		g.all[n-1].next = h
	}
	g.all = append(g.all, h)
	h.next = g.all[0]
	p := l.parts[0]
	if err := d.readHost(h, p); err != nil {
		return nil, err
	}
	if err := g.grow(d, l.bytes); err != nil {
		return nil, err
	}
	w := &weight{t: device.Tensor{DType: d.act, Rows: l.rows, Cols: l.cols, Stride: l.cols}, experts: true, host: h, expands: l.scratch()}
	w.parts = []kept{{rows: l.rows, blocks: kernel.NewBlocks(0, l.rows, l.cols, p.as)}}
	d.growMu.Lock()
	d.expandAll = max(d.expandAll, w.expands)
	d.growMu.Unlock()
	return w, nil
}

// readHost fills the memory of a stack with a part.
func (d *Device) readHost(h *hosted, p *part) error {
	to := rowsAt{rows: p.rows, cols: p.info.Cols(), dtype: p.as}
	all, readers := unsafe.Slice((*byte)(h.p), h.bytes), min(mostReaders, runtime.GOMAXPROCS(0))
	step := (p.rows + readers - 1) / readers
	var failed failure
	var wait sync.WaitGroup
	for lo := 0; lo < p.rows; lo += step {
		wait.Go(func() {
			r := reader{dev: d, part: p, dst: to, failed: &failed}
			hi := min(lo+step, p.rows)
			failed.set(r.fill(all[lo*to.rowBytes():hi*to.rowBytes()], lo, hi))
		})
	}
	wait.Wait()
	return failed.get()
}

// reserveStages takes the places for a plan.
func (d *Device) reserveStages(n int64) error {
	if n == 0 {
		return nil
	}
	g := &d.stages
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pool.first = n
	return g.grow(d, n/int64(len(g.places)))
}

// grow sees to it that stacks of n bytes find place. The lock is held.
func (g *stages) grow(d *Device, n int64) error {
	if n = aligned(n); n <= g.bytes {
		return nil
	}
	if err := d.explain("the memory for experts of the host", d.ctx.Do(g.events)); err != nil {
		return err
	}
	for i := range g.places {
		p := &g.places[i]
		if p.b != nil { // a copy may be on its way there
			arrived := p.arrived
			d.queue("Fetch of experts", func(t *driver.Thread) error { return t.WaitEvent(d.stream, arrived) })
			d.give(p.b)
			p.b, p.holds = nil, nil
		}
	}
	d.poolsMu.Lock()
	defer d.poolsMu.Unlock()
	if g.pool.first == 0 {
		g.pool.first = staging(n)
	}
	for i := range g.places {
		var err error
		if g.places[i].b, err = d.takeFrom(&g.pool, "the memory for experts of the host", device.Scratch, n, false); err != nil {
			g.places[i].b = nil
			return err
		}
	}
	g.bytes = n
	return nil
}

// events makes stream and events, once.
func (g *stages) events(t *driver.Thread) (err error) {
	if g.copies != 0 {
		return nil
	}
	if g.copies, err = t.NewStream(); err != nil {
		return err
	}
	for i := range g.places {
		p := &g.places[i]
		if p.arrived, err = t.NewEvent(false); err != nil {
			return err
		}
		if p.used, err = t.NewEvent(false); err != nil {
			return err
		}
	}
	return nil
}

// withStack calls f, which queues products with w, with w as it stands on the device.
func (s *Stream) withStack(w *weight, f func(w *weight)) {
	if w.host == nil || s.failed() {
		f(w)
		return
	}
	g := &s.dev.stages
	g.mu.Lock()
	defer g.mu.Unlock()
	i := g.holding(w.host)
	if i < 0 {
		i = 1 - g.last
		s.bring(i, w.host)
	}
	p, d := &g.places[i], s.dev
	arrived, used := p.arrived, p.used
	s.order(func(t *driver.Thread) error { return t.WaitEvent(d.stream, arrived) })
	f(w.at(p.b.place.address()))
	s.order(func(t *driver.Thread) error { return t.Record(used, d.stream) })
	g.last = i
	if next := w.host.next; g.holding(next) < 0 {
		s.bring(1-i, next)
	}
}

// holding returns the place of a stack, or −1.
func (g *stages) holding(h *hosted) int {
	return slices.IndexFunc(g.places[:], func(p stage) bool { return p.holds == h })
}

// bring begins to copy a stack to a place, behind the products that read what is there.
func (s *Stream) bring(i int, h *hosted) {
	d := s.dev
	p := &d.stages.places[i]
	p.holds = h
	at, arrived, used := p.b.place.address(), p.arrived, p.used
	d.counts.fetched.Add(h.bytes)
	s.order(func(t *driver.Thread) error {
		c := d.stages.copies
		if err := t.WaitEvent(c, used); err != nil {
			return err
		}
		if err := t.CopyHtoD(at, h.p, h.bytes, c); err != nil {
			return err
		}
		return t.Record(arrived, c)
	})
}

// order queues a call that keeps the order of streams. It takes place whether this stream has failed or not: others
// rely on it.
func (s *Stream) order(f func(t *driver.Thread) error) { s.dev.queue("Fetch of experts", f) }

// at returns w with its blocks at an address.
func (w *weight) at(address uint64) *weight {
	c := *w
	c.parts = slices.Clone(w.parts)
	for i := range c.parts {
		c.parts[i].blocks.Ptr += address
	}
	c.runs = runsOf(c.parts)
	return &c
}

// release gives everything back but the places, which are slabs.
func (g *stages) release(t *driver.Thread) error {
	if g.copies != 0 {
		if err := t.StreamSync(g.copies); err != nil {
			return err
		}
		for _, p := range g.places {
			for _, e := range []driver.Event{p.arrived, p.used} {
				if err := t.DestroyEvent(e); err != nil {
					return err
				}
			}
		}
		if err := t.DestroyStream(g.copies); err != nil {
			return err
		}
	}
	for _, h := range g.all {
		if err := t.HostFree(h.p); err != nil {
			return err
		}
	}
	return nil
}
