// Package crashdisk is a disk in memory for tests: it tells every state that a power cut may leave behind, and lets any
// operation fail.
//
// The model is the weakest that file systems promise. Bytes written are durable when their file has been synced, names
// when their directory has; until then any part of them may be there or not, in any order:
//
//   - of the writes to a file since its last sync: none, any prefix, a prefix and half of the next one, the last without
//     those before (a hole of zeros), or zeros of the whole length;
//   - of the operations in a directory since its last sync: any subset, a rename being one operation.
//
// A failed sync makes nothing durable, and neither does a later one of the same bytes or names: the kernel believes them
// written.
//
// Caveats. Subsets grow as 2ⁿ: a directory may have 16 operations between two syncs. A disk is for one goroutine.
package crashdisk

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"

	"apr/internal/disk"
)

// Disk is a simulated disk.
type Disk struct {
	// After is called after every operation that succeeded, with its name and path; nil: nobody.
	After func(op string)
	// Fault is asked before every operation and returns the error it shall fail with; nil: none. A write that fails has
	// written half of its bytes. ErrShort makes a write return half its length and no error.
	Fault func(n int, op string) error
	// Space is how many bytes Free tells; 0: unknown.
	Space uint64

	root *node
	ops  int
}

// ErrShort as the answer of Disk.Fault is a short write; other operations do not fail by it.
var ErrShort = fmt.Errorf("short write")

// node is a file or a directory.
type node struct {
	dir bool

	data   []byte // a file as it is read now
	saved  []byte // what a power cut leaves of it
	writes []write

	names   map[string]*node // a directory as it is read now
	durable map[string]*node // what a power cut leaves of it
	changes []change
}

// write is an append since the last sync.
type write struct {
	data []byte
	lost bool // its sync has failed
}

// change is one operation on the names of a directory since the last sync: what they are afterwards, nil for none.
type change struct {
	names map[string]*node
	lost  bool
}

func newDir() *node { return &node{dir: true, names: map[string]*node{}, durable: map[string]*node{}} }

// New returns an empty disk.
func New() *Disk { return &Disk{root: newDir()} }

// Operations returns how many operations there were, failed ones included.
func (d *Disk) Operations() int { return d.ops }

// begin asks whether an operation shall fail.
func (d *Disk) begin(op, p string) error {
	n := d.ops
	d.ops++
	if d.Fault == nil {
		return nil
	}
	if err := d.Fault(n, op); err != nil {
		if err == ErrShort && op != "write" {
			return nil
		}
		return &fs.PathError{Op: op, Path: p, Err: err}
	}
	return nil
}

func (d *Disk) done(op, p string) {
	if d.After != nil {
		d.After(op + " " + p)
	}
}

// find returns the node of a path.
func (d *Disk) find(p string) (*node, error) {
	n := d.root
	for _, name := range strings.Split(strings.Trim(path.Clean("/"+p), "/"), "/") {
		if name == "" {
			continue
		}
		if !n.dir {
			return nil, &fs.PathError{Op: "open", Path: p, Err: syscall.ENOTDIR}
		}
		if n = n.names[name]; n == nil {
			return nil, &fs.PathError{Op: "open", Path: p, Err: fs.ErrNotExist}
		}
	}
	return n, nil
}

// parent returns the directory that holds a path, and the last name.
func (d *Disk) parent(p string) (*node, string, error) {
	n, err := d.find(path.Dir(path.Clean("/" + p)))
	if err == nil && !n.dir {
		err = &fs.PathError{Op: "open", Path: p, Err: syscall.ENOTDIR}
	}
	return n, path.Base(p), err
}

// change applies an operation to the names of a directory.
func (n *node) change(names map[string]*node) {
	n.changes = append(n.changes, change{names: names})
	apply(n.names, names)
}

func apply(to, names map[string]*node) {
	for name, node := range names {
		if node == nil {
			delete(to, name)
		} else {
			to[name] = node
		}
	}
}

// add makes a new name.
func (d *Disk) add(op, p string, n *node) error {
	if err := d.begin(op, p); err != nil {
		return err
	}
	dir, name, err := d.parent(p)
	if err != nil {
		return err
	}
	if dir.names[name] != nil {
		return &fs.PathError{Op: op, Path: p, Err: fs.ErrExist}
	}
	dir.change(map[string]*node{name: n})
	d.done(op, p)
	return nil
}

// Mkdir makes a directory.
func (d *Disk) Mkdir(p string) error { return d.add("mkdir", p, newDir()) }

// Create makes a file.
func (d *Disk) Create(p string) (disk.File, error) {
	n := &node{}
	if err := d.add("create", p, n); err != nil {
		return nil, err
	}
	return &file{d: d, n: n, path: p}, nil
}

