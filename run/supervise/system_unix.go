//go:build !windows

package supervise

import (
	"os"
	"os/signal"
	"syscall"
)

// passedOn returns the signals that a supervisor passes on to its child. HUP is not one where nohup(1) had it
// ignored, which the child inherits.
func passedOn() []os.Signal {
	all := []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGUSR1}
	if !signal.Ignored(syscall.SIGHUP) {
		all = append(all, syscall.SIGHUP)
	}
	return all
}

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
