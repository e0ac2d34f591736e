package driver

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"unsafe"

	"apr/internal/fault"
)

// Driver is libcuda, opened and initialised.
type Driver struct {
	lib     *library
	report  Report
	version int
	calls   calls
	graphs  graphCalls
}

// calls are the functions of libcuda that are used. Names ending in _v2 are today's ABI: those without are of CUDA 3,
// with 32-bit sizes.
type calls struct {
	funcLoad  procedure // not in drivers before 12.4: then without address
	urgent    procedure // cuStreamCreateWithPriority; without address: there are no priorities
	tensorMap procedure // not in the emulator: likewise

	init, driverGetVersion, getErrorName, getErrorString                                      procedure
	deviceGetCount, deviceGet, deviceGetName, deviceGetUUID, deviceGetPCI, deviceGetAttribute procedure
	deviceTotalMem, primaryRetain, primaryRelease, ctxSetCurrent                              procedure
	memAlloc, memAllocManaged, memFree, memHostAlloc, memFreeHost, memGetInfo                 procedure
	copyHtoD, copyDtoH, copyDtoD, memset8                                                     procedure
	streamCreate, streamDestroy, streamSync, streamWait                                       procedure
	eventCreate, eventDestroy, eventRecord, eventSync, eventElapsed                           procedure
	moduleLoad, moduleGetFunction, funcSetAttribute, funcGetAttribute, launchKernel           procedure
	launchKernelEx                                                                            procedure
}

// table names every function that must be there.
func (c *calls) table() []struct {
	p    *procedure
	name string
} {
	return []struct {
		p    *procedure
		name string
	}{
		{&c.init, "cuInit"}, {&c.driverGetVersion, "cuDriverGetVersion"},
		{&c.getErrorName, "cuGetErrorName"}, {&c.getErrorString, "cuGetErrorString"},
		{&c.deviceGetCount, "cuDeviceGetCount"}, {&c.deviceGet, "cuDeviceGet"}, {&c.deviceGetName, "cuDeviceGetName"},
		{&c.deviceGetUUID, "cuDeviceGetUuid"}, {&c.deviceGetPCI, "cuDeviceGetPCIBusId"},
		{&c.deviceGetAttribute, "cuDeviceGetAttribute"}, {&c.deviceTotalMem, "cuDeviceTotalMem_v2"},
		{&c.primaryRetain, "cuDevicePrimaryCtxRetain"}, {&c.primaryRelease, "cuDevicePrimaryCtxRelease_v2"},
		{&c.ctxSetCurrent, "cuCtxSetCurrent"},
		{&c.memAlloc, "cuMemAlloc_v2"}, {&c.memAllocManaged, "cuMemAllocManaged"}, {&c.memFree, "cuMemFree_v2"},
		{&c.memHostAlloc, "cuMemHostAlloc"}, {&c.memFreeHost, "cuMemFreeHost"}, {&c.memGetInfo, "cuMemGetInfo_v2"},
		{&c.copyHtoD, "cuMemcpyHtoDAsync_v2"}, {&c.copyDtoH, "cuMemcpyDtoHAsync_v2"}, {&c.copyDtoD, "cuMemcpyDtoDAsync_v2"},
		{&c.memset8, "cuMemsetD8Async"},
		{&c.streamCreate, "cuStreamCreate"}, {&c.streamDestroy, "cuStreamDestroy_v2"},
		{&c.streamSync, "cuStreamSynchronize"}, {&c.streamWait, "cuStreamWaitEvent"},
		{&c.eventCreate, "cuEventCreate"}, {&c.eventDestroy, "cuEventDestroy_v2"}, {&c.eventRecord, "cuEventRecord"},
		{&c.eventSync, "cuEventSynchronize"}, {&c.eventElapsed, "cuEventElapsedTime"},
		{&c.moduleLoad, "cuModuleLoadDataEx"},
		{&c.moduleGetFunction, "cuModuleGetFunction"}, {&c.funcSetAttribute, "cuFuncSetAttribute"},
		{&c.funcGetAttribute, "cuFuncGetAttribute"}, {&c.launchKernel, "cuLaunchKernel"},
		{&c.launchKernelEx, "cuLaunchKernelEx"},
	}
}

// minVersion is the oldest driver that reads the kernels' PTX (8.0).
const minVersion = 12000

// Open finds and opens libcuda (see System.Search) and initialises it, SIGINT and SIGTERM keeping their handlers.
// Errors are faults of kind Unavailable: the library was not found (with everything that was tried), is too old, or
// there is no device that it can use.
func Open() (*Driver, error) { return Host().open(openHost) }

