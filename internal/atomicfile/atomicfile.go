// Package atomicfile writes a file so that its name never shows half a file, whatever fails.
//
// The bytes go to a temporary file beside the target; Commit syncs it, gives it the target's name and syncs the
// directory. Until then, and after any failure, the target is as it was. A failed sync is final: the kernel may have
// dropped the pages, so it is never tried again and the temporary file is removed.
//
//	f, err := atomicfile.Create(path, force)
//	if err != nil { return err }
//	defer f.Close() // removes the temporary file unless committed
//	... f.Write(...) ...
//	return f.Commit()
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"apr/internal/fault"
)

// TempMark stands in the name of every temporary file: ".NAME.apr-tmp-RANDOM". A stray one was left by a killed
// process and may be deleted.
const TempMark = ".apr-tmp-"

// File is a file being written. It is not safe for concurrent use.
type File struct {
	path    string
	force   bool
	sys     system
	tmp     tempFile
	written int64
	needed  int64 // announced size, 0 when unknown
	err     error // first failure; everything after it fails with it
	done    bool
}

// tempFile is the part of os.File that is used.
type tempFile interface {
	Write(p []byte) (int, error)
	Sync() error
	Close() error
	Name() string
}

// system is the file system, replaced in tests by one that fails.
type system interface {
	lstat(path string) (fs.FileInfo, error)
	createTemp(dir, pattern string, mode fs.FileMode) (tempFile, error)
	rename(from, to string) error
	link(from, to string) error
	remove(path string) error
	syncDir(dir string) error
	free(dir string) (uint64, bool)
}

// The modes of new files, of which the user's mask takes away.
const (
	shared  fs.FileMode = 0o666
	private fs.FileMode = 0o600
)

// Create starts a file that will have the name path, with the permissions that the user's mask leaves. Without force an
// existing path is refused with a fault of kind Invalid, now and again at Commit; with force only a regular file (or a
// link, which is replaced, not followed) may be there. A missing directory is a fault of kind NotFound.
func Create(path string, force bool) (*File, error) { return create(osSystem{}, path, force, shared) }

// CreatePrivate is Create of a file that only its user may read.
func CreatePrivate(path string, force bool) (*File, error) {
	return create(osSystem{}, path, force, private)
}

func create(sys system, path string, force bool, mode fs.FileMode) (*File, error) {
	info, err := sys.lstat(path)
	switch {
	case err == nil && info.IsDir():
		return nil, fault.In(fault.Invalid, path, "is a directory").WithID("E-FILE-012")
	case err == nil && !force:
		return nil, exists(path)
	case err == nil && !info.Mode().IsRegular() && info.Mode()&fs.ModeSymlink == 0:
		return nil, fault.In(fault.Invalid, path, "exists and is not a regular file").WithID("E-FILE-012")
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fault.In(fault.IO, path, "cannot be created").Because(cause(err)).WithID("E-FILE-013")
	}
	dir := filepath.Dir(path)
	tmp, err := sys.createTemp(dir, "."+filepath.Base(path)+TempMark+"*", mode)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.In(fault.NotFound, path, "directory %q not found", dir).WithID("E-FILE-001")
	}
	if err != nil {
		return nil, fault.In(fault.IO, path, "cannot be created").Because(cause(err)).WithID("E-FILE-013")
	}
	return &File{path: path, force: force, sys: sys, tmp: tmp}, nil
}

func exists(path string) error {
	return fault.In(fault.Invalid, path, "already exists").WithHint("give --force to replace it").WithID("E-FILE-011")
}

// Expect announces the final size, so that a full disk is refused before anything is written; size also makes later
// errors say how many bytes were needed.
func (f *File) Expect(size int64) error {
	if f.err != nil {
		return f.err
	}
	f.needed = size
	if free, ok := f.sys.free(filepath.Dir(f.path)); ok && uint64(max(size, 0)) > free {
		return f.fail(fault.In(fault.IO, f.path, "no space left: %d bytes needed, %d free", size, free).WithID("E-FILE-015"))
	}
	return nil
}

// Write appends p. After a failure the temporary file is gone and every call returns that failure.
func (f *File) Write(p []byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	if f.done {
		return 0, fs.ErrClosed
	}
	n, err := f.tmp.Write(p)
	f.written += int64(n)
	if err == nil && n < len(p) {
		err = errors.New("short write")
	}
	if err != nil {
		return n, f.fail(f.ioFault("cannot be written", err))
	}
	return n, nil
}

