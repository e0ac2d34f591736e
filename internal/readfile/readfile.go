// Package readfile opens files that a stranger may have made: regular files only, so that a FIFO cannot hang the
// program and a device cannot be read without end, and never outside a given root.
package readfile

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"apr/internal/fault"
)

// Open opens a regular file for reading and returns its size. A missing file, a directory, FIFO, device or socket is
// a fault of kind NotFound ("not a file"); other failures are of kind IO. Symbolic links are followed.
func Open(path string) (*os.File, int64, error) {
	info, err := os.Stat(path) // before opening: opening a device can have effects
	if err != nil {
		return nil, 0, Fault(path, err)
	}
	if err := regular(path, info); err != nil {
		return nil, 0, err
	}
	// Should a FIFO have taken its place meanwhile, O_NONBLOCK keeps open from waiting for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, Fault(path, err)
	}
	if info, err = f.Stat(); err != nil {
		f.Close()
		return nil, 0, Fault(path, err)
	}
	if err := regular(path, info); err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

func regular(path string, info fs.FileInfo) error {
	switch m := info.Mode(); {
	case m.IsRegular():
		return nil
	case m.IsDir():
		return fault.In(fault.NotFound, path, "not a file: it is a directory").WithID("E-FILE-002")
	default:
		return fault.In(fault.NotFound, path, "not a file: only regular files are read, no FIFO, device or socket").WithID("E-FILE-003")
	}
}

// Fault turns an error of package os about path into a fault: NotFound or IO.
func Fault(path string, err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return fault.In(fault.NotFound, path, "file not found").WithID("E-FILE-001")
	}
	return fault.In(fault.IO, path, "cannot be read").Because(err).WithID("E-FILE-004")
}

// String returns the content of a regular file of at most max bytes. A longer one is a fault of kind Format, and is
// not read; one that is shortened meanwhile is a fault of kind IO.
func String(path string, max int64) (string, error) {
	f, size, err := Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if size > max {
		return "", fault.In(fault.Format, path, "file of %d bytes is over the limit of %d", size, max).WithID("E-FILE-005")
	}
	var b strings.Builder
	b.Grow(int(size))
	if _, err := io.Copy(&b, io.LimitReader(Whole(f, path, size), max+1)); err != nil {
		if errors.As(err, new(*fault.Error)) {
			return "", err
		}
		return "", Fault(path, err)
	}
	if int64(b.Len()) > max {
		return "", fault.In(fault.Format, path, "file grew over the limit of %d bytes", max).WithID("E-FILE-005")
	}
	return b.String(), nil
}

// Whole returns a reader of r, the file at path that had size bytes when it was opened, from its start. Its end before
// these bytes is no io.EOF but a fault of kind IO: the file was shortened meanwhile, and what was read is not all.
func Whole(r io.Reader, path string, size int64) io.Reader {
	return &whole{r: r, path: path, size: size}
}

type whole struct {
	r        io.Reader
	path     string
	at, size int64
}

func (w *whole) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	w.at += int64(n)
	if err == io.EOF && w.at < w.size {
		err = fault.In(fault.IO, w.path, "file had %d bytes and ends here: it was shortened while it was read", w.size).
			At("offset %d", w.at).WithID("E-FILE-008")
	}
	return n, err
}

// Stamp is what the file system says of an open file, by which a change of its content shows: its size, the time it was
// last written, which whoever writes can set back, and where the system has it the time of its last change of any kind,
// which no call sets. The zero Stamp is of bytes in memory, which nobody else changes.
type Stamp struct {
	file              *os.File
	path              string
	size              int64
	modified, changed time.Time
	names             uint64 // links to the file
}

// NewStamp notes the present size and time of f, the file at path.
func NewStamp(f *os.File, path string) (Stamp, error) {
	info, err := f.Stat()
	if err != nil {
		return Stamp{}, Fault(path, err)
	}
	changed, names := changeOf(info)
	return Stamp{f, path, info.Size(), info.ModTime(), changed, names}, nil
}

// Size returns the size that was noted.
func (s Stamp) Size() int64 { return s.size }

// Check refuses a file that was written since: what was read before and after is of no one content. The fault is of kind
// IO. A file that was replaced by another file of its name is still the one that was opened: it lost a name, which
// changes the time of its last change and none of its bytes.
func (s Stamp) Check() error {
	if s.file == nil {
		return nil
	}
	now, err := NewStamp(s.file, s.path)
	if err != nil {
		return err
	}
	back := now.names >= s.names && !now.changed.Equal(s.changed)
	if now.size != s.size || !now.modified.Equal(s.modified) || back {
		return fault.In(fault.IO, s.path, "file was changed while it was read: it had %d bytes, %s; now %d, %s",
			s.size, s.times(), now.size, now.times()).
			WithHint("try again when nothing writes to it").WithID("E-FILE-009")
	}
	return nil
}

