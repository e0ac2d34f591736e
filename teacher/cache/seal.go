package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"

	"apr/internal/fault"
	"apr/internal/readfile"
)

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

// SealIn reads all shards and writes the manifest, if all are there; missing names those that are not. extra are files
// beside the shards. Writers that end at the same time write the same manifest; where another one is, it stays, and
// the difference is an error.
func SealIn(s Store, extra ...string) (missing []string, err error) {
	h, err := readHeader(s)
	if err != nil {
		return nil, err
	}
	names, err := listed(s, h)
	if err != nil {
		return nil, err
	}
	all, err := sizes(s, names)
	for i, size := range all {
		if size < 0 {
			missing = append(missing, names[i])
		}
	}
	if err != nil || len(missing) > 0 {
		return missing, err
	}
	m, err := describe(s, h, names, extra)
	if err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return nil, err
	}
	err = putManifest(s, append(text, '\n'))
	if d, ok := s.(Folder); ok {
		err = errors.Join(err, d.sweep())
	}
	return nil, err
}

// describe reads all files and makes the manifest.
func describe(s Store, h Header, names, extra []string) (*manifest, error) {
	digest := h.Digest()
	m := &manifest{Format: Format, Header: hex.EncodeToString(digest[:]), Files: []file{}}
	for _, name := range extra {
		f, err := hashed(s, name)
		if err != nil {
			return nil, err
		}
		m.Files = append(m.Files, f)
	}
	var keys []Key
	for _, name := range names {
		f, mine, err := checkShard(s, h, name)
		if err != nil {
			return nil, err
		}
		m.Shards, keys = append(m.Shards, f), append(keys, mine...)
	}
	if len(keys) != h.Rows || HashKeys(keys) != h.RowsSHA256 {
		return nil, fault.In(fault.Format, s.Path(""), "its shards hold other rows than its header says").WithID("E-CACHE-032")
	}
	return m, nil
}

// putManifest writes manifest.json, unless it is there with the same bytes.
func putManifest(s Store, b []byte) error {
	made, err := put(s, manifestFile, b)
	if made || err != nil {
		return err
	}
	before, err := text(s, manifestFile, maxManifest)
	if err == nil && before != string(b) {
		return fault.In(fault.Invalid, s.Path(manifestFile), "the cache was sealed with other files than are there now").
			WithHint("remove manifest.json to seal what is there: runs that learned from what was there remain as they are").WithID("E-CACHE-026")
	}
	return err
}

// checkShard reads a shard, all of its rows, and describes it.
func checkShard(s Store, h Header, name string) (is file, keys []Key, err error) {
	f, size, err := s.Open(name)
	if err != nil {
		return is, nil, err
	}
	defer f.Close()
	path := s.Path(name)
	keys, places, err := readIndex(f, size, path, h, 0)
	if err != nil {
		return is, nil, err
	}
	if nameOf(h.Digest(), keys) != name {
		return is, nil, fault.In(fault.Format, path, "holds other rows than its name says").WithHint(remake).WithID("E-CACHE-013")
	}
	if err := checkRows(f, path, h, places); err != nil {
		return is, nil, err
	}
	is, err = hashedFile(f, path, size)
	is.Rows = len(keys)
	return is, keys, err
}

// checkRows reads and decodes all rows of a shard.
func checkRows(f File, path string, h Header, places []place) error {
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
func hashed(s Store, name string) (file, error) {
	f, size, err := s.Open(name)
	if err != nil {
		return file{}, err
	}
	defer f.Close()
	return hashedFile(f, s.Path(name), size)
}

func hashedFile(f File, path string, size int64) (file, error) {
	h := sha256.New()
	if _, err := io.Copy(h, readfile.Whole(io.NewSectionReader(f, 0, size), path, size)); err != nil {
		return file{}, err
	}
	return file{Name: filepath.Base(path), SHA256: hex.EncodeToString(h.Sum(nil)), Bytes: size}, nil
}

// sameBytes reports whether a file of a store has these bytes.
func sameBytes(s Store, name string, want []byte) (bool, error) {
	got, err := text(s, name, int64(len(want)))
	if fault.KindOf(err) == fault.Format { // it is longer
		return false, nil
	}
	return bytes.Equal([]byte(got), want), err
}
