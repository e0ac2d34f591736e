package cache

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/internal/readfile"
)

// Pin is what a name says behind the cache: #sha256= and the SHA-256 of the sealed manifest. Without it sum is empty.
func Pin(name string) (cache, sum string) {
	const mark = "#sha256="
	i := strings.LastIndex(name, mark)
	if i < 0 {
		return name, ""
	}
	return name[:i], name[i+len(mark):]
}

// CheckPin refuses a cache whose manifest is not the pinned one; sum is empty where nothing is pinned.
func CheckPin(s Store, sum string) error {
	if sum == "" {
		return nil
	}
	if b, err := hex.DecodeString(sum); err != nil || len(b) != sha256.Size || sum != strings.ToLower(sum) {
		return fault.In(fault.Usage, s.Path(""), "#sha256=%s is no SHA-256 of 64 hexadecimal digits", sum).WithID("E-CACHE-040")
	}
	m, err := hashed(s, manifestFile)
	if err != nil {
		return unsealed(s, err)
	}
	return samePin(s, sum, m.SHA256)
}

// samePin refuses a manifest with another hash than the pinned one.
func samePin(s Store, sum, is string) error {
	if is == sum {
		return nil
	}
	return fault.In(fault.Invalid, s.Path(manifestFile), "its SHA-256 is %s, the pinned one is %s", is, sum).
		WithHint("the cache was sealed again with other bytes: find out by whom before you pin the new one").WithID("E-CACHE-041")
}

// unsealed says that a cache without a manifest is not sealed.
func unsealed(s Store, err error) error {
	if fault.KindOf(err) != fault.NotFound {
		return err
	}
	if _, there := s.Size(headerFile); there != nil {
		return there
	}
	return fault.In(fault.Invalid, s.Path(""), "the cache is not sealed").
		WithHint("run the command that made it again: it makes what is missing and seals the cache").WithID("E-CACHE-030")
}

// Mirror brings a sealed cache from a store into a folder below root, whose name is the SHA-256 of the manifest, and
// returns the folder. Files that are there are not brought again; each file is compared with the manifest's hash while
// it comes. sum is the pinned hash, or empty. begin is told how many bytes will come, and what it returns is called with the
// bytes of each file that has come, by several goroutines.
func Mirror(ctx context.Context, from Store, root, sum string, begin func(total int64) (add func(n int64))) (dir string, err error) {
	manifest, err := text(from, manifestFile, maxManifest)
	if err != nil {
		return "", unsealed(from, err)
	}
	hash := sha256.Sum256([]byte(manifest))
	name := hex.EncodeToString(hash[:])
	if sum != "" {
		if err := samePin(from, sum, name); err != nil {
			return "", err
		}
	}
	header, err := text(from, headerFile, maxHeader)
	if err != nil {
		return "", err
	}
	dir = filepath.Join(root, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fault.In(fault.IO, dir, "cannot be created").Because(err).WithID("E-CACHE-020")
	}
	to := Folder(dir)
	if err := replace(to, headerFile, header); err != nil {
		return "", err
	}
	h, err := readHeader(to)
	if err != nil {
		return "", err
	}
	m, err := parseManifest(memory{from, manifest}, h)
	if err != nil {
		return "", err
	}
	if err := m.bring(ctx, from, to, begin); err != nil {
		return "", err
	}
	return dir, replace(to, manifestFile, manifest) // last: what has a manifest is whole
}

// replace writes a small file, unless it has these bytes.
func replace(to Folder, name, content string) error {
	if same, err := sameBytes(to, name, []byte(content)); err == nil && same {
		return nil
	}
	return atomicfile.WritePrivate(to.Path(name), []byte(content), true)
}

// memory is a store of one file that was read.
type memory struct {
	Store
	content string
}

func (m memory) Open(string) (File, int64, error) {
	return struct {
		io.ReaderAt
		io.Closer
	}{bytes.NewReader([]byte(m.content)), io.NopCloser(nil)}, int64(len(m.content)), nil
}

// bring copies the files of a manifest that are not there.
func (m manifest) bring(ctx context.Context, from Store, to Folder, begin func(int64) func(int64)) error {
	var todo []file
	var total int64
	for _, f := range slices.Concat(m.Files, m.Shards) {
		if size, err := to.Size(f.Name); err == nil && size == f.Bytes {
			continue // a file appears whole; what rots afterwards is found when it is read
		}
		todo, total = append(todo, f), total+f.Bytes
	}
	if len(todo) == 0 {
		return nil
	}
	add := begin(total)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(brought)
	for _, f := range todo {
		group.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := f.bring(from, to); err != nil {
				return err
			}
			add(f.Bytes)
			return nil
		})
	}
	return group.Wait()
}

// brought is how many files come at a time.
const brought = 4

// bring copies a file and compares it with its hash on the way.
func (f file) bring(from Store, to Folder) error {
	in, size, err := from.Open(f.Name)
	if err != nil {
		return err
	}
	defer in.Close()
	if size != f.Bytes {
		return fault.In(fault.Format, from.Path(f.Name), "has %d bytes, the manifest says %d", size, f.Bytes).WithHint(remake).WithID("E-CACHE-036")
	}
	out, err := atomicfile.CreatePrivate(to.Path(f.Name), true)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := out.Expect(size); err != nil {
		return err
	}
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(out, sum), readfile.Whole(io.NewSectionReader(in, 0, size), from.Path(f.Name), size)); err != nil {
		return err
	}
	if err := f.differs(from, file{SHA256: hex.EncodeToString(sum.Sum(nil))}); err != nil {
		return err
	}
	return out.Commit()
}
