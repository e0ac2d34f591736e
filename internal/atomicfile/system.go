package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// osSystem is the real file system.
type osSystem struct{}

func (osSystem) lstat(path string) (fs.FileInfo, error) { return os.Lstat(path) }
func (osSystem) rename(from, to string) error           { return os.Rename(from, to) }
func (osSystem) link(from, to string) error             { return os.Link(from, to) }
func (osSystem) remove(path string) error               { return os.Remove(path) }

// createTemp makes a new file of a mode, of which the user's mask takes away: os.CreateTemp would always keep what takes its
// name from everybody else.
func (osSystem) createTemp(dir, pattern string, mode fs.FileMode) (tempFile, error) {
	before, after, _ := strings.Cut(pattern, "*")
	for {
		f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("%s%d%s", before, rand.Uint64(), after)), os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return f, nil
	}
}

// syncDir makes a new name durable.
func (osSystem) syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return SyncFolder(d)
}

// Free returns the bytes that an unprivileged process may still write below dir; false where that cannot be told.
func Free(dir string) (uint64, bool) { return osSystem{}.free(dir) }
