// Package aprfile reads and writes .apr files, version 2: a header of 64 bytes, metadata as one JSON object, an index
// of tensors sorted by name, their payloads, and a checksum.
//
// The header's checksum is verified before anything else is believed. The checksum over the whole file is judged by
// Verify: an ordinary open reads headers, however large the model. Verify takes the bytes that were read of the file
// before into account, so a caller that reads every payload and then verifies reads the file once. What other writers do wrong and can be
// understood in one way only is tolerated, with a warning where it matters; everything else is refused.
//
// Names and types are resolved at opening: tensors carry Hugging Face names also where the file has GGUF's, type
// codes with two meanings are told apart by the payload's size, and a metadata key is found under all its names.
package aprfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"apr/format/internal/checked"
	"apr/format/internal/stored"
	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/tensor"
)

// Names of the two tensors that may be one.
const (
	headName  = "lm_head.weight"
	embedName = "model.embed_tokens.weight"
)

// trainingPrefix marks the optimiser state of old checkpoints, which is never loaded.
const trainingPrefix = "__training__."

// part is one file: the whole model, or a shard.
type part struct {
	path     string
	disk     *os.File
	stamp    readfile.Stamp
	file     io.ReaderAt // of what the offsets count in: the file, or its decompressed content; at the end of open it is sum
	sum      *summed
	size     int64 // of that
	header   header
	meta     *Metadata
	entries  []Entry
	end      int64 // of the data with padding; the footer follows, if there is one
	footer   bool
	packed   *packed // if the file is compressed
	warnings []string
}

// File is an opened model. It implements tensor.File.
type File struct {
	*stored.Set
	path     string
	parts    []*part
	entries  map[string]Entry // by Info.Name
	warnings []string
}

var _ tensor.File = (*File)(nil)

