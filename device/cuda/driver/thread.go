package driver

import (
	"math"
	"runtime"
	"time"
	"unsafe"
)

// Thread is the device's thread. Its methods are calls of the driver and valid only inside closures of Context.Do and
// Context.Go. Errors are of type *Error unless said otherwise. Sizes are bytes.
type Thread struct {
	d       *Driver
	device  int32
	context uintptr

	// What calls read and write, kept here so that a call allocates nothing.
	params [1]unsafe.Pointer // kernelParams of cuLaunchKernel
	launch [11]uintptr       // and all of its arguments
	config launchConfig
	node   nodeParams
	matrix tensorMap
}

// Driver returns the driver that the thread speaks to.
func (t *Thread) Driver() *Driver { return t.d }

// Flags of cuda.h.
const (
	memAttachGlobal    = 1 // CU_MEM_ATTACH_GLOBAL
	hostAllocPortable  = 1 // CU_MEMHOSTALLOC_PORTABLE: pinned for every context
	streamNonBlocking  = 1 // CU_STREAM_NON_BLOCKING: not ordered with the default stream
	eventDisableTiming = 2 // CU_EVENT_DISABLE_TIMING
)

// Alloc returns the address of n bytes of device memory, or with managed of memory that host and device share; 0 for
// n = 0. Free serves both.
func (t *Thread) Alloc(n int64, managed bool) (uint64, error) {
	var p uint64
	switch {
	case n < 0:
		panic("driver: allocation of a negative size")
	case n == 0:
		return 0, nil
	case managed:
		err := t.d.call(&t.d.calls.memAllocManaged, uintptr(unsafe.Pointer(&p)), uintptr(n), memAttachGlobal)
		return p, err
	}
	err := t.d.call(&t.d.calls.memAlloc, uintptr(unsafe.Pointer(&p)), uintptr(n))
	return p, err
}

// Free gives memory of Alloc back; 0 is allowed. It waits for the device.
func (t *Thread) Free(p uint64) error {
	if p == 0 {
		return nil
	}
	return t.d.call(&t.d.calls.memFree, uintptr(p))
}

// HostAlloc returns n > 0 bytes of pinned host memory, the only host memory for asynchronous copies.
func (t *Thread) HostAlloc(n int) (unsafe.Pointer, error) {
	if n <= 0 {
		panic("driver: pinned allocation without a size")
	}
	var p unsafe.Pointer
	err := t.d.call(&t.d.calls.memHostAlloc, uintptr(unsafe.Pointer(&p)), uintptr(n), hostAllocPortable)
	return p, err
}

// HostFree gives memory of HostAlloc back; nil is allowed.
func (t *Thread) HostFree(p unsafe.Pointer) error {
	if p == nil {
		return nil
	}
	return t.d.call(&t.d.calls.memFreeHost, uintptr(p))
}

// MemInfo returns the device's free and total memory. On an integrated device free under-reports.
func (t *Thread) MemInfo() (free, total int64, err error) {
	var f, n uint64
	err = t.d.call(&t.d.calls.memGetInfo, uintptr(unsafe.Pointer(&f)), uintptr(unsafe.Pointer(&n)))
	return int64(f), int64(n), err
}

// CopyHtoD copies n bytes of pinned memory to the device.
func (t *Thread) CopyHtoD(dst uint64, src unsafe.Pointer, n int64, s Stream) error {
	return t.d.call(&t.d.calls.copyHtoD, uintptr(dst), uintptr(src), uintptr(n), uintptr(s))
}

// CopyDtoH copies n bytes of the device to pinned memory.
func (t *Thread) CopyDtoH(dst unsafe.Pointer, src uint64, n int64, s Stream) error {
	return t.d.call(&t.d.calls.copyDtoH, uintptr(dst), uintptr(src), uintptr(n), uintptr(s))
}

// CopyDtoD copies n bytes within the device.
func (t *Thread) CopyDtoD(dst, src uint64, n int64, s Stream) error {
	return t.d.call(&t.d.calls.copyDtoD, uintptr(dst), uintptr(src), uintptr(n), uintptr(s))
}

