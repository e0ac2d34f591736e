//go:build linux && (amd64 || arm64)

package sandbox

import (
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// locked holds the lock of each directory that this process made, until it is removed or the process ends: a directory without one
// is left over.
var locked sync.Map // path → *os.File

// lock takes the lock of a directory that was just made. A directory that cannot be locked is not protected from removeLeftOvers, which takes
// none that is younger than youngest.
func lock(dir string) {
	f, err := os.Open(dir)
	if err != nil {
		return
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		f.Close()
		return
	}
	locked.Store(dir, f)
}

// unlock gives the lock up.
func unlock(dir string) {
	if f, ok := locked.LoadAndDelete(dir); ok {
		f.(*os.File).Close()
	}
}

// youngest is the age from which on a directory without a lock is left over: it was made, and not locked yet, for less.
const youngest = time.Minute

// removeLeftOvers removes the directories that killed processes left: of this user, or of the user ids that he gives to programs, and whose
// lock nobody holds.
func removeLeftOvers() error {
	all, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*"))
	for _, dir := range all {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < youngest || !ours(info) {
			continue
		}
		if info.Mode().Perm()&0o500 != 0o500 {
			_ = os.Chmod(dir, 0o700) // what cannot be opened cannot be locked; the lock is asked for next
		}
		if lock(dir); isLocked(dir) {
			if err := Remove(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// isLocked reports whether this process holds the lock of a directory.
func isLocked(dir string) bool {
	_, ok := locked.Load(dir)
	return ok
}

func ours(info os.FileInfo) bool {
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	user := os.Geteuid()
	return owner == user || user == 0 && owner >= firstID && owner < firstID+countIDs
}
