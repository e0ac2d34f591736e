// Package shards reads and writes the index of a model in several files, {"metadata": {"total_size": …},
// "weight_map": {tensor: file}}, and holds that each tensor is in exactly the file that the index says.
package shards

import (
	"bytes"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"apr/format/internal/stored"
	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/internal/strictjson"
	"apr/tensor"
)

// Limits of an index.
const (
	Max       = 1000 // files
	maxBytes  = 64 << 20
	maxDepth  = 8
	maxValues = 1 << 20
)

// Index is a parsed index.
type Index struct {
	Path      string
	TotalSize uint64            // 0 when not given
	Files     map[string]string // tensor → plain file name
}

// LooksLikeIndex distinguishes an index from a model file by the first bytes: it begins with an object, and has no NUL
// bytes as lengths have.
func LooksLikeIndex(head []byte) bool {
	text := strings.TrimLeft(string(head[:min(len(head), 8)]), " \t\r\n")
	return strings.HasPrefix(text, "{") && !strings.ContainsRune(text, 0)
}

// Read parses the index at path.
func Read(path string) (*Index, error) {
	v, err := strictjson.ParseFile(path, maxBytes, strictjson.Options{MaxDepth: maxDepth, MaxValues: maxValues})
	if err != nil {
		return nil, err
	}
	ix := &Index{Path: path, Files: map[string]string{}}
	f := strictjson.NewFields(v)
	if f.Has("model_type") && !f.Has("weight_map") {
		return nil, refuse(fault.Format, path, 16, "is a model's configuration, which has no weights").
			WithHint("name the folder of the model; --student-config makes a new student of a configuration")
	}
	weights := f.Value("weight_map")
	if m := f.ValueOr("metadata"); m.Kind() == strictjson.Object {
		if size, ok := m.Get("total_size"); ok {
			// A size written as 988097536.0 exists; it is informative, so one that is no integer does not count.
			ix.TotalSize, _ = size.Uint64()
		}
	}
	if err = f.Err(); err == nil {
		err = weights.Expect(strictjson.Object)
	}
	if err != nil {
		return nil, strictjson.Fault(path, v.Source(), err)
	}
	for name, file := range weights.Members() {
		s, err := file.Str()
		if err != nil {
			return nil, strictjson.Fault(path, v.Source(), err)
		}
		if err := readfile.PlainName(s); err != nil {
			return nil, refuse(fault.UnsafePath, path, 1, "shard %q is not a plain file name", clip(s)).At("tensor %q", clip(name))
		}
		ix.Files[name] = s
	}
	if len(ix.Files) == 0 {
		return nil, refuse(fault.Format, path, 2, "weight_map is empty")
	}
	if n := len(ix.Shards()); n > Max {
		return nil, refuse(fault.Format, path, 3, "%d shards are over the limit of %d", n, Max)
	}
	return ix, nil
}

// Shards returns the file names in ascending order.
func (ix *Index) Shards() []string { return slices.Compact(slices.Sorted(maps.Values(ix.Files))) }

func refuse(k fault.Kind, path string, id int, format string, args ...any) *fault.Error {
	return fault.In(k, path, format, args...).WithID(fmt.Sprintf("E-SHARD-%03d", id))
}

// clip shortens a name in a message.
func clip(name string) string {
	if len(name) > stored.MaxName {
		return name[:stored.MaxName] + "…"
	}
	return name
}

// Checker follows which tensor is in which shard.
type Checker struct {
	Index *Index // may be nil: then only tensors in two shards are found
	found map[string]string
}

// Add notes the names of the tensors in the shard at path. A tensor seen before, or not where the index says, is a fault of kind
// Load.
func (c *Checker) Add(path string, names []string) error {
	shard := filepath.Base(path)
	if c.found == nil {
		c.found = map[string]string{}
	}
	for _, name := range names {
		if other, ok := c.found[name]; ok {
			return refuse(fault.Load, path, 4, "is also in shard %q", other).At("tensor %q", name)
		}
		c.found[name] = shard
		if c.Index == nil {
			continue
		}
		if want, ok := c.Index.Files[name]; !ok {
			return refuse(fault.Load, path, 5, "is not in the index %q", filepath.Base(c.Index.Path)).At("tensor %q", name)
		} else if want != shard {
			return refuse(fault.Load, path, 6, "is in shard %q, but the index says %q", shard, want).At("tensor %q", name)
		}
	}
	if len(c.found) > stored.MaxTensors {
		return refuse(fault.Format, path, 8, "more than %d tensors", stored.MaxTensors)
	}
	return nil
}

// Done refuses an index that lists a tensor no shard has.
func (c *Checker) Done() error {
	if c.Index == nil || len(c.found) == len(c.Index.Files) {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(c.Index.Files)) {
		if _, ok := c.found[name]; !ok {
			return refuse(fault.Load, c.Index.Path, 7, "is not in shard %q, where the index says it is", c.Index.Files[name]).At("tensor %q", clip(name))
		}
	}
	return nil
}

// Prepare writes an index, with a line per tensor, up to its Commit.
func Prepare(path string, files map[string]string, total int64, force bool) (*atomicfile.File, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\n  \"metadata\": {\n    \"total_size\": %d\n  },\n  \"weight_map\": {", total)
	for i, name := range slices.Sorted(maps.Keys(files)) {
		line, err := strictjson.AppendCanonical(nil, name)
		if err != nil {
			return nil, err
		}
		if line, err = strictjson.AppendCanonical(append(line, ": "...), files[name]); err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("\n    ")
		b.Write(line)
	}
	b.WriteString("\n  }\n}\n")
	f, err := atomicfile.Create(path, force)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(b.Bytes()); err != nil {
		return nil, err
	}
	return f, nil
}

// Split divides the tensors, in order of name, into shards of at most limit payload bytes; a larger tensor gets a
// shard of its own. limit ≤ 0 means no limit.
func Split(tensors []tensor.Source, limit int64) [][]tensor.Source {
	byName := slices.Clone(tensors)
	slices.SortFunc(byName, func(a, b tensor.Source) int { return strings.Compare(a.Name, b.Name) })
	var parts [][]tensor.Source
	var size int64
	for _, t := range byName {
		if len(parts) == 0 || limit > 0 && size > 0 && t.Size > 0 && t.Size > limit-size {
			parts = append(parts, nil)
			size = 0
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], t)
		size += t.Size
	}
	return parts
}
