package atomicfile

import "syscall"

// free returns the bytes that an unprivileged process may still write below dir.
func (osSystem) free(dir string) (uint64, bool) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil || s.Bsize <= 0 {
		return 0, false
	}
	return s.Bavail * uint64(s.Bsize), true
}
