package safetensors

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"apr/format/internal/shards"
	"apr/format/internal/stored"
	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/internal/strictjson"
	"apr/tensor"
)

// Options of a writer.
type Options struct {
	Force    bool              // replace existing files
	Metadata map[string]string // strings of __metadata__; "format": "pt" is added unless given
}

// dtypeNames is the inverse of dtypes.
var dtypeNames = func() map[tensor.DType]string {
	m := map[tensor.DType]string{}
	for name, d := range dtypes {
		if d.dtype != tensor.Invalid {
			m[d.dtype] = name
		}
	}
	return m
}()

// Write writes one file, atomically. The bytes depend on the tensors and the metadata only: payloads stand in
// descending order of element size, then by name, so that each is aligned to its element size. Payloads are streamed.
// Faults: Invalid (the file exists), Format (a type that the format cannot hold), IO.
func Write(path string, tensors []tensor.Source, opt Options) error {
	f, err := prepare(path, tensors, opt)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Commit()
}

// prepare writes a file up to its Commit.
func prepare(path string, tensors []tensor.Source, opt Options) (*atomicfile.File, error) {
	sorted := order(tensors)
	header, size, err := makeHeader(sorted, opt.Metadata)
	if err != nil {
		return nil, err
	}
	f, err := atomicfile.Create(path, opt.Force)
	if err != nil {
		return nil, err
	}
	if err := f.Expect(size); err != nil {
		return nil, err
	}
	if err := emit(f, header, sorted); err != nil {
		f.Abort()
		return nil, err
	}
	return f, nil
}

// Encode writes the bytes of a file to w and returns their number.
func Encode(w io.Writer, tensors []tensor.Source, metadata map[string]string) (int64, error) {
	sorted := order(tensors)
	header, size, err := makeHeader(sorted, metadata)
	if err != nil {
		return 0, err
	}
	return size, emit(w, header, sorted)
}

func emit(w io.Writer, header []byte, sorted []tensor.Source) error {
	b := bufio.NewWriterSize(w, 1<<20)
	if _, err := b.Write(header); err != nil {
		return err
	}
	for _, t := range sorted {
		if err := stored.Emit(b, t); err != nil {
			return err
		}
	}
	return b.Flush()
}

// order returns the tensors in the order of their payloads.
func order(tensors []tensor.Source) []tensor.Source {
	sorted := slices.Clone(tensors)
	slices.SortFunc(sorted, func(a, b tensor.Source) int {
		return cmp.Or(cmp.Compare(b.DType.BlockBytes(), a.DType.BlockBytes()), cmp.Compare(a.Name, b.Name))
	})
	return sorted
}

// makeHeader checks the tensors and returns the file's first bytes and its whole size.
func makeHeader(sorted []tensor.Source, metadata map[string]string) ([]byte, int64, error) {
	if len(sorted) > stored.MaxTensors {
		return nil, 0, fault.New(fault.Format, "%d tensors are over the limit of %d", len(sorted), stored.MaxTensors).WithID("E-ST-020")
	}
	meta := map[string]any{"format": "pt"}
	for k, v := range metadata {
		meta[k] = v
	}
	buf := append(make([]byte, 8), `{"__metadata__":`...)
	buf, err := strictjson.AppendCanonical(buf, meta)
	if err != nil {
		return nil, 0, err
	}
	var at int64
	seen := make(map[string]bool, len(sorted))
	for _, t := range sorted {
		if err := checkSource(t, seen); err != nil {
			return nil, 0, err
		}
		if buf, err = strictjson.AppendCanonical(append(buf, ','), t.Name); err != nil {
			return nil, 0, err
		}
		buf = fmt.Appendf(buf, `:{"dtype":"%s","shape":`, dtypeNames[t.DType])
		if buf, err = strictjson.AppendCanonical(buf, t.Shape); err != nil {
			return nil, 0, err
		}
		if at > 1<<62-t.Size {
			return nil, 0, fault.New(fault.Format, "the payloads overflow").At("tensor %q", t.Name).WithID("E-ST-051")
		}
		buf = fmt.Appendf(buf, `,"data_offsets":[%d,%d]}`, at, at+t.Size)
		at += t.Size
	}
	buf = append(buf, '}')
	for len(buf)%8 != 0 {
		buf = append(buf, ' ')
	}
	if len(buf)-8 > maxHeader {
		return nil, 0, fault.New(fault.Format, "header length %d is over the limit of %d", len(buf)-8, maxHeader).WithID("E-ST-003")
	}
	binary.LittleEndian.PutUint64(buf, uint64(len(buf)-8))
	return buf, int64(len(buf)) + at, nil
}