// Open opens a .apr file, one shard of several (and with it all of them), or an index of shards. Faults are of kind
// NotFound, Format, IO, UnsafePath or Load (shards that contradict each other).
func Open(path string) (*File, error) {
	f := &File{path: path}
	if err := f.open(path); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (f *File) open(path string) error {
	isIndex, err := looksLikeIndex(path)
	if err != nil {
		return err
	}
	if isIndex {
		return f.openIndex(path)
	}
	p, err := f.add(path)
	if err != nil {
		return err
	}
	if p.header.flags&Sharded != 0 {
		return f.openSiblings(p)
	}
	return f.merge()
}

// add opens one file of the model.
func (f *File) add(path string) (*part, error) {
	file, size, err := readfile.Open(path)
	if err != nil {
		return nil, err
	}
	p := &part{path: path, disk: file, file: file, size: size}
	f.parts = append(f.parts, p)
	if p.stamp, err = readfile.NewStamp(file, path); err != nil {
		return nil, err
	}
	if err := p.open(); err != nil {
		return nil, err
	}
	return p, nil
}

// open reads everything but the payloads.
func (p *part) open() error {
	head := make([]byte, min(p.size, headerSize))
	if err := p.read(head, 0); err != nil {
		return err
	}
	var err error
	if p.header, err = parseHeader(p.path, head); err != nil {
		return err
	}
	if err := p.openMetadata(); err != nil {
		return err
	}
	if p.entries, err = readIndex(p.path, p.file, p.header, checked.Size(p.size)); err != nil {
		return err
	}
	if err := p.checkLength(); err != nil {
		return err
	}
	if p.packed != nil { // everything but the payloads is sound: they may be decompressed, into memory
		content, err := p.packed.all()
		if err != nil {
			return err
		}
		p.file = bytes.NewReader(content)
	}
	p.sum = &summed{file: p.file, end: p.end}
	p.file = p.sum
	p.warn()
	return nil
}

func (p *part) read(b []byte, offset int64) error {
	if len(b) == 0 {
		return nil
	}
	if _, err := p.file.ReadAt(b, offset); err != nil {
		return fault.In(fault.IO, p.path, "cannot be read").At("offset %d", offset).Because(err).WithID("E-FILE-004")
	}
	return nil
}

// openMetadata reads the metadata. Writers set the compression flags without compressing: only what is no JSON object
// is taken for compressed.
func (p *part) openMetadata() error {
	err := p.parseMetadata()
	if err == nil || p.header.flags&(LZ4|ZSTD) == 0 || fault.KindOf(err) != fault.Format {
		return err
	}
	if p.packed, err = unpack(p.path, p.file, p.size, p.header); err != nil {
		return err
	}
	p.file, p.size = bytes.NewReader(p.packed.front), p.packed.size
	return p.parseMetadata()
}

func (p *part) parseMetadata() error {
	if err := p.header.checkSections(p.path, checked.Size(p.size)); err != nil {
		return err
	}
	if p.header.metaSize > maxMetadata {
		return bad(p.path, 10, "metadata of %d bytes is over the limit of %d", p.header.metaSize, maxMetadata).At("offset 20")
	}
	text := make([]byte, p.header.metaSize)
	if err := p.read(text, int64(p.header.metaOffset)); err != nil {
		return err
	}
	var repeated repeatWarnings
	meta, err := parseMetadata(p.path, string(text), int(p.header.metaOffset), repeated.add)
	if err != nil {
		return err
	}
	p.meta = meta
	p.warnings = append(p.warnings, repeated.warnings()...)
	return nil
}

// checkLength finds the end of the data and whether a footer follows. Only our files are known to have one.
func (p *part) checkLength() error {
	var end, last checked.Size // relative to the data: with the last payload's padding, and without
	for _, e := range p.entries {
		payloadEnd := checked.Size(e.Offset) + checked.Size(e.Size) // checked with the entry
		padded, err := payloadEnd.Align(alignment)
		if err != nil {
			return bad(p.path, 32, "padded end of payload %s", err).At("tensor %q", e.StoredName)
		}
		end, last = max(end, padded), max(last, payloadEnd)
	}
	size, base := checked.Size(p.size), p.header.dataAt
	end, last = end+base, last+base // at most the file's size and 63 more
	switch {
	case size == end+footerSize:
		p.footer = true
		p.end = int64(end)
	case size == end || size == last:
		p.end = int64(size)
		if _, ours := p.meta.Value("writer"); ours {
			return bad(p.path, 35, "checksum at the end is missing; the file is cut").At("offset %d", size).
				WithHint(stored.CutOff)
		}
		p.warnings = append(p.warnings, "the file has no checksum at the end")
	case size > last && size < end+footerSize:
		return bad(p.path, 34, "file of %d bytes is cut: its data end at %d, its checksum at %d", size, end, end+footerSize).
			At("offset %d", size).WithHint(stored.CutOff)
	default:
		return bad(p.path, 34, "file has %d bytes, but its data end at %d and its checksum at %d", size, end, end+footerSize).At("offset %d", end)
	}
	return nil
}

// warn notes what is tolerated but worth knowing.
func (p *part) warn() {
	if p.header.flags&Signed != 0 {
		p.warnings = append(p.warnings, "the signature is not checked")
	}
	if p.header.minor != 0 {
		p.warnings = append(p.warnings, fmt.Sprintf("version 2.%d is newer than 2.0", p.header.minor))
	}
	if p.packed != nil {
		p.warnings = append(p.warnings, "the file is compressed; its content is held in memory")
	}
}

// merge makes one model of the parts.
func (f *File) merge() error {
	f.entries = map[string]Entry{}
	var list []tensor.Stored
	for _, p := range f.parts {
		for _, w := range p.warnings {
			if len(f.parts) > 1 {
				w = p.path + ": " + w
			}
			f.warnings = append(f.warnings, w)
		}
		for _, e := range p.entries {
			if strings.HasPrefix(e.StoredName, trainingPrefix) {
				continue
			}
			if other, ok := f.entries[e.Name]; ok {
				return bad(p.path, 25, "means the same tensor as %q", other.StoredName).At("tensor %q", e.StoredName)
			}
			f.entries[e.Name] = e
			if e.Size == 0 && e.Name == headName {
				continue // stands for the embedding; see Head
			}
			list = append(list, tensor.Stored{Info: e.Info, ReaderAt: &stored.Section{
				File: p.file, Path: p.path, Name: e.StoredName, Offset: int64(p.header.dataAt) + int64(e.Offset), Size: e.Size,
			}})
		}
	}
	f.Set = stored.NewSet(list)
	return nil
}

// Path returns the path the model was opened by.
func (f *File) Path() string { return f.path }

// Files returns the paths of the model's files.
func (f *File) Files() []string {
	paths := make([]string, len(f.parts))
	for i, p := range f.parts {
		paths[i] = p.path
	}
	return paths
}

// Version returns the version of the format, such as "2.0".
func (f *File) Version() string {
	h := f.parts[0].header
	return fmt.Sprintf("%d.%d", h.major, h.minor)
}

// Flags returns the flags of the first file.
func (f *File) Flags() Flags { return f.parts[0].header.flags }

// Metadata returns the metadata, of the first shard where there are several: only it has the tokenizer.
func (f *File) Metadata() *Metadata { return f.parts[0].meta }

// Warnings returns what was tolerated.
func (f *File) Warnings() []string { return f.warnings }

// Entry returns what the index says of the tensor with that (Hugging Face) name; an empty head has an entry, though
// it is no tensor.
func (f *File) Entry(name string) (Entry, bool) {
	e, ok := f.entries[name]
	return e, ok
}

// Close releases the files.
func (f *File) Close() error {
	var errs []error
	for _, p := range f.parts {
		errs = append(errs, p.disk.Close())
	}
	return errors.Join(errs...)
}

// Contents returns readers of the model's files as they are on disk. What is read through them counts for Verify, unless
// the file is compressed.
func (f *File) Contents() []io.Reader {
	all := make([]io.Reader, len(f.parts))
	for i, p := range f.parts {
		file := p.file
		if p.packed != nil {
			file = p.disk
		}
		all[i] = io.NewSectionReader(file, 0, p.stamp.Size())
	}
	return all
}

// HasChecksum reports whether every file of the model ends in a checksum: without one, Verify cannot see damage.
func (f *File) HasChecksum() bool {
	return !slices.ContainsFunc(f.parts, func(p *part) bool { return !p.footer })
}

// Verify implements tensor.File: it reads what has not been read of the model and compares the checksum at the end of each
// file, where there is one. A difference is a fault of kind Format; a file that has changed since it was opened is one of
// kind IO.
func (f *File) Verify() error {
	for _, p := range f.parts {
		if err := p.verify(); err != nil {
			return err
		}
	}
	return nil
}

func (p *part) verify() error {
	if err := p.stamp.Check(); err != nil {
		return err
	}
	if !p.footer {
		return nil // warned of when the file was opened
	}
	computed, err := p.sum.sum()
	if err != nil {
		return fault.In(fault.IO, p.path, "cannot be read").Because(err).WithID("E-FILE-004")
	}
	var b [footerSize]byte
	if err := p.read(b[:], p.end); err != nil {
		return err
	}
	if stored := binary.LittleEndian.Uint32(b[:]); stored != computed {
		return bad(p.path, 36, "the content is damaged: its file checksum, stored at the end, is %08x; bytes 0 to %d give %08x", stored, p.end, computed).
			At("footer at offset %d", p.end).WithHint("take the file from where it came from again; it was changed after it was written")
	}
	return nil
}
