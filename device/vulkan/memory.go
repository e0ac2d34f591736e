package vulkan

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"apr/device"
	"apr/device/dry"
	"apr/device/vulkan/driver"
	"apr/device/vulkan/kernel"
	"apr/internal/fault"
	"apr/tensor"
)

// slab is one allocation of the driver, of which buffers are parts.
type slab struct {
	buf  *driver.Buffer
	used int64
}

// place is a part of a slab.
type place struct {
	buf *driver.Buffer
	at  int64
}

// buffer is a piece of device memory. One for which there was none has no place, and operations on it fail.
type buffer struct {
	name  string
	comp  device.Component
	n     int64 // bytes asked for
	size  int64 // bytes taken
	state device.State
	place

	ids []int32 // what the host uploaded; nil: not known

	// Of temps:
	class  int // of the free list
	number int // in the order of making
}

// Bytes returns the size that was asked for.
func (b *buffer) Bytes() int64 { return b.n }

// Name is what Temp or Alloc called it.
func (b *buffer) Name() string { return b.name }

// State says whether b was given back.
func (b *buffer) State() device.State { return b.state }

const (
	alignment = 256                          // of places; no adapter wants more for a binding
	slabBytes = 32 << 20                     // least size of a slab
	firstSlab = 4<<20 + 4*kernel.PartialSums // of the first one, which holds what an opened device needs

	// own is what a device takes beyond what dry runs see: its first slab, tables of rotary embeddings, sums of a step,
	// partial sums of products and other scratch of operations.
	own = 16<<20 + 4*kernel.PartialSums
)

// buffer makes a buffer of the driver.
func (d *Device) buffer(kind driver.Kind, bytes int64) (*driver.Buffer, error) {
	b, err := d.dev.NewBuffer(kind, bytes)
	var e *driver.Error
	if errors.As(err, &e) && e.OutOfMemory() {
		return nil, fault.New(fault.Memory, "no memory on %s: %s wanted", d.adapter.Name, mebibytes(bytes)).
			WithID("E-VULKAN-020").Because(err).
			WithHint("other programs may hold the rest; --backend cpu takes none of it")
	}
	if err != nil {
		return nil, unavailable("memory of "+d.adapter.Name+" cannot be had", err)
	}
	return b, nil
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// take returns a place of n bytes, a multiple of alignment. The caller holds d.mu.
func (d *Device) take(n int64) (place, error) {
	for _, s := range d.slabs {
		if s.buf.Bytes()-s.used >= n {
			s.used += n
			return place{s.buf, s.used - n}, nil
		}
	}
	if most := d.adapter.Limits.Allocation; most > 0 && n > most {
		return place{}, fault.New(fault.Memory, "%s takes allocations of %s at most: %s wanted", d.adapter.Name,
			mebibytes(most), mebibytes(n)).WithID("E-VULKAN-021")
	}
	least := int64(slabBytes)
	if len(d.slabs) == 0 {
		least = firstSlab
	}
	s, err := d.grow(max(n, least))
	if err != nil && n < least {
		s, err = d.grow(n)
	}
	if err != nil {
		return place{}, err
	}
	s.used = n
	return place{s.buf, 0}, nil
}

// grow takes a slab from the driver.
func (d *Device) grow(n int64) (*slab, error) {
	b, err := d.buffer(driver.Local, n)
	if err != nil {
		return nil, err
	}
	s := &slab{buf: b}
	d.slabs = append(d.slabs, s)
	d.held += n
	d.mostHeld = max(d.mostHeld, d.held)
	return s, nil
}

var _ dry.Preparer = (*Device)(nil)

// Prepare takes what a planned step needs as one piece of memory, before a weight is loaded: weights, gradients,
// moments, activations and all else are parts of it, and nothing is allocated later. A plan that is longer than
// an allocation may be is taken piece by piece, as tensors come.
func (d *Device) Prepare(r *dry.Record) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := r.Total() - d.held
	if most := d.adapter.Limits.Allocation; n <= 0 || most > 0 && n > most {
		return d.lost
	}
	_, err := d.grow(aligned(n))
	return err
}

// Held returns the bytes of the device's memory that were taken from the driver at most.
func (d *Device) Held() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mostHeld
}

func aligned(n int64) int64 { return max(alignment, (n+alignment-1)/alignment*alignment) }

// Alloc returns a zeroed tensor that lives until Free or Close.
func (d *Device) Alloc(name string, c device.Component, t tensor.DType, rows, cols int) device.Tensor {
	b := &buffer{name: name, comp: c, n: device.TensorBytes(device.OpAlloc, t, rows, cols), state: device.Lasting}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.placeBuffer(b); err != nil {
		_ = d.lose(outOfMemory(err, name, c)) // Err returns it
	}
	if b.buf != nil {
		_ = d.check(d.record().Zero(b.buf, b.at, b.size))
	}
	return device.Whole(b, t, rows, cols)
}

// placeBuffer gives a lasting buffer its place, and counts it.
func (d *Device) placeBuffer(b *buffer) (err error) {
	b.size = aligned(b.n)
	if list := d.unused[b.size]; len(list) > 0 {
		b.place, d.unused[b.size] = list[len(list)-1], list[:len(list)-1]
	} else if b.place, err = d.take(b.size); err != nil {
		return err
	}
	d.mem.Add(b.comp, b.size)
	return nil
}

