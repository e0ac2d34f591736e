package driver

import (
	"bytes"
	"fmt"
	"regexp"
	"runtime"
	"strconv"
	"unsafe"

	"apr/internal/fault"
)

// Options of the driver's compiler (CUjit_option).
const (
	jitInfoLog      = 3
	jitInfoLogSize  = 4
	jitErrorLog     = 5
	jitErrorLogSize = 6
)

// jitLogSize bounds what the driver's compiler may say.
const jitLogSize = 16 << 10

// jit is what cuModuleLoadDataEx reads and writes: option names, and their values, which have the layout of an array
// of four void*.
type jit struct {
	module   Module
	options  [4]uint32
	values   jitValues
	info     [jitLogSize]byte
	failures [jitLogSize]byte
}

type jitValues struct {
	info         unsafe.Pointer
	infoSize     uintptr
	failures     unsafe.Pointer
	failuresSize uintptr
}

// LoadModule compiles PTX for the device (the driver keeps its own cache of that on disk) and loads it. Errors are
// faults of kind Unavailable that carry the compiler's log; a device or driver too old for the PTX is said as such.
func (t *Thread) LoadModule(ptx []byte) (Module, error) {
	head := headOf(ptx)
	if err := t.accepts(head); err != nil {
		return 0, err
	}
	image := ptx
	if len(image) == 0 || image[len(image)-1] != 0 {
		image = append(bytes.Clone(ptx), 0)
	}
	j := &jit{options: [4]uint32{jitInfoLog, jitInfoLogSize, jitErrorLog, jitErrorLogSize}}
	j.values = jitValues{unsafe.Pointer(&j.info), jitLogSize, unsafe.Pointer(&j.failures), jitLogSize}
	err := t.d.call(&t.d.calls.moduleLoad, uintptr(unsafe.Pointer(&j.module)), uintptr(unsafe.Pointer(unsafe.SliceData(image))),
		uintptr(len(j.options)), uintptr(unsafe.Pointer(&j.options)), uintptr(unsafe.Pointer(&j.values)))
	runtime.KeepAlive(image)
	runtime.KeepAlive(j)
	if err == nil {
		return j.module, nil
	}
	f := fault.New(fault.Unavailable, "the driver cannot load a module of kernels").WithID("E-CUDA-050").Because(err)
	switch codeOf(err) {
	case codeUnsupportedPTX:
		f.Msg = fmt.Sprintf("the driver is too old for the kernels: it serves CUDA %s, their PTX %s needs CUDA %s",
			VersionText(t.d.version), head.ptx(), head.needs())
		f.Hint = "install a newer NVIDIA driver"
	case codeNoBinaryForGPU, codeInvalidPTX:
		f.Msg = fmt.Sprintf("the driver (CUDA %s) does not accept PTX %s for %s", VersionText(t.d.version), head.ptx(), head.target)
	case codeOutOfMemory:
		f.Kind = fault.Memory
	}
	if log := logText(j.failures[:]) + logText(j.info[:]); log != "" {
		f.Msg += "; the compiler says: " + log
	}
	return 0, f
}

// accepts reports whether the device can run a program for the target, before the driver's compiler is asked.
func (t *Thread) accepts(head ptxHead) error {
	if head.target == "" {
		return nil // not PTX: the driver will say what is wrong
	}
	major, err := t.d.attribute(t.device, attrMajor)
	if err != nil {
		return err
	}
	minor, err := t.d.attribute(t.device, attrMinor)
	if err != nil {
		return err
	}
	if head.runsOn(10*major + minor) {
		return nil
	}
	return fault.New(fault.Unavailable, "the GPU cannot run these kernels: it has compute capability %d.%d, they are for %s", major, minor, head.target).
		WithID("E-CUDA-051").WithHint("compute capability 8.0 (Ampere) or newer is needed")
}

// ptxHead is what the first directives of a PTX text say.
type ptxHead struct {
	major, minor int    // .version
	target       string // .target: sm_80, sm_90a
	capability   int    // of the target: 80
	only         bool   // that capability alone: a suffix such as a
}

