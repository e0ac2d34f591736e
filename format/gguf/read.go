package gguf

import (
	"encoding/binary"
	"errors"
	"io"
	"math/bits"
	"os"

	"apr/format/internal/checked"
	"apr/format/internal/stored"
	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/tensor"
)

// File is an opened model file. It implements tensor.File.
type File struct {
	*stored.Set
	path  string
	file  *os.File
	stamp readfile.Stamp
	head  *header
}

var _ tensor.File = (*File)(nil)

// Open opens a file and reads its header. Faults are of kind NotFound, Format or IO.
func Open(path string) (*File, error) {
	file, size, err := readfile.Open(path)
	if err != nil {
		return nil, err
	}
	stamp, err := readfile.NewStamp(file, path)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	h, err := parse(file, path, size)
	if err != nil {
		file.Close()
		return nil, err
	}
	return &File{Set: stored.NewSet(h.tensors), path: path, file: file, stamp: stamp, head: h}, nil
}

// header is everything but the payloads.
type header struct {
	version   uint32
	meta      *Metadata
	alignment checked.Size
	tensors   []tensor.Stored
	warnings  []string
}

// parse reads everything but the payloads.
func parse(file io.ReaderAt, path string, size int64) (*header, error) {
	s := &scanner{file: file, path: path, size: size}
	h := &header{}
	var err error
	if h.version, err = s.begin(); err != nil {
		return nil, err
	}
	tensors, err := s.count("number of tensors", stored.MaxTensors, minTensor, 30)
	if err != nil {
		return nil, err
	}
	keys, err := s.count("number of keys", maxKeys, minKey, 10)
	if err != nil {
		return nil, err
	}
	if h.meta, err = s.metadata(keys); err != nil {
		return nil, err
	}
	h.meta.buf = s.buf
	if h.alignment, err = h.meta.alignment(size); err != nil {
		return nil, err
	}
	if err := h.meta.whole(); err != nil {
		return nil, err
	}
	infos, err := s.infos(tensors)
	if err != nil {
		return nil, err
	}
	return h, h.place(s, infos)
}

// begin reads magic and version.
func (s *scanner) begin() (uint32, error) {
	b, err := s.take(4, "magic")
	if err != nil {
		return 0, err
	}
	if string(b) != magic {
		return 0, s.bad(1, "file begins with %q, not %q", b, magic)
	}
	v, err := s.u32("version")
	if err != nil {
		return 0, err
	}
	switch {
	case v == 2 || v == version:
		return v, nil
	case v&0xffff == 0 && v != 0:
		return 0, s.bad(3, "version %d of a big-endian file; supported are little-endian files", bits.ReverseBytes32(v))
	}
	return 0, s.bad(2, "version %d is not supported; supported: 2, 3", v)
}

// count reads the number of things of at least size bytes each.
func (s *scanner) count(what string, limit, size checked.Size, id int) (int, error) {
	n, err := s.u64(what)
	switch {
	case err != nil:
		return 0, err
	case n > limit:
		return 0, s.bad(id, "%s %d is over the limit of %d", what, n, limit)
	case n > s.left()/size:
		return 0, s.bad(id, "%s %d is more than the file of %d bytes can hold", what, n, s.size)
	}
	return int(n), nil
}

// alignment returns general.alignment, or 32.
func (m *Metadata) alignment(size int64) (checked.Size, error) {
	const key = "general.alignment"
	t, _, _, ok := m.Type(key)
	if !ok {
		return defaultAlignment, nil
	}
	if t != Uint32 {
		return 0, m.other(m.entries[m.byKey[key]], "u32")
	}
	a := binary.LittleEndian.Uint32(m.buf[m.entries[m.byKey[key]].begin:])
	switch {
	case a == 0 || a%8 != 0 || bits.OnesCount32(a) != 1:
		return 0, bad(m.path, 18, "alignment %d is not a power of two of 8 or more", a).At("key %q", key)
	case int64(a) > size:
		return 0, bad(m.path, 18, "alignment %d is beyond the file of %d bytes", a, size).At("key %q", key)
	}
	return checked.Size(a), nil
}

// whole refuses a part of a model.
func (m *Metadata) whole() error {
	const key = "split.count"
	n, ok, err := m.Uint(key)
	if err != nil || !ok || n <= 1 {
		return err
	}
	return bad(m.path, 23, "the model is in %d files, which is not supported", n).At("key %q", key).
		WithHint("join them: llama-gguf-split --merge")
}

// info is a tensor of the list.
type info struct {
	tensor.Info
	name   string
	offset checked.Size
}

// infos reads the list of n tensors.
func (s *scanner) infos(n int) ([]info, error) {
	list := make([]info, 0, n)
	seen := make(map[string]bool, n)
	for range n {
		s.in = ""
		b, err := s.text("tensor name", maxString, 31)
		if err != nil {
			return nil, err
		}
		s.in, s.name = "tensor", string(b)
		if err := stored.CheckName(s.name, maxName); err != nil {
			return nil, s.bad(31, "%s", err)
		}
		t := info{name: s.name}
		t.Name = t.name
		if seen[t.name] {
			return nil, s.bad(32, "occurs twice")
		}
		seen[t.name] = true
		if err := s.info(&t); err != nil {
			return nil, err
		}
		list = append(list, t)
	}
	s.in = ""
	return list, nil
}

