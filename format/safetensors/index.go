package safetensors

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"apr/format/internal/stored"
	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/internal/strictjson"
	"apr/tensor"
)

// index is a parsed model.safetensors.index.json.
type index struct {
	path      string
	files     map[string]string // tensor → file
	totalSize uint64            // 0 when not given
}

// openIndex opens the shards that the index at real lists, under the name path.
func openIndex(path, real string) (*File, error) {
	ix, err := readIndex(real)
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

// readIndex parses {"metadata": {"total_size": …}, "weight_map": {tensor: file}}.
func readIndex(path string) (*index, error) {
	v, err := strictjson.ParseFile(path, maxIndex, strictjson.Options{MaxDepth: maxDepth, MaxValues: maxValues})
	if err != nil {
		return nil, err
	}
	ix := &index{path: path, files: map[string]string{}}
	f := strictjson.NewFields(v)
	weights := f.Value("weight_map")
	if m := f.ValueOr("metadata"); m.Kind() == strictjson.Object {
		if size, ok := m.Get("total_size"); ok {
			// A size written as 988097536.0 exists; it is informative, so one that is no integer does not count.
			ix.totalSize, _ = size.Uint64()
		}
	}
	if err := f.Err(); err != nil {
		return nil, strictjson.Fault(path, v.Source(), err)
	}
	if err := weights.Expect(strictjson.Object); err != nil {
		return nil, strictjson.Fault(path, v.Source(), err)
	}
	for name, file := range weights.Members() {
		s, err := file.Str()
		if err != nil {
			return nil, strictjson.Fault(path, v.Source(), err)
		}
		if err := readfile.PlainName(s); err != nil {
			return nil, fault.In(fault.UnsafePath, path, "shard %q is not a plain file name", clip(s)).At("tensor %q", clip(name)).WithID("E-ST-061")
		}
		ix.files[name] = s
	}
	if len(ix.files) == 0 {
		return nil, bad(path, 62, "weight_map is empty")
	}
	return ix, nil
}

// addShards opens every shard and checks that each tensor is where the index says, and nowhere else.
func (f *File) addShards(ix *index) error {
	shards := slices.Compact(slices.Sorted(maps.Values(ix.files)))
	if len(shards) > maxShards {
		return bad(ix.path, 63, "%d shards are over the limit of %d", len(shards), maxShards)
	}
	dir := filepath.Dir(ix.path)
	var all []tensor.Stored
	found := make(map[string]string, len(ix.files))
	var total uint64
	for _, shard := range shards {
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
		for _, t := range tensors {
			if other, ok := found[t.Name]; ok {
				return load(path, 64, "is also in shard %q", other).At("tensor %q", t.Name)
			}
			if want, ok := ix.files[t.Name]; !ok {
				return load(path, 65, "is not in the index %q", filepath.Base(ix.path)).At("tensor %q", t.Name)
			} else if want != shard {
				return load(path, 66, "is in shard %q, but the index says %q", shard, want).At("tensor %q", t.Name)
			}
			found[t.Name] = shard
			total += uint64(t.Size)
		}
		all = append(all, tensors...)
	}
	if len(found) < len(ix.files) {
		for _, name := range slices.Sorted(maps.Keys(ix.files)) {
			if _, ok := found[name]; !ok {
				return load(ix.path, 67, "is not in shard %q, where the index says it is", ix.files[name]).At("tensor %q", clip(name))
			}
		}
	}
	if len(all) > stored.MaxTensors {
		return bad(ix.path, 20, "more than %d tensors", stored.MaxTensors)
	}
	if ix.totalSize != 0 && ix.totalSize != total {
		f.warnings = append(f.warnings, fmt.Sprintf("index says total_size %d, the shards hold %d bytes", ix.totalSize, total))
	}
	f.Set = stored.NewSet(all)
	return nil
}

// load returns a fault of kind Load: sound files that contradict each other.
func load(path string, id int, format string, args ...any) *fault.Error {
	return fault.In(fault.Load, path, format, args...).WithID(fmt.Sprintf("E-ST-%03d", id))
}