// checkSource refuses what the reader would refuse.
func checkSource(t tensor.Source, seen map[string]bool) error {
	refuse := func(id int, format string, args ...any) error {
		return fault.New(fault.Format, format, args...).At("tensor %q", t.Name).WithID(fmt.Sprintf("E-ST-%03d", id))
	}
	if err := stored.CheckName(t.Name, stored.MaxName); err != nil {
		return refuse(21, "%s", err)
	}
	if t.Name == "__metadata__" || seen[t.Name] {
		return refuse(12, "name is taken")
	}
	seen[t.Name] = true
	if dtypeNames[t.DType] == "" {
		return refuse(50, "safetensors cannot hold the type %s", t.DType)
	}
	if len(t.Shape) > stored.MaxRank {
		return refuse(31, "%d dimensions are over the limit of %d", len(t.Shape), stored.MaxRank)
	}
	n, ok := tensor.Elements(t.Shape)
	if width := int64(t.DType.BlockBytes()); !ok || n > (1<<62)/width || n*width != t.Size {
		return refuse(38, "%d bytes do not hold %s %v", t.Size, t.DType, t.Shape)
	}
	return nil
}

// WriteDir writes a model into the directory dir: SingleName if it fits into maxShard bytes of payload, else shards
// model-00001-of-0000N.safetensors, filled in order of tensor name, and IndexName. The files appear together, the
// index last; a tensor larger than maxShard gets a shard of its own. maxShard ≤ 0 means no limit. It returns the
// names of the files. What an earlier model has besides, an index or SingleName, is refused without opt.Force, and removed with it.
func WriteDir(dir string, tensors []tensor.Source, maxShard int64, opt Options) ([]string, error) {
	parts := shards.Split(tensors, maxShard)
	if len(parts) <= 1 {
		return writeSingle(dir, tensors, opt)
	}
	if len(parts) > shards.Max {
		return nil, fault.In(fault.Format, dir, "%d shards are over the limit of %d", len(parts), shards.Max).WithID("E-SHARD-003")
	}
	if err := free(dir, SingleName, opt); err != nil {
		return nil, err
	}
	var pending []*atomicfile.File
	defer func() {
		for _, f := range pending {
			f.Close() // nothing once committed
		}
	}()
	weights := map[string]string{}
	var names []string
	var total int64
	for i, shard := range parts {
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(parts))
		f, err := prepare(filepath.Join(dir, name), shard, opt)
		if err != nil {
			return nil, err
		}
		pending = append(pending, f)
		names = append(names, name)
		for _, t := range shard {
			if weights[t.Name] != "" {
				return nil, fault.In(fault.Format, dir, "name is taken").At("tensor %q", t.Name).WithID("E-ST-012")
			}
			weights[t.Name] = name
			total += t.Size
		}
	}
	index, err := shards.Prepare(filepath.Join(dir, IndexName), weights, total, opt.Force)
	if err != nil {
		return nil, err
	}
	pending = append(pending, index)
	if opt.Force { // an old index over new shards would be a mixture; without an index the directory is no model
		for _, old := range []string{IndexName, SingleName} {
			if err := remove(dir, old); err != nil {
				return nil, err
			}
		}
	}
	for _, f := range pending {
		if err := f.Commit(); err != nil {
			return nil, err
		}
	}
	return append(names, IndexName), nil
}

func writeSingle(dir string, tensors []tensor.Source, opt Options) ([]string, error) {
	if err := free(dir, IndexName, opt); err != nil {
		return nil, err
	}
	if err := Write(filepath.Join(dir, SingleName), tensors, opt); err != nil {
		return nil, err
	}
	return []string{SingleName}, remove(dir, IndexName)
}

// free refuses a directory that holds a file of an earlier model.
func free(dir, name string, opt Options) error {
	path := filepath.Join(dir, name)
	if _, err := os.Lstat(path); err == nil && !opt.Force {
		return fault.In(fault.Invalid, path, "already exists").WithHint("give --force to replace it").WithID("E-FILE-011")
	}
	return nil
}

// remove removes a file of an earlier model.
func remove(dir, name string) error {
	path := filepath.Join(dir, name)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fault.In(fault.IO, path, "cannot be removed").Because(err).WithID("E-FILE-014")
	}
	return nil
}
