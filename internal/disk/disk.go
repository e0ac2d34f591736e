// Package disk is the little that a durable writer needs of a file system, as an interface: the operating system's
// disk serves programs, a simulated one (internal/crashdisk) serves the proofs that a power cut at any moment loses
// nothing.
//
// Caveats. Nothing is durable before it is synced: bytes by File.Sync, names by SyncDir of their directory. A failed
// sync is final: the kernel may have dropped the pages, so what was written is to be thrown away, never synced again.
package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"apr/internal/atomicfile"
)

// Disk is a file system. Errors are those of package os.
type Disk interface {
	// Mkdir makes a directory in one that exists.
	Mkdir(path string) error
	// Create makes a file, which must not exist.
	Create(path string) (File, error)
	// Open opens a regular file for reading.
	Open(path string) (io.ReadCloser, error)
	// Rename gives a file or directory another name; nothing may have that name.
	Rename(from, to string) error
	// Remove removes a file or an empty directory.
	Remove(path string) error
	// ReadDir returns the entries of a directory, by name.
	ReadDir(path string) ([]Entry, error)
	// SyncDir makes the names in a directory durable.
	SyncDir(path string) error
	// Free returns the bytes that may still be written below a directory; false where that cannot be told.
	Free(path string) (uint64, bool)
}

// File is a file being written.
type File interface {
	io.Writer
	Sync() error
	Close() error
}

// Entry is a name in a directory.
type Entry struct {
	Name string
	Dir  bool // a directory itself, no link to one
}

// OS is the disk of the operating system.
type OS struct{}

// Mkdir makes a directory of mode 0700.
func (OS) Mkdir(path string) error { return os.Mkdir(path, 0o700) }

// Create makes a file of mode 0600.
func (OS) Create(path string) (File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Open refuses what is not a regular file, links included.
func (OS) Open(path string) (io.ReadCloser, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}
	return os.Open(path)
}

// Rename is os.Rename.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove is os.Remove.
func (OS) Remove(path string) error { return os.Remove(path) }

// ReadDir is os.ReadDir.
func (OS) ReadDir(path string) ([]Entry, error) {
	all, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	entries := make([]Entry, len(all))
	for i, e := range all {
		entries[i] = Entry{e.Name(), e.IsDir()}
	}
	return entries, nil
}

// SyncDir syncs a directory where the system can.
func (OS) SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(atomicfile.SyncFolder(d), d.Close())
}

// Free asks the file system for what an unprivileged process may write.
func (OS) Free(path string) (uint64, bool) { return atomicfile.Free(path) }

// RemoveAll removes a file, or a directory with all that is in it; a link is removed, not followed. What is not there is
// removed already.
func RemoveAll(d Disk, path string) error {
	err := d.Remove(path)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if !notEmpty(err) {
		return err
	}
	entries, err := d.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := RemoveAll(d, filepath.Join(path, e.Name)); err != nil {
			return err
		}
	}
	return d.Remove(path)
}

var _ Disk = OS{}