// Memset8 sets n bytes of the device to v.
func (t *Thread) Memset8(p uint64, v byte, n int64, s Stream) error {
	return t.d.call(&t.d.calls.memset8, uintptr(p), uintptr(v), uintptr(n), uintptr(s))
}

// NewStream makes a stream that is not ordered with the default one.
func (t *Thread) NewStream() (Stream, error) {
	var s Stream
	err := t.d.call(&t.d.calls.streamCreate, uintptr(unsafe.Pointer(&s)), streamNonBlocking)
	return s, err
}

// NewUrgentStream is NewStream whose thread blocks begin before those of other streams wherever one ends. A driver
// without priorities makes a stream like any other.
func (t *Thread) NewUrgentStream() (Stream, error) {
	if t.d.calls.urgent.addr == 0 {
		return t.NewStream()
	}
	const most = -1 << 15 // the driver takes its highest priority, the lowest number, for any beyond
	var s Stream
	priority := int32(most)
	err := t.d.call(&t.d.calls.urgent, uintptr(unsafe.Pointer(&s)), streamNonBlocking, uintptr(uint32(priority)))
	return s, err
}

// DestroyStream gives a stream back; its work still runs to the end.
func (t *Thread) DestroyStream(s Stream) error { return t.d.call(&t.d.calls.streamDestroy, uintptr(s)) }

// StreamSync waits until everything in the stream is done, and returns the first error of that work.
func (t *Thread) StreamSync(s Stream) error { return t.d.call(&t.d.calls.streamSync, uintptr(s)) }

// NewEvent makes an event; only those with timing serve Elapsed, the others are cheaper.
func (t *Thread) NewEvent(timing bool) (Event, error) {
	var e Event
	flags := uintptr(eventDisableTiming)
	if timing {
		flags = 0
	}
	err := t.d.call(&t.d.calls.eventCreate, uintptr(unsafe.Pointer(&e)), flags)
	return e, err
}

// DestroyEvent gives an event back.
func (t *Thread) DestroyEvent(e Event) error { return t.d.call(&t.d.calls.eventDestroy, uintptr(e)) }

// Record lets e happen when everything queued in s so far is done.
func (t *Thread) Record(e Event, s Stream) error {
	return t.d.call(&t.d.calls.eventRecord, uintptr(e), uintptr(s))
}

// WaitEvent lets what s is given from now on begin when e, as recorded by now, has happened; an event never recorded has.
func (t *Thread) WaitEvent(s Stream, e Event) error {
	return t.d.call(&t.d.calls.streamWait, uintptr(s), uintptr(e), 0)
}

// EventSync waits for e as last recorded; an event never recorded has happened.
func (t *Thread) EventSync(e Event) error { return t.d.call(&t.d.calls.eventSync, uintptr(e)) }

// Elapsed returns the time from a to b, both with timing and done; its resolution is about half a microsecond.
func (t *Thread) Elapsed(a, b Event) (time.Duration, error) {
	var ms float32
	if err := t.d.call(&t.d.calls.eventElapsed, uintptr(unsafe.Pointer(&ms)), uintptr(a), uintptr(b)); err != nil {
		return 0, err
	}
	return time.Duration(math.Round(float64(ms) * float64(time.Millisecond))), nil
}

// Launch starts a kernel of grid blocks of block threads, each with shared bytes of dynamic shared memory. args points
// to its one struct of arguments, on the heap; the driver has copied it when Launch returns.
func (t *Thread) Launch(f Function, grid [3]int, block, shared int, s Stream, args unsafe.Pointer) error {
	t.params[0] = args
	t.launch = [11]uintptr{
		uintptr(f), uintptr(grid[0]), uintptr(grid[1]), uintptr(grid[2]), uintptr(block), 1, 1,
		uintptr(shared), uintptr(s), uintptr(unsafe.Pointer(&t.params)), 0,
	}
	err := t.d.call(&t.d.calls.launchKernel, t.launch[:]...)
	t.params[0] = nil
	runtime.KeepAlive(args)
	return err
}
