package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os"

	"apr/internal/fault"
)

// passes is how often a directory is emptied again because something is in it: a program's children, where it was not confined, may
// still write.
const passes = 8

// Remove removes a directory with what programs left in it: also directories that they made unreadable, and those that lie deeper
// than a path may be long. A directory gets its owner's permissions before it is read; links are removed, never followed. What
// cannot be removed is a fault of kind IO.
func Remove(dir string) error {
	err := remove(dir)
	if err == nil {
		err = unmark(dir)
	}
	unlock(dir)
	if err == nil {
		return nil
	}
	return fault.In(fault.IO, dir, "what a generated program left cannot be removed").Because(err).
		WithHint("remove the directory by hand").WithID("E-SANDBOX-004")
}

// andRemove removes a directory at the end of what returns err.
func andRemove(dir string, err *error) {
	if failed := Remove(dir); failed != nil {
		*err = errors.Join(*err, failed)
	}
}

func remove(dir string) error {
	info, err := os.Lstat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.IsDir():
		return os.Remove(dir)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	err = emptyRoot(root)
	if err = errors.Join(err, root.Close()); err != nil {
		return err
	}
	return os.Remove(dir)
}

// emptyRoot removes what is in root. Directories are taken out of those that they lie in, and emptied one after the other: however
// deep they lie, no path has more than two names, and no more than two are open.
func emptyRoot(root *os.Root) error {
	var moved int
	for range passes {
		names, err := namesIn(root, ".")
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return nil
		}
		for len(names) > 0 {
			name := names[len(names)-1]
			names = names[:len(names)-1]
			below, err := clearEntry(root, name, &moved)
			if err != nil {
				return err
			}
			names = append(names, below...)
		}
	}
	names, err := namesIn(root, ".")
	if err == nil && len(names) > 0 {
		err = fmt.Errorf("%q is made again as often as it is removed", names[0])
	}
	return err
}

// clearEntry removes an entry of root. The directories in it are moved into root, and their names returned.
func clearEntry(root *os.Root, name string, moved *int) (below []string, err error) {
	is, err := directory(root, name)
	if err != nil || !is {
		return nil, errors.Join(err, gone(root.Remove(name)))
	}
	inside, err := namesIn(root, name)
	if err != nil {
		return nil, err
	}
	for _, n := range inside {
		path := name + "/" + n
		is, err := directory(root, path)
		if err == nil && !is {
			err = gone(root.Remove(path))
		} else if err == nil {
			to := free(root, moved)
			if err = root.Rename(path, to); err == nil {
				below = append(below, to)
			}
		}
		if err != nil {
			return below, err
		}
	}
	return below, gone(root.Remove(name))
}

// free returns a name that nothing in root has.
func free(root *os.Root, moved *int) string {
	for {
		*moved++
		name := fmt.Sprintf("apr-moved-%d", *moved)
		if _, err := root.Lstat(name); err != nil {
			return name
		}
	}
}

// directory reports whether an entry is a directory, which is then open to its owner.
func directory(root *os.Root, path string) (bool, error) {
	info, err := root.Lstat(path)
	if err != nil || !info.IsDir() {
		return false, gone(err)
	}
	return true, root.Chmod(path, 0o700)
}

// namesIn lists a directory.
func namesIn(root *os.Root, path string) ([]string, error) {
	f, err := root.Open(path)
	if err != nil {
		return nil, err
	}
	names, err := f.Readdirnames(-1)
	if err == io.EOF {
		err = nil
	}
	return names, errors.Join(err, f.Close())
}

// gone is err, unless that says that there is nothing.
func gone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
