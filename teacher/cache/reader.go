package cache

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/internal/strictjson"
)

// Reader finds the rows of a sealed cache by their keys.
type Reader struct {
	Header
	Dir    string
	SHA256 string // of the manifest, which holds the hash of every file
	Bytes  int64  // of all shards

	shards []file
	others []file
	places map[Key]place
	whole  []func() error // of each shard, whether it has the manifest's hash; nil: the cache is not pinned
}

// Is reports whether a folder is, or becomes, a teacher's cache.
func Is(dir string) bool {
	_, err := readHeader(Folder(dir))
	return err == nil || fault.KindOf(err) == fault.Invalid
}

// State describes a cache that may not be sealed.
type State struct {
	Header  Header
	Sealed  bool
	SHA256  string   // of the manifest; empty: not sealed
	Shards  int      // that are there, of Header.Shards()
	Bytes   int64    // of them
	Missing []string // shards that are not there
}

// Look is LookIn a folder.
func Look(dir string) (State, error) { return LookIn(Folder(dir)) }

// LookIn describes a cache from its header and the sizes of its files.
func LookIn(store Store) (s State, err error) {
	if s.Header, err = readHeader(store); err != nil {
		return s, err
	}
	names, err := listed(store, s.Header)
	if d, ok := store.(Folder); ok && fault.KindOf(err) == fault.NotFound { // only sealing needs the list
		names, err = d.shards()
	}
	if err != nil {
		return s, err
	}
	all, err := sizes(store, names)
	if err != nil {
		return s, err
	}
	for i, size := range all {
		if size < 0 {
			s.Missing = append(s.Missing, names[i])
			continue
		}
		s.Shards, s.Bytes = s.Shards+1, s.Bytes+size
	}
	m, err := hashed(store, manifestFile)
	if fault.KindOf(err) == fault.NotFound {
		return s, nil
	}
	s.Sealed, s.SHA256 = err == nil, m.SHA256
	return s, err
}

// Open opens a sealed cache. It reads the indexes of all shards, not their rows: these are compared with their
// checksums when they are read, and of a pinned cache (see Pin) with the hashes of the manifest.
func Open(dir string) (*Reader, error) {
	s, err := Look(dir)
	if err != nil {
		return nil, err
	}
	if !s.Sealed {
		return nil, fault.In(fault.Invalid, dir, "the cache is not sealed: %d of %d shards are there", s.Shards, s.Header.Shards()).
			WithHint("run the command that made it again: it makes what is missing and seals the cache").WithID("E-CACHE-030")
	}
	r := &Reader{Header: s.Header, Dir: dir, places: map[Key]place{}}
	if err := r.readManifest(); err != nil {
		return nil, err
	}
	var keys []Key
	for i, f := range r.shards {
		mine, places, err := r.index(f.Name, i)
		if err != nil {
			return nil, err
		}
		path := filepath.Join(dir, f.Name)
		if len(mine) != f.Rows {
			return nil, fault.In(fault.Format, path, "has %d rows, the manifest says %d", len(mine), f.Rows).WithHint(remake).WithID("E-CACHE-031")
		}
		for j, k := range mine {
			r.places[k] = places[j]
		}
		keys = append(keys, mine...)
	}
	if len(keys) != r.Rows || HashKeys(keys) != r.RowsSHA256 {
		return nil, fault.In(fault.Format, dir, "its shards hold other rows than its header says").WithID("E-CACHE-032")
	}
	return r, nil
}

// index reads the index of a shard.
func (r *Reader) index(name string, shard int) ([]Key, []place, error) {
	f, size, err := Folder(r.Dir).Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	return readIndex(f, size, filepath.Join(r.Dir, name), r.Header, shard)
}

// maxManifest bounds manifest.json.
const maxManifest = 256 << 20

