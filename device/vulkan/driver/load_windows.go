//go:build !static && windows && amd64

package driver

import "syscall"

// Dynamic says whether this binary can open shared libraries.
const Dynamic = true

// dlopen opens a library.
func dlopen(name string) (uintptr, error) {
	h, err := syscall.LoadLibrary(name)
	return uintptr(h), err
}

// dlsym returns the address of a symbol.
func dlsym(handle uintptr, name string) (uintptr, error) {
	return syscall.GetProcAddress(syscall.Handle(handle), name)
}

// invoke calls a C function of integers and pointers and returns its integer result. Objects whose addresses are
// converted to uintptr in the call's own argument list stay where they are until it returns.
//
//go:uintptrescapes
func invoke(addr uintptr, args ...uintptr) uintptr {
	r, _, _ := syscall.SyscallN(addr, args...)
	return r
}
