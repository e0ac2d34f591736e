package main

import (
	"log"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"apr/internal/contracttest"
)

// TestSandboxScripts runs the scripts of testdata/sandbox: hostile programs, and kernels that cannot confine them, through the
// command. Every run of it is a case.
func TestSandboxScripts(t *testing.T) {
	text, err := os.ReadFile("testdata/sandbox/eval.txt")
	if err != nil {
		t.Fatal(err)
	}
	contracttest.Cases(t, strings.Count(string(text), "\nexits "))
	runScripts(t, "sandbox", scriptVariables(t))
}

func init() {
	programs["apr-without-landlock"] = func() { forget(unix.SYS_LANDLOCK_CREATE_RULESET); main() }
	programs["apr-without-seccomp"] = func() { forget(unix.SYS_SECCOMP); main() }
}

// forget makes a system call fail with ENOSYS in this process and its children, as on a kernel that lacks it.
func forget(number uint32) {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the system call's number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: number, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		log.Fatal(err)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog))); errno != 0 {
		log.Fatal(errno)
	}
}