// parseManifest reads manifest.json of the cache with this header.
func parseManifest(s Store, h Header) (m manifest, err error) {
	path := s.Path(manifestFile)
	v, err := parse(s, manifestFile, maxManifest)
	if err != nil {
		return m, err
	}
	in := strictjson.NewFields(v)
	in.Only("format", "header_sha256", "files", "shards")
	m = manifest{Format: in.Str("format"), Header: in.Str("header_sha256"), Files: files(in.Value("files")), Shards: files(in.Value("shards"))}
	if err := in.Err(); err != nil {
		return m, strictjson.Fault(path, v.Source(), err)
	}
	digest := h.Digest()
	switch {
	case m.Format != Format:
		return m, fault.In(fault.Format, path, "is of form %q, not %q", m.Format, Format).WithID("E-CACHE-002")
	case m.Header != hex.EncodeToString(digest[:]):
		return m, fault.In(fault.Format, path, "was written for another %s", headerFile).WithID("E-CACHE-033")
	case len(m.Shards) != h.Shards():
		return m, fault.In(fault.Format, path, "names %d shards, the header has %d", len(m.Shards), h.Shards()).WithID("E-CACHE-033")
	}
	for _, f := range slices.Concat(m.Files, m.Shards) {
		if err := readfile.PlainName(f.Name); err != nil {
			return m, fault.In(fault.UnsafePath, path, "names the file %q", f.Name).Because(err).WithID("E-CACHE-034")
		}
	}
	return m, nil
}

// readManifest reads manifest.json and looks whether the files that it names are there and of their size.
func (r *Reader) readManifest() error {
	d := Folder(r.Dir)
	src, err := text(d, manifestFile, maxManifest)
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(src))
	r.SHA256 = hex.EncodeToString(sum[:])
	m, err := parseManifest(memory{d, src}, r.Header)
	if err != nil {
		return err
	}
	r.others, r.shards = m.Files, m.Shards
	for _, f := range slices.Concat(r.others, r.shards) {
		path := filepath.Join(r.Dir, f.Name)
		st, err := os.Lstat(path)
		switch {
		case err != nil:
			return fault.In(fault.NotFound, path, "a file of the cache is missing").WithHint(remake).WithID("E-CACHE-035")
		case st.Size() != f.Bytes:
			return fault.In(fault.Format, path, "has %d bytes, the manifest says %d", st.Size(), f.Bytes).WithHint(remake).WithID("E-CACHE-036")
		}
	}
	for _, f := range r.shards {
		r.Bytes += f.Bytes
	}
	return nil
}

// files reads a list of the manifest; what is wrong has no name.
func files(list strictjson.Value) (all []file) {
	if list.Kind() != strictjson.Array {
		return nil
	}
	for v := range list.Items() {
		in := strictjson.NewFields(v)
		f := file{Name: in.Str("name"), SHA256: in.Str("sha256"), Bytes: int64(in.Uint("bytes")), Rows: int(in.UintOr("rows", 0))}
		if in.Err() != nil {
			f = file{}
		}
		all = append(all, f)
	}
	return all
}

// Has reports whether a row is in the cache.
func (r *Reader) Has(k Key) bool { _, ok := r.places[k]; return ok }

// absent is the fault of a row that is not in the cache.
func (r *Reader) absent(k Key) error {
	return fault.In(fault.Invalid, r.Dir, "has no row %x…", k[:6]).WithHint("the cache was made from other data").
		WithID("E-CACHE-037")
}

// Pin refuses a cache whose manifest has another SHA-256, and from now on compares each shard with the manifest
// before the first of its rows is read: checksums of rows find damage, but not rows that somebody changed together
// with them.
func (r *Reader) Pin(sum string) error {
	d := Folder(r.Dir)
	if err := samePin(d, sum, r.SHA256); err != nil {
		return err
	}
	r.whole = nil
	for _, f := range r.shards {
		r.whole = append(r.whole, sync.OnceValue(func() error {
			is, err := hashed(d, f.Name)
			if err != nil {
				return err
			}
			return f.differs(d, is)
		}))
	}
	return nil
}

