package driver

import (
	"fmt"
	"unsafe"

	"apr/internal/fault"
)

// MaxBindings is how many storage bindings a kernel may have, and MaxPush how many words of push constants.
const (
	MaxBindings = 10
	MaxPush     = 32
)

// Device is a logical device with one queue.
type Device struct {
	adapter Adapter
	handle  uintptr
	queue   uintptr
	f       functions
	cache   uintptr // of pipelines

	sets    [MaxBindings + 1]uintptr // layouts of descriptor sets, by number of bindings
	layouts [MaxBindings + 1]uintptr // of pipelines
}

// functions are those of the device.
type functions struct {
	destroyDevice, getQueue, queueSubmit, deviceWaitIdle                                uintptr
	allocateMemory, freeMemory, mapMemory                                               uintptr
	createBuffer, destroyBuffer, memoryRequirements, bindMemory                         uintptr
	createShader, destroyShader, createSetLayout, createLayout, createPipelines         uintptr
	destroySetLayout, destroyLayout, destroyPipeline                                    uintptr
	createCache, cacheData, destroyCache                                                uintptr
	createDescriptorPool, destroyDescriptorPool, resetDescriptorPool                    uintptr
	allocateSets, updateSets                                                            uintptr
	createCommandPool, destroyCommandPool, resetCommandPool, allocateCommands           uintptr
	begin, end, bindPipeline, bindSets, push, dispatch, copyBuffer, fillBuffer, barrier uintptr
	createFence, destroyFence, resetFences, waitFences                                  uintptr
}

func (f *functions) names() map[string]*uintptr {
	return map[string]*uintptr{
		"vkDestroyDevice": &f.destroyDevice, "vkGetDeviceQueue": &f.getQueue, "vkQueueSubmit": &f.queueSubmit,
		"vkDeviceWaitIdle": &f.deviceWaitIdle,
		"vkAllocateMemory": &f.allocateMemory, "vkFreeMemory": &f.freeMemory, "vkMapMemory": &f.mapMemory,
		"vkCreateBuffer": &f.createBuffer, "vkDestroyBuffer": &f.destroyBuffer,
		"vkGetBufferMemoryRequirements": &f.memoryRequirements, "vkBindBufferMemory": &f.bindMemory,
		"vkCreateShaderModule": &f.createShader, "vkDestroyShaderModule": &f.destroyShader,
		"vkCreateDescriptorSetLayout": &f.createSetLayout,
		"vkCreatePipelineLayout":      &f.createLayout, "vkCreateComputePipelines": &f.createPipelines,
		"vkDestroyDescriptorSetLayout": &f.destroySetLayout,
		"vkDestroyPipelineLayout":      &f.destroyLayout, "vkDestroyPipeline": &f.destroyPipeline,
		"vkCreatePipelineCache": &f.createCache, "vkGetPipelineCacheData": &f.cacheData,
		"vkDestroyPipelineCache": &f.destroyCache,
		"vkCreateDescriptorPool": &f.createDescriptorPool, "vkDestroyDescriptorPool": &f.destroyDescriptorPool,
		"vkResetDescriptorPool":    &f.resetDescriptorPool,
		"vkAllocateDescriptorSets": &f.allocateSets, "vkUpdateDescriptorSets": &f.updateSets,
		"vkCreateCommandPool": &f.createCommandPool, "vkDestroyCommandPool": &f.destroyCommandPool,
		"vkResetCommandPool":       &f.resetCommandPool,
		"vkAllocateCommandBuffers": &f.allocateCommands, "vkBeginCommandBuffer": &f.begin, "vkEndCommandBuffer": &f.end,
		"vkCmdBindPipeline":       &f.bindPipeline,
		"vkCmdBindDescriptorSets": &f.bindSets, "vkCmdPushConstants": &f.push, "vkCmdDispatch": &f.dispatch,
		"vkCmdCopyBuffer": &f.copyBuffer,
		"vkCmdFillBuffer": &f.fillBuffer, "vkCmdPipelineBarrier": &f.barrier,
		"vkCreateFence": &f.createFence, "vkDestroyFence": &f.destroyFence, "vkResetFences": &f.resetFences,
		"vkWaitForFences": &f.waitFences,
	}
}

type queueInfo struct {
	typ           uint32
	_             unsafe.Pointer // next
	_             uint32         // flags
	family, count uint32
	priorities    *float32
}

type deviceInfo struct {
	typ             uint32
	next            unsafe.Pointer
	flags           uint32
	queueCount      uint32
	queues          *queueInfo
	layerCount      uint32
	layers          **byte
	extensionCount  uint32
	extensionsNames **byte
	features        unsafe.Pointer
}