// times says when the file was written and changed.
func (s Stamp) times() string {
	text := "written " + s.modified.UTC().Format(time.RFC3339Nano)
	if !s.changed.IsZero() {
		text += ", changed " + s.changed.UTC().Format(time.RFC3339Nano)
	}
	return text
}

// Head returns the first n bytes of a regular file, or all of a shorter one.
func Head(path string, n int) ([]byte, error) {
	f, size, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head := make([]byte, min(int64(n), size))
	if _, err := f.ReadAt(head, 0); err != nil {
		return nil, Fault(path, err)
	}
	return head, nil
}

// Inside returns the path of the file name in directory dir, after checking that name is a plain file name by POSIX
// and Windows rules and that no symbolic link leads out of Root(dir). The file must exist. Faults are of kind
// UnsafePath, NotFound or IO.
func Inside(dir, name string) (string, error) {
	if err := PlainName(name); err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", Fault(path, err)
	}
	root, err := filepath.EvalSymlinks(dir)
	if err == nil {
		root, err = filepath.EvalSymlinks(Root(root))
	}
	if err != nil {
		return "", Fault(dir, err)
	}
	if rel, err := filepath.Rel(root, real); err != nil || !filepath.IsLocal(rel) {
		return "", fault.In(fault.UnsafePath, path, "link leads out of %q", root).WithID("E-FILE-007")
	}
	return path, nil
}

// PlainName refuses anything but a single file name: separators, ".", "..", drive letters, device names of Windows,
// control characters. Faults are of kind UnsafePath.
func PlainName(name string) error {
	bad := name == "" || name == "." || name == ".." || len(name) > 255 || strings.ContainsAny(name, `/\:`) ||
		strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 }) ||
		windowsDevice(name)
	if bad {
		return fault.New(fault.UnsafePath, "%q is not a plain file name", name).WithID("E-FILE-006")
	}
	return nil
}

// windowsDevice reports whether Windows would take name for a device, as "NUL.txt" or "com1".
func windowsDevice(name string) bool {
	stem, _, _ := strings.Cut(name, ".")
	stem = strings.ToUpper(strings.TrimRight(stem, " "))
	switch stem {
	case "CON", "PRN", "AUX", "NUL":
		return true
	}
	port, ok := strings.CutPrefix(stem, "COM")
	if !ok {
		port, ok = strings.CutPrefix(stem, "LPT")
	}
	return ok && len(port) == 1 && port >= "1" && port <= "9"
}

// Root returns the directory that links inside dir may not leave: dir itself, or for a snapshot of a hub cache
// (…/models--org--name/snapshots/REV) the repository's folder, since its files are links into blobs.
func Root(dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return dir
	}
	snapshots := filepath.Dir(abs)
	repo := filepath.Dir(snapshots)
	if filepath.Base(snapshots) != "snapshots" {
		return dir
	}
	if info, err := os.Lstat(filepath.Join(repo, "blobs")); err != nil || !info.IsDir() {
		return dir
	}
	return repo
}

var sha256Form = regexp.MustCompile(`^[0-9a-f]{64}$`)

// IsSHA256 reports whether text is a SHA-256 in the form that records and hubs have: 64 digits 0-9a-f.
func IsSHA256(text string) bool { return sha256Form.MatchString(text) }

// CheckNamed compares the file that path leads to with its name, if it lies in a hub's cache, where the name is the
// file's SHA-256. A file with another SHA-256 is a fault of kind Invalid. A file that lies elsewhere, or has another
// kind of name, is not read.
func CheckNamed(path string) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return Fault(path, err)
	}
	dir, name := filepath.Split(real)
	repo := filepath.Dir(filepath.Clean(dir))
	if filepath.Base(dir) != "blobs" || !IsSHA256(name) {
		return nil
	}
	if info, err := os.Stat(filepath.Join(repo, "snapshots")); err != nil || !info.IsDir() {
		return nil
	}
	f, _, err := Open(real)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.CopyBuffer(h, struct{ io.Reader }{f}, make([]byte, 1<<20)); err != nil {
		return Fault(real, err)
	}
	if sum := fmt.Sprintf("%x", h.Sum(nil)); sum != name {
		return fault.In(fault.Invalid, path, "is damaged: its content in the hub's cache has the SHA-256 %s, and the name %s",
			sum, name).WithHint("apr pull --verify downloads it again").WithID("E-FILE-010")
	}
	return nil
}
