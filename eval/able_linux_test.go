package eval_test

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// able reports whether this kernel has what confines programs: it asks the kernel itself, not the code under test.
func able() bool {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	_, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	return errno == 0 && version >= 3 && err == nil && (runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64")
}
