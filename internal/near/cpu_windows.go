package near

import (
	"syscall"
	"time"
)

// CPUTime returns the processor time this process has used, for tests that bound the work of an operation: unlike the
// wall clock it does not count what other processes do.
func CPUTime() time.Duration {
	self, err := syscall.GetCurrentProcess()
	if err != nil {
		panic(err) // own process is always there
	}
	var created, ended, kernel, user syscall.Filetime
	if err := syscall.GetProcessTimes(self, &created, &ended, &kernel, &user); err != nil {
		panic(err) // own usage can always be asked for
	}
	ticks := func(t syscall.Filetime) int64 { return int64(t.HighDateTime)<<32 | int64(t.LowDateTime) } // of 100 ns
	return time.Duration(100 * (ticks(kernel) + ticks(user)))
}
