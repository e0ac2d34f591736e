package cache

import (
	"bytes"
	"strings"

	"apr/internal/fault"
)

// The files of a cache.
const (
	headerFile   = "header.json"
	shardsFile   = "shards.txt" // the names of all shards, a line each, in the order of their rows
	manifestFile = "manifest.json"
	shardExt     = ".shard"
)

// Writer makes a cache, or goes on with one. Several processes may write to one store at a time.
type Writer struct {
	store  Store
	header Header
	keys   []Key
	shards []Shard
}

// Create is CreateIn a folder.
func Create(dir string, h Header, keys []Key) (*Writer, error) { return CreateIn(Folder(dir), h, keys) }

// CreateIn begins the cache of these rows, or goes on with one that was begun with the same header. keys are
// distinct. A store that lets a second writer replace a file is refused.
func CreateIn(s Store, h Header, keys []Key) (*Writer, error) {
	h.Rows, h.RowsSHA256 = len(keys), HashKeys(keys)
	if err := h.Check(s.Path("")); err != nil {
		return nil, err
	}
	if d, ok := s.(Folder); ok {
		if err := d.begin(); err != nil {
			return nil, err
		}
	}
	w := &Writer{s, h, keys, shardsOf(h, keys)}
	if _, err := put(s, headerFile, h.JSON()); err != nil {
		return nil, err
	}
	before, err := readHeader(s) // another process may have been faster
	if err != nil {
		return nil, err
	}
	if err := before.Same(s.Path(""), h); err != nil {
		return nil, err
	}
	if replaced, err := put(s, headerFile, h.JSON()); err != nil || replaced {
		if err == nil {
			err = fault.In(fault.Unavailable, s.Path(headerFile), "the store replaces an object in spite of If-None-Match: *").
				WithHint("two writers could replace each other's shards: use a store that has conditional writes").WithID("E-CACHE-024")
		}
		return nil, err
	}
	_, err = put(s, shardsFile, listOf(w.shards))
	return w, err
}

// listOf returns shards.txt.
func listOf(shards []Shard) []byte {
	var b bytes.Buffer
	for _, s := range shards {
		b.WriteString(s.Name + "\n")
	}
	return b.Bytes()
}

// listed reads the names of all shards from shards.txt.
func listed(s Store, h Header) ([]string, error) {
	all, err := text(s, shardsFile, int64(h.Shards())*(2*nameBytes+int64(len(shardExt))+1))
	if err != nil {
		return nil, err
	}
	names := strings.Split(strings.TrimSuffix(all, "\n"), "\n")
	if len(names) != h.Shards() {
		return nil, fault.In(fault.Format, s.Path(shardsFile), "names %d shards, the header has %d", len(names), h.Shards()).WithID("E-CACHE-025")
	}
	for i, name := range names {
		if !isShard(name) {
			return nil, fault.In(fault.Format, s.Path(shardsFile), "%q is no name of a shard", name).At("line %d", i+1).WithID("E-CACHE-025")
		}
	}
	return names, nil
}

// put writes a small file, unless it is there.
func put(s Store, name string, b []byte) (made bool, err error) {
	return s.Put(name, bytes.NewReader(b), int64(len(b)))
}

// Shards returns all shards, in the order of their rows.
func (w *Writer) Shards() []Shard { return w.shards }

// Has reports whether a shard is there.
func (w *Writer) Has(s Shard) bool {
	_, err := w.store.Size(s.Name)
	return err == nil
}

// Missing returns those of the shards that are not there.
func (w *Writer) Missing(of []Shard) (missing []Shard, err error) {
	names := make([]string, len(of))
	for i, s := range of {
		names[i] = s.Name
	}
	all, err := sizes(w.store, names)
	for i, size := range all {
		if size < 0 {
			missing = append(missing, of[i])
		}
	}
	return missing, err
}

// Write writes a shard of these rows. One that another process has written meanwhile stays as it is.
func (w *Writer) Write(s Shard, rows [][]byte) error {
	_, err := put(w.store, s.Name, encodeShard(w.header, w.keys[s.Lo:s.Hi], rows))
	return err
}

// Seal is SealIn the writer's store.
func (w *Writer) Seal(extra ...string) (missing []string, err error) {
	return SealIn(w.store, extra...)
}