// info reads what follows a tensor's name.
func (s *scanner) info(t *info) error {
	rank, err := s.u32("rank")
	if err != nil {
		return err
	}
	if rank > maxRank {
		return s.bad(33, "%d dimensions are over the limit of %d", rank, maxRank)
	}
	dims := make([]uint64, rank)
	for i := range dims {
		d, err := s.u64("dimension")
		if err != nil {
			return err
		}
		dims[int(rank)-1-i] = uint64(d) // innermost first
	}
	shape, n, err := checked.Shape(dims)
	if err != nil {
		return s.bad(34, "%s", err)
	}
	t.Shape = shape
	code, err := s.u32("type")
	if err != nil {
		return err
	}
	if err := s.typed(t, code, n); err != nil {
		return err
	}
	t.offset, err = s.u64("offset")
	return err
}

// typed sets the type of a tensor of n elements, and its size.
func (s *scanner) typed(t *info, code uint32, n checked.Size) error {
	if code >= uint32(len(types)) {
		return s.bad(37, "type %d is unknown", code)
	}
	switch g := types[code]; {
	case g.removed:
		return s.bad(37, "type %s (%d) was removed from the format", g.name, code)
	case g.dtype == tensor.Invalid:
		return s.bad(38, "type %s is not supported", g.name)
	default:
		t.DType = g.dtype
	}
	block := checked.Size(t.DType.BlockLen())
	if cols := checked.Size(t.Cols()); cols%block != 0 {
		return s.bad(36, "rows of %d elements are not whole blocks of %d, which %s has", cols, block, types[code].name)
	}
	size, err := (n / block).Mul(checked.Size(t.DType.BlockBytes()))
	if err != nil || size > 1<<63-1 {
		return s.bad(35, "%d elements of %s overflow", n, types[code].name)
	}
	t.Size = int64(size)
	return nil
}

// place finds the payloads: each starts where the one before it ends, after the padding.
func (h *header) place(s *scanner, infos []info) error {
	start, err := checked.Size(s.at).Align(h.alignment)
	if err != nil {
		return s.bad(35, "the start of the payloads overflows")
	}
	var next, end checked.Size // where the next payload is due, and where the last one ends
	for i, t := range infos {
		refuse := func(id int, format string, args ...any) *fault.Error {
			return bad(s.path, id, format, args...).At("tensor %q", clip(t.name))
		}
		switch {
		case t.offset%h.alignment != 0:
			return refuse(40, "offset %d is not a multiple of the alignment %d", t.offset, h.alignment)
		case t.offset < next:
			return refuse(41, "offset %d overlaps tensor %q; the next payload is due at %d", t.offset, clip(infos[i-1].name), next)
		case t.offset > next:
			return refuse(42, "offset %d leaves a hole from %d", t.offset, next)
		}
		begin, err := start.Add(t.offset)
		if err == nil {
			end, err = begin.Add(checked.Size(t.Size))
		}
		if err == nil {
			next, err = t.offset.Add(checked.Size(t.Size))
		}
		if err == nil {
			next, err = next.Align(h.alignment)
		}
		if err != nil {
			return refuse(35, "the end of %d bytes at offset %d overflows", t.Size, t.offset)
		}
		if t.Size > 0 && end > checked.Size(s.size) {
			return refuse(50, "%d bytes at offset %d+%d exceed the file of %d", t.Size, start, t.offset, s.size).
				WithHint(stored.CutOff)
		}
		h.tensors = append(h.tensors, tensor.Stored{Info: t.Info, ReaderAt: &stored.Section{
			File: s.file, Path: s.path, Name: t.Name, Offset: int64(min(begin, checked.Size(s.size))), Size: t.Size,
		}})
	}
	h.left(s, start, next)
	return nil
}

// left warns of bytes behind the last payload and its padding.
func (h *header) left(s *scanner, start, next checked.Size) {
	if end, err := start.Add(next); err == nil && checked.Size(s.size) > end {
		h.warnings = append(h.warnings, bad(s.path, 51, "%d bytes after the last tensor belong to none", checked.Size(s.size)-end).At("offset %d", end).Error())
	}
}

// Path returns the path the file was opened by.
func (f *File) Path() string { return f.path }

// Files returns the path of the file.
func (f *File) Files() []string { return []string{f.path} }

// Version returns the version of the format, 2 or 3.
func (f *File) Version() int { return int(f.head.version) }

// Metadata returns the keys and values.
func (f *File) Metadata() *Metadata { return f.head.meta }

// Warnings returns what was tolerated.
func (f *File) Warnings() []string { return f.head.warnings }

// Verify implements tensor.File. The format has no checksum: only a change since the file was opened shows.
func (f *File) Verify() error { return f.stamp.Check() }

// Close releases the file.
func (f *File) Close() error { return f.file.Close() }
