//go:build !linux

package atomicfile

// free is not known here.
func (osSystem) free(string) (uint64, bool) { return 0, false }
