//go:build linux && (amd64 || arm64)

package sandbox

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
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
	// Whatever this program's own parents left open, the pipe to tell errors by among them, ends with exec.
	if err := unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("inherited files: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	if err := restrict(o); err != nil {
		return err
	}
	if err := endWith(o.Parent); err != nil {
		return err
	}
	system := filter(os.Getpid())
	prog := unix.SockFprog{Len: uint16(len(system)), Filter: &system[0]}
	memory := unix.Rlimit{Cur: o.Memory, Max: o.Memory}
	space := unix.Rlimit{Cur: o.Memory + reserved, Max: o.Memory + reserved}
	probing := o.Argv[0] == probeProgram
	if !probing {
		if _, _, errno := unix.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_DATA, uintptr(unsafe.Pointer(&memory)), 0, 0, 0); errno != 0 {
			return fmt.Errorf("limit on memory: %w", errno)
		}
		if _, _, errno := unix.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_AS, uintptr(unsafe.Pointer(&space)), 0, 0, 0); errno != 0 {
			return fmt.Errorf("limit on address space: %w", errno)
		}
	}
	if o.Confined {
		if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))); errno != 0 {
			return fmt.Errorf("system-call filter: %w", errno)
		}
	}
	if probing {
		try(o.Argv[1:])
	}
	_, _, errno := unix.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(program)), uintptr(unsafe.Pointer(&argv[0])), uintptr(unsafe.Pointer(&env[0])))
	return fmt.Errorf(execFailed+"%s: %w", path, errno)
}

// reserved is the address space that a program may have beyond its memory: Go's runtime reserves more than 1 GiB that it never
// uses. The limit on data no longer counts memory that was filled and then made read-only, nor, where this limit is near, what is
// reserved and then made writable; this one counts both.
const reserved = 2 << 30

// stackBytes is the stack of a program, as is usual: it counts as no data.
const stackBytes = 8 << 20

// restrict sets limits, changes the user, and closes the file system. The rules for files are made by the user who can see
// them all, and hold once the user is changed.
func restrict(o order) error {
	if err := setLimits(o.Limits); err != nil {
		return err
	}
	ruleset := -1
	if o.Confined {
		var err error
		if ruleset, err = rules(o.Dir, o.Read); err != nil {
			return err
		}
	}
	if err := setIdentity(o.ID, append([]string{filepath.Dir(o.Dir)}, o.Read...)); err != nil {
		return err
	}
	if !o.Confined {
		return nil
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(ruleset), 0, 0); errno != 0 {
		return fmt.Errorf("rules of Landlock: %w", errno)
	}
	return nil
}

func resolve(argv []string) (string, error) {
	if argv[0] == probeProgram {
		return argv[0], nil
	}
	return exec.LookPath(argv[0])
}

func setLimits(l Limits) error {
	seconds := uint64(l.Time.Seconds()) + 1
	// One byte of core is no room for a file, and alone keeps the kernel from starting the program that a piped
	// core_pattern names: a limit of 0 does not (do_coredump in fs/coredump.c).
	for _, x := range []struct {
		name  string
		what  int
		limit uint64
	}{
		{"core", unix.RLIMIT_CORE, 1}, {"cpu", unix.RLIMIT_CPU, seconds}, {"fsize", unix.RLIMIT_FSIZE, l.FileBytes},
		{"nofile", unix.RLIMIT_NOFILE, l.Files}, {"msgqueue", unix.RLIMIT_MSGQUEUE, 0}, {"memlock", unix.RLIMIT_MEMLOCK, 0},
		{"stack", unix.RLIMIT_STACK, stackBytes},
	} {
		var now unix.Rlimit
		if err := unix.Getrlimit(x.what, &now); err != nil {
			return fmt.Errorf("limit %s: %w", x.name, err)
		}
		limit := min(x.limit, now.Max)
		if err := unix.Setrlimit(x.what, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("limit %s: %w", x.name, err)
		}
	}
	// A last resort, where the signal of endWith may not be sent: the alarm outlives exec, and its default is to kill.
	_, err := unix.Setitimer(unix.ITIMER_REAL, unix.Itimerval{Value: unix.NsecToTimeval(2*l.Time.Nanoseconds() + 1e9)})
	return err
}

// endWith lets the kernel kill this process, which no handler can prevent, when its parent ends, and fails if the parent has ended
// already. It comes after the change of the user, which would undo it; the filter lets nobody undo it later, and exec keeps it.
func endWith(parent int) error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("signal of the parent's end: %w", err)
	}
	if now := os.Getppid(); now != parent {
		return fmt.Errorf("the process that started it, %d, has ended", parent)
	}
	return nil
}
