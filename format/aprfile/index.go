package aprfile

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"

	"apr/format/internal/checked"
	"apr/format/internal/stored"
	"apr/internal/fault"
	"apr/tensor"
)

// Entry is one line of the index. Info.Name is the Hugging Face name, also where the file holds GGUF's.
type Entry struct {
	tensor.Info
	StoredName string // as the file has it
	Code       uint8  // of the type
	Layout     Layout // of the blocks
	Offset     uint64 // of the payload, relative to the data section
}

// indexReader reads the index from front to back, never more than it holds.
type indexReader struct {
	path string
	at   checked.Size // offset in the file, for messages
	r    *bufio.Reader
}

// bytes reads the next n bytes of the index; n is at most a few hundred.
func (r *indexReader) bytes(n int) ([]byte, error) {
	b := make([]byte, n)
	got, err := io.ReadFull(r.r, b)
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return nil, bad(r.path, 22, "index is cut: it holds fewer tensors than the header counts").At("offset %d", r.at+checked.Size(got))
	}
	if err != nil {
		return nil, fault.In(fault.IO, r.path, "index cannot be read").Because(err).WithID("E-FILE-004")
	}
	r.at += checked.Size(n)
	return b, nil
}

// readIndex reads and checks all entries. size is that of the whole file.
func readIndex(path string, file io.ReaderAt, h header, size checked.Size) ([]Entry, error) {
	if h.count > stored.MaxTensors {
		return nil, bad(path, 20, "%d tensors are over the limit of %d", h.count, stored.MaxTensors).At("offset 8")
	}
	length := h.dataAt - h.indexOffset
	if checked.Size(h.count) > length/minEntry {
		return nil, bad(path, 22, "index of %d bytes is too short for %d tensors", length, h.count).At("offset 8")
	}
	section := io.NewSectionReader(file, int64(h.indexOffset), int64(length))
	r := &indexReader{path: path, at: h.indexOffset, r: bufio.NewReaderSize(section, 1<<16)}
	entries := make([]Entry, 0, h.count)
	previous := ""
	for range h.count {
		start := r.at
		e, err := r.entry(size - h.dataAt)
		if err != nil {
			return nil, err
		}
		if len(entries) > 0 {
			switch c := strings.Compare(previous, e.StoredName); {
			case c == 0:
				return nil, bad(path, 25, "name occurs twice").At("tensor %q, offset %d", e.StoredName, start)
			case c > 0:
				return nil, bad(path, 24, "name is out of order, after %q", previous).At("tensor %q, offset %d", e.StoredName, start)
			}
		}
		previous = e.StoredName
		entries = append(entries, e)
	}
	if err := r.rest(); err != nil {
		return nil, err
	}
	return entries, checkOverlap(path, entries)
}

// rest refuses an entry behind the last counted one: it would begin with the length of its name, which is not zero.
func (r *indexReader) rest() error {
	b, err := r.r.Peek(alignment)
	if err != nil && err != io.EOF {
		return fault.In(fault.IO, r.path, "index cannot be read").Because(err).WithID("E-FILE-004")
	}
	if i := slices.IndexFunc(b, func(c byte) bool { return c != 0 }); i >= 0 {
		return bad(r.path, 23, "index holds more than the tensors the header counts").At("offset %d", r.at+checked.Size(i))
	}
	return nil
}

// entry reads one entry; data is the length of the file from the data section on.
func (r *indexReader) entry(data checked.Size) (Entry, error) {
	start := r.at
	b, err := r.bytes(2)
	if err != nil {
		return Entry{}, err
	}
	length := int(binary.LittleEndian.Uint16(b))
	if length < 1 || length > stored.MaxName {
		return Entry{}, bad(r.path, 21, "tensor name of %d bytes, expected 1 to %d", length, stored.MaxName).At("offset %d", start)
	}
	if b, err = r.bytes(length + 2); err != nil {
		return Entry{}, err
	}
	name, code, rank := string(b[:length]), b[length], int(b[length+1])
	refuse := func(id int, format string, args ...any) (Entry, error) {
		return Entry{}, bad(r.path, id, format, args...).At("tensor %q, offset %d", name, start)
	}
	if err := stored.CheckName(name, stored.MaxName); err != nil {
		return refuse(21, "%s", err)
	}
	if rank > stored.MaxRank {
		return refuse(26, "%d dimensions are over the limit of %d", rank, stored.MaxRank)
	}
	if b, err = r.bytes(8*rank + 16); err != nil {
		return Entry{}, err
	}
	dims := make([]uint64, rank)
	for i := range dims {
		dims[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	offset := checked.Size(binary.LittleEndian.Uint64(b[8*rank:]))
	size := checked.Size(binary.LittleEndian.Uint64(b[8*rank+8:]))
	shape, n, err := checked.Shape(dims)
	if err != nil {
		return refuse(27, "%s", err)
	}
	end, err := offset.Add(size)
	if err != nil {
		return refuse(32, "payload at %d+%d %s", offset, size, err)
	}
	if end > data {
		return Entry{}, bad(r.path, 32, "payload at %d+%d passes the end of the file, %d bytes into the data",
			offset, size, data).
			At("tensor %q, offset %d", name, start).WithHint(stored.CutOff)
	}
	e := Entry{StoredName: name, Code: code, Offset: uint64(offset)}
	e.Info = tensor.Info{Name: hfName(name), Shape: shape, Size: int64(size)}
	if size == 0 && e.Name == headName {
		n = 0 // an empty head stands for the embedding, whatever its shape
	}
	e.DType, e.Layout, err = resolve(code, shape, n, size)
	if err != nil {
		return refuse(typeID(err), "%s", err)
	}
	return e, nil
}

func hfName(name string) string {
	if hf, ok := toHF(name); ok {
		return hf
	}
	return name
}

// typeID returns the identifier's number of an error of resolve.
func typeID(err error) int {
	for i, e := range []error{errUnknown, errUnsupported, errSize, errAmbiguous} {
		if errors.Is(err, e) {
			return 28 + i
		}
	}
	panic("aprfile: unexpected error of resolve: " + err.Error())
}

// byOffset returns the entries that have a payload, in order of offset.
func byOffset(entries []Entry) []Entry {
	sorted := slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool { return e.Size == 0 })
	slices.SortFunc(sorted, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Size, b.Size), cmp.Compare(a.StoredName, b.StoredName))
	})
	return sorted
}

// checkOverlap refuses payloads that share bytes without being the same bytes.
func checkOverlap(path string, entries []Entry) error {
	sorted := byOffset(entries)
	for i := 1; i < len(sorted); i++ {
		a, b := sorted[i-1], sorted[i]
		if b.Offset < a.Offset+uint64(a.Size) && (a.Offset != b.Offset || a.Size != b.Size) {
			return bad(path, 33, "payload at %d+%d overlaps tensor %q at %d+%d", b.Offset, b.Size, a.StoredName, a.Offset, a.Size).
				At("tensor %q", b.StoredName)
		}
	}
	return nil
}
