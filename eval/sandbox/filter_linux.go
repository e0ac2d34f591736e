//go:build linux && (amd64 || arm64)

package sandbox

import "golang.org/x/sys/unix"

// allowed are the system calls that a program may make, whatever their arguments; those that open, make, remove or rename
// files are judged by Landlock. With none of them can it reach another process or the network, or change the mode, owner, times,
// attributes or names of a file outside its directory: path arguments cannot be seen by a filter, so no call that changes
// metadata by path is here, and none that takes a descriptor, which may be of a file outside. Neither Go's compiler and
// linker nor Python needs one. No flock: it locks files that are only read, the toolchain among them, against everyone.
var allowed = []uint32{
	// Files.
	unix.SYS_READ, unix.SYS_WRITE, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_PREADV, unix.SYS_PWRITEV,
	unix.SYS_LSEEK, unix.SYS_SENDFILE, unix.SYS_COPY_FILE_RANGE, unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE, unix.SYS_FSYNC, unix.SYS_FDATASYNC,
	unix.SYS_FADVISE64, unix.SYS_OPENAT, unix.SYS_CLOSE, unix.SYS_CLOSE_RANGE, unix.SYS_DUP, unix.SYS_DUP3, unix.SYS_PIPE2,
	unix.SYS_FSTAT, fstatat, unix.SYS_STATX, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_READLINKAT, unix.SYS_GETDENTS64, unix.SYS_STATFS,
	unix.SYS_FSTATFS, unix.SYS_GETCWD, unix.SYS_CHDIR, unix.SYS_FCHDIR, unix.SYS_UMASK,
	unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, renameat,
	// Waiting for files and time.
	unix.SYS_PPOLL, unix.SYS_PSELECT6, unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2, unix.SYS_EVENTFD2,
	unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES, unix.SYS_GETTIMEOFDAY, unix.SYS_RESTART_SYSCALL,
	// Memory.
	unix.SYS_MUNMAP, unix.SYS_MPROTECT, unix.SYS_MREMAP, unix.SYS_MADVISE, unix.SYS_MINCORE, unix.SYS_MSYNC, unix.SYS_BRK, unix.SYS_GETRANDOM,
	// Its own threads and signals.
	unix.SYS_FUTEX, unix.SYS_SET_TID_ADDRESS, unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ, unix.SYS_SCHED_YIELD,
	unix.SYS_SCHED_GETAFFINITY, unix.SYS_GETCPU, unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_RT_SIGPENDING,
	unix.SYS_RT_SIGTIMEDWAIT, unix.SYS_RT_SIGSUSPEND, unix.SYS_SIGALTSTACK, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_EXECVE,
	// What and who it is.
	unix.SYS_GETPID, unix.SYS_GETPPID, unix.SYS_GETTID, unix.SYS_GETPGID, unix.SYS_GETSID, unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID, unix.SYS_GETEGID,
	unix.SYS_GETRESUID, unix.SYS_GETRESGID, unix.SYS_GETGROUPS, unix.SYS_UNAME, unix.SYS_SYSINFO, unix.SYS_TIMES, unix.SYS_GETRUSAGE,
}

// judged is a system call that is allowed if the low half of an argument is one of values. The kernel looks at no more
// than the low half of these arguments.
type judged struct {
	number uint32
	arg    int
	values []uint32
}