// open is Open on a given machine.
func (s System) open(load opener) (*Driver, error) {
	if !Dynamic {
		return nil, builtWithout()
	}
	lib, report := s.find(CUDA, 0, load)
	if lib == nil {
		return nil, report.Err()
	}
	d := &Driver{lib: lib, report: report}
	for _, row := range d.calls.table() {
		var err error
		if *row.p, err = lib.bind(row.name); err != nil {
			return nil, err
		}
	}
	for _, o := range []struct {
		p    *procedure
		name string
	}{
		{&d.calls.funcLoad, "cuFuncLoad"}, {&d.calls.tensorMap, "cuTensorMapEncodeTiled"},
		{&d.calls.urgent, "cuStreamCreateWithPriority"},
	} {
		if p, err := lib.bind(o.name); err == nil {
			*o.p = p
		}
	}
	d.bindGraphs()
	// The version can be asked before initialisation, and says why that fails.
	var version int32
	if err := d.call(&d.calls.driverGetVersion, uintptr(unsafe.Pointer(&version))); err != nil {
		return nil, d.unusable(err)
	}
	d.version = int(version)
	if d.version < minVersion {
		return nil, fault.In(fault.Unavailable, lib.path, "the driver is too old: it serves CUDA %s, the kernels need %s",
			VersionText(d.version), VersionText(minVersion)).WithID("E-CUDA-044").WithHint("install NVIDIA driver 525 or newer")
	}
	var err error
	keepSignals(func() { err = d.call(&d.calls.init, 0) })
	if err != nil {
		return nil, d.unusable(err)
	}
	return d, nil
}

// unusable says why a driver that is there cannot serve.
func (d *Driver) unusable(err error) error {
	f := fault.In(fault.Unavailable, d.lib.path, "the CUDA driver cannot be used").WithID("E-CUDA-045").Because(err)
	switch codeOf(err) {
	case codeNoDevice:
		f.Msg, f.ID = "the CUDA driver sees no device", "E-CUDA-057"
		f.Hint = "see what nvidia-smi says, and CUDA_VISIBLE_DEVICES"
	case codeStubLibrary:
		f.Hint = "this file is the toolkit's stub, for linking only; the driver's own library is needed"
	case codeDriverMismatch, codeCompatNotSupport:
		f.Hint = "library and kernel module of the driver differ in version: restart the machine or reinstall the driver"
	}
	return f
}

// Version returns what CUDA the driver serves, 1000·major + 10·minor: 13000 is 13.0.
func (d *Driver) Version() int { return d.version }

// Path returns the file that was opened.
func (d *Driver) Path() string { return d.lib.path }

// Report returns how libcuda was found.
func (d *Driver) Report() Report { return d.report }

