//go:build !windows

package supervise

import (
	"os"
	"syscall"
)

// passedOn are the signals that a supervisor passes on to its child.
var passedOn = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGUSR1}

// Supported returns nil: this system has what supervising needs.
func Supported() error { return nil }

// inherited returns the pipe that was inherited as fd, or nil. Its writes can have a deadline; programs that this process starts do not get it.
func inherited(fd int) *os.File {
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil
	}
	syscall.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), "heartbeat")
}
