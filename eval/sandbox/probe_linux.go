//go:build linux && (amd64 || arm64)

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// try does what a program may not do, says what was not refused by the wall that is to refuse it, and ends the process.
// paths are a directory that everyone may change, and a file in it.
func try(paths []string) {
	var can []string
	dir, file := paths[0], paths[1]
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
	// The error shows which wall refused: Landlock says EACCES, the filter EPERM. Another may not stand elsewhere.
	if f, err := os.Create(dir + "/new"); !errors.Is(err, unix.EACCES) {
		f.Close()
		can = append(can, "writing")
	}
	if f, err := os.Open(file); !errors.Is(err, unix.EACCES) {
		f.Close()
		can = append(can, "reading")
	}
	if err := unix.Chmod(file, 0o600); !errors.Is(err, unix.EPERM) {
		can = append(can, "metadata")
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
