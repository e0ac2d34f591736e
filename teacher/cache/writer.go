package cache

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/internal/readfile"
)

// The files of a cache.
const (
	headerFile   = "header.json"
	manifestFile = "manifest.json"
	shardExt     = ".shard"
)

// Writer makes a cache, or goes on with one. Several processes may write to one folder at a time.
type Writer struct {
	dir    string
	header Header
	keys   []Key
	shards []Shard
}

// Create begins the cache of these rows in a folder, or goes on with one that was begun with the same header. keys
// are distinct.
func Create(dir string, h Header, keys []Key) (*Writer, error) {
	h.Rows, h.RowsSHA256 = len(keys), HashKeys(keys)
	if err := h.Check(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.In(fault.IO, dir, "cannot be created").Because(err).WithID("E-CACHE-020")
	}
	path := filepath.Join(dir, headerFile)
	before, err := parseHeader(path)
	if fault.KindOf(err) == fault.NotFound {
		if err := onlyOurs(dir); err != nil {
			return nil, err
		}
		if err = atomicfile.WritePrivate(path, h.JSON(), false); err == nil || fault.KindOf(err) != fault.Invalid {
			return &Writer{dir, h, keys, shardsOf(h, keys)}, err
		}
		before, err = parseHeader(path) // another process was faster
	}
	if err != nil {
		return nil, err
	}
	return &Writer{dir, h, keys, shardsOf(h, keys)}, before.Same(dir, h)
}

// onlyOurs refuses a folder that holds something else.
func onlyOurs(dir string) error {
	all, err := os.ReadDir(dir)
	if err != nil {
		return fault.In(fault.IO, dir, "cannot be read").Because(err).WithID("E-CACHE-020")
	}
	for _, e := range all {
		if !strings.Contains(e.Name(), atomicfile.TempMark) {
			return fault.In(fault.Invalid, dir, "holds %q and is no teacher's cache", e.Name()).WithHint("name a new folder").WithID("E-CACHE-021")
		}
	}
	return nil
}

// Shards returns all shards, in the order of their rows.
func (w *Writer) Shards() []Shard { return w.shards }

// Has reports whether a shard is there.
func (w *Writer) Has(s Shard) bool {
	_, err := os.Lstat(filepath.Join(w.dir, s.Name))
	return err == nil
}

// Write writes a shard of these rows. One that another process has written meanwhile stays as it is.
func (w *Writer) Write(s Shard, rows [][]byte) error {
	err := atomicfile.WritePrivate(filepath.Join(w.dir, s.Name), encodeShard(w.header, w.keys[s.Lo:s.Hi], rows), false)
	if fault.KindOf(err) == fault.Invalid && w.Has(s) {
		return nil
	}
	return err
}

// file is a file of a cache in its manifest.
type file struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
	Rows   int    `json:"rows,omitempty"`
}

// manifest is manifest.json: what a cache that is whole consists of.
type manifest struct {
	Format string `json:"format"`
	Header string `json:"header_sha256"`
	Files  []file `json:"files"` // beside the shards
	Shards []file `json:"shards"`
}

// Seal reads all shards and writes the manifest, if all are there; missing says how many are not. extra are files
// beside the shards.
func (w *Writer) Seal(extra ...string) (missing int, err error) {
	for _, s := range w.shards {
		if !w.Has(s) {
			missing++
		}
	}
	if missing > 0 {
		return missing, nil
	}
	digest := w.header.Digest()
	m := manifest{Format: Format, Header: hex.EncodeToString(digest[:]), Files: []file{}}
	for _, name := range extra {
		f, err := hashed(filepath.Join(w.dir, name))
		if err != nil {
			return 0, err
		}
		m.Files = append(m.Files, f)
	}
	for i, s := range w.shards {
		path := filepath.Join(w.dir, s.Name)
		keys, places, err := readIndex(path, w.header, i)
		if err != nil {
			return 0, err
		}
		if HashKeys(keys) != HashKeys(w.keys[s.Lo:s.Hi]) {
			return 0, fault.In(fault.Format, path, "holds other rows than its name says").WithHint(remake).WithID("E-CACHE-013")
		}
		if err := checkRows(path, w.header, places); err != nil {
			return 0, err
		}
		f, err := hashed(path)
		if err != nil {
			return 0, err
		}
		f.Rows = len(keys)
		m.Shards = append(m.Shards, f)
	}
	text, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return 0, err
	}
	err = atomicfile.WritePrivate(filepath.Join(w.dir, manifestFile), append(text, '\n'), true)
	return 0, errors.Join(err, sweep(w.dir))
}

// checkRows reads and decodes all rows of a shard.
func checkRows(path string, h Header, places []place) error {
	f, _, err := readfile.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var values []float32
	if h.Kind == Hidden {
		values = make([]float32, h.SeqLen*h.Width)
	}
	for _, p := range places {
		b, err := readRow(f, path, p)
		if err != nil {
			return err
		}
		if h.Kind == Hidden {
			err = DecodeHidden(h, values, b)
		} else {
			_, err = DecodeDraws(h, b)
		}
		if err != nil {
			return damagedRow(path, p, err)
		}
	}
	return nil
}

// hashed describes a file.
func hashed(path string) (file, error) {
	f, size, err := readfile.Open(path)
	if err != nil {
		return file{}, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, readfile.Whole(f, path, size)); err != nil {
		return file{}, err
	}
	return file{Name: filepath.Base(path), SHA256: hex.EncodeToString(h.Sum(nil)), Bytes: size}, nil
}

// abandoned is the age from which a temporary file is taken for one of a killed process: another one may still be
// writing a shard that it began before this one made it.
const abandoned = time.Hour

// sweep removes what killed processes have left.
func sweep(dir string) error {
	stray, err := filepath.Glob(filepath.Join(dir, ".*"+atomicfile.TempMark+"*"))
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
