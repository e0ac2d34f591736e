package readfile

import (
	"io/fs"
	"syscall"
	"time"
)

// changeOf returns when a file or what is recorded of it was changed, and how many names it has.
func changeOf(info fs.FileInfo) (changed time.Time, names uint64) {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return time.Unix(s.Ctimespec.Unix()), uint64(s.Nlink)
	}
	return time.Time{}, 0
}
