//go:build !windows

package emulator

import (
	"fmt"
	"path/filepath"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Machine runs single kernels, without a driver around them. All machines of a process are one.
type Machine struct {
	// Ascending lets the threads of a block run in ascending order. Otherwise every other block runs them in descending
	// order, so that a missing barrier shows in one of them.
	Ascending bool

	run, allocate, release, check, message, module, calls uintptr // functions of the library

	broken map[string]error // kernels that did not compile, by module
}

// request is struct Request of memory.cc.
type request struct {
	kernel                               *byte
	args                                 unsafe.Pointer
	x, y, z, threads, dynamic, ascending uint32
}

// Open builds the emulator if need be and loads it. Further .cu files may be given. A kernel that does not compile is an
// error of Run for it, and of no other.
func Open(more ...string) (*Machine, error) {
	b, err := newBuilder(more)
	if err != nil {
		return nil, err
	}
	dir, broken, err := b.build()
	if err != nil {
		return nil, err
	}
	library, err := purego.Dlopen(filepath.Join(dir, "libcuda.so.1"), purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("emulator: %w", err)
	}
	m := &Machine{broken: broken}
	for name, f := range map[string]*uintptr{"run": &m.run, "allocate": &m.allocate, "release": &m.release, "check": &m.check, "message": &m.message, "module": &m.module, "calls": &m.calls} {
		if *f, err = purego.Dlsym(library, "apr_emulator_"+name); err != nil {
			return nil, fmt.Errorf("emulator: %w", err)
		}
	}
	return m, nil
}

// Run launches a kernel with one struct of arguments and waits for it. module is its .cu file without the extension.
func (m *Machine) Run(module, kernel string, grid [3]int, block, shared int, args unsafe.Pointer) error {
	if err := m.broken[module]; err != nil {
		return err
	}
	name := append([]byte(kernel), 0)
	at, _, _ := purego.SyscallN(m.module, uintptr(unsafe.Pointer(&name[0])))
	if at == 0 {
		return fmt.Errorf("emulator: no .cu file has a kernel %s", kernel)
	}
	if has := text(at); has != module {
		return fmt.Errorf("emulator: kernel %s is in module %s, not in %s", kernel, has, module)
	}
	for _, n := range []int{grid[0], grid[1], grid[2], block, shared} {
		if n < 0 || n > 1<<31-1 {
			return fmt.Errorf("emulator: kernel %s: grid %v, block %d, shared %d", kernel, grid, block, shared)
		}
	}
	r := &request{&name[0], args, uint32(grid[0]), uint32(grid[1]), uint32(grid[2]), uint32(block), uint32(shared), 0}
	if m.Ascending {
		r.ascending = 1
	}
	return m.call(m.run, uintptr(unsafe.Pointer(r)))
}

// Alloc returns the address of n bytes of device memory, 4096-aligned and full of NaN, and the bytes themselves.
func (m *Machine) Alloc(n int) (ptr uint64, bytes []byte) {
	p, _, _ := purego.SyscallN(m.allocate, uintptr(n))
	if p == 0 {
		panic(fmt.Sprintf("emulator: no memory for %d bytes", n))
	}
	return uint64(p), unsafe.Slice((*byte)(pointer(p)), n)
}

// Free gives memory back; it is an error if bytes around it were written.
func (m *Machine) Free(ptr uint64) error { return m.call(m.release, uintptr(ptr)) }

// Check reports bytes that were written around any allocation.
func (m *Machine) Check() error { return m.call(m.check) }

// Calls returns how often a function of the driver or of cublasLt was called since cuInit.
func (m *Machine) Calls(function string) int {
	name := append([]byte(function), 0)
	n, _, _ := purego.SyscallN(m.calls, uintptr(unsafe.Pointer(&name[0])))
	return int(n)
}

// call calls a function that returns a CUresult.
//
//go:uintptrescapes
func (m *Machine) call(f uintptr, args ...uintptr) error {
	runtime.LockOSThread() // the message belongs to the thread
	defer runtime.UnlockOSThread()
	code, _, _ := purego.SyscallN(f, args...)
	if int32(code) == 0 {
		return nil
	}
	message, _, _ := purego.SyscallN(m.message)
	return fmt.Errorf("emulator: %s (code %d)", text(message), int32(code))
}

// pointer makes a pointer of an address outside Go's memory.
func pointer(p uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

// text returns the C string at p.
func text(p uintptr) string {
	b := (*byte)(pointer(p))
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(b), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(b, n))
}