func outOfMemory(err error, name string, c device.Component) error {
	return fault.New(fault.KindOf(err), "no memory for %s, of component %s", name, c).WithID("E-VULKAN-022").Because(err)
}

// Free gives tensors of Alloc back.
func (d *Device) Free(ts ...device.Tensor) {
	for _, t := range ts {
		device.CheckFree(t)
		d.freeBuffer(t.Buf.(*buffer))
	}
}

func (d *Device) freeBuffer(b *buffer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b.state, b.ids = device.Gone, nil
	if b.buf == nil {
		return
	}
	d.mem.Add(b.comp, -b.size)
	d.unused[b.size] = append(d.unused[b.size], b.place)
	b.buf = nil
}

// Discard gives back the memory of frozen matrices, which nothing that is queued or will be queued reads, and slabs of
// which nothing is in use. The peak of Memory begins anew.
func (d *Device) Discard(ws ...device.Weight) {
	for _, w := range ws {
		if m := w.(*weight); m.bytes > 0 {
			d.freeBuffer(m.parts[0].Data.Buf.(*buffer))
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.finish() == nil {
		d.trim()
	}
	d.mostHeld = d.held
	d.mem.ForgetPeak()
}

// trim gives slabs back to the driver of which no buffer has a part. The device has ended all work. Temps that
// are not in use have none from then on.
func (d *Device) trim() {
	unused := map[*driver.Buffer]int64{}
	for size, list := range d.unused {
		for _, p := range list {
			unused[p.buf] += size
		}
	}
	for _, list := range d.free {
		for _, b := range list {
			unused[b.buf] += b.size
		}
	}
	gone := map[*driver.Buffer]bool{}
	d.slabs = slices.DeleteFunc(d.slabs, func(s *slab) bool {
		gone[s.buf] = unused[s.buf] == s.used
		return gone[s.buf]
	})
	for size, list := range d.unused {
		d.unused[size] = slices.DeleteFunc(list, func(p place) bool { return gone[p.buf] })
	}
	for class, list := range d.free {
		d.free[class] = slices.DeleteFunc(list, func(b *buffer) bool { return gone[b.buf] })
	}
	for buf, is := range gone {
		if is {
			d.held -= buf.Bytes()
			buf.Free()
		}
	}
}

// Param makes a trainable tensor, all zero. Its weight reads Value itself.
func (d *Device) Param(spec device.ParamSpec) *device.Param {
	if len(spec.Blocks) > 0 {
		panic("vulkan: a limit of this device: " + string(device.Quantizes))
	}
	return device.NewParam(spec, false, d.Alloc, d.Frozen)
}

// temp takes a temp of n bytes.
func (d *Device) temp(name string, c device.Component, n int64) *buffer {
	d.mu.Lock()
	defer d.mu.Unlock()
	class, size := sizeClass(n)
	var b *buffer
	if list := d.free[class]; len(list) > 0 {
		b = list[len(list)-1]
		d.free[class] = list[:len(list)-1]
		b.name, b.comp = name, c
	} else {
		b = &buffer{name: name, comp: c, size: size, class: class, number: d.made}
		d.made++
		var err error
		if b.place, err = d.take(size); err != nil {
			_ = d.lose(outOfMemory(err, name, c))
		}
	}
	b.n, b.state, b.ids = n, device.Temporary, nil
	d.mem.Add(c, b.size)
	return b
}

// release gives a temp back. Its free list stays in descending order of age, so that temp always takes the oldest:
// then a sequence of both gives the same places each time.
func (d *Device) release(b *buffer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b.state = device.Gone
	d.mem.Add(b.comp, -b.size)
	list := append(d.free[b.class], b)
	i := len(list) - 1
	for ; i > 0 && list[i-1].number < b.number; i-- {
		list[i] = list[i-1]
	}
	list[i] = b
	d.free[b.class] = list
}

// numClasses is more than the classes of any size that memory holds.
const numClasses = 4 * 48

// sizeClass rounds n up to one of four sizes between powers of two, 1024 bytes at least so that each is a multiple of
// alignment, and numbers it.
func sizeClass(n int64) (class int, size int64) {
	const least = 10 // 2¹⁰ bytes
	n = max(n, 1<<least)
	top := bits.Len64(uint64(n-1)) - 1 // n in (2^top, 2^(top+1)]
	if n == 1<<least {
		return 0, n
	}
	step := int64(1) << (top - 2)
	quarters := (n + step - 1) / step // 5…8
	return 4*(top-least) + int(quarters) - 4, quarters * step
}

// mat returns the matrix that kernels see of t, which has elements of 32 bits. A limit of this device: it computes in
// no other type.
func mat(t device.Tensor) kernel.Mat {
	if t.IsZero() {
		return kernel.Mat{}
	}
	if t.DType != tensor.F32 && t.DType != tensor.I32 {
		panic("vulkan: a limit of this device: " + t.DType.String() + " tensor where float32 is needed")
	}
	return kernel.Mat{Buf: t.Buf.(*buffer), At: t.Off, Rows: t.Rows, Cols: t.Cols, Row: t.Stride}
}