// Open opens a file for reading.
func (d *Disk) Open(p string) (io.ReadCloser, error) {
	if err := d.begin("open", p); err != nil {
		return nil, err
	}
	n, err := d.find(p)
	if err != nil {
		return nil, err
	}
	if n.dir {
		return nil, &fs.PathError{Op: "open", Path: p, Err: syscall.EISDIR}
	}
	return io.NopCloser(strings.NewReader(string(n.data))), nil
}

// Rename moves a name within its directory.
func (d *Disk) Rename(from, to string) error {
	if err := d.begin("rename", from); err != nil {
		return err
	}
	dir, old, err := d.parent(from)
	if err != nil {
		return err
	}
	n := dir.names[old]
	name := path.Base(to)
	switch {
	case path.Dir(path.Clean("/"+from)) != path.Dir(path.Clean("/"+to)):
		return &fs.PathError{Op: "rename", Path: to, Err: syscall.EXDEV}
	case n == nil:
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	case dir.names[name] != nil:
		return &fs.PathError{Op: "rename", Path: to, Err: fs.ErrExist}
	}
	dir.change(map[string]*node{old: nil, name: n})
	d.done("rename", to)
	return nil
}

// Remove removes a file or an empty directory.
func (d *Disk) Remove(p string) error {
	if err := d.begin("remove", p); err != nil {
		return err
	}
	dir, name, err := d.parent(p)
	if err != nil {
		return err
	}
	n := dir.names[name]
	if n == nil {
		return &fs.PathError{Op: "remove", Path: p, Err: fs.ErrNotExist}
	}
	if n.dir && len(n.names) > 0 {
		return &fs.PathError{Op: "remove", Path: p, Err: syscall.ENOTEMPTY}
	}
	dir.change(map[string]*node{name: nil})
	d.done("remove", p)
	return nil
}

// ReadDir returns the names in a directory.
func (d *Disk) ReadDir(p string) ([]disk.Entry, error) {
	if err := d.begin("readdir", p); err != nil {
		return nil, err
	}
	n, err := d.find(p)
	if err != nil {
		return nil, err
	}
	if !n.dir {
		return nil, &fs.PathError{Op: "readdir", Path: p, Err: syscall.ENOTDIR}
	}
	var entries []disk.Entry
	for _, name := range slices.Sorted(maps.Keys(n.names)) {
		entries = append(entries, disk.Entry{Name: name, Dir: n.names[name].dir})
	}
	return entries, nil
}

// SyncDir makes the names in a directory durable.
func (d *Disk) SyncDir(p string) error {
	n, err := d.find(p)
	if err != nil {
		return err
	}
	if err := d.begin("syncdir", p); err != nil {
		for i := range n.changes {
			n.changes[i].lost = true
		}
		return err
	}
	var lost []change
	for _, c := range n.changes {
		if c.lost {
			lost = append(lost, c)
		} else {
			apply(n.durable, c.names)
		}
	}
	n.changes = lost
	d.done("syncdir", p)
	return nil
}

// Free tells Space.
func (d *Disk) Free(string) (uint64, bool) { return d.Space, d.Space > 0 }

// file is a file being written.
type file struct {
	d      *Disk
	n      *node
	path   string
	closed bool
}

func (f *file) Write(p []byte) (int, error) {
	if f.closed {
		return 0, &fs.PathError{Op: "write", Path: f.path, Err: fs.ErrClosed}
	}
	take := len(p)
	fault := f.d.begin("write", f.path)
	if fault != nil {
		take /= 2
	}
	f.n.data = append(f.n.data, p[:take]...)
	f.n.writes = append(f.n.writes, write{data: slices.Clone(p[:take])})
	if fault != nil && strings.HasSuffix(fault.Error(), ErrShort.Error()) {
		return take, nil
	}
	if fault == nil {
		f.d.done("write", f.path)
	}
	return take, fault
}

func (f *file) Sync() error {
	if err := f.d.begin("sync", f.path); err != nil {
		for i := range f.n.writes {
			f.n.writes[i].lost = true
		}
		return err
	}
	if !slices.ContainsFunc(f.n.writes, func(w write) bool { return w.lost }) {
		f.n.saved, f.n.writes = slices.Clone(f.n.data), nil
	}
	f.d.done("sync", f.path)
	return nil
}

func (f *file) Close() error {
	f.closed = true
	if err := f.d.begin("close", f.path); err != nil {
		return err
	}
	f.d.done("close", f.path)
	return nil
}

var _ disk.Disk = (*Disk)(nil)
