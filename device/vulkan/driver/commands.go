package driver

import (
	"runtime"
	"time"
	"unsafe"
)

// Pipeline is a compiled kernel.
type Pipeline struct {
	handle   uintptr
	bindings int
}

type shaderInfo struct {
	typ   uint32
	next  unsafe.Pointer
	flags uint32
	size  uintptr
	code  *uint32
}

type stageInfo struct {
	typ            uint32
	next           unsafe.Pointer
	flags          uint32
	stage          uint32
	module         uintptr
	name           *byte
	specialisation unsafe.Pointer
}

type pipelineInfo struct {
	typ    uint32
	next   unsafe.Pointer
	flags  uint32
	stage  stageInfo
	layout uintptr
	base   uintptr
	index  int32
}

// NewPipeline compiles SPIR-V with an entry point main and that many storage bindings.
func (d *Device) NewPipeline(code []uint32, bindings int) (*Pipeline, error) {
	shader := &shaderInfo{typ: typeShaderModule, size: uintptr(4 * len(code)), code: &code[0]}
	module := new(uintptr)
	if err := failed("vkCreateShaderModule", invoke(d.f.createShader, d.handle, uintptr(unsafe.Pointer(shader)), 0,
		uintptr(unsafe.Pointer(module)))); err != nil {
		return nil, err
	}
	defer invoke(d.f.destroyShader, d.handle, *module, 0)
	info := &pipelineInfo{
		typ: typeComputePipeline, layout: d.layouts[bindings], index: -1,
		stage: stageInfo{typ: typeShaderStage, stage: computeStage, module: *module, name: cstring("main")},
	}
	p := &Pipeline{bindings: bindings}
	err := failed("vkCreateComputePipelines", invoke(d.f.createPipelines, d.handle, d.cache, 1,
		uintptr(unsafe.Pointer(info)), 0, uintptr(unsafe.Pointer(&p.handle))))
	if err != nil {
		return nil, err
	}
	return p, nil
}

// FreePipeline gives a pipeline back.
func (d *Device) FreePipeline(p *Pipeline) { invoke(d.f.destroyPipeline, d.handle, p.handle, 0) }

// Binding is a range of a buffer.
type Binding struct {
	Buffer *Buffer
	At, N  int64 // bytes
}

// Commands records work and submits it. MaxDispatches are recorded before it must be submitted.
type Commands struct {
	d                         *Device
	pool, buffer, sets, fence uintptr
	open, pending             bool
	dispatches                int

	// What calls point to, kept so that recording allocates nothing.
	write  [MaxBindings]writeSet
	ranges [MaxBindings]bufferRange
	set    uintptr
	alloc  setAllocate
	memory memoryBarrier
	region copyRegion
	words  [MaxPush]uint32
	submit submitInfo
}

// MaxDispatches is how many dispatches Commands hold.
const MaxDispatches = 512

type commandPoolInfo struct {
	typ    uint32
	next   unsafe.Pointer
	flags  uint32
	family uint32
}

type commandBufferInfo struct {
	typ          uint32
	next         unsafe.Pointer
	pool         uintptr
	level, count uint32
}

type beginInfo struct {
	typ     uint32
	next    unsafe.Pointer
	flags   uint32
	inherit unsafe.Pointer
}

type poolSize struct{ typ, count uint32 }

type descriptorPoolInfo struct {
	typ       uint32
	next      unsafe.Pointer
	flags     uint32
	sets      uint32
	sizeCount uint32
	sizes     *poolSize
}

type setAllocate struct {
	typ     uint32
	next    unsafe.Pointer
	pool    uintptr
	count   uint32
	layouts *uintptr
}

type bufferRange struct {
	buffer       uintptr
	offset, size uint64
}

type writeSet struct {
	typ            uint32
	next           unsafe.Pointer
	set            uintptr
	binding, array uint32
	count, kind    uint32
	image          unsafe.Pointer
	buffer         *bufferRange
	texel          unsafe.Pointer
}

type memoryBarrier struct {
	typ         uint32
	next        unsafe.Pointer
	source, dst uint32
}

type copyRegion struct{ source, dst, size uint64 }

type submitInfo struct {
	typ         uint32
	next        unsafe.Pointer
	waitCount   uint32
	waits       unsafe.Pointer
	stages      unsafe.Pointer
	count       uint32
	buffers     *uintptr
	signalCount uint32
	signals     unsafe.Pointer
}

