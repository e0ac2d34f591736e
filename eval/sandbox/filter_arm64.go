//go:build linux

package sandbox

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// allowedHere are the system calls of allowed that only this machine has.
var allowedHere = []uint32{unix.SYS_GETRLIMIT}

var judgedHere []judged

const (
	fstatat  = unix.SYS_FSTATAT
	renameat = unix.SYS_RENAMEAT
)
