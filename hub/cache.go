package hub

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"

	"apr/internal/atomicfile"
	"apr/internal/fault"
)

// folder is a folder that nothing is read or written outside of, whatever links say.
type folder struct {
	root *os.Root
	path string
}

// repository is a repository's folder in the cache.
type repository struct {
	folder
	lock string // folder of its locks
}

// Modes of what is made: what a token gave access to is for its owner.
const (
	dirMode  = 0o700
	fileMode = 0o600
)

// openRepository opens a repository's folder; make creates it. Without it a missing folder is a fault of kind NotFound.
func openRepository(cache string, ref Ref, make bool) (*repository, error) {
	r := &repository{lock: filepath.Join(cache, ".locks", ref.folder())}
	r.path = filepath.Join(cache, ref.folder())
	if make {
		for _, dir := range []string{r.path, r.lock} {
			if err := os.MkdirAll(dir, dirMode); err != nil {
				return nil, ioFault(dir, "cannot be created", err)
			}
		}
	}
	var err error
	if r.root, err = os.OpenRoot(r.path); err != nil {
		return nil, ioFault(r.path, "cannot be opened", err)
	}
	return r, nil
}

func (d folder) close() { d.root.Close() } // nothing is lost with a descriptor of a folder

// ioFault turns an error of the file system into a fault: UnsafePath for a link that leads out, NotFound, or IO.
func ioFault(name, what string, err error) error {
	var pe *fs.PathError
	var le *os.LinkError
	switch {
	case errors.As(err, &pe):
		err = pe.Err
	case errors.As(err, &le):
		err = le.Err
	}
	switch {
	case strings.Contains(err.Error(), "path escapes"): // package os exports no value for it
		return fault.In(fault.UnsafePath, name, "a link leads out of the folder").WithID("E-HUB-025")
	case errors.Is(err, fs.ErrNotExist):
		return fault.In(fault.NotFound, name, "not found").WithID("E-HUB-026")
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return fault.In(fault.IO, name, "no space left").Because(err).WithID("E-HUB-027")
	}
	return fault.In(fault.IO, name, "%s", what).Because(err).WithID("E-HUB-028")
}

// fault is ioFault about a path in the folder.
func (d folder) fault(name, what string, err error) error {
	return ioFault(filepath.Join(d.path, filepath.FromSlash(name)), what, err)
}

// blobName and partName are the names of a content, whole and begun.
func blobName(etag string) string { return "blobs/" + etag }
func partName(etag string) string { return "blobs/" + etag + ".incomplete" }

// has reports whether the content of a file is there, with its size.
func (r *repository) has(f File) (bool, error) {
	info, err := r.root.Lstat(blobName(f.etag))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, r.fault(blobName(f.etag), "cannot be looked at", err)
	}
	return info.Mode().IsRegular() && info.Size() == f.Size, nil
}

// begun returns the bytes of a content that were downloaded before.
func (r *repository) begun(f File) int64 {
	info, err := r.root.Lstat(partName(f.etag))
	if err != nil || !info.Mode().IsRegular() || info.Size() > f.Size {
		return 0
	}
	return info.Size()
}

// commitOf returns the commit of a revision as the cache knows it; an unknown one is a fault of kind NotFound.
func (r *repository) commitOf(revision string) (string, error) {
	if commitForm.MatchString(revision) {
		return revision, nil
	}
	name := path.Join("refs", revision)
	file, err := r.root.Open(name)
	if err != nil {
		return "", r.fault(name, "cannot be read", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, 128))
	if err != nil {
		return "", r.fault(name, "cannot be read", err)
	}
	commit := strings.TrimSpace(string(data))
	return commit, checkCommit(commit, filepath.Join(r.path, filepath.FromSlash(name)))
}

// snapshot lists the files of a commit that are there, with etag and size: links to blobs, or plain files as systems
// without links have them. A link that leads out of the repository's folder is a fault of kind UnsafePath; one that
// leads nowhere is no file.
func (r *repository) snapshot(commit string) ([]File, error) {
	dir := path.Join("snapshots", commit)
	if _, err := r.root.Stat(dir); err != nil {
		return nil, r.fault(dir, "cannot be read", err)
	}
	var files []File
	err := fs.WalkDir(r.root.FS(), dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return r.fault(name, "cannot be read", err)
		}
		if d.IsDir() || atomicfile.IsTemp(d.Name()) {
			return nil
		}
		info, err := r.root.Stat(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return r.fault(name, "cannot be looked at", err)
		}
		if !info.Mode().IsRegular() {
			return nil
		}
		f := File{Name: strings.TrimPrefix(name, dir+"/"), Size: info.Size(), Cached: true}
		if d.Type()&fs.ModeSymlink != 0 {
			if target, err := r.root.Readlink(name); err == nil && checkETag(path.Base(filepath.ToSlash(target))) == nil {
				f.etag = path.Base(filepath.ToSlash(target))
			}
		}
		files = append(files, f)
		return nil
	})
	return files, err
}

