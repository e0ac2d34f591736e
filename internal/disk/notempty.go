//go:build !windows

package disk

import (
	"errors"
	"syscall"
)

// notEmpty reports whether a directory was not removed because something is in it.
func notEmpty(err error) bool {
	return errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST)
}
