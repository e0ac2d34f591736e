//go:build !windows

package atomicfile

import (
	"errors"
	"os"
	"syscall"
)

// SyncFolder makes the names in an open directory durable. File systems that cannot sync a directory return EINVAL; nothing more can be
// done there.
func SyncFolder(d *os.File) error {
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return nil
}
