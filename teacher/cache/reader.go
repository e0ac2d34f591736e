package cache

import (
	"encoding/hex"
	"maps"
	"os"
	"path/filepath"
	"slices"

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
}

// Is reports whether a folder is, or becomes, a teacher's cache.
func Is(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, headerFile))
	if err != nil {
		return false
	}
	_, err = parseHeader(filepath.Join(dir, headerFile))
	return err == nil || fault.KindOf(err) == fault.Invalid
}

// State describes a cache that may not be sealed.
type State struct {
	Header Header
	Sealed bool
	Shards int   // that are there, of Header.Shards()
	Bytes  int64 // of them
}

// Look describes the cache in a folder from its header and the sizes of its files.
func Look(dir string) (s State, err error) {
	if s.Header, err = parseHeader(filepath.Join(dir, headerFile)); err != nil {
		return s, err
	}
	all, err := filepath.Glob(filepath.Join(dir, "*"+shardExt))
	if err != nil {
		return s, err
	}
	for _, path := range all {
		if st, err := os.Lstat(path); err == nil && st.Mode().IsRegular() {
			s.Shards, s.Bytes = s.Shards+1, s.Bytes+st.Size()
		}
	}
	_, err = os.Lstat(filepath.Join(dir, manifestFile))
	s.Sealed = err == nil
	return s, nil
}

// Open opens a sealed cache. It reads the indexes of all shards, not their rows: these are compared with their
// checksums when they are read.
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
		path := filepath.Join(dir, f.Name)
		mine, places, err := readIndex(path, r.Header, i)
		if err != nil {
			return nil, err
		}
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

// readManifest reads manifest.json and looks whether the files that it names are there and of their size.
func (r *Reader) readManifest() error {
	path := filepath.Join(r.Dir, manifestFile)
	v, err := strictjson.ParseFile(path, 256<<20, strictjson.Options{})
	if err != nil {
		return err
	}
	in := strictjson.NewFields(v)
	in.Only("format", "header_sha256", "files", "shards")
	is, header := in.Str("format"), in.Str("header_sha256")
	r.others = files(in.Value("files"))
	r.shards = files(in.Value("shards"))
	if err := in.Err(); err != nil {
		return strictjson.Fault(path, v.Source(), err)
	}
	digest := r.Digest()
	switch {
	case is != Format:
		return fault.In(fault.Format, path, "is of form %q, not %q", is, Format).WithID("E-CACHE-002")
	case header != hex.EncodeToString(digest[:]):
		return fault.In(fault.Format, path, "was written for another %s", headerFile).WithID("E-CACHE-033")
	case len(r.shards) != r.Shards():
		return fault.In(fault.Format, path, "names %d shards, the header has %d", len(r.shards), r.Shards()).WithID("E-CACHE-033")
	}
	for _, f := range slices.Concat(r.others, r.shards) {
		if err := readfile.PlainName(f.Name); err != nil {
			return fault.In(fault.UnsafePath, path, "names the file %q", f.Name).Because(err).WithID("E-CACHE-034")
		}
		st, err := os.Lstat(filepath.Join(r.Dir, f.Name))
		switch {
		case err != nil:
			return fault.In(fault.NotFound, filepath.Join(r.Dir, f.Name), "a file of the cache is missing").WithHint(remake).WithID("E-CACHE-035")
		case st.Size() != f.Bytes:
			return fault.In(fault.Format, filepath.Join(r.Dir, f.Name), "has %d bytes, the manifest says %d", st.Size(), f.Bytes).WithHint(remake).WithID("E-CACHE-036")
		}
	}
	for _, f := range r.shards {
		r.Bytes += f.Bytes
	}
	sum, err := hashed(path)
	r.SHA256 = sum.SHA256
	return err
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

// row reads the bytes of a row, and says where from.
func (r *Reader) row(k Key) (b []byte, p place, path string, err error) {
	p, ok := r.places[k]
	if !ok {
		return nil, p, "", fault.In(fault.Invalid, r.Dir, "has no row %x…", k[:6]).WithHint("the cache was made from other data").WithID("E-CACHE-037")
	}
	path = filepath.Join(r.Dir, r.shards[p.shard].Name)
	f, _, err := readfile.Open(path)
	if err != nil {
		return nil, p, path, err
	}
	defer f.Close()
	b, err = readRow(f, path, p)
	return b, p, path, err
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

// Verify reads every row and compares every file with its hash.
func (r *Reader) Verify() error {
	for i, f := range r.shards {
		path := filepath.Join(r.Dir, f.Name)
		_, places, err := readIndex(path, r.Header, i)
		if err != nil {
			return err
		}
		if err := checkRows(path, r.Header, places); err != nil {
			return err
		}
	}
	for _, f := range slices.Concat(r.others, r.shards) {
		path := filepath.Join(r.Dir, f.Name)
		is, err := hashed(path)
		if err != nil {
			return err
		}
		if is.SHA256 != f.SHA256 {
			return fault.In(fault.Format, path, "its SHA-256 is %.12s…, the manifest says %.12s…", is.SHA256, f.SHA256).WithHint(remake).WithID("E-CACHE-038")
		}
	}
	return nil
}

// Keys returns the keys of all rows, in no order.
func (r *Reader) Keys() []Key { return slices.Collect(maps.Keys(r.places)) }
