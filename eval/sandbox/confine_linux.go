//go:build linux && (amd64 || arm64)

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// become confines the process and turns it into the program. It returns only if that fails.
//
// What comes after the limit on memory allocates nothing: this process may hold more than the program is to have.
func become(o order) error {
	runtime.LockOSThread() // what confines is a property of threads; the program goes on as this one
	debug.SetGCPercent(-1)
	path, err := resolve(o.Argv)
	if err != nil {
		return err
	}
	program, err1 := unix.BytePtrFromString(path)
	argv, err2 := syscall.SlicePtrFromStrings(o.Argv)
	env, err3 := syscall.SlicePtrFromStrings(os.Environ())
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	dropCapabilities()
	written := restrictWrites(o.Dir)
	if err := setLimits(o.Limits); err != nil {
		return err
	}
	unix.CloseOnExec(3)
	rules := filter(os.Getpid())
	prog := unix.SockFprog{Len: uint16(len(rules)), Filter: &rules[0]}
	memory := unix.Rlimit{Cur: o.Memory, Max: o.Memory}
	probing := o.Argv[0] == probeProgram
	if !probing {
		if _, _, errno := unix.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_DATA, uintptr(unsafe.Pointer(&memory)), 0, 0, 0); errno != 0 {
			return fmt.Errorf("limit on memory: %w", errno)
		}
	}
	if o.Confined {
		if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))); errno != 0 {
			return fmt.Errorf("system-call filter: %w", errno)
		}
	}
	if probing {
		try(o.Argv[1], written)
	}
	_, _, errno := unix.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(program)), uintptr(unsafe.Pointer(&argv[0])), uintptr(unsafe.Pointer(&env[0])))
	return fmt.Errorf("%s: %w", path, errno)
}

func resolve(argv []string) (string, error) {
	if argv[0] == probeProgram {
		return argv[0], nil
	}
	return exec.LookPath(argv[0])
}

// dropCapabilities takes from an administrator's process what the program could regain when it is executed. Others have
// none, and may not ask.
func dropCapabilities() {
	for c := range uintptr(64) {
		_ = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
	}
}

func setLimits(l Limits) error {
	seconds := uint64(l.Time.Seconds()) + 1
	for _, x := range []struct {
		name  string
		what  int
		limit uint64
	}{
		{"core", unix.RLIMIT_CORE, 0}, {"cpu", unix.RLIMIT_CPU, seconds}, {"fsize", unix.RLIMIT_FSIZE, l.FileBytes},
		{"nofile", unix.RLIMIT_NOFILE, l.Files},
	} {
		if err := unix.Setrlimit(x.what, &unix.Rlimit{Cur: x.limit, Max: x.limit}); err != nil {
			return fmt.Errorf("limit %s: %w", x.name, err)
		}
	}
	// A last resort, should this program's parent die: the alarm outlives exec, and its default is to kill.
	_, err := unix.Setitimer(unix.ITIMER_REAL, unix.Itimerval{Value: unix.NsecToTimeval(2*l.Time.Nanoseconds() + 1e9)})
	return err
}

// restrictWrites lets Landlock refuse every change of the file system outside dir. It reports whether it does.
func restrictWrites(dir string) bool {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 || abi < 1 {
		return false
	}
	writes := uint64(unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_SYM)
	if abi >= 2 {
		writes |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= 3 {
		writes |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	attr := struct{ fs uint64 }{writes}
	rules, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return false
	}
	defer unix.Close(int(rules))
	for path, access := range map[string]uint64{dir: writes, os.DevNull: unix.LANDLOCK_ACCESS_FS_WRITE_FILE} {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return false
		}
		rule := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)}
		_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, rules, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
		unix.Close(fd)
		if errno != 0 {
			return false
		}
	}
	_, _, errno = unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, rules, 0, 0)
	return errno == 0
}

// Offsets in struct seccomp_data.
const (
	offNumber = 0
	offArch   = 4
	offArg0   = 16 // low half: both machines are little-endian
)

// refused are system calls that the program may not make, on every machine. With them it could reach the network, other
// processes, or the machine itself.
var refused = []uintptr{
	unix.SYS_SOCKET, unix.SYS_CONNECT, unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_ACCEPT, unix.SYS_ACCEPT4, unix.SYS_IO_URING_SETUP,
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_GETFD,
	unix.SYS_PIDFD_SEND_SIGNAL, unix.SYS_TKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO,
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_FSOPEN, unix.SYS_OPEN_TREE,
	unix.SYS_MOVE_MOUNT, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF,
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_ADJTIMEX, unix.SYS_SETHOSTNAME, unix.SYS_SETPRIORITY, unix.SYS_PRLIMIT64,
}

// filter returns the system-call filter for a process of that id: what is refused fails with EPERM, clone3 with ENOSYS so
// that libraries fall back to clone, whose flags can be seen; threads are allowed, children not; kill and tgkill reach the
// process itself only.
func filter(pid int) []unix.SockFilter {
	allow := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
	fail := func(e unix.Errno) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(e)}
	}
	load := func(off uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
	}
	// test compares what is loaded with k; the next instruction runs if it holds, the one after skip others if not.
	test := func(op uint16, k uint32, skip uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, K: k, Jf: skip}
	}
	kill := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_KILL_PROCESS}
	program := []unix.SockFilter{
		load(offArch), {Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: auditArch, Jt: 1}, kill,
		load(offNumber), test(unix.BPF_JGE, 0x40000000, 1), kill, // other numbering on the same machine
	}
	for _, n := range append(refused, refusedHere...) {
		program = append(program, test(unix.BPF_JEQ, uint32(n), 1), fail(unix.EPERM))
	}
	program = append(program, test(unix.BPF_JEQ, unix.SYS_CLONE3, 1), fail(unix.ENOSYS),
		test(unix.BPF_JEQ, unix.SYS_CLONE, 4), load(offArg0), test(unix.BPF_JSET, unix.CLONE_THREAD, 1), allow, fail(unix.EPERM))
	for _, n := range []uint32{unix.SYS_KILL, unix.SYS_TGKILL} {
		program = append(program, test(unix.BPF_JEQ, n, 4), load(offArg0), test(unix.BPF_JEQ, uint32(pid), 1), allow, fail(unix.EPERM))
	}
	return append(program, allow)
}

// try does what a program may not do, says what succeeded, and ends the process.
func try(outside string, written bool) {
	var can []string
	if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err == nil {
		unix.Close(fd)
		can = append(can, "network")
	}
	if forked() {
		can = append(can, "processes")
	}
	if err := unix.Kill(os.Getppid(), 0); err == nil {
		can = append(can, "signals")
	}
	if f, err := os.Create(outside); err == nil {
		f.Close()
		can = append(can, "files")
	} else if !written || !errors.Is(err, unix.EACCES) {
		can = append(can, "files") // refused by something else, which may not hold elsewhere
	}
	if _, err := os.Create("inside"); err != nil {
		can = append(can, fmt.Sprintf("nothing: its own directory is closed (%v)", err))
	}
	fmt.Fprintln(os.Stdout, "probed", strings.Join(can, " "))
	os.Exit(0)
}

// forked reports whether a child process can be made; the child ends at once.
func forked() bool {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return false
	}
	if pid == 0 {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	_, _ = unix.Wait4(int(pid), nil, 0, nil)
	return true
}
