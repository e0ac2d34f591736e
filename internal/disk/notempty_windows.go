package disk

import (
	"errors"
	"syscall"
)

// notEmpty reports whether a directory was not removed because something is in it. A simulated disk returns ENOTEMPTY.
func notEmpty(err error) bool {
	return errors.Is(err, syscall.ERROR_DIR_NOT_EMPTY) || errors.Is(err, syscall.ENOTEMPTY)
}
