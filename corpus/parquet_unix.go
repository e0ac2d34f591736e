//go:build linux || darwin

package corpus

import (
	"fmt"
	"syscall"
)

// limitMemory bounds the private writable memory of this process, for good.
func limitMemory(bytes uint64) error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_DATA, &l); err != nil {
		return fmt.Errorf("memory limit: %w", err)
	}
	l.Cur = min(l.Cur, bytes)
	l.Max = l.Cur
	if err := syscall.Setrlimit(syscall.RLIMIT_DATA, &l); err != nil {
		return fmt.Errorf("memory limit: %w", err)
	}
	return nil
}
