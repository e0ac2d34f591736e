package cuda

import (
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"apr/device"
	"apr/device/cuda/driver"
	"apr/internal/fault"
)

// Experts of a frozen model, or all matrices of its layers, may stay in page-locked memory of the host. A
// product of many tokens uses nearly all experts of a layer, so that it fetches the whole stack: into one of
// two places on the device, by a stream of its own, while the product before reads the other place. Behind each
// product the next stack is fetched, in the order of layers and from the last to the first. A layer comes in
// the same way, all its matrices at the first product with one of them: a stack is pieces of memory, their
// bytes, and its place in that order.

// hosted is a stack in page-locked memory: the experts' matrices of one product, or all matrices of a layer.
type hosted struct {
	pieces []hostPiece
	bytes  int64   // on the device
	layer  int     // −1: experts of one product
	next   *hosted // that is used after it
}

// hostPiece is the matrix of a stack that lies at an offset of its place.
type hostPiece struct {
	p         unsafe.Pointer
	bytes, at int64
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

// notHosted is why a matrix cannot stay on the host, or nil.
func (l *layout) notHosted(spec device.WeightSpec) error {
	switch {
	case l.fp8:
		return fault.New(fault.Unavailable, "matrices in host memory are not multiplied in 8-bit floats").
			At("tensor %q", spec.Name).WithID("E-CUDA-067").WithHint("without --teacher-gemm fp8")
	case !spec.Form.HostLayers && (!l.inBlocks() || len(l.parts) != 1 || l.parts[0].size == 0):
		return fault.New(fault.Unavailable, "experts stay in host memory in quantised blocks only").
			At("tensor %q", spec.Name).WithID("E-CUDA-064").
			WithHint("--teacher-experts device, or quantise the teacher: apr quantize TEACHER -s q4_k_m -o teacher-q4.apr")
	}
	return nil
}

// hostWeight keeps a matrix, or the experts' matrices, on the host.
func (d *Device) hostWeight(spec device.WeightSpec, l *layout) (device.Weight, error) {
	piece := hostPiece{bytes: l.bytes}
	err := d.explain("the allocation of "+spec.Name, d.ctx.Do(func(t *driver.Thread) (err error) {
		piece.p, err = d.pin(t, int(max(1, l.bytes)))
		return err
	}))
	if err != nil {
		return nil, fault.New(fault.Memory, "no page-locked host memory for %s: %s wanted", spec.Name, mebibytes(l.bytes)).WithID("E-CUDA-065").
			WithHint("ulimit -l bounds it in some containers").Because(err)
	}
	g := &d.stages
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.stack(l.layer)
	piece.at = aligned(h.bytes)
	h.pieces, h.bytes = append(h.pieces, piece), piece.at+l.bytes
	for _, p := range l.parts {
		if err := d.readHost(piece, p); err != nil {
			return nil, err
		}
	}
	if err := g.grow(d, h.bytes); err != nil {
		return nil, err
	}
	w := &weight{experts: l.experts > 0, host: h, expands: l.scratch()}
	w.t = device.Tensor{DType: d.act, Rows: l.rows, Cols: l.cols, Stride: l.cols}
	if !l.expands { // dense, at an offset of elements
		w.t.Off = int(piece.at) / d.act.BlockBytes()
		return w, nil
	}
	for _, p := range l.parts {
		at := rowsAt{ptr: uint64(piece.at + p.offset), rows: p.rows, cols: p.info.Cols(), dtype: p.as}
		w.parts = append(w.parts, p.keptAt(at))
	}
	d.growMu.Lock()
	d.expandAll = max(d.expandAll, w.expands)
	d.growMu.Unlock()
	return w, nil
}

// stack returns the stack that is being loaded for a layer, or a new one, last in the order. The lock is held.
func (g *stages) stack(layer int) *hosted {
	n := len(g.all)
	if n > 0 && layer >= 0 && g.all[n-1].layer == layer {
		h := g.all[n-1]
		if i := g.holding(h); i >= 0 { // a model was used while it was loaded: what is there is not all of it
			g.places[i].holds = nil
		}
		return h
	}
	h := &hosted{layer: layer}
	if n > 0 {
		g.all[n-1].next = h
	}
	g.all = append(g.all, h)
	h.next = g.all[0]
	return h
}

// readHost fills the memory of a piece with a part.
func (d *Device) readHost(h hostPiece, p *part) error {
	if p.rows == 0 || p.info.Cols() == 0 {
		return nil
	}
	if p.size == 0 {
		p.data = make([]byte, p.info.Size)
		if err := p.src.ReadRows(p.data, 0, p.info.Rows()); err != nil {
			return err
		}
		defer func() { p.data = nil }()
	}
	to := rowsAt{rows: p.rows, cols: p.info.Cols(), dtype: p.as}
	all := unsafe.Slice((*byte)(unsafe.Add(h.p, p.offset)), p.rows*to.rowBytes())
	readers := min(mostReaders, runtime.GOMAXPROCS(0))
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
	f(w.at(p.b))
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
	for _, piece := range h.pieces {
		d.counts.fetched.Add(piece.bytes)
	}
	s.order(func(t *driver.Thread) error {
		c := d.stages.copies
		if err := t.WaitEvent(c, used); err != nil {
			return err
		}
		for _, piece := range h.pieces {
			if piece.bytes == 0 {
				continue
			}
			if err := t.CopyHtoD(at+uint64(piece.at), piece.p, piece.bytes, c); err != nil {
				return err
			}
		}
		return t.Record(arrived, c)
	})
}

// order queues a call that keeps the order of streams. It takes place whether this stream has failed or not: others
// rely on it.
func (s *Stream) order(f func(t *driver.Thread) error) { s.dev.queue("Fetch of experts", f) }

// at returns w as it stands in a place, which is on the device like any other.
func (w *weight) at(b *buffer) *weight {
	c := *w
	c.host = nil
	if c.parts == nil {
		c.t.Buf = b
		return &c
	}
	c.parts = slices.Clone(w.parts)
	for i := range c.parts {
		if k := &c.parts[i]; k.dense.IsZero() {
			k.blocks.Ptr += b.place.address()
		} else {
			k.dense.Ptr += b.place.address()
		}
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
		for _, piece := range h.pieces {
			if err := t.HostFree(piece.p); err != nil {
				return err
			}
		}
	}
	return nil
}