// NewDevice opens an adapter. data is what CacheData returned before, or nil.
func (i *Instance) NewDevice(a Adapter, data []byte) (*Device, error) {
	priority := new(float32)
	*priority = 1
	q := &queueInfo{typ: typeQueue, family: uint32(a.family), count: 1, priorities: priority}
	info := &deviceInfo{typ: typeDevice, queueCount: 1, queues: q}
	if a.subset { // an adapter that has it demands that it is enabled
		ext := []*byte{cstring(portabilitySubset)}
		info.extensionCount, info.extensionsNames = 1, &ext[0]
	}
	d := &Device{adapter: a}
	if err := failed("vkCreateDevice", invoke(i.createDevice, a.handle, uintptr(unsafe.Pointer(info)), 0,
		uintptr(unsafe.Pointer(&d.handle)))); err != nil {
		return nil, err
	}
	for name, f := range d.f.names() {
		if *f = invoke(i.deviceProc, d.handle, uintptr(unsafe.Pointer(cstring(name)))); *f == 0 {
			return nil, fault.New(fault.Unavailable, "%s has no %s", a.Name, name).WithID("E-VULKAN-004")
		}
	}
	invoke(d.f.getQueue, d.handle, uintptr(a.family), 0, uintptr(unsafe.Pointer(&d.queue)))
	if err := d.makeLayouts(); err != nil {
		d.Close()
		return nil, err
	}
	if err := d.openCache(data); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// Close gives the device back; everything made from it must have been given back before.
func (d *Device) Close() {
	invoke(d.f.deviceWaitIdle, d.handle)
	if d.cache != 0 {
		invoke(d.f.destroyCache, d.handle, d.cache, 0)
	}
	for n := range d.layouts {
		if d.layouts[n] != 0 {
			invoke(d.f.destroyLayout, d.handle, d.layouts[n], 0)
		}
		if d.sets[n] != 0 {
			invoke(d.f.destroySetLayout, d.handle, d.sets[n], 0)
		}
	}
	invoke(d.f.destroyDevice, d.handle, 0)
}

type setLayoutBinding struct {
	binding, typ, count, stages uint32
	_                           unsafe.Pointer // samplers
}

type setLayoutInfo struct {
	typ      uint32
	next     unsafe.Pointer
	flags    uint32
	count    uint32
	bindings *setLayoutBinding
}

type pushRange struct{ stages, offset, size uint32 }

type layoutInfo struct {
	typ       uint32
	next      unsafe.Pointer
	flags     uint32
	setCount  uint32
	sets      *uintptr
	pushCount uint32
	push      *pushRange
}

const (
	storageBuffer = 7    // VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
	computeStage  = 0x20 // VK_SHADER_STAGE_COMPUTE_BIT
)

// makeLayouts makes a layout for each number of bindings.
func (d *Device) makeLayouts() error {
	for n := 1; n <= MaxBindings; n++ {
		bindings := make([]setLayoutBinding, n)
		for k := range bindings {
			bindings[k] = setLayoutBinding{binding: uint32(k), typ: storageBuffer, count: 1, stages: computeStage}
		}
		set := &setLayoutInfo{typ: typeSetLayout, count: uint32(n), bindings: &bindings[0]}
		if err := failed("vkCreateDescriptorSetLayout", invoke(d.f.createSetLayout, d.handle,
			uintptr(unsafe.Pointer(set)), 0, uintptr(unsafe.Pointer(&d.sets[n])))); err != nil {
			return err
		}
		layout := &layoutInfo{typ: typePipelineLayout, setCount: 1, sets: &d.sets[n], pushCount: 1,
			push: &pushRange{computeStage, 0, 4 * MaxPush}}
		if err := failed("vkCreatePipelineLayout", invoke(d.f.createLayout, d.handle, uintptr(unsafe.Pointer(layout)),
			0, uintptr(unsafe.Pointer(&d.layouts[n])))); err != nil {
			return err
		}
	}
	return nil
}

type cacheInfo struct {
	typ   uint32
	next  unsafe.Pointer
	flags uint32
	size  uintptr
	data  *byte
}

// openCache makes the cache of pipelines. Drivers check data of another driver or card themselves and ignore it.
func (d *Device) openCache(data []byte) error {
	info := &cacheInfo{typ: typePipelineCache, size: uintptr(len(data))}
	if len(data) > 0 {
		info.data = &data[0]
	}
	return failed("vkCreatePipelineCache", invoke(d.f.createCache, d.handle, uintptr(unsafe.Pointer(info)), 0,
		uintptr(unsafe.Pointer(&d.cache))))
}

// CacheData returns the compiled pipelines, for NewDevice of a later process.
func (d *Device) CacheData() ([]byte, error) {
	size := new(uintptr)
	if err := failed("vkGetPipelineCacheData", invoke(d.f.cacheData, d.handle, d.cache,
		uintptr(unsafe.Pointer(size)), 0)); err != nil || *size == 0 {
		return nil, err
	}
	data := make([]byte, *size)
	err := failed("vkGetPipelineCacheData", invoke(d.f.cacheData, d.handle, d.cache, uintptr(unsafe.Pointer(size)),
		uintptr(unsafe.Pointer(&data[0]))))
	return data[:*size], err
}

// Buffer is a buffer with its own memory.
type Buffer struct {
	dev            *Device
	handle, memory uintptr
	bytes          int64
	host           []byte // where the process sees it; nil: nowhere
}

type bufferInfo struct {
	typ         uint32
	next        unsafe.Pointer
	flags       uint32
	size        uint64
	usage       uint32
	sharing     uint32
	familyCount uint32
	families    *uint32
}

type memoryRequirements struct {
	size, alignment uint64
	types           uint32
}

type memoryInfo struct {
	typ   uint32
	next  unsafe.Pointer
	size  uint64
	index uint32
}

// Kind is where a buffer stands.
type Kind int

// The kinds.
const (
	Local Kind = iota // in the device's memory
	Host              // in memory that the process sees, coherent
)

const (
	deviceLocal  = 1
	hostVisible  = 2
	hostCoherent = 4
	hostCached   = 8
)

// NewBuffer makes a buffer for storage and copies. An error of the driver that OutOfMemory is one for the caller to
// explain.
func (d *Device) NewBuffer(kind Kind, bytes int64) (*Buffer, error) {
	const usage = 1 | 2 | 0x20 // copies from and to it, storage
	b := &Buffer{dev: d, bytes: bytes}
	info := &bufferInfo{typ: typeBuffer, size: uint64(bytes), usage: usage}
	if err := failed("vkCreateBuffer", invoke(d.f.createBuffer, d.handle, uintptr(unsafe.Pointer(info)), 0,
		uintptr(unsafe.Pointer(&b.handle)))); err != nil {
		return nil, err
	}
	need := &memoryRequirements{}
	invoke(d.f.memoryRequirements, d.handle, b.handle, uintptr(unsafe.Pointer(need)))
	index := d.memoryType(kind, need.types)
	if index < 0 {
		b.Free()
		return nil, fmt.Errorf("%s has no memory of the kind that a buffer wants", d.adapter.Name)
	}
	alloc := &memoryInfo{typ: typeMemoryAllocate, size: need.size, index: uint32(index)}
	err := failed("vkAllocateMemory", invoke(d.f.allocateMemory, d.handle, uintptr(unsafe.Pointer(alloc)), 0,
		uintptr(unsafe.Pointer(&b.memory))))
	if err == nil {
		err = failed("vkBindBufferMemory", invoke(d.f.bindMemory, d.handle, b.handle, b.memory, 0))
	}
	if err == nil && kind == Host {
		var at unsafe.Pointer
		where := &at
		err = failed("vkMapMemory", invoke(d.f.mapMemory, d.handle, b.memory, 0, uintptr(need.size), 0,
			uintptr(unsafe.Pointer(where))))
		if err == nil {
			b.host = unsafe.Slice((*byte)(*where), bytes)
		}
	}
	if err != nil {
		b.Free()
		return nil, err
	}
	return b, nil
}

// memoryType returns the best of the types that fit, −1 for none.
func (d *Device) memoryType(kind Kind, allowed uint32) int {
	wants := []uint32{deviceLocal, 0}
	if kind == Host {
		wants = []uint32{hostVisible | hostCoherent | hostCached, hostVisible | hostCoherent}
	}
	for _, want := range wants {
		for i, t := range d.adapter.types {
			if allowed>>i&1 != 0 && t.flags&want == want {
				return i
			}
		}
	}
	return -1
}

// Bytes returns the size.
func (b *Buffer) Bytes() int64 { return b.bytes }

// Host returns the content of a buffer of kind Host.
func (b *Buffer) Host() []byte { return b.host }

// Free gives buffer and memory back.
func (b *Buffer) Free() {
	if b.handle != 0 {
		invoke(b.dev.f.destroyBuffer, b.dev.handle, b.handle, 0)
	}
	if b.memory != 0 {
		invoke(b.dev.f.freeMemory, b.dev.handle, b.memory, 0)
	}
	b.handle, b.memory, b.host = 0, 0, nil
}
