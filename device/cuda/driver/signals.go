//go:build !static && linux && (amd64 || arm64)

package driver

import (
	"syscall"
	"unsafe"
)

// sigaction is the kernel's struct sigaction, which is the same on amd64 and arm64.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// kept are the signals that the program itself answers.
var kept = [...]syscall.Signal{syscall.SIGINT, syscall.SIGTERM}

// keepSignals runs f and gives SIGINT and SIGTERM the handlers back that they had before. A library's handler without
// SA_ONSTACK would run on a goroutine's small stack, where Go ends the process.
func keepSignals(f func()) {
	var before [len(kept)]sigaction
	for i, s := range kept {
		rtSigaction(s, nil, &before[i])
	}
	defer func() {
		for i, s := range kept {
			rtSigaction(s, &before[i], nil)
		}
	}()
	f()
}

// rtSigaction is the system call. For these signals and valid pointers it cannot fail.
func rtSigaction(s syscall.Signal, set, get *sigaction) {
	_, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(set)),
		uintptr(unsafe.Pointer(get)), unsafe.Sizeof(set.mask), 0, 0)
	if errno != 0 {
		panic("driver: rt_sigaction: " + errno.Error())
	}
}