var (
	ptxVersion = regexp.MustCompile(`(?m)^\s*\.version\s+(\d{1,4})\.(\d{1,4})`)
	ptxTarget  = regexp.MustCompile(`(?m)^\s*\.target\s+(sm_(\d{2,4})([a-z]?))`)
)

// headOf reads the directives; what is not there stays zero.
func headOf(ptx []byte) (h ptxHead) {
	ptx = ptx[:min(len(ptx), 4096)]
	if m := ptxVersion.FindSubmatch(ptx); m != nil {
		h.major, _ = strconv.Atoi(string(m[1])) // digits, by the expression
		h.minor, _ = strconv.Atoi(string(m[2]))
	}
	if m := ptxTarget.FindSubmatch(ptx); m != nil {
		h.target = string(m[1])
		h.capability, _ = strconv.Atoi(string(m[2]))
		h.only = len(m[3]) > 0
	}
	return h
}

// ptx renders the version of the language.
func (h ptxHead) ptx() string { return fmt.Sprintf("%d.%d", h.major, h.minor) }

// needs renders the first CUDA release whose driver reads that version: 8.x came with 12.x, 7.x with 11.x, 9.x with 13.x.
func (h ptxHead) needs() string {
	if h.major == 8 && h.minor >= 6 { // 8.6 came with 12.7, and so on
		return fmt.Sprintf("12.%d", h.minor+1)
	}
	return fmt.Sprintf("%d.%d", h.major+4, h.minor)
}

// runsOn reports whether a device of a compute capability (90 is 9.0) can run the program.
func (h ptxHead) runsOn(capability int) bool {
	if h.only {
		return capability == h.capability
	}
	return capability >= h.capability
}

// logText returns what a compiler wrote, on one line each, or "".
func logText(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(bytes.TrimSpace(text))
}

// Function returns a kernel of a module by its entry name, loaded: a driver from 12.4 on, which would load it at its
// first launch, is told to do so now. A name that the module lacks is a fault of kind Unavailable.
func (t *Thread) Function(m Module, name string) (Function, error) {
	var f Function
	c := append([]byte(name), 0)
	err := t.d.call(&t.d.calls.moduleGetFunction, uintptr(unsafe.Pointer(&f)), uintptr(m), uintptr(unsafe.Pointer(unsafe.SliceData(c))))
	if codeOf(err) == codeNotFound {
		return 0, fault.New(fault.Unavailable, "the module has no kernel %q", name).WithID("E-CUDA-052").Because(err)
	}
	if err == nil && t.d.calls.funcLoad.addr != 0 {
		err = t.d.call(&t.d.calls.funcLoad, uintptr(f))
	}
	return f, err
}

// Attributes of a function (CUfunction_attribute).
const (
	funcSharedBytes      = 1
	funcLocalBytes       = 3
	funcRegisters        = 4
	funcMaxDynamicShared = 8
	funcPreferredShared  = 9
)

// SetMaxDynamicShared lets launches of f ask for up to n bytes of dynamic shared memory, which is needed above 48 KiB.
func (t *Thread) SetMaxDynamicShared(f Function, n int) error {
	return t.d.call(&t.d.calls.funcSetAttribute, uintptr(f), funcMaxDynamicShared, uintptr(n))
}

// PreferShared asks that multiprocessors which run f have as much shared memory and as little first cache as possible. A
// multiprocessor is divided anew only while nothing runs on it.
func (t *Thread) PreferShared(f Function) error {
	const percent = 100
	return t.d.call(&t.d.calls.funcSetAttribute, uintptr(f), funcPreferredShared, percent)
}

// FunctionInfo returns what a thread of f uses: registers, and bytes of static shared (per block) and local memory.
func (t *Thread) FunctionInfo(f Function) (registers, shared, local int, err error) {
	var v [3]int32
	for i, attr := range [3]uintptr{funcRegisters, funcSharedBytes, funcLocalBytes} {
		if err := t.d.call(&t.d.calls.funcGetAttribute, uintptr(unsafe.Pointer(&v[i])), attr, uintptr(f)); err != nil {
			return 0, 0, 0, err
		}
	}
	return int(v[0]), int(v[1]), int(v[2]), nil
}