type fenceInfo struct {
	typ   uint32
	next  unsafe.Pointer
	flags uint32
}

// NewCommands makes empty commands.
func (d *Device) NewCommands() (*Commands, error) {
	c := &Commands{d: d}
	pool := &commandPoolInfo{typ: typeCommandPool, family: uint32(d.adapter.family)}
	if err := failed("vkCreateCommandPool", invoke(d.f.createCommandPool, d.handle, uintptr(unsafe.Pointer(pool)), 0,
		uintptr(unsafe.Pointer(&c.pool)))); err != nil {
		return nil, err
	}
	buffer := &commandBufferInfo{typ: typeCommandBuffer, pool: c.pool, count: 1}
	if err := failed("vkAllocateCommandBuffers", invoke(d.f.allocateCommands, d.handle,
		uintptr(unsafe.Pointer(buffer)), uintptr(unsafe.Pointer(&c.buffer)))); err != nil {
		return nil, err
	}
	sets := &descriptorPoolInfo{typ: typeDescriptorPool, sets: MaxDispatches, sizeCount: 1,
		sizes: &poolSize{storageBuffer, MaxDispatches * MaxBindings}}
	if err := failed("vkCreateDescriptorPool", invoke(d.f.createDescriptorPool, d.handle,
		uintptr(unsafe.Pointer(sets)), 0, uintptr(unsafe.Pointer(&c.sets)))); err != nil {
		return nil, err
	}
	fence := &fenceInfo{typ: typeFence}
	if err := failed("vkCreateFence", invoke(d.f.createFence, d.handle, uintptr(unsafe.Pointer(fence)), 0,
		uintptr(unsafe.Pointer(&c.fence)))); err != nil {
		return nil, err
	}
	for k := range c.write {
		c.write[k] = writeSet{typ: typeWriteDescriptor, binding: uint32(k), count: 1, kind: storageBuffer,
			buffer: &c.ranges[k]}
	}
	c.alloc = setAllocate{typ: typeDescriptorSet, pool: c.sets, count: 1}
	c.memory = memoryBarrier{typ: typeMemoryBarrier}
	c.submit = submitInfo{typ: typeSubmit, count: 1, buffers: &c.buffer}
	return c, nil
}

// Close gives the commands back; they must not be pending.
func (c *Commands) Close() {
	invoke(c.d.f.destroyFence, c.d.handle, c.fence, 0)
	invoke(c.d.f.destroyDescriptorPool, c.d.handle, c.sets, 0)
	invoke(c.d.f.destroyCommandPool, c.d.handle, c.pool, 0)
}

// Open reports whether something was recorded that is not submitted, Full whether no dispatch has room.
func (c *Commands) Open() bool { return c.open }

// Full reports whether the next dispatch has no room.
func (c *Commands) Full() bool { return c.dispatches == MaxDispatches }

// Dispatches returns how many were recorded since the last submission.
func (c *Commands) Dispatches() int {
	if !c.open {
		return 0
	}
	return c.dispatches
}

// Pending reports whether commands were submitted and not waited for.
func (c *Commands) Pending() bool { return c.pending }

func (c *Commands) begin() error {
	if c.open {
		return nil
	}
	info := &beginInfo{typ: typeCommandBufferBegin, flags: 1} // submitted once
	if err := failed("vkBeginCommandBuffer", invoke(c.d.f.begin, c.buffer, uintptr(unsafe.Pointer(info)))); err != nil {
		return err
	}
	c.open, c.dispatches = true, 0
	return nil
}

