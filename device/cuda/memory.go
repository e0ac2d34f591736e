package cuda

import (
	"bufio"
	"io"
	"math"
	"strconv"
	"strings"

	"apr/device/cuda/driver"
	"apr/internal/fault"
)

// MemoryClass says whose memory a device computes in. Contract cuda-unified-memory-allocator-v1 calls Integrated
// "Unified" and the other two "Classic".
type MemoryClass string

// The classes.
const (
	Integrated MemoryClass = "integrated" // the host's own memory (GB10, Jetson)
	Coherent   MemoryClass = "coherent"   // its own, beside the host's in one page table (GH200)
	Discrete   MemoryClass = "discrete"   // its own, behind a bus
)

// MemoryAttributes are attributes of a device that speak of memory: 0, 1, or −1 when the driver would not answer. The
// class depends on the first two alone.
type MemoryAttributes struct {
	Integrated         int // INTEGRATED
	UsesHostPageTables int // PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES
	PageableAccess     int // PAGEABLE_MEMORY_ACCESS: 1 also on discrete cards of hosts with software page tables (HMM)
	UnifiedAddressing  int // UNIFIED_ADDRESSING: 1 on every card of today
	Major, Minor       int // compute capability: B200 is 10.0 and discrete
}

// MemoryAttributesOf takes the attributes from the driver's description.
func MemoryAttributesOf(d driver.DeviceInfo) MemoryAttributes {
	return MemoryAttributes{
		Integrated: d.Integrated, UsesHostPageTables: d.PageableUsesHostTables, PageableAccess: d.PageableAccess,
		UnifiedAddressing: d.UnifiedAddressing, Major: d.Major, Minor: d.Minor,
	}
}

// ClassifyDeviceMemory returns
//
//	integrated  if INTEGRATED = 1
//	coherent    else, if PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES = 1
//	discrete    else; so an attribute that could not be asked counts as 0
func ClassifyDeviceMemory(a MemoryAttributes) MemoryClass {
	switch {
	case a.Integrated == 1:
		return Integrated
	case a.UsesHostPageTables == 1:
		return Coherent
	}
	return Discrete
}

// ManagedVariable overrides how device memory is allocated.
const ManagedVariable = "MANAGED_MEMORY"

// AllocationRule reports whether device memory is allocated as managed memory (cuMemAllocManaged) or plainly
// (cuMemAlloc), by the value of MANAGED_MEMORY and the class:
//
//	"1" managed · "0" plain · "" or "auto" managed for Integrated, plain for Coherent and Discrete
//
// Any other value is a fault of kind Usage.
func AllocationRule(c MemoryClass, override string) (managed bool, err error) {
	switch override {
	case "1":
		return true, nil
	case "0":
		return false, nil
	case "", "auto":
		return c == Integrated, nil
	}
	return false, fault.In(fault.Usage, ManagedVariable, "%q is not 0, 1 or auto", override).WithID("E-CUDA-060").
		WithHint("1 allocates managed memory, 0 device memory, auto (or unset) decides by the class of the device")
}

// HostMemory is what the host has to give, in bytes.
type HostMemory struct {
	Available int64 // MemAvailable: without swapping, by the kernel's estimate
	HugeFree  int64 // free huge pages that nobody reserved; MemAvailable does not count them
}

// ReadHostMemory reads a table like /proc/meminfo. MemAvailable must be there; without huge pages their lines may be
// missing. Errors are faults of kind Unavailable naming the line.
func ReadHostMemory(r io.Reader) (HostMemory, error) {
	values := map[string]int64{"MemAvailable:": -1, "HugePages_Free:": 0, "HugePages_Rsvd:": 0, "Hugepagesize:": 0}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 {
			continue
		}
		if _, wanted := values[fields[0]]; !wanted {
			continue
		}
		v, ok := meminfoValue(fields[1:])
		if !ok {
			return HostMemory{}, meminfo("not an amount of memory: %q", lines.Text()).At("line %d", n)
		}
		values[fields[0]] = v
	}
	if err := lines.Err(); err != nil {
		return HostMemory{}, meminfo("cannot be read").Because(err)
	}
	if values["MemAvailable:"] < 0 {
		return HostMemory{}, meminfo("has no line MemAvailable")
	}
	h := HostMemory{Available: values["MemAvailable:"]}
	pages := max(0, values["HugePages_Free:"]-values["HugePages_Rsvd:"])
	if size := values["Hugepagesize:"]; size > 0 && pages > math.MaxInt64/size {
		return HostMemory{}, meminfo("counts more huge pages than can be: %d of %d bytes", pages, size)
	} else {
		h.HugeFree = pages * size
	}
	return h, nil
}

// meminfoValue reads "123 kB" as bytes and "123" as a count.
func meminfoValue(fields []string) (int64, bool) {
	if len(fields) == 0 || len(fields) > 2 {
		return 0, false
	}
	v, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil || v < 0 {
		return 0, false
	}
	if len(fields) == 1 {
		return v, true
	}
	if fields[1] != "kB" || v > math.MaxInt64>>10 {
		return 0, false
	}
	return v << 10, true
}

func meminfo(format string, args ...any) *fault.Error {
	return fault.In(fault.Unavailable, "/proc/meminfo", format, args...).WithID("E-CUDA-061")
}

// Reserves: what a plan leaves to others. On an integrated device the operating system and every other program live in
// the same memory, and a machine that runs out of it hangs instead of failing.
const (
	integratedReserve = 8 << 30 // at least, and a tenth
	ownReserve        = 1 << 30 // at least, and a fiftieth: the driver's own allocations, and fragments
)

// Budget is how much a run may allocate on a device.
type Budget struct {
	Bytes   int64 // = Free − Reserve, not below 0
	Free    int64 // what is free
	Reserve int64 // what is left alone
}

// MemoryBudget returns the budget of a device of class c on which cuMemGetInfo says free bytes are free, on a host with
// memory h:
//
//	integrated: F = h.Available + h.HugeFree, reserve max(F/10, 8 GiB)    (free is not used: it under-reports)
//	otherwise:  F = free, reserve max(F/50, 1 GiB)                        (said to under-report on coherent devices)
//
// It is the same whether memory is managed or not: managed memory is never over-subscribed.
func MemoryBudget(c MemoryClass, free int64, h HostMemory) Budget {
	b := Budget{Free: free}
	if c == Integrated {
		b.Free = h.Available + min(h.HugeFree, math.MaxInt64-h.Available)
		b.Reserve = max(b.Free/10, integratedReserve)
	} else {
		b.Reserve = max(b.Free/50, ownReserve)
	}
	b.Bytes = max(0, b.Free-b.Reserve)
	return b
}
