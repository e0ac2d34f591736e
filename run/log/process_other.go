//go:build !linux && !darwin

package runlog

// ProcessStart is empty: it is not known here when a process started.
func ProcessStart(int) string { return "" }

// HoldsLock is false: it is not known here which process holds a lock.
func HoldsLock(int, string) bool { return false }
