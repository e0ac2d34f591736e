package aprfile

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"strings"

	"apr/format/internal/stored"
	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/internal/strictjson"
	"apr/tensor"
)

// Options of a writer.
type Options struct {
	Force bool // replace existing files

	// Metadata is written with sorted keys and without nulls; values are those of strictjson.AppendCanonical. The
	// writer sets "writer", and what Tied needs.
	Metadata map[string]any

	// Writer names the program and its version, as "apr/1.2.0"; empty means "apr/1".
	Writer string

	// Tied adds lm_head.weight as a second index entry for the bytes of model.embed_tokens.weight, and
	// tied_embeddings: nothing is stored twice, and readers that need a head find one.
	Tied bool
}

// Write writes one file, atomically. Types are F32, F16, BF16, and Q4_0, Q5_0, Q8_0, Q4_K, Q5_K, Q6_K, IQ4_NL and IQ4_XS with
// rows of whole blocks. Payloads stand in order of name and are streamed; equal input gives equal bytes. Faults: Invalid (the
// file exists), Format (what the format cannot hold), IO.
func Write(path string, tensors []tensor.Source, opt Options) error {
	f, err := prepare(path, tensors, opt)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Commit()
}

// Encode writes the bytes of a file to w and returns their number.
func Encode(w io.Writer, tensors []tensor.Source, opt Options) (int64, error) {
	p, err := newPlan(tensors, opt)
	if err != nil {
		return 0, err
	}
	return p.size, p.emit(w)
}

// prepare writes a file up to its Commit.
func prepare(path string, tensors []tensor.Source, opt Options) (*atomicfile.File, error) {
	p, err := newPlan(tensors, opt)
	if err != nil {
		return nil, err
	}
	f, err := atomicfile.Create(path, opt.Force)
	if err != nil {
		return nil, err
	}
	if err := f.Expect(p.size); err != nil {
		return nil, err
	}
	if err := p.emit(f); err != nil {
		f.Abort()
		return nil, err
	}
	return f, nil
}

// plan is a file about to be written: every byte of it but the payloads.
type plan struct {
	front    []byte // header, metadata, index, with padding
	payloads []tensor.Source
	entries  []Entry
	size     int64
}

// newPlan lays a file out.
func newPlan(tensors []tensor.Source, opt Options) (*plan, error) {
	p := &plan{payloads: slices.Clone(tensors)}
	slices.SortFunc(p.payloads, func(a, b tensor.Source) int { return strings.Compare(a.Name, b.Name) })
	flags := RowMajor
	var at int64
	for i, t := range p.payloads {
		e, err := newEntry(t, at)
		if err != nil {
			return nil, err
		}
		if i > 0 && p.payloads[i-1].Name == t.Name {
			return nil, refuse(t.Name, 25, "name is taken")
		}
		if t.DType == tensor.Q4_K || t.DType == tensor.Q6_K {
			flags |= Quantized
		}
		p.entries = append(p.entries, e)
		if at > 1<<62-e.Size {
			return nil, refuse(t.Name, 32, "the payloads overflow")
		}
		at = align(at + e.Size)
	}
	if err := p.tie(opt); err != nil {
		return nil, err
	}
	if len(p.entries) > stored.MaxTensors {
		return nil, fault.New(fault.Format, "%d tensors are over the limit of %d", len(p.entries), stored.MaxTensors).WithID("E-APR-020")
	}
	metadata, more, err := makeMetadata(opt)
	if err != nil {
		return nil, err
	}
	p.makeFront(metadata, flags|more)
	p.size = int64(len(p.front)) + at + footerSize
	return p, nil
}

func align(n int64) int64 { return (n + alignment - 1) / alignment * alignment }

func refuse(name string, id int, format string, args ...any) *fault.Error {
	return fault.New(fault.Format, format, args...).At("tensor %q", name).WithID(fmt.Sprintf("E-APR-%03d", id))
}

// newEntry checks a tensor and places it at an offset.
func newEntry(t tensor.Source, at int64) (Entry, error) {
	if err := stored.CheckName(t.Name, stored.MaxName); err != nil {
		return Entry{}, refuse(t.Name, 21, "%s", err)
	}
	code, ok := dtypeCodes[t.DType]
	if !ok {
		return Entry{}, refuse(t.Name, 29, "type %s is not written to .apr files", t.DType)
	}
	if len(t.Shape) > stored.MaxRank {
		return Entry{}, refuse(t.Name, 26, "%d dimensions are over the limit of %d", len(t.Shape), stored.MaxRank)
	}
	n, ok := tensor.Elements(t.Shape)
	if cols := t.Cols(); ok && t.DType.IsQuantized() && n > 0 && cols%t.DType.BlockLen() != 0 {
		return Entry{}, refuse(t.Name, 30, "rows of %d elements are not whole blocks of %s", cols, t.DType)
	}
	block, bytes := int64(t.DType.BlockLen()), int64(t.DType.BlockBytes())
	if !ok || n/block > (1<<62)/bytes || n/block*bytes != t.Size {
		return Entry{}, refuse(t.Name, 30, "%d bytes do not hold %s %v", t.Size, t.DType, t.Shape)
	}
	return Entry{Info: t.Info, StoredName: t.Name, Code: code, Offset: uint64(at)}, nil
}

