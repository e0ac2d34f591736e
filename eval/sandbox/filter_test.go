//go:build linux && (amd64 || arm64)

package sandbox

import (
	"encoding/binary"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"apr/internal/contracttest"
)

// verdict runs a filter as the kernel does, and returns its answer to a system call.
func verdict(t *testing.T, program []unix.SockFilter, arch, number uint32, args ...uint64) uint32 {
	t.Helper()
	var data [64]byte
	binary.LittleEndian.PutUint32(data[offNumber:], number)
	binary.LittleEndian.PutUint32(data[offArch:], arch)
	for i, a := range args {
		binary.LittleEndian.PutUint64(data[offArgs+8*i:], a)
	}
	var a uint32
	for pc := 0; pc < len(program); pc++ {
		x := program[pc]
		holds := false
		switch x.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = binary.LittleEndian.Uint32(data[x.K:])
			continue
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			a &= x.K
			continue
		case unix.BPF_RET | unix.BPF_K:
			return x.K
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			holds = a == x.K
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			holds = a&x.K != 0
		default:
			t.Fatalf("instruction %d: %+v", pc, x)
		}
		if holds {
			pc += int(x.Jt)
		} else {
			pc += int(x.Jf)
		}
	}
	t.Fatal("the filter has no end")
	return 0
}

