// Package safetensors reads and writes the container of Hugging Face models: eight bytes with the length of a JSON
// header, the header, then the payloads back to back.
//
//	{"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
//
// A model of several files has an index, model.safetensors.index.json, that maps each tensor to its file.
//
// The reader accepts one meaning only: every byte belongs to exactly one tensor, every key occurs once, every field is
// known. Files are read with ReadAt, never mapped. Types the program has no use for (8-bit floats but F8_E4M3, complex
// numbers) are refused as unsupported. Matrices of F8_E4M3 are weights with the scales beside them: see
// [File.Dequantise].
package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"apr/format/internal/checked"
	"apr/format/internal/shards"
	"apr/format/internal/stored"
	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/internal/strictjson"
	"apr/tensor"
)

// Names of a model's files in a directory, and the limits of a file.
const (
	SingleName = "model.safetensors"
	IndexName  = "model.safetensors.index.json"

	maxHeader = 100_000_000
	maxValues = 4 << 20 // JSON values in a header
	maxDepth  = 8
)

// dtypes gives the bits of every element type of the format, and the type it is read as; tensor.Invalid is a type that
// is not supported here.
var dtypes = map[string]struct {
	bits  checked.Size
	dtype tensor.DType
}{
	"BOOL": {8, tensor.Bool}, "U8": {8, tensor.U8}, "I8": {8, tensor.I8},
	"U16": {16, tensor.U16}, "I16": {16, tensor.I16}, "F16": {16, tensor.F16}, "BF16": {16, tensor.BF16},
	"U32": {32, tensor.U32}, "I32": {32, tensor.I32}, "F32": {32, tensor.F32},
	"U64": {64, tensor.U64}, "I64": {64, tensor.I64}, "F64": {64, tensor.F64},
	"F4": {bits: 4}, "F6_E2M3": {bits: 6}, "F6_E3M2": {bits: 6},
	"F8_E5M2": {bits: 8}, "F8_E4M3": {8, tensor.F8_E4M3}, "F8_E8M0": {bits: 8}, "F8_E5M2FNUZ": {bits: 8}, "F8_E4M3FNUZ": {bits: 8},
	"C64": {bits: 64},
}

// File is an opened model of one or more files. It implements tensor.File.
type File struct {
	*stored.Set
	path     string
	metadata map[string]string
	files    []*os.File
	stamps   []readfile.Stamp
	names    []string
	warnings []string
}

var _ tensor.File = (*File)(nil)

// Open opens a model: a file, an index, or a directory that holds one of both (the index first). What a file is, is
// found by its content. Faults are of kind NotFound, Format, IO, UnsafePath (a shard outside the directory) or Load (a
// tensor in two shards, or not where the index says).
func Open(path string) (*File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, readfile.Fault(path, err)
	}
	if info.IsDir() {
		return openDir(path)
	}
	isIndex, err := looksLikeIndex(path)
	if err != nil {
		return nil, err
	}
	if isIndex {
		return openIndex(path, path)
	}
	return openSingle(path, path)
}

func openDir(dir string) (*File, error) {
	if err := CheckFolder(dir); err != nil {
		return nil, err
	}
	for _, name := range []string{IndexName, SingleName} {
		if _, err := os.Lstat(filepath.Join(dir, name)); errors.Is(err, os.ErrNotExist) {
			continue
		}
		path, err := readfile.Inside(dir, name)
		if err != nil {
			return nil, err
		}
		if name == IndexName {
			return openIndex(dir, path)
		}
		return openSingle(dir, path)
	}
	return nil, fault.In(fault.NotFound, dir, "directory holds neither %s nor %s", IndexName, SingleName).WithID("E-ST-060")
}

func looksLikeIndex(path string) (bool, error) {
	head, err := readfile.Head(path, 8)
	return err == nil && shards.LooksLikeIndex(head), err
}

// openSingle opens the file at real under the name path.
func openSingle(path, real string) (*File, error) {
	f := &File{path: path}
	tensors, metadata, err := f.add(real)
	if err != nil {
		f.Close()
		return nil, err
	}
	f.metadata = metadata
	f.Set = stored.NewSet(tensors)
	return f, nil
}

// add opens one file of the model and returns its tensors and metadata.
func (f *File) add(path string) ([]tensor.Stored, map[string]string, error) {
	file, size, err := readfile.Open(path)
	if err != nil {
		return nil, nil, err
	}
	f.files = append(f.files, file)
	f.names = append(f.names, path)
	stamp, err := readfile.NewStamp(file, path)
	if err != nil {
		return nil, nil, err
	}
	f.stamps = append(f.stamps, stamp)
	return parse(file, path, size)
}