// Written returns the bytes written so far.
func (f *File) Written() int64 { return f.written }

// Commit makes the file appear under its name, durably: sync, rename, sync of the directory. Only when Commit has
// returned nil may the file be announced.
func (f *File) Commit() error {
	if f.err != nil {
		return f.err
	}
	if f.done {
		return fs.ErrClosed
	}
	if err := f.tmp.Sync(); err != nil {
		return f.fail(f.ioFault("cannot be synced", err))
	}
	if err := f.tmp.Close(); err != nil {
		f.tmp = closedTemp{f.tmp}
		return f.fail(f.ioFault("cannot be closed", err))
	}
	f.tmp = closedTemp{f.tmp}
	if err := f.appear(); err != nil {
		return f.fail(err)
	}
	f.done = true
	if err := f.sys.syncDir(filepath.Dir(f.path)); err != nil {
		// The name is there but may not survive a power cut; the caller must not announce it.
		f.err = f.ioFault("directory cannot be synced", err)
		return f.err
	}
	return nil
}

// appear gives the temporary file its name. Without force it must not replace a file made meanwhile: link fails then,
// rename would not. File systems without hard links get a look before the rename.
func (f *File) appear() error {
	if f.force {
		if err := f.sys.rename(f.tmp.Name(), f.path); err != nil {
			return f.ioFault("cannot be renamed", err)
		}
		return nil
	}
	err := f.sys.link(f.tmp.Name(), f.path)
	switch {
	case err == nil:
		// A leftover second name is harmless, and swept like any stray temporary file.
		_ = f.sys.remove(f.tmp.Name())
		return nil
	case errors.Is(err, fs.ErrExist):
		return exists(f.path)
	case !errors.Is(err, syscall.EPERM) && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, syscall.EMLINK):
		return f.ioFault("cannot be linked", err)
	}
	if _, err := f.sys.lstat(f.path); err == nil {
		return exists(f.path)
	}
	if err := f.sys.rename(f.tmp.Name(), f.path); err != nil {
		return f.ioFault("cannot be renamed", err)
	}
	return nil
}

// Abort removes the temporary file; the target stays as it was. After Commit or a failure it does nothing.
func (f *File) Abort() {
	if !f.done && f.err == nil {
		_ = f.fail(fs.ErrClosed)
	}
}

// Close is Abort; defer it.
func (f *File) Close() error { f.Abort(); return nil }

// fail keeps the first failure and removes the temporary file.
func (f *File) fail(err error) error {
	f.err = err
	f.done = true
	_ = f.tmp.Close() // the failure is already known
	_ = f.sys.remove(f.tmp.Name())
	return err
}

// ioFault says what failed; for a full disk, how many bytes are needed.
func (f *File) ioFault(what string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		need := fmt.Sprintf("%d bytes needed", f.needed)
		if f.needed < f.written {
			need = fmt.Sprintf("more than %d bytes needed", f.written)
		}
		return fault.In(fault.IO, f.path, "no space left: %s", need).Because(cause(err)).WithID("E-FILE-015")
	}
	return fault.In(fault.IO, f.path, "%s", what).Because(cause(err)).WithID("E-FILE-014")
}

// cause drops the path of the temporary file from an error.
func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	var le *os.LinkError
	if errors.As(err, &le) {
		return le.Err
	}
	return err
}

// WriteFile writes data to path in one go, with the permissions that the user's mask leaves.
func WriteFile(path string, data []byte, force bool) error {
	return writeFile(path, data, force, shared)
}

// WritePrivate is WriteFile with mode 0600.
func WritePrivate(path string, data []byte, force bool) error {
	return writeFile(path, data, force, private)
}

func writeFile(path string, data []byte, force bool, mode fs.FileMode) error {
	f, err := create(osSystem{}, path, force, mode)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Expect(int64(len(data))); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Commit()
}

// IsTemp reports whether a file name is that of a temporary file of this package.
func IsTemp(name string) bool {
	return strings.HasPrefix(name, ".") && strings.Contains(name, TempMark)
}

// closedTemp is a temporary file that was closed; closing it again is nothing.
type closedTemp struct{ tempFile }

func (closedTemp) Close() error { return nil }
