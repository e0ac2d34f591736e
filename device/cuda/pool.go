package cuda

import (
	"apr/device"
	"apr/device/arena"
	"apr/device/cuda/driver"
	"apr/tensor"
)

// alignment of tensors in device memory: what the driver's own allocations have, and more than any kernel wants.
const alignment = 256

// leastSlab is the least size of a slab that no plan sized.
const leastSlab = 64 << 20

// pool hands out places in slabs of device memory.
type pool struct {
	first   int64 // least bytes of the first slab; 0: leastSlab
	slabs   []*slab
	buffers map[place]*buffer // of temps: the same place is the same buffer, again and again
}

// slab is one allocation of the driver.
type slab struct {
	base   uint64
	size   int64
	places *arena.Arena
}

// place is a piece of a slab.
type place struct {
	slab   *slab
	offset int64
}

func (p place) address() uint64 { return p.slab.base + uint64(p.offset) }

// find returns a place of n bytes in the slabs there are, the oldest that has room.
func (p *pool) find(n int64) (place, bool) {
	for _, s := range p.slabs {
		at := s.places.Place(n)
		if at+s.places.Size(n) <= s.size {
			return place{s, at}, true
		}
		s.places.Release(at)
	}
	return place{}, false
}

// buffer returns the buffer of a place.
func (p *pool) buffer(at place) *buffer {
	b := p.buffers[at]
	if b == nil {
		if p.buffers == nil {
			p.buffers = map[place]*buffer{}
		}
		b = &buffer{}
		p.buffers[at] = b
	}
	return b
}

// next returns the size of the slab that a tensor of n bytes needs when find found nothing.
func (p *pool) next(n int64) int64 {
	n = (n + alignment - 1) &^ (alignment - 1)
	if len(p.slabs) == 0 && p.first > 0 {
		return max(n, p.first)
	}
	return max(n, leastSlab)
}

// buffer is a tensor's memory.
type buffer struct {
	dev    *Device
	name   string
	comp   device.Component
	bytes  int64 // of the tensor
	size   int64 // bytes taken and counted, not less
	place  place
	temp   bool
	live   bool
	void   error     // there was no memory for it, and why
	copies []*buffer // of it, that go when it goes
	away   bool      // it is sent to other ranks, or comes from them: see travels
	owed   bool      // a gradient that is to be zero and is not yet: see putOff
	narrow *buffer   // a bias in the type of activations: see narrowBias
	stale  bool      // the bias may have changed since
	ids    []int32   // what UploadInts wrote last and nothing overwrote, or nil: see known
}

// Bytes returns the size that was asked for.
func (b *buffer) Bytes() int64 { return b.bytes }

// Name is what Temp or Alloc called it.
func (b *buffer) Name() string { return b.name }

// State says whether b was given back.
func (b *buffer) State() device.State {
	switch {
	case !b.live:
		return device.Gone
	case b.temp:
		return device.Temporary
	}
	return device.Lasting
}

// poolOf returns the pool of temps, or of what lives longer by component. The caller holds poolsMu.
func (d *Device) poolOf(c device.Component, temp bool) *pool {
	if temp {
		return &d.temps
	}
	p := d.statics[c]
	if p == nil {
		p = &pool{}
		d.statics[c] = p
	}
	return p
}

// take returns a buffer of n bytes. If there is no memory the buffer is void and the error is returned beside it.
func (d *Device) take(name string, c device.Component, n int64, temp bool) (*buffer, error) {
	d.poolsMu.Lock()
	defer d.poolsMu.Unlock()
	return d.takeFrom(d.poolOf(c, temp), name, c, n, temp)
}