// parse reads everything but the payloads of one file.
func parse(file io.ReaderAt, path string, size int64) ([]tensor.Stored, map[string]string, error) {
	header, err := readHeader(file, path, size)
	if err != nil {
		return nil, nil, err
	}
	entries, metadata, err := parseHeader(path, header)
	if err != nil {
		return nil, nil, err
	}
	start := int64(8 + len(header))
	if err := checkLayout(path, entries, checked.Size(size-start)); err != nil {
		return nil, nil, err
	}
	tensors := make([]tensor.Stored, len(entries))
	for i, e := range entries {
		tensors[i] = tensor.Stored{Info: e.Info, ReaderAt: &stored.Section{
			File: file, Path: path, Name: e.Name, Offset: start + int64(e.begin), Size: e.Size,
		}}
	}
	return tensors, metadata, nil
}

// readHeader returns the header's text; its claimed length is compared with the file first.
func readHeader(file io.ReaderAt, path string, size int64) (string, error) {
	if size < 8 {
		return "", bad(path, 1, "file of %d bytes is too short for a header length of 8 bytes", size).At("offset 0")
	}
	var length [8]byte
	if _, err := file.ReadAt(length[:], 0); err != nil {
		return "", readfile.Fault(path, err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	switch {
	case n == 0:
		return "", bad(path, 2, "header length is 0").At("offset 0")
	case n > maxHeader:
		return "", bad(path, 3, "header length %d is over the limit of %d", n, maxHeader).At("offset 0")
	case n > uint64(size-8):
		return "", bad(path, 4, "header of 8+%d bytes passes the end of the file at %d", n, size).At("offset 0").
			WithHint(stored.CutOff)
	}
	header := make([]byte, n)
	if _, err := file.ReadAt(header, 8); err != nil {
		return "", readfile.Fault(path, err)
	}
	return string(header), nil
}

// bad returns a fault of kind Format with identifier E-ST-id.
func bad(path string, id int, format string, args ...any) *fault.Error {
	return fault.In(fault.Format, path, format, args...).WithID(fmt.Sprintf("E-ST-%03d", id))
}

// jsonFault places an error of the header's JSON in the file: the header starts at offset 8.
func jsonFault(path, name string, err error) error {
	var e *strictjson.Error
	if !errors.As(err, &e) {
		return err
	}
	f := bad(path, 9+int(e.Code), "%s", e.Msg).At("offset %d", 8+e.Offset)
	if name != "" {
		f = f.At("tensor %q, offset %d", name, 8+e.Offset)
	}
	return f
}

// entry is a tensor with its place behind the header.
type entry struct {
	tensor.Info
	begin, end checked.Size
}

// parseHeader reads the header's JSON, but for the layout.
func parseHeader(path, header string) ([]entry, map[string]string, error) {
	root, err := strictjson.Parse(header, strictjson.Options{MaxDepth: maxDepth, MaxValues: maxValues})
	if err == nil {
		err = root.Expect(strictjson.Object)
	}
	if err != nil {
		return nil, nil, jsonFault(path, "", err)
	}
	metadata := map[string]string{}
	var entries []entry
	for name, v := range root.Members() {
		if name == "__metadata__" {
			if metadata, err = parseMetadata(path, v); err != nil {
				return nil, nil, err
			}
			continue
		}
		if len(entries) == stored.MaxTensors {
			return nil, nil, bad(path, 20, "more than %d tensors", stored.MaxTensors)
		}
		if err := stored.CheckName(name, stored.MaxName); err != nil {
			return nil, nil, bad(path, 21, "%s", err).At("tensor %q", clip(name))
		}
		e, err := parseEntry(path, name, v)
		if err != nil {
			return nil, nil, err
		}
		entries = append(entries, e)
	}
	return entries, metadata, nil
}

// clip shortens a name in a message.
func clip(name string) string {
	if len(name) > stored.MaxName {
		return name[:stored.MaxName] + "…"
	}
	return name
}

func parseMetadata(path string, v strictjson.Value) (map[string]string, error) {
	if err := v.Expect(strictjson.Object); err != nil {
		return nil, metadataFault(path, "", err)
	}
	metadata := map[string]string{}
	for key, value := range v.Members() {
		s, err := value.Str()
		if err != nil {
			return nil, metadataFault(path, key, err)
		}
		metadata[key] = s
	}
	return metadata, nil
}

func metadataFault(path, key string, err error) error {
	e := err.(*strictjson.Error)
	place := fmt.Sprintf("__metadata__, offset %d", 8+e.Offset)
	if key != "" {
		place = fmt.Sprintf("__metadata__ key %q, offset %d", clip(key), 8+e.Offset)
	}
	return bad(path, 22, "%s", e.Msg).At("%s", place)
}

// parseEntry reads {"dtype": …, "shape": […], "data_offsets": [begin, end]} and checks the size.
func parseEntry(path, name string, v strictjson.Value) (entry, error) {
	f := strictjson.NewFields(v)
	f.Only("dtype", "shape", "data_offsets")
	dtypeName := f.Str("dtype")
	dims := uints(f, "shape")
	offsets := uints(f, "data_offsets")
	if f.Err() != nil {
		return entry{}, jsonFault(path, name, f.Err())
	}
	refuse := func(id int, format string, args ...any) (entry, error) {
		return entry{}, bad(path, id, format, args...).At("tensor %q", name)
	}
	d, ok := dtypes[dtypeName]
	if !ok {
		return refuse(30, "dtype %q is unknown", clip(dtypeName))
	}
	if len(dims) > stored.MaxRank {
		return refuse(31, "%d dimensions are over the limit of %d", len(dims), stored.MaxRank)
	}
	shape, n, err := checked.Shape(dims)
	if err != nil {
		return refuse(32, "%s", err)
	}
	bits, err := n.Mul(d.bits)
	if err != nil {
		return refuse(33, "%d elements of %d bits overflow", n, d.bits)
	}
	if bits%8 != 0 {
		return refuse(34, "%d elements of %s are not whole bytes", n, dtypeName)
	}
	if d.dtype == tensor.Invalid {
		return refuse(35, "dtype %s is not supported", dtypeName)
	}
	if len(offsets) != 2 {
		return refuse(36, "data_offsets has %d numbers, expected 2", len(offsets))
	}
	e := entry{begin: checked.Size(offsets[0]), end: checked.Size(offsets[1])}
	if e.begin > e.end {
		return refuse(37, "data_offsets are reversed: %d > %d", e.begin, e.end)
	}
	if e.end-e.begin != bits/8 {
		return refuse(38, "data_offsets span %d bytes, but %s %v needs %d", e.end-e.begin, dtypeName, shape, bits/8)
	}
	e.Info = tensor.Info{Name: name, DType: d.dtype, Shape: shape, Size: int64(bits / 8)}
	return e, nil
}

// uints reads a required array of non-negative integers.
func uints(f *strictjson.Fields, key string) []uint64 {
	return strictjson.Field(f, key, strictjson.Value.Uints)
}

// checkLayout sorts the entries by offset and makes sure that they fill the data exactly.
func checkLayout(path string, entries []entry, data checked.Size) error {
	slices.SortStableFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end), cmp.Compare(a.Name, b.Name))
	})
	var at checked.Size
	previous := ""
	for _, e := range entries {
		switch {
		case e.end > data:
			return bad(path, 40, "data_offsets [%d, %d] pass the end of the data at %d", e.begin, e.end, data).
				At("tensor %q", e.Name).WithHint(stored.CutOff)
		case e.begin < at:
			return bad(path, 41, "data_offsets [%d, %d] overlap tensor %q, which ends at %d", e.begin, e.end, previous, at).At("tensor %q", e.Name)
		case e.begin > at:
			return bad(path, 42, "data_offsets [%d, %d] leave a hole from %d", e.begin, e.end, at).At("tensor %q", e.Name)
		}
		at, previous = e.end, e.Name
	}
	if at != data {
		return bad(path, 43, "%d bytes after the last tensor belong to none", data-at).At("data offset %d", at)
	}
	return nil
}

// Path returns the path the model was opened by.
func (f *File) Path() string { return f.path }

// Metadata returns the strings of __metadata__, of the first shard where there are several.
func (f *File) Metadata() map[string]string { return f.metadata }

// Files returns the paths of the model's safetensors files in order of name.
func (f *File) Files() []string { return f.names }

// Warnings returns what was tolerated.
func (f *File) Warnings() []string { return f.warnings }

// Verify implements tensor.File. The format has no checksum: only a change since the files were opened shows.
func (f *File) Verify() error {
	for _, s := range f.stamps {
		if err := s.Check(); err != nil {
			return err
		}
	}
	return nil
}

// Close releases the files.
func (f *File) Close() error {
	var errs []error
	for _, file := range f.files {
		errs = append(errs, file.Close())
	}
	return errors.Join(errs...)
}
