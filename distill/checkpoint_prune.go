package distill

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"apr/internal/disk"
	"apr/internal/fault"
)

// remove removes a checkpoint: first its name, so that half of one is never taken for one.
func (c checkpoints) remove(dir string) error {
	gone := strings.TrimSuffix(dir, oldSuffix) + ".gone" + tempSuffix
	err := c.disk.Rename(dir, gone)
	if err == nil {
		err = disk.RemoveAll(c.disk, gone)
	}
	if err != nil {
		return fault.In(fault.IO, dir, "old checkpoint cannot be removed").Because(cause(err)).WithID("E-CKPT-006")
	}
	return nil
}

// sweep removes what an interrupted writer left behind, and puts a checkpoint back that had stepped aside for one that
// did not come.
func (c checkpoints) sweep() error {
	entries, err := c.disk.ReadDir(c.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault.In(fault.IO, c.dir, "cannot be read").Because(cause(err)).WithID("E-CKPT-007")
	}
	for _, e := range entries {
		path := filepath.Join(c.dir, e.Name)
		switch {
		case strings.HasSuffix(e.Name, tempSuffix):
			err = disk.RemoveAll(c.disk, path)
		case strings.HasSuffix(e.Name, oldSuffix):
			plain := strings.TrimSuffix(e.Name, oldSuffix)
			if slices.ContainsFunc(entries, func(e disk.Entry) bool { return e.Name == plain }) {
				err = c.remove(path)
			} else if err = c.disk.Rename(path, filepath.Join(c.dir, plain)); err == nil {
				err = c.disk.SyncDir(c.dir)
			}
		}
		if err != nil {
			return fault.In(fault.IO, path, "what an interrupted writer left cannot be cleared away").Because(cause(err)).
				WithID("E-CKPT-008")
		}
	}
	return nil
}

// prune keeps the newest checkpoints up to that of the given step, just written. Later ones belong to a continuation
// that was given up for one from an earlier checkpoint: kept, they would be resumed instead of it.
func (c checkpoints) prune(step int) error {
	all, err := c.list()
	if err != nil {
		return err
	}
	newest := slices.Index(all, c.name(step)) + 1
	for _, name := range slices.Concat(all[:max(0, newest-c.keep)], all[newest:]) {
		if err := c.remove(name); err != nil {
			return err
		}
	}
	if newest < len(all) { // one that was given up must not come back
		if err := c.disk.SyncDir(c.dir); err != nil {
			return c.failed(c.dir, "cannot be synced", nil, err)
		}
	}
	return nil
}