// Dispatch runs a pipeline with x·y thread groups after everything recorded before.
func (c *Commands) Dispatch(p *Pipeline, bindings []Binding, push []uint32, x, y int) error {
	if err := c.begin(); err != nil {
		return err
	}
	f := &c.d.f
	c.alloc.layouts = &c.d.sets[p.bindings]
	if err := failed("vkAllocateDescriptorSets", invoke(f.allocateSets, c.d.handle,
		uintptr(unsafe.Pointer(&c.alloc)), uintptr(unsafe.Pointer(&c.set)))); err != nil {
		return err
	}
	for k, b := range bindings {
		c.ranges[k] = bufferRange{b.Buffer.handle, uint64(b.At), uint64(b.N)}
		c.write[k].set = c.set
	}
	invoke(f.updateSets, c.d.handle, uintptr(p.bindings), uintptr(unsafe.Pointer(&c.write[0])), 0, 0)
	invoke(f.bindPipeline, c.buffer, 1, p.handle)
	invoke(f.bindSets, c.buffer, 1, c.d.layouts[p.bindings], 0, 1, uintptr(unsafe.Pointer(&c.set)), 0, 0)
	n := copy(c.words[:], push)
	invoke(f.push, c.buffer, c.d.layouts[p.bindings], computeStage, 0, uintptr(4*n),
		uintptr(unsafe.Pointer(&c.words[0])))
	invoke(f.dispatch, c.buffer, uintptr(x), uintptr(y), 1)
	c.dispatches++
	c.afterKernel()
	return nil
}

// Stages and kinds of access of barriers.
const (
	kernels, transfer, host       = 0x800, 0x1000, 0x4000
	shaderRead, shaderWrite       = 0x20, 0x40
	copyRead, copyWrite, hostRead = 0x800, 0x1000, 0x2000
	anyStage, anyAccess           = kernels | transfer, shaderRead | shaderWrite | copyRead | copyWrite
)

// afterKernel lets later kernels and copies see what a kernel wrote. The host reads what was copied to it.
func (c *Commands) afterKernel() { c.barrier(kernels, anyStage, shaderWrite, anyAccess) }

// afterCopy lets later kernels and copies, and the host, see what was copied.
func (c *Commands) afterCopy() { c.barrier(transfer, anyStage|host, copyWrite, anyAccess|hostRead) }

func (c *Commands) barrier(from, to uintptr, written, seen uint32) {
	c.memory.source, c.memory.dst = written, seen
	invoke(c.d.f.barrier, c.buffer, from, to, 0, 1, uintptr(unsafe.Pointer(&c.memory)), 0, 0, 0, 0)
}

// Copy copies n bytes after everything recorded before.
func (c *Commands) Copy(dst *Buffer, dstAt int64, src *Buffer, srcAt, n int64) error {
	if err := c.begin(); err != nil {
		return err
	}
	c.region = copyRegion{uint64(srcAt), uint64(dstAt), uint64(n)}
	invoke(c.d.f.copyBuffer, c.buffer, src.handle, dst.handle, 1, uintptr(unsafe.Pointer(&c.region)))
	c.afterCopy()
	return nil
}

// Zero sets n bytes to 0, both multiples of 4.
func (c *Commands) Zero(dst *Buffer, at, n int64) error {
	if err := c.begin(); err != nil {
		return err
	}
	invoke(c.d.f.fillBuffer, c.buffer, dst.handle, uintptr(at), uintptr(n), 0)
	c.afterCopy()
	return nil
}

// Submit gives what was recorded to the device.
func (c *Commands) Submit() error {
	if !c.open {
		return nil
	}
	c.open = false
	if err := failed("vkEndCommandBuffer", invoke(c.d.f.end, c.buffer)); err != nil {
		return err
	}
	if err := failed("vkQueueSubmit", invoke(c.d.f.queueSubmit, c.d.queue, 1, uintptr(unsafe.Pointer(&c.submit)),
		c.fence)); err != nil {
		return err
	}
	c.pending = true
	return nil
}

// Wait waits until what was submitted has ended, and makes the commands empty. Work that takes longer than limit is
// an error that DeviceLost.
func (c *Commands) Wait(limit time.Duration) error {
	if !c.pending {
		return nil
	}
	fence := &c.fence
	err := failed("vkWaitForFences", invoke(c.d.f.waitFences, c.d.handle, 1, uintptr(unsafe.Pointer(fence)), 1,
		uintptr(limit.Nanoseconds())))
	runtime.KeepAlive(c)
	if err != nil {
		return err
	}
	c.pending = false
	invoke(c.d.f.resetFences, c.d.handle, 1, uintptr(unsafe.Pointer(fence)))
	invoke(c.d.f.resetDescriptorPool, c.d.handle, c.sets, 0)
	return failed("vkResetCommandPool", invoke(c.d.f.resetCommandPool, c.d.handle, c.pool, 0))
}