// takeFrom is take from a pool. The caller holds poolsMu.
func (d *Device) takeFrom(p *pool, name string, c device.Component, n int64, temp bool) (*buffer, error) {
	at, ok := p.find(n)
	if !ok {
		base, size, err := d.allocate(name, c, p.next(n), n)
		if err != nil {
			return &buffer{dev: d, name: name, comp: c, temp: temp, live: true, bytes: n, void: err}, err
		}
		p.slabs = append(p.slabs, &slab{base, size, arena.New(alignment)})
		at, _ = p.find(n)
	}
	b := &buffer{}
	if temp {
		d.replays.taken()
		b = p.buffer(at)
	}
	*b = buffer{dev: d, name: name, comp: c, temp: temp, live: true, place: at, bytes: n, size: at.slab.places.Size(n)}
	d.mem.Add(c, b.size)
	return b, nil
}

// give ends a buffer's life.
func (d *Device) give(b *buffer) {
	if b.away {
		d.internal().Arrive()
	}
	b.live = false
	b.ids = nil
	if !b.temp {
		d.replays.changed()
	}
	for _, c := range b.copies {
		d.give(c)
	}
	if b.void != nil {
		return
	}
	d.poolsMu.Lock()
	defer d.poolsMu.Unlock()
	b.place.slab.places.Release(b.place.offset)
	d.mem.Add(b.comp, -b.size)
}

// allocate gets size bytes of device memory from the driver, for a tensor of wanted bytes. If there is not so much but
// enough for the tensor, it gets that; it returns the size.
func (d *Device) allocate(name string, c device.Component, size, wanted int64) (p uint64, got int64, err error) {
	if err := d.lostError(); err != nil {
		return 0, 0, err
	}
	if d.first != nil {
		return d.allocateBeside(name, c, size, wanted)
	}
	var free int64
	err = d.ctx.Do(func(t *driver.Thread) (err error) {
		if p, err = t.Alloc(size, d.managed); isOutOfMemory(err) && size > wanted {
			size = (wanted + alignment - 1) &^ (alignment - 1) // less reserve for later
			p, err = t.Alloc(size, d.managed)
		}
		if err != nil {
			free, _, _ = t.MemInfo()
		}
		return err
	})
	if isOutOfMemory(err) {
		return 0, 0, outOfMemory(d, name, c, wanted, free, err)
	}
	if err != nil {
		return 0, 0, d.explain("the allocation of "+name, err)
	}
	d.counts.allocations.Add(1)
	d.counts.allocated.Add(size)
	return p, size, nil
}

// Alloc returns a zeroed tensor that lives until Free or Close. If there is no memory for it, the operations on it fail.
func (d *Device) Alloc(name string, c device.Component, t tensor.DType, rows, cols int) device.Tensor {
	b, err := d.take(name, c, device.TensorBytes(device.OpAlloc, t, rows, cols), false)
	if err == nil {
		d.clear(b)
	}
	return device.Whole(b, t, rows, cols)
}

// clear queues the zeroing of all of b.
func (d *Device) clear(b *buffer) {
	at, n := b.place.address(), b.size
	d.queue("Alloc of "+b.name, func(t *driver.Thread) error { return t.Memset8(at, 0, n, d.stream) })
}

// queue runs f, an operation of the device's own, on its thread after everything before.
func (d *Device) queue(op string, f func(*driver.Thread) error) {
	o := &operation{dev: d, stream: d.internal(), name: op}
	o.call(f)
	o.end()
}

// Free gives tensors of Alloc back; any view of one gives back all of it.
func (d *Device) Free(ts ...device.Tensor) {
	for _, t := range ts {
		device.CheckFree(t)
		d.give(t.Buf.(*buffer))
	}
}

// Param makes a trainable tensor, all zero. In bfloat16 the weight of a matrix is a copy that AdamW refreshes.
func (d *Device) Param(spec device.ParamSpec) *device.Param {
	p := device.NewParam(spec, d.matrixCopy(spec.Rows) != tensor.F32, d.Alloc, func(value device.Tensor) device.Weight {
		if c := d.matrixCopy(spec.Rows); c != tensor.F32 {
			return reading(d.Alloc(spec.Name+"."+c.String(), device.StudentWeights, c, spec.Rows, spec.Cols))
		}
		return reading(value)
	})
	if len(p.Blocks) > 0 {
		d.blocked.add(p)
	}
	return p
}