// tie adds the head as a second name of the embedding's bytes.
func (p *plan) tie(opt Options) error {
	if !opt.Tied {
		return nil
	}
	find := func(name string) (int, bool) {
		return slices.BinarySearchFunc(p.entries, name, func(e Entry, n string) int { return strings.Compare(e.Name, n) })
	}
	place, taken := find(headName)
	if taken {
		return refuse(headName, 53, "is given, though the head is tied to the embedding")
	}
	embed, ok := find(embedName)
	if !ok {
		return refuse(embedName, 53, "is missing, though the head is tied to it")
	}
	head := p.entries[embed]
	head.Name, head.StoredName = headName, headName
	p.entries = slices.Insert(p.entries, place, head)
	return nil
}

// makeMetadata returns the JSON of a file and the flags that follow from it.
func makeMetadata(opt Options) ([]byte, Flags, error) {
	m := maps.Clone(opt.Metadata)
	if m == nil {
		m = map[string]any{}
	}
	m["writer"] = "apr/1"
	if opt.Writer != "" {
		m["writer"] = opt.Writer
	}
	if opt.Tied {
		m["tied_embeddings"] = true
	}
	delete(m, "sharding")
	var flags Flags
	text, err := strictjson.AppendCanonical(nil, m)
	if err != nil {
		return nil, 0, fault.New(fault.Format, "metadata cannot be written").Because(err).WithID("E-APR-054")
	}
	if len(text) > maxMetadata {
		return nil, 0, fault.New(fault.Format, "metadata of %d bytes is over the limit of %d", len(text), maxMetadata).WithID("E-APR-010")
	}
	parsed, err := parseMetadata("metadata", string(text), 0, nil) // what the reader would refuse is never written
	if err != nil {
		return nil, 0, err
	}
	if v, ok := parsed.Value("tokenizer.vocabulary"); ok && v.Len() > 0 {
		flags |= HasVocab
	}
	return text, flags, nil
}

// makeFront lays out everything before the data.
func (p *plan) makeFront(metadata []byte, flags Flags) {
	le := binary.LittleEndian
	b := append(make([]byte, headerSize), metadata...)
	b = pad(b)
	indexAt := len(b)
	for _, e := range p.entries {
		b = le.AppendUint16(b, uint16(len(e.Name)))
		b = append(b, e.Name...)
		b = append(b, e.Code, byte(len(e.Shape)))
		for _, d := range e.Shape {
			b = le.AppendUint64(b, uint64(d))
		}
		b = le.AppendUint64(b, e.Offset)
		b = le.AppendUint64(b, uint64(e.Size))
	}
	b = pad(b)
	copy(b, "APR\x00\x02\x00")
	le.PutUint16(b[6:], uint16(flags))
	le.PutUint32(b[8:], uint32(len(p.entries)))
	le.PutUint64(b[12:], headerSize)
	le.PutUint32(b[20:], uint32(len(metadata)))
	le.PutUint64(b[24:], uint64(indexAt))
	le.PutUint64(b[32:], uint64(len(b)))
	le.PutUint32(b[40:], headerCRC(b))
	p.front = b
}

func pad(b []byte) []byte { return append(b, make([]byte, align(int64(len(b)))-int64(len(b)))...) }

// emit writes the file.
func (p *plan) emit(w io.Writer) error {
	sum := crc32.NewIEEE()
	b := bufio.NewWriterSize(io.MultiWriter(w, sum), 1<<20)
	if _, err := b.Write(p.front); err != nil {
		return err
	}
	for _, t := range p.payloads {
		if err := stored.Emit(b, t); err != nil {
			return err
		}
		if _, err := b.Write(make([]byte, align(t.Size)-t.Size)); err != nil {
			return err
		}
	}
	if err := b.Flush(); err != nil {
		return err
	}
	_, err := w.Write(binary.LittleEndian.AppendUint32(nil, sum.Sum32()))
	return err
}