// The filter kills what speaks another machine's numbers, also where they mean something harmless, and judges arguments.
func TestFilter(t *testing.T) {
	const pid = 4711
	program := filter(pid)
	if len(program) > 4096 {
		t.Errorf("%d instructions are more than the kernel takes", len(program))
	}
	for _, arch := range []uint32{0, unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, unix.AUDIT_ARCH_AARCH64, unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_RISCV64} {
		for n := range uint32(1024) {
			if got := verdict(t, program, arch, n); arch != auditArch && got != unix.SECCOMP_RET_KILL_PROCESS {
				t.Fatalf("system call %d of machine %#x: %#x", n, arch, got)
			}
			if got := verdict(t, program, auditArch, 0x40000000|n); runtime.GOARCH == "amd64" && got != refuse.K {
				t.Fatalf("system call %d of x32: %#x", n, got)
			}
		}
		contracttest.Cases(t, 1024)
	}
	goFlags := uint64(cloneMust | unix.CLONE_SYSVSEM | unix.CLONE_SETTLS)
	for _, tt := range []struct {
		name   string
		number uint32
		args   []uint64
		want   uint32
	}{
		{"a thread of Go", unix.SYS_CLONE, []uint64{goFlags}, allow.K},
		{"a thread of libc", unix.SYS_CLONE, []uint64{goFlags | unix.CLONE_PARENT_SETTID | unix.CLONE_CHILD_CLEARTID}, allow.K},
		{"a process", unix.SYS_CLONE, []uint64{uint64(unix.SIGCHLD)}, refuse.K},
		{"vfork by clone", unix.SYS_CLONE, []uint64{unix.CLONE_VM | unix.CLONE_VFORK | uint64(unix.SIGCHLD)}, refuse.K},
		{"clone3", unix.SYS_CLONE3, nil, notThere.K},
		{"a signal to itself", unix.SYS_KILL, []uint64{pid, 9}, allow.K},
		{"a signal to init", unix.SYS_KILL, []uint64{1, 0}, refuse.K},
		{"a signal to its group", unix.SYS_KILL, []uint64{0, 9}, refuse.K},
		{"a signal to all", unix.SYS_KILL, []uint64{1<<64 - 1, 9}, refuse.K},
		{"a signal to that group", unix.SYS_KILL, []uint64{1<<64 - pid, 9}, refuse.K},
		{"a signal to its thread", unix.SYS_TGKILL, []uint64{pid, 5, 9}, allow.K},
		{"a signal to a thread", unix.SYS_TGKILL, []uint64{pid + 1, 5, 9}, refuse.K},
		{"flags of a file", unix.SYS_FCNTL, []uint64{3, unix.F_SETFL, 0}, allow.K},
		{"an owner of signals", unix.SYS_FCNTL, []uint64{3, unix.F_SETOWN, 1}, refuse.K},
		{"an owner of signals, extended", unix.SYS_FCNTL, []uint64{3, unix.F_SETOWN_EX, 1}, refuse.K},
		{"a lease", unix.SYS_FCNTL, []uint64{3, unix.F_SETLEASE, 1}, refuse.K},
		{"a terminal?", unix.SYS_IOCTL, []uint64{0, unix.TCGETS, 0}, allow.K},
		{"typing", unix.SYS_IOCTL, []uint64{0, unix.TIOCSTI, 0}, refuse.K},
		{"attributes of a file", unix.SYS_IOCTL, []uint64{3, 0x40086602, 0}, refuse.K},
		{"a renaming", unix.SYS_RENAMEAT2, []uint64{3, 0, 3, 0, 0}, allow.K},
		{"an exchange", unix.SYS_RENAMEAT2, []uint64{3, 0, 3, 0, unix.RENAME_EXCHANGE}, allow.K},
		{"a device in the place of a file", unix.SYS_RENAMEAT2, []uint64{3, 0, 3, 0, unix.RENAME_WHITEOUT}, refuse.K},
		{"the same, of a file that is not replaced", unix.SYS_RENAMEAT2, []uint64{3, 0, 3, 0, unix.RENAME_WHITEOUT | unix.RENAME_NOREPLACE}, refuse.K},
		{"a name", unix.SYS_PRCTL, []uint64{unix.PR_SET_NAME}, allow.K},
		{"a seccomp mode", unix.SYS_PRCTL, []uint64{unix.PR_SET_SECCOMP, 2}, refuse.K},
		{"memory", unix.SYS_MMAP, []uint64{0, 4096, 3, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE | unix.MAP_FIXED}, allow.K},
		{"a stack of a thread", unix.SYS_MMAP, []uint64{0, 4096, 3, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_STACK}, allow.K},
		{"a shared file", unix.SYS_MMAP, []uint64{0, 4096, 3, unix.MAP_SHARED, 3}, allow.K},
		{"a private file", unix.SYS_MMAP, []uint64{0, 4096, 3, unix.MAP_PRIVATE | unix.MAP_DENYWRITE, 3}, allow.K},
		{"shared memory", unix.SYS_MMAP, []uint64{0, 4096, 3, unix.MAP_SHARED | unix.MAP_ANONYMOUS}, refuse.K},
		{"shared memory, validated", unix.SYS_MMAP, []uint64{0, 4096, 3, unix.MAP_SHARED_VALIDATE | unix.MAP_ANONYMOUS}, refuse.K},
		{"shared memory, with high bits", unix.SYS_MMAP, []uint64{0, 4096, 3, 1<<40 | unix.MAP_SHARED | unix.MAP_ANONYMOUS}, refuse.K},
		{"growing memory", unix.SYS_MMAP, []uint64{0, 4096, 3, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_GROWSDOWN}, refuse.K},
		{"a growing file", unix.SYS_MMAP, []uint64{0, 4096, 3, unix.MAP_PRIVATE | unix.MAP_GROWSDOWN, 3}, refuse.K},
		{"huge pages", unix.SYS_MMAP, []uint64{0, 4096, 3, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_HUGETLB}, refuse.K},
		{"droppable memory", unix.SYS_MMAP, []uint64{0, 4096, 3, 8 | unix.MAP_ANONYMOUS}, refuse.K},
		{"a lock", unix.SYS_FLOCK, []uint64{3, unix.LOCK_EX}, refuse.K},
		{"its limits", unix.SYS_PRLIMIT64, []uint64{0, 7, 0, 1 << 40}, allow.K},
		{"another's limits", unix.SYS_PRLIMIT64, []uint64{1, 7, 0, 1 << 40}, refuse.K},
		{"new limits", unix.SYS_PRLIMIT64, []uint64{0, 7, 1, 0}, refuse.K},
		{"new limits, high", unix.SYS_PRLIMIT64, []uint64{0, 7, 1 << 40, 0}, refuse.K},
	} {
		contracttest.Cases(t, 1)
		if got := verdict(t, program, auditArch, tt.number, tt.args...); got != tt.want {
			t.Errorf("%s: %#x, want %#x", tt.name, got, tt.want)
		}
	}
	for bit := range 32 { // of clone's flags, the lowest eight bits of which are a signal
		with, without := goFlags|1<<bit, goFlags&^(1<<bit)
		if got := verdict(t, program, auditArch, unix.SYS_CLONE, with); (got == allow.K) != (uint64(cloneMay)&(1<<bit) != 0) {
			t.Errorf("clone with %#x: %#x", with, got)
		}
		if got := verdict(t, program, auditArch, unix.SYS_CLONE, without); (got == allow.K) != (uint64(cloneMust)&(1<<bit) == 0) {
			t.Errorf("clone without %#x: %#x", uint64(1)<<bit, got)
		}
		contracttest.Cases(t, 2)
	}
}
