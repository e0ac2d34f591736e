package cache

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/internal/readfile"
)

// Store keeps the files of a cache. It may have several writers at a time.
type Store interface {
	// Path names a file for errors; the empty name is the store itself.
	Path(name string) string
	// Size returns the bytes of a file. A missing file is a fault of kind NotFound.
	Size(name string) (int64, error)
	// Open opens a file for reading and returns its size.
	Open(name string) (File, int64, error)
	// Put makes a file appear whole or not at all. A file that is there stays as it is: made is false then.
	Put(name string, body io.ReaderAt, size int64) (made bool, err error)
}

// File is an open file of a store.
type File interface {
	io.ReaderAt
	io.Closer
}

// Folder is a store in a folder of this machine.
type Folder string

// Path implements Store.
func (d Folder) Path(name string) string { return filepath.Join(string(d), name) }

// Size implements Store.
func (d Folder) Size(name string) (int64, error) {
	st, err := os.Lstat(d.Path(name))
	if err != nil {
		return 0, readfile.Fault(d.Path(name), err)
	}
	return st.Size(), nil
}

// Open implements Store.
func (d Folder) Open(name string) (File, int64, error) {
	f, size, err := readfile.Open(d.Path(name))
	if err != nil {
		return nil, 0, err // not a *os.File that is nil
	}
	return f, size, nil
}

// Put implements Store.
func (d Folder) Put(name string, body io.ReaderAt, size int64) (made bool, err error) {
	err = d.write(name, io.NewSectionReader(body, 0, size), size)
	if fault.KindOf(err) == fault.Invalid {
		if _, there := d.Size(name); there == nil {
			return false, nil
		}
	}
	return err == nil, err
}

func (d Folder) write(name string, body io.Reader, size int64) error {
	f, err := atomicfile.CreatePrivate(d.Path(name), false)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Expect(size); err != nil {
		return err
	}
	if _, err := io.CopyBuffer(f, body, make([]byte, max(1, min(size, 1<<20)))); err != nil {
		return err
	}
	return f.Commit()
}

// begin makes the folder, and refuses one that holds something else than a cache.
func (d Folder) begin() error {
	dir := string(d)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fault.In(fault.IO, dir, "cannot be created").Because(err).WithID("E-CACHE-020")
	}
	all, err := os.ReadDir(dir)
	if err != nil {
		return fault.In(fault.IO, dir, "cannot be read").Because(err).WithID("E-CACHE-020")
	}
	for _, e := range all {
		if e.Name() == headerFile {
			return nil
		}
	}
	for _, e := range all {
		if !strings.Contains(e.Name(), atomicfile.TempMark) {
			if _, err := d.Size(headerFile); err == nil {
				return nil // another process has begun meanwhile
			}
			return fault.In(fault.Invalid, dir, "holds %q and is no teacher's cache", e.Name()).WithHint("name a new folder").WithID("E-CACHE-021")
		}
	}
	return nil
}

// shards returns the names of the shards that are there.
func (d Folder) shards() (names []string, err error) {
	all, err := os.ReadDir(string(d))
	if err != nil {
		return nil, readfile.Fault(string(d), err)
	}
	for _, e := range all {
		if e.Type().IsRegular() && isShard(e.Name()) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// abandoned is the age from which a temporary file is taken for one of a killed process: another one may still be
// writing a shard that it began before this one made it.
const abandoned = time.Hour

// sweep removes what killed processes have left.
func (d Folder) sweep() error {
	stray, err := filepath.Glob(d.Path(".*" + atomicfile.TempMark + "*"))
	if err != nil {
		return err
	}
	for _, path := range stray {
		if st, err := os.Lstat(path); err != nil || time.Since(st.ModTime()) < abandoned {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fault.In(fault.IO, path, "cannot be removed").Because(err).WithID("E-CACHE-022")
		}
	}
	return nil
}

// text reads a file of at most limit bytes.
func text(s Store, name string, limit int64) (string, error) {
	f, size, err := s.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if size > limit {
		return "", fault.In(fault.Format, s.Path(name), "has %d bytes, over the limit of %d", size, limit).WithID("E-CACHE-023")
	}
	var b strings.Builder
	_, err = io.Copy(&b, readfile.Whole(io.NewSectionReader(f, 0, size), s.Path(name), size))
	return b.String(), err
}

// asked is how many files of a store are asked for at a time: an answer from far away takes long.
const asked = 16

// sizes returns the bytes of each file, −1 where it is missing.
func sizes(s Store, names []string) ([]int64, error) {
	all := make([]int64, len(names))
	var group errgroup.Group
	group.SetLimit(asked)
	for i, name := range names {
		group.Go(func() (err error) {
			if all[i], err = s.Size(name); fault.KindOf(err) == fault.NotFound {
				all[i], err = -1, nil
			}
			return err
		})
	}
	return all, group.Wait()
}
