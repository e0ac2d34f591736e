//go:build unix

package near

import (
	"syscall"
	"time"
)

// CPUTime returns the processor time this process has used, for tests that bound the work of an operation: unlike the
// wall clock it does not count what other processes do.
func CPUTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // own usage can always be asked for
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