// judgedEverywhere returns the calls whose arguments matter, for a process of that id: signals to itself, descriptors
// copied and made non-blocking but no owner of signals, the size of a terminal, files renamed but no device left in their place, the
// names of threads and of memory.
func judgedEverywhere(pid uint32) []judged {
	return []judged{
		{unix.SYS_KILL, 0, []uint32{pid}},
		{unix.SYS_TGKILL, 0, []uint32{pid}},
		{unix.SYS_FCNTL, 1, []uint32{unix.F_DUPFD, unix.F_DUPFD_CLOEXEC, unix.F_GETFD, unix.F_SETFD, unix.F_GETFL, unix.F_SETFL,
			unix.F_GETLK, unix.F_SETLK, unix.F_SETLKW, unix.F_OFD_GETLK, unix.F_OFD_SETLK, unix.F_OFD_SETLKW}},
		{unix.SYS_IOCTL, 1, []uint32{unix.TCGETS, unix.TIOCGWINSZ, fioClex, fioNClex}},
		{unix.SYS_RENAMEAT2, 4, []uint32{0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE}},
		{unix.SYS_PRCTL, 0, []uint32{unix.PR_SET_NAME, unix.PR_GET_NAME, unix.PR_SET_VMA}},
	}
}

// ioctl requests that set and clear close-on-exec.
const (
	fioClex  = 0x5451
	fioNClex = 0x5450
)

// What a clone must and may ask for: a thread of this process, never a process or a namespace.
const (
	cloneMust = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD
	cloneMay  = cloneMust | unix.CLONE_SYSVSEM | unix.CLONE_SETTLS | unix.CLONE_PARENT_SETTID | unix.CLONE_CHILD_SETTID | unix.CLONE_CHILD_CLEARTID | unix.CLONE_DETACHED
)

// memoryNever are flags of mmap that make memory which the limit on data does not count, as that of a stack, or take it from a
// reserve of the machine; the last two are types of mappings besides private and shared.
const memoryNever = unix.MAP_GROWSDOWN | unix.MAP_HUGETLB | 0xc

// Offsets in struct seccomp_data.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16 // eight bytes each, the low half first: both machines are little-endian
)

// The ends of the filter.
var (
	allow    = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
	refuse   = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
	notThere = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)}
	kill     = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_KILL_PROCESS}
)

func load(off uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
}

func loadArg(i int) unix.SockFilter { return load(offArgs + 8*uint32(i)) }

// unless skips `skip` instructions unless the loaded value is k.
func unless(k uint32, skip int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jf: uint8(skip)}
}

// filter returns the system-call filter of a process of that id. Numbers of another machine kill. What is not allowed fails
// with EPERM; clone3 with ENOSYS, so that libraries fall back to clone, whose flags can be seen.
func filter(pid int) []unix.SockFilter {
	program := []unix.SockFilter{
		load(offArch), {Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: auditArch, Jt: 1}, kill,
		load(offNumber),
	}
	for _, list := range [][]uint32{allowed, allowedHere} {
		for _, n := range list {
			program = append(program, unless(n, 1), allow)
		}
	}
	for _, list := range [][]judged{judgedEverywhere(uint32(pid)), judgedHere} {
		for _, j := range list {
			program = append(program, unless(j.number, 2+2*len(j.values)), loadArg(j.arg))
			for _, v := range j.values {
				program = append(program, unless(v, 1), allow)
			}
			program = append(program, refuse)
		}
	}
	program = append(program, unless(unix.SYS_CLONE, 6), loadArg(0),
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: ^uint32(cloneMay), Jt: 3},
		unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: cloneMust},
		unless(cloneMust, 1), allow, refuse)
	// Limits may be asked for, of itself, not set: the pointer to the new one is null in both halves.
	program = append(program, unless(unix.SYS_PRLIMIT64, 8), loadArg(0), unless(0, 5), loadArg(2), unless(0, 3),
		load(offArgs+8*2+4), unless(0, 1), allow, refuse)
	// Memory: private, or of a file. Shared memory of no file is not counted either. Both values of shared have its bit.
	program = append(program, unless(unix.SYS_MMAP, 6), loadArg(3),
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: memoryNever, Jt: 3},
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: unix.MAP_SHARED, Jf: 1},
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: unix.MAP_ANONYMOUS, Jt: 1}, allow, refuse)
	return append(program, unless(unix.SYS_CLONE3, 1), notThere, refuse)
}