// open opens the shard that a row lies in.
func (r *Reader) open(p place) (f *os.File, path string, err error) {
	path = filepath.Join(r.Dir, r.shards[p.shard].Name)
	if r.whole != nil {
		if err := r.whole[p.shard](); err != nil {
			return nil, path, err
		}
	}
	f, _, err = readfile.Open(path)
	return f, path, err
}

// row reads the bytes of a row, and says where from.
func (r *Reader) row(k Key) (b []byte, p place, path string, err error) {
	p, ok := r.places[k]
	if !ok {
		return nil, p, "", r.absent(k)
	}
	f, path, err := r.open(p)
	if err != nil {
		return nil, p, path, err
	}
	defer f.Close()
	b, err = readRow(f, path, p)
	return b, p, path, err
}

// Row reads the bytes of a row, as the cache has them.
func (r *Reader) Row(k Key) ([]byte, error) {
	b, _, _, err := r.row(k)
	return b, err
}

// Drawn reads the draws of a row.
func (r *Reader) Drawn(k Key) (Drawn, error) {
	b, p, path, err := r.row(k)
	if err != nil {
		return Drawn{}, err
	}
	d, err := DecodeDraws(r.Header, b)
	if err != nil {
		err = damagedRow(path, p, err)
	}
	return d, err
}

// Hidden reads the hidden states of a row into dst, SeqLen × Width values.
func (r *Reader) Hidden(k Key, dst []float32) error {
	b, p, path, err := r.row(k)
	if err != nil {
		return err
	}
	if err := DecodeHidden(r.Header, dst, b); err != nil {
		return damagedRow(path, p, err)
	}
	return nil
}

// HiddenBytes reads the hidden states of a row into dst: SeqLen × Width values of the header's type, little-endian.
// Several goroutines may call it.
func (r *Reader) HiddenBytes(k Key, dst []byte) error {
	p, ok := r.places[k]
	if !ok {
		return r.absent(k)
	}
	f, path, err := r.open(p)
	if err != nil {
		return err
	}
	defer f.Close()
	if int64(len(dst)) != int64(p.size) {
		return damagedRow(path, p, fmt.Errorf("has %d bytes, not %d", p.size, len(dst)))
	}
	_, err = readRowTo(dst, f, path, p)
	return err
}

// Verify reads every row and compares every file with its hash.
func (r *Reader) Verify() error {
	d := Folder(r.Dir)
	var names []Shard
	for _, f := range r.shards {
		is, _, err := checkShard(d, r.Header, f.Name)
		if err != nil {
			return err
		}
		if err := f.differs(d, is); err != nil {
			return err
		}
		names = append(names, Shard{Name: f.Name})
	}
	if err := r.CheckOthers(); err != nil {
		return err
	}
	same, err := sameBytes(d, shardsFile, listOf(names))
	if fault.KindOf(err) == fault.NotFound { // only sealing needs it
		return nil
	}
	if err == nil && !same {
		err = fault.In(fault.Format, d.Path(shardsFile), "names other shards than the manifest").WithHint("remove it: only sealing needs it").WithID("E-CACHE-039")
	}
	return err
}

// CheckOthers compares the files beside the shards with their hashes: what describes the teacher, and its head.
func (r *Reader) CheckOthers() error {
	d := Folder(r.Dir)
	for _, f := range r.others {
		is, err := hashed(d, f.Name)
		if err != nil {
			return err
		}
		if err := f.differs(d, is); err != nil {
			return err
		}
	}
	return nil
}

// differs refuses a file that is not what the manifest says.
func (f file) differs(s Store, is file) error {
	if is.SHA256 == f.SHA256 {
		return nil
	}
	return fault.In(fault.Format, s.Path(f.Name), "its SHA-256 is %.12s…, the manifest says %.12s…", is.SHA256, f.SHA256).WithHint(remake).WithID("E-CACHE-038")
}

// Keys returns the keys of all rows, in no order.
func (r *Reader) Keys() []Key { return slices.Collect(maps.Keys(r.places)) }
