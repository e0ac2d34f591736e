//go:build linux && (amd64 || arm64)

package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// locked holds the lock of each directory that this process made, until it is removed or the process ends: a directory without one
// is left over.
var locked sync.Map // path → *os.File

// lock takes the lock of a directory, and reports whether it did: not where somebody has it, this process included. A directory that cannot be locked is not protected from removeLeftOvers, which takes
// none that is younger than youngest.
func lock(dir string) bool {
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		f.Close()
		return false
	}
	locked.Store(dir, f)
	return true
}

// unlock gives the lock up.
func unlock(dir string) {
	if f, ok := locked.LoadAndDelete(dir); ok {
		f.(*os.File).Close()
	}
}

// youngest is the age from which on a directory without a lock is left over: it was made, and not locked yet, for less.
const youngest = time.Minute

// markSuffix ends the name of the file that stands beside a directory of MakeTemp's, out of reach of what runs in it, and says that it is
// one: a directory that only has such a name is somebody's own. The file holds the directory's device and number.
const markSuffix = ".apr-made"

// mark writes a directory's file.
func mark(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(dir+markSuffix, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(identity(info))
	return errors.Join(err, f.Close())
}

// unmark removes the file of a directory that is gone.
func unmark(dir string) error { return gone(os.Remove(dir + markSuffix)) }

// identity identifies a directory.
func identity(info os.FileInfo) string {
	s := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%d %d\n", s.Dev, s.Ino)
}

// marked reports whether a file is one that this user's MakeTemp wrote for a directory.
func marked(file string, dir os.FileInfo) bool {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
		return false
	}
	text, err := io.ReadAll(io.LimitReader(f, 64))
	return err == nil && string(text) == identity(dir)
}

// removeLeftOvers removes the directories that killed processes left: those that MakeTemp made, of this user or of the
// user ids that he gives to programs, and whose lock is free.
func removeLeftOvers() error {
	all, _ := filepath.Glob(filepath.Join(os.TempDir(), "*"+markSuffix))
	for _, file := range all {
		dir := strings.TrimSuffix(file, markSuffix)
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < youngest || !ours(info) || !marked(file, info) {
			continue
		}
		if info.Mode().Perm()&0o500 != 0o500 {
			_ = os.Chmod(dir, 0o700) // what cannot be opened cannot be locked; the lock is asked for next
		}
		if lock(dir) {
			if err := Remove(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

func ours(info os.FileInfo) bool {
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	user := os.Geteuid()
	return owner == user || user == 0 && owner >= firstID && owner < firstID+countIDs
}
