package hub

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"apr/internal/atomicfile"
	"apr/internal/fault"
)

// Copy writes the files of a snapshot into a folder as plain files and sets its Path and Dir there. A file that is there
// with the same content stays; another is a fault of kind Invalid unless force replaces it. All are compared before any
// is written. Links that lead out of the folder are faults of kind UnsafePath.
func (c *Client) Copy(ctx context.Context, s *Snapshot, dir string, force bool) error {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return ioFault(dir, "cannot be created", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return ioFault(dir, "cannot be opened", err)
	}
	out := folder{root: root, path: dir}
	defer out.close()
	in, err := openRepository(c.cfg.Cache, s.Ref, false)
	if err != nil {
		return err
	}
	defer in.close()
	var missing []File
	var need int64
	for _, f := range s.Files {
		if err := CheckName(f.Name); err != nil {
			return err
		}
		same, err := out.holds(ctx, f, force)
		if err != nil {
			return err
		}
		if !same {
			missing = append(missing, f)
			need += f.Size
		}
	}
	if free, ok := atomicfile.Free(dir); ok && uint64(need) > free {
		return fault.In(fault.IO, dir, "no space left: %d bytes needed, %d free", need, free).WithID("E-HUB-027")
	}
	for _, f := range missing {
		if err := copyFile(ctx, out, in.folder, path.Join("snapshots", s.Commit, f.Name), f.Name); err != nil {
			return err
		}
	}
	s.Dir, s.Path = dir, filepath.Join(dir, filepath.FromSlash(s.Ref.File))
	return nil
}

// holds reports whether a folder has a file with the same content.
func (d folder) holds(ctx context.Context, f File, force bool) (bool, error) {
	info, err := d.root.Lstat(f.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, d.fault(f.Name, "cannot be looked at", err)
	case info.IsDir():
		return false, fault.In(fault.Invalid, filepath.Join(d.path, f.Name), "is a directory").WithID("E-FILE-012")
	}
	if info.Mode().IsRegular() && info.Size() == f.Size && f.SHA256 != "" {
		sum, _, err := d.sums(ctx, f.Name, f)
		if err != nil || sum == f.SHA256 {
			return err == nil, err
		}
	}
	if !force {
		return false, fault.In(fault.Invalid, filepath.Join(d.path, f.Name), "already exists with another content").WithHint("give --force to replace it").WithID("E-FILE-011")
	}
	return false, nil
}

// copyFile copies a file of one folder into another.
func copyFile(ctx context.Context, out, in folder, from, to string) error {
	src, err := in.root.Open(from)
	if err != nil {
		return in.fault(from, "cannot be read", err)
	}
	defer src.Close()
	if err := out.root.MkdirAll(path.Dir(to), dirMode); err != nil {
		return out.fault(to, "cannot be created", err)
	}
	if err := out.fill(to, func(w io.Writer) error {
		_, err := io.Copy(w, stopping{ctx, src})
		return err
	}); err != nil {
		return err
	}
	return out.syncDir(path.Dir(to))
}
