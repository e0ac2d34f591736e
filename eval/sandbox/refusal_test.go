//go:build linux && (amd64 || arm64)

package sandbox

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

// withoutName is the first argument of the test program when it is to try to open a box on a kernel that lacks a system call.
const withoutName = "-without"

func init() {
	if len(os.Args) == 3 && os.Args[1] == withoutName {
		runtime.LockOSThread()
		number, err := strconv.Atoi(os.Args[2])
		if err == nil {
			err = forget(number)
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		_, err = Open(context.Background(), DefaultLimits, false)
		open, _ := Open(context.Background(), DefaultLimits, true)
		fmt.Printf("%d %v; accepted: %v\n", fault.KindOf(err), err, open.Limits())
		os.Exit(0)
	}
}

// forget makes a system call fail with ENOSYS in this process and its children, as on a kernel that lacks it.
func forget(number int) error {
	program := []unix.SockFilter{load(offNumber), unless(uint32(number), 1), notThere, allow}
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog))); errno != 0 {
		return errno
	}
	return nil
}

// A kernel that lacks one of the walls runs nothing: Open says what is missing, with a hint. Who accepts it is told that programs
// are not confined.
func TestRefusal(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		number int
		want   string
	}{
		{"Landlock", unix.SYS_LANDLOCK_CREATE_RULESET, "Landlock has version 0"},
		{"Landlock's rules", unix.SYS_LANDLOCK_ADD_RULE, "Landlock rule for"},
		{"Landlock's restriction", unix.SYS_LANDLOCK_RESTRICT_SELF, "rules of Landlock: function not implemented"},
		{"seccomp", unix.SYS_SECCOMP, "system-call filter: function not implemented"},
		{"closing inherited files", unix.SYS_CLOSE_RANGE, "inherited files: function not implemented"},
	} {
		contracttest.Cases(t, 1)
		out, err := exec.Command(self, withoutName, strconv.Itoa(tt.number)).CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), "9 ") {
			t.Errorf("without %s: %s (%v)", tt.name, out, err)
		}
		for _, want := range []string{tt.want, "E-SANDBOX-001", "NOT confined"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("without %s: %s, want %q", tt.name, out, want)
			}
		}
	}
	for version, ok := range map[int]bool{0: false, 1: false, 2: false, 3: true, 7: true} {
		if err := judgeLandlock(version); (err == nil) != ok {
			t.Errorf("version %d: %v", version, err)
		}
	}
}
