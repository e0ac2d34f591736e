package aprfile

import (
	"fmt"
	"io"

	"apr/internal/fault"
	"apr/tensor"
)

// Padding reads the bytes that belong to nothing: behind the metadata, the index and each payload. Holes of 64 bytes
// or more, and padding that is not zero, are faults of kind Format; an ordinary open does not look for them.
func (f *File) Padding() []error {
	var errs []error
	for _, p := range f.parts {
		errs = append(errs, p.padding()...)
	}
	return errs
}

func (p *part) padding() []error {
	var errs []error
	gap := func(what string, from, to int64) {
		if err := p.checkGap(what, from, to); err != nil {
			errs = append(errs, err)
		}
	}
	base := int64(p.header.dataAt)
	gap("after the header", headerSize, int64(p.header.metaOffset))
	gap("after the metadata", int64(p.header.metaOffset)+int64(p.header.metaSize), int64(p.header.indexOffset))
	gap("after the index", p.indexEnd(), base)
	at, what := base, "before the first payload"
	for _, e := range byOffset(p.entries) {
		start := base + int64(e.Offset)
		if start > at {
			gap(what, at, start)
		}
		at, what = max(at, start+e.Size), fmt.Sprintf("after tensor %q", e.StoredName)
	}
	gap(what, at, p.end)
	return errs
}

// indexEnd returns the offset behind the last entry.
func (p *part) indexEnd() int64 {
	at := int64(p.header.indexOffset)
	for _, e := range p.entries {
		at += int64(2 + len(e.StoredName) + 2 + 8*len(e.Shape) + 16)
	}
	return at
}

func (p *part) checkGap(what string, from, to int64) error {
	switch {
	case to-from >= alignment:
		return bad(p.path, 50, "hole of %d bytes %s", to-from, what).At("offset %d", from)
	case to <= from:
		return nil
	}
	b := make([]byte, to-from)
	if err := p.read(b, from); err != nil {
		return err
	}
	for i, c := range b {
		if c != 0 {
			return bad(p.path, 51, "padding %s is not zero", what).At("offset %d", from+int64(i))
		}
	}
	return nil
}

// Deviations lists where the file is not as the format says, though it can be read: unaligned sections and payloads,
// reserved bytes in use. A strict validation fails on them.
func (f *File) Deviations() []string {
	var list []string
	for _, p := range f.parts {
		h := p.header
		note := func(format string, args ...any) { list = append(list, p.path+": "+fmt.Sprintf(format, args...)) }
		if h.metaOffset != headerSize {
			note("metadata at %d, expected %d", h.metaOffset, headerSize)
		}
		if h.indexOffset%alignment != 0 {
			note("index at %d, not a multiple of %d", h.indexOffset, alignment)
		}
		if h.dataAt%alignment != 0 {
			note("data at %d, not a multiple of %d", h.dataAt, alignment)
		}
		if h.reserved {
			note("reserved bytes of the header are not zero")
		}
		if !p.footer {
			note("checksum at the end is missing")
		}
		for _, e := range p.entries {
			if e.Offset%alignment != 0 {
				note("tensor %q at %d, not a multiple of %d", e.StoredName, e.Offset, alignment)
			}
			if e.Name != e.StoredName {
				note("tensor %q has the GGUF name of %q", e.StoredName, e.Name)
			}
		}
	}
	return list
}

// HeadForm says how a model keeps its output matrix.
type HeadForm uint8

// The forms of the head. All but HeadOwn and HeadDead use the embedding; in training, embedding and head are then one
// parameter.
const (
	HeadOwn    HeadForm = iota // a matrix of its own
	HeadAbsent                 // no tensor, or one without bytes
	HeadShared                 // the same bytes of the file
	HeadCopy                   // an equal copy, and tied_embeddings
	HeadZero                   // at least 99.9 % zero, and tied_embeddings
	HeadDead                   // at least 99.9 % zero without tied_embeddings: damaged
)

// Tied reports whether the embedding is also the head.
func (h HeadForm) Tied() bool { return h != HeadOwn && h != HeadDead }

// String returns the name of the form, such as "shared".
func (h HeadForm) String() string {
	return [...]string{"own", "absent", "shared", "copy", "zero", "dead"}[h]
}

// Head finds how the head is kept. It reads the head's payload, and the embedding's where they may be equal. A dead
// head is a fault of kind Invalid; so is one that needs an embedding which is not there.
func (f *File) Head() (HeadForm, error) {
	tied, _, err := f.Metadata().Bool("tied_embeddings")
	if err != nil {
		return 0, err
	}
	head, ok := f.Tensor(headName)
	embed, okEmbed := f.Tensor(embedName)
	if !okEmbed {
		if !ok {
			return 0, f.content("model has neither embedding nor head").At("tensor %q", embedName)
		}
		return HeadOwn, nil
	}
	if !ok {
		return HeadAbsent, nil
	}
	if f.sameBytes() {
		return HeadShared, nil
	}
	zeros, equal, err := compare(head, embed)
	switch {
	case err != nil:
		return 0, err
	case zeros*1000 >= head.Size*999 && tied:
		return HeadZero, nil
	case zeros*1000 >= head.Size*999:
		return HeadDead, f.content("is at least 99.9 %% zero, and tied_embeddings is not set").At("tensor %q", headName)
	case equal && tied:
		return HeadCopy, nil
	}
	return HeadOwn, nil
}

func (f *File) content(format string, args ...any) *fault.Error {
	return fault.In(fault.Invalid, f.path, format, args...).WithID("E-APR-052")
}

// sameBytes reports whether head and embedding are one range of one file.
func (f *File) sameBytes() bool {
	for _, p := range f.parts {
		var found []Entry
		for _, e := range p.entries {
			if e.Name == headName || e.Name == embedName {
				found = append(found, e)
			}
		}
		if len(found) == 2 {
			return found[0].Offset == found[1].Offset && found[0].Size == found[1].Size && found[0].DType == found[1].DType
		}
	}
	return false
}

// compare counts the bytes of head that are in zero elements, and reports whether head and embed are equal in type,
// shape and bytes. An element of a block type is taken by byte: a zero matrix has only zero bytes.
func compare(head, embed tensor.Stored) (zeros int64, equal bool, err error) {
	width := int64(1)
	if head.DType.IsFloat() {
		width = int64(head.DType.BlockBytes())
	}
	equal = head.DType == embed.DType && head.Size == embed.Size && fmt.Sprint(head.Shape) == fmt.Sprint(embed.Shape)
	a := make([]byte, min(head.Size, 1<<20))
	b := make([]byte, len(a))
	for at := int64(0); at < head.Size; at += int64(len(a)) {
		n := min(int64(len(a)), head.Size-at)
		if _, err := head.ReadAt(a[:n], at); err != nil && err != io.EOF {
			return 0, false, err
		}
		zeros += zeroBytes(a[:n], int(width))
		if !equal {
			continue
		}
		if _, err := embed.ReadAt(b[:n], at); err != nil && err != io.EOF {
			return 0, false, err
		}
		equal = string(a[:n]) == string(b[:n])
	}
	return zeros, equal, nil
}

// zeroBytes counts the bytes of elements of that width that are zero (of either sign, for floats).
func zeroBytes(b []byte, width int) (n int64) {
	for i := 0; i+width <= len(b); i += width {
		zero := true
		for j, c := range b[i : i+width] {
			if j == width-1 && width > 1 {
				c &= 0x7f // sign
			}
			zero = zero && c == 0
		}
		if zero {
			n += int64(width)
		}
	}
	return n
}