// VersionText renders a version of Driver.Version: 12040 is "12.4".
func VersionText(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// call calls a function of libcuda and returns its result as an error: nil or an *Error.
//
//go:uintptrescapes
func (d *Driver) call(p *procedure, args ...uintptr) error {
	code := int(int32(invoke(p.addr, args...))) // CUresult is an int; the upper half of the register is undefined
	if code == 0 {
		return nil
	}
	return d.failure(p.name, code)
}

// failure makes the error of a result, in the driver's own words.
func (d *Driver) failure(call string, code int) *Error {
	e := &Error{Call: call, Code: code, Name: lost[code]}
	for _, ask := range []struct {
		p  procedure
		to *string
	}{{d.calls.getErrorName, &e.Name}, {d.calls.getErrorString, &e.Text}} {
		text := new(unsafe.Pointer)
		if r := invoke(ask.p.addr, uintptr(code), uintptr(unsafe.Pointer(text))); int32(r) == 0 && *text != nil {
			*ask.to = cString(*text)
		}
	}
	return e
}

// cString copies a C string of at most 1000 bytes.
func cString(p unsafe.Pointer) string {
	var b strings.Builder
	for i := range 1000 {
		c := *(*byte)(unsafe.Add(p, i))
		if c == 0 {
			break
		}
		b.WriteByte(c)
	}
	return b.String()
}

// codeOf returns the result in a call's own error, 0 for any other.
func codeOf(err error) int {
	if e, ok := err.(*Error); ok { // call returns it unwrapped
		return e.Code
	}
	return 0
}

// DeviceCount returns how many devices the driver shows; CUDA_VISIBLE_DEVICES can hide some.
func (d *Driver) DeviceCount() (int, error) {
	var n int32
	err := d.call(&d.calls.deviceGetCount, uintptr(unsafe.Pointer(&n)))
	return int(n), err
}

// DeviceInfo is what the driver says about a device. From L2Bytes on, numbers are −1 when the driver would not answer;
// from Integrated on they are 0 or 1 otherwise.
type DeviceInfo struct {
	Index                  int
	Name                   string
	UUID                   string // GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx
	PCI                    string // domain:bus:device.function
	Major, Minor           int    // compute capability
	Multiprocessors        int
	TotalMemory            int64 // bytes
	SharedPerBlockOptin    int   // bytes of shared memory that a block may ask for
	L2Bytes                int
	ClockKHz               int
	MemoryClockKHz         int
	BusWidth               int // bits
	Integrated             int // memory is the host's
	UnifiedAddressing      int // one address space with the host; also on discrete cards
	ManagedMemory          int // cuMemAllocManaged works
	ConcurrentManaged      int // the host may touch managed memory while kernels run
	PageableAccess         int // kernels may read ordinary host memory
	PageableUsesHostTables int // and do it through the host's page tables (PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES)
}

// Attributes of a device (CUdevice_attribute in cuda.h).
const (
	attrClock                  = 13
	attrMultiprocessors        = 16
	attrIntegrated             = 18
	attrMemoryClock            = 36
	attrBusWidth               = 37
	attrL2                     = 38
	attrUnifiedAddressing      = 41
	attrMajor                  = 75
	attrMinor                  = 76
	attrManaged                = 83
	attrPageable               = 88
	attrConcurrentManaged      = 89
	attrSharedOptin            = 97
	attrPageableUsesHostTables = 100
)

// attribute asks for an attribute of a device.
func (d *Driver) attribute(dev int32, attr int) (int, error) {
	var v int32
	err := d.call(&d.calls.deviceGetAttribute, uintptr(unsafe.Pointer(&v)), uintptr(attr), uintptr(dev))
	return int(v), err
}

// handle returns the driver's handle of device i. An index outside is a fault of kind Unavailable.
func (d *Driver) handle(i int) (int32, error) {
	n, err := d.DeviceCount()
	if err != nil {
		return 0, err
	}
	if i < 0 || i >= n {
		return 0, fault.New(fault.Unavailable, "there is no CUDA device %d: the driver shows %d device(s), counted from 0", i, n).
			WithID("E-CUDA-046").WithHint("apr gpu lists them; CUDA_VISIBLE_DEVICES can hide some")
	}
	var dev int32
	err = d.call(&d.calls.deviceGet, uintptr(unsafe.Pointer(&dev)), uintptr(i))
	return dev, err
}

// Describe returns what the driver says about device i. It makes no context on the device.
func (d *Driver) Describe(i int) (DeviceInfo, error) {
	info := DeviceInfo{Index: i}
	dev, err := d.handle(i)
	if err != nil {
		return info, err
	}
	if info.Name, err = d.text(&d.calls.deviceGetName, dev); err != nil {
		return info, err
	}
	if info.PCI, err = d.pci(dev); err != nil {
		return info, err
	}
	var uuid [16]byte
	if err := d.call(&d.calls.deviceGetUUID, uintptr(unsafe.Pointer(&uuid)), uintptr(dev)); err != nil {
		return info, err
	}
	info.UUID = uuidText(uuid)
	var total uint64
	if err := d.call(&d.calls.deviceTotalMem, uintptr(unsafe.Pointer(&total)), uintptr(dev)); err != nil {
		return info, err
	}
	info.TotalMemory = int64(total)
	return info, d.attributes(&info, dev)
}

// attributes fills in the attributes. What a kernel's launch depends on must be known.
func (d *Driver) attributes(info *DeviceInfo, dev int32) error {
	for _, a := range []struct {
		attr    int
		to      *int
		unknown bool // whether it may stay unknown
	}{
		{attrMajor, &info.Major, false}, {attrMinor, &info.Minor, false},
		{attrMultiprocessors, &info.Multiprocessors, false}, {attrSharedOptin, &info.SharedPerBlockOptin, false},
		{attrL2, &info.L2Bytes, true}, {attrClock, &info.ClockKHz, true}, {attrMemoryClock, &info.MemoryClockKHz, true},
		{attrBusWidth, &info.BusWidth, true}, {attrIntegrated, &info.Integrated, true},
		{attrUnifiedAddressing, &info.UnifiedAddressing, true}, {attrManaged, &info.ManagedMemory, true},
		{attrConcurrentManaged, &info.ConcurrentManaged, true}, {attrPageable, &info.PageableAccess, true},
		{attrPageableUsesHostTables, &info.PageableUsesHostTables, true},
	} {
		v, err := d.attribute(dev, a.attr)
		switch {
		case err == nil:
			*a.to = v
		case a.unknown:
			*a.to = -1
		default:
			return err
		}
	}
	return nil
}

// text calls a function that fills a buffer with the name of a device.
func (d *Driver) text(p *procedure, dev int32) (string, error) {
	var name [256]byte
	if err := d.call(p, uintptr(unsafe.Pointer(&name)), uintptr(len(name)), uintptr(dev)); err != nil {
		return "", err
	}
	text, _, _ := bytes.Cut(name[:], []byte{0})
	return string(text), nil
}

// pci returns the bus address of a device.
func (d *Driver) pci(dev int32) (string, error) { return d.text(&d.calls.deviceGetPCI, dev) }

// uuidText renders a UUID as NVIDIA's tools do.
func uuidText(u [16]byte) string {
	h := hex.EncodeToString(u[:])
	return "GPU-" + strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}
