package driver

import (
	"encoding/binary"
	"fmt"
	"unsafe"
)

// Type is what an adapter is (VkPhysicalDeviceType).
type Type uint32

// The types.
const (
	Other Type = iota
	Integrated
	Discrete
	Virtual
	CPU
)

// String returns the type's name.
func (t Type) String() string {
	if t <= CPU {
		return [...]string{"other", "integrated", "discrete", "virtual", "cpu"}[t]
	}
	return "unknown"
}

// Hardware reports whether an adapter of the type may be taken without being asked for by name: programs that imitate
// one may not.
func (t Type) Hardware() bool { return t == Integrated || t == Discrete }

// Heap is a memory of an adapter.
type Heap struct {
	Bytes, Budget int64 // Budget: what this process may take; 0 if the driver does not say
	Local         bool  // of the device
}

// memoryType is a way to allocate from a heap.
type memoryType struct {
	flags uint32
	heap  uint32
}

// Limits are those that matter to kernels.
type Limits struct {
	Binding         int64 `json:"binding_bytes"` // bytes that one storage binding spans at most
	Align           int64 `json:"binding_align"` // what its offset is a multiple of
	PushConstants   int   `json:"push_constant_bytes"`
	StorageBindings int   `json:"storage_bindings"` // of one kernel
	Shared          int   `json:"shared_bytes"`
	Invocations     int   `json:"group_invocations"`
	Groups          int   `json:"groups"` // of one dimension
	Allocations     int   `json:"allocations"`
	Allocation      int64 `json:"allocation_bytes"` // of one allocation
}

// Adapter is a physical device as its driver describes it.
type Adapter struct {
	Index                    int
	Name, Driver, DriverInfo string
	Type                     Type
	API, DriverVersion       uint32
	Vendor, Device           uint32
	CacheID                  [16]byte // of compiled pipelines
	Limits                   Limits
	Heaps                    []Heap

	handle uintptr
	types  []memoryType
	family int // the queue family; −1: none computes
	budget bool
	subset bool // portability
}

// APIText is the version of Vulkan that the adapter serves.
func (a *Adapter) APIText() string {
	return fmt.Sprintf("%d.%d.%d", a.API>>22&0x7f, a.API>>12&0x3ff, a.API&0xfff)
}

type properties2 struct {
	typ   uint32
	next  unsafe.Pointer
	bytes [824]byte // VkPhysicalDeviceProperties
}

type driverProperties struct {
	typ   uint32
	next  unsafe.Pointer
	bytes [520]byte
}

type maintenance3 struct {
	typ  uint32
	next unsafe.Pointer
	sets uint32
	size uint64
}

type memoryProperties2 struct {
	typ   uint32
	next  unsafe.Pointer
	bytes [520]byte // VkPhysicalDeviceMemoryProperties
}

type memoryBudget struct {
	typ           uint32
	next          unsafe.Pointer
	budget, usage [16]uint64
}

// Adapters describes all adapters, in the order of the loader.
func (i *Instance) Adapters() ([]Adapter, error) {
	n := new(uint32)
	if err := failed("vkEnumeratePhysicalDevices", invoke(i.enumerate, i.handle, uintptr(unsafe.Pointer(n)),
		0)); err != nil || *n == 0 {
		return nil, err
	}
	handles := make([]uintptr, *n)
	if err := failed("vkEnumeratePhysicalDevices", invoke(i.enumerate, i.handle, uintptr(unsafe.Pointer(n)),
		uintptr(unsafe.Pointer(&handles[0])))); err != nil {
		return nil, err
	}
	var all []Adapter
	for k, h := range handles[:*n] {
		all = append(all, i.describe(k, h))
	}
	return all, nil
}

// describe asks for everything that is known about an adapter.
func (i *Instance) describe(index int, handle uintptr) Adapter {
	a := Adapter{Index: index, handle: handle, family: -1}
	names, _ := extensionNames("vkEnumerateDeviceExtensionProperties", i.extensions,
		handle) // none is as good as unknown
	a.budget, a.subset = names[memoryBudgetExtension], names[portabilitySubset]

	room := &maintenance3{typ: typeMaintenance3}
	props := &properties2{typ: typeProperties2, next: unsafe.Pointer(room)}
	drv := &driverProperties{typ: typeDriverProperties}
	if names[driverPropertyExtension] {
		room.next = unsafe.Pointer(drv)
	}
	invoke(i.properties, handle, uintptr(unsafe.Pointer(props)))
	b := props.bytes[:]
	word := func(at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }
	a.API, a.DriverVersion, a.Vendor, a.Device, a.Type = word(0), word(4), word(8), word(12), Type(word(16))
	a.Name = gostring(b[20:276])
	copy(a.CacheID[:], b[276:292])
	a.Driver, a.DriverInfo = gostring(drv.bytes[4:260]), gostring(drv.bytes[260:516])
	const limits = 296
	a.Limits = Limits{
		Binding: int64(word(limits + 28)), PushConstants: int(word(limits + 32)), Allocations: int(word(limits + 36)),
		StorageBindings: int(min(word(limits+76),
			word(limits+108))), Shared: int(word(limits + 216)), Groups: int(word(limits + 220)),
		Invocations: int(word(limits + 232)), Align: int64(binary.NativeEndian.Uint64(b[limits+328:])),
		Allocation: int64(min(room.size, 1<<62)),
	}
	i.describeMemory(&a)
	i.findQueue(&a)
	return a
}

// describeMemory fills in heaps and types of memory.
func (i *Instance) describeMemory(a *Adapter) {
	mem, budget := &memoryProperties2{typ: typeMemoryProperties2}, &memoryBudget{typ: typeMemoryBudget}
	if a.budget {
		mem.next = unsafe.Pointer(budget)
	}
	invoke(i.memory, a.handle, uintptr(unsafe.Pointer(mem)))
	b := mem.bytes[:]
	word := func(at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }
	for k := range int(word(0)) {
		a.types = append(a.types, memoryType{word(4 + 8*k), word(8 + 8*k)})
	}
	const heaps = 264
	for k := range int(word(260)) {
		at := heaps + 16*k
		a.Heaps = append(a.Heaps, Heap{int64(binary.NativeEndian.Uint64(b[at:])), int64(budget.budget[k]),
			word(at+8)&1 != 0})
	}
}

// findQueue chooses a family of queues that computes, best one that does nothing else.
func (i *Instance) findQueue(a *Adapter) {
	n := new(uint32)
	invoke(i.families, a.handle, uintptr(unsafe.Pointer(n)), 0)
	if *n == 0 {
		return
	}
	const size, graphics, compute = 24, 1, 2
	all := make([]byte, size*int(*n))
	invoke(i.families, a.handle, uintptr(unsafe.Pointer(n)), uintptr(unsafe.Pointer(&all[0])))
	for k := range int(*n) {
		flags := binary.NativeEndian.Uint32(all[size*k:])
		if flags&compute != 0 && (a.family < 0 || flags&graphics == 0) {
			a.family = k
		}
	}
}

// Computes reports whether the adapter has a queue for computing.
func (a *Adapter) Computes() bool { return a.family >= 0 }
