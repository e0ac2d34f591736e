//go:build linux

package sandbox

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// allowedHere are the system calls of allowed that only this machine has, under their older names. Those of the x32
// numbering have a bit more than any of them, and so are refused.
var allowedHere = []uint32{
	unix.SYS_OPEN, unix.SYS_CREAT, unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_ACCESS, unix.SYS_READLINK, unix.SYS_GETDENTS,
	unix.SYS_MKDIR, unix.SYS_RMDIR, unix.SYS_UNLINK, unix.SYS_RENAME, unix.SYS_PIPE, unix.SYS_DUP2,
	unix.SYS_POLL, unix.SYS_SELECT, unix.SYS_EPOLL_CREATE, unix.SYS_EPOLL_WAIT, unix.SYS_EVENTFD,
	unix.SYS_TIME, unix.SYS_GETRLIMIT, unix.SYS_GETPGRP, unix.SYS_PAUSE,
}

// arch_prctl sets the register of thread-local storage; it could also turn CPUID off.
var judgedHere = []judged{
	{unix.SYS_ARCH_PRCTL, 0, []uint32{0x1002, 0x1003}}, // ARCH_SET_FS, ARCH_GET_FS
}

const (
	fstatat  = unix.SYS_NEWFSTATAT
	renameat = unix.SYS_RENAMEAT
)
