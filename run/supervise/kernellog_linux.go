package supervise

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
)

// kernelLog reads the kernel's messages since it was opened. It is supporting evidence only: who may read it depends on
// the machine, and processes have other numbers in it when they live in a container.
type kernelLog struct{ fd int }

// openKernelLog returns nil where the log may not be read.
func openKernelLog(root string) *kernelLog {
	fd, err := syscall.Open(filepath.Join(root, "dev/kmsg"), syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	const end = 2
	if _, err := syscall.Seek(fd, 0, end); err != nil {
		_ = syscall.Close(fd) // nothing was written
		return nil
	}
	return &kernelLog{fd}
}

// about returns the messages since the opening that say that a process was killed.
func (k *kernelLog) about(pid int) (lines []string) {
	if k == nil {
		return nil
	}
	buf := make([]byte, 8<<10) // a record is read whole or not at all
	for range 10_000 {
		n, err := syscall.Read(k.fd, buf)
		if err == syscall.EPIPE { // records were overwritten: the next read goes on
			continue
		}
		if err != nil || n <= 0 {
			return lines
		}
		_, text, ok := strings.Cut(string(buf[:n]), ";")
		text, _, _ = strings.Cut(text, "\n")
		if ok && strings.Contains(text, fmt.Sprintf("Killed process %d ", pid)) {
			lines = append(lines, "kernel log: "+text)
		}
	}
	return lines
}

func (k *kernelLog) close() {
	if k != nil {
		_ = syscall.Close(k.fd) // nothing was written
	}
}
