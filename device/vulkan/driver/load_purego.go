//go:build !static && (linux || darwin) && (amd64 || arm64)

package driver

import (
	"runtime"

	"github.com/ebitengine/purego"
)

// Dynamic says whether this binary can open shared libraries.
const Dynamic = true

// dlopen opens a library. The reason of a failure belongs to the thread that failed, so the goroutine stays on it
// until it is read.
func dlopen(name string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

// dlsym returns the address of a symbol.
func dlsym(handle uintptr, name string) (uintptr, error) { return purego.Dlsym(handle, name) }

// invoke calls a C function of integers and pointers and returns its integer result. Objects whose addresses are
// converted to uintptr in the call's own argument list stay where they are until it returns.
//
//go:uintptrescapes
func invoke(addr uintptr, args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(addr, args...)
	return r
}