// absent reports whether a commit is known not to have a file.
func (r *repository) absent(commit, name string) bool {
	_, err := r.root.Lstat(path.Join(".no_exist", commit, name))
	return err == nil
}

// link makes the file of a commit appear: a relative link to its content. Whatever has its name is replaced.
func (r *repository) link(commit string, f File) error {
	name := path.Join("snapshots", commit, f.Name)
	target := strings.Repeat("../", strings.Count(name, "/")) + blobName(f.etag)
	if old, err := r.root.Readlink(name); err == nil && old == target {
		return nil
	}
	if err := r.root.MkdirAll(path.Dir(name), dirMode); err != nil {
		return r.fault(name, "cannot be created", err)
	}
	temp := path.Join(path.Dir(name), tempName())
	if err := r.root.Symlink(target, temp); err != nil && !r.linkHard(blobName(f.etag), temp) {
		return r.fault(name, "no link can be made", err)
	}
	if err := r.root.Rename(temp, name); err != nil {
		_ = r.root.Remove(temp) // the failure is already known
		return r.fault(name, "cannot be renamed", err)
	}
	return nil
}

// write makes a small file appear whole.
func (d folder) write(name, text string) error {
	if old, err := d.root.ReadFile(name); err == nil && string(old) == text {
		return nil
	}
	if err := d.root.MkdirAll(path.Dir(name), dirMode); err != nil {
		return d.fault(name, "cannot be created", err)
	}
	return d.fill(name, func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	})
}

// fill writes a file under a temporary name, syncs it, and gives it its name.
func (d folder) fill(name string, content func(w io.Writer) error) error {
	temp := path.Join(path.Dir(name), tempName())
	file, err := d.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return d.fault(name, "cannot be created", err)
	}
	err = content(file)
	if err == nil {
		err = file.Sync()
	}
	err = errors.Join(err, file.Close())
	if err == nil {
		err = d.root.Rename(temp, name)
	}
	if err != nil {
		_ = d.root.Remove(temp) // the failure is already known
		if fault.KindOf(err) != fault.Other || errors.Is(err, context.Canceled) {
			return err
		}
		return d.fault(name, "cannot be written", err)
	}
	return nil
}

// syncDir makes new names of a folder durable; file systems that cannot say EINVAL.
func (d folder) syncDir(name string) error {
	dir, err := d.root.Open(name)
	if err != nil {
		return d.fault(name, "cannot be opened", err)
	}
	defer dir.Close()
	if err := atomicfile.SyncFolder(dir); err != nil {
		return d.fault(name, "cannot be synced", err)
	}
	return nil
}

// hold takes the lock of a content, which other programs take as well, and returns what gives it back. waiting is
// called if somebody else keeps it.
func (r *repository) hold(ctx context.Context, etag string, waiting func()) (release func(), err error) {
	name := filepath.Join(r.lock, etag+".lock")
	for {
		l := flock.New(name, flock.SetFlag(os.O_CREATE|os.O_RDWR|noFollow), flock.SetPermissions(fileMode))
		ok, err := l.TryLock()
		if err == nil && !ok {
			soon := time.AfterFunc(2*time.Second, waiting)
			_, err = l.TryLockContext(ctx, 100*time.Millisecond)
			soon.Stop()
		}
		if err != nil {
			_ = l.Close() // the failure is already known
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return nil, ioFault(name, "cannot be locked", err)
		}
		// Others delete a lock when they give it back. What is locked must still have the name.
		mine, err := l.Stat()
		named, err2 := os.Lstat(name)
		if err == nil && err2 == nil && os.SameFile(mine, named) {
			return func() { _ = l.Close() }, nil // closing gives it back, whatever it says
		}
		_ = l.Close()
	}
}

// tempName is a name that nobody else has; a stray one was left by a killed process.
func tempName() string { return ".hub" + atomicfile.TempMark + rand.Text() }
