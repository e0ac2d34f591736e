package safetensors

import (
	"fmt"
	"os"
	"path/filepath"

	"apr/format/internal/shards"
	"apr/format/internal/stored"
	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/tensor"
)

// openIndex opens the shards that the index at real lists, under the name path.
func openIndex(path, real string) (*File, error) {
	ix, err := shards.Read(real)
	if err != nil {
		return nil, err
	}
	f := &File{path: path}
	if err := f.addShards(ix); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// addShards opens every shard and checks that each tensor is where the index says, and nowhere else.
func (f *File) addShards(ix *shards.Index) error {
	dir := filepath.Dir(ix.Path)
	check := shards.Checker{Index: ix}
	var all []tensor.Stored
	var total uint64
	for _, shard := range ix.Shards() {
		path, err := readfile.Inside(dir, shard)
		if err != nil {
			return err
		}
		tensors, metadata, err := f.add(path)
		if err != nil {
			return err
		}
		if f.metadata == nil {
			f.metadata = metadata
		}
		names := make([]string, len(tensors))
		for i, t := range tensors {
			names[i] = t.Name
			total += uint64(t.Size)
		}
		if err := check.Add(path, names); err != nil {
			return err
		}
		all = append(all, tensors...)
	}
	if err := check.Done(); err != nil {
		return err
	}
	if ix.TotalSize != 0 && ix.TotalSize != total {
		f.warnings = append(f.warnings, fmt.Sprintf("index says total_size %d, the shards hold %d bytes", ix.TotalSize, total))
	}
	f.Set = stored.NewSet(all)
	return nil
}

// CheckFolder refuses a folder that holds two models: an index, and SingleName, which the index does not list. Programs differ in which
// they read.
func CheckFolder(dir string) error {
	single, err := os.Stat(filepath.Join(dir, SingleName))
	if err != nil {
		return nil
	}
	index, err := readfile.Inside(dir, IndexName)
	if err != nil {
		return nil // there is none, or opening it says why not
	}
	if _, err := os.Lstat(index); err != nil {
		return nil
	}
	ix, err := shards.Read(index)
	if err != nil {
		return nil // opening it says so
	}
	for _, name := range ix.Shards() {
		if info, err := os.Stat(filepath.Join(dir, name)); name == SingleName || err == nil && os.SameFile(info, single) {
			return nil
		}
	}
	return fault.In(fault.NotFound, dir, "directory holds two models: %s and %s, which the index does not list", IndexName, SingleName).
		WithHint("remove one of them, or name the file; transformers reads %s", SingleName).WithID("E-ST-061")
}
