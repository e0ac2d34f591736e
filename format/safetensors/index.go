package safetensors

import (
	"fmt"
	"path/filepath"

	"apr/format/internal/shards"
	"apr/format/internal/stored"
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
