//go:build !linux || !(amd64 || arm64)

package sandbox

// Nothing runs here, and so nothing is left.
func lock(string) bool       { return false }
func unlock(string)          {}
func mark(string) error      { return nil }
func unmark(string) error    { return nil }
func removeLeftOvers() error { return nil }
