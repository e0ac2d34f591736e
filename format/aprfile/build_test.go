package aprfile

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"testing"

	"apr/internal/fault"
	"apr/tensor"
)

// line is an index entry as a stranger may write it.
type line struct {
	name         string
	code         byte
	dims         []uint64
	offset, size uint64
}

func (l line) bytes() []byte {
	b := binary.LittleEndian.AppendUint16(nil, uint16(len(l.name)))
	b = append(append(b, l.name...), l.code, byte(len(l.dims)))
	for _, d := range append(l.dims[:len(l.dims):len(l.dims)], l.offset, l.size) {
		b = binary.LittleEndian.AppendUint64(b, d)
	}
	return b
}

// draft is a file to be spoiled: a good one unless its fields say otherwise.
type draft struct {
	meta     string
	lines    []line
	data     []byte
	noFooter bool
	tail     string                   // after everything
	header   func(b []byte)           // changes the header before its checksum
	crc      func(b []byte)           // changes the header after its checksum
	body     func(body []byte) []byte // changes what follows the header, footer included
	index    []byte                   // instead of the lines
}

// build lays the draft out as the format says.
func (d draft) build() []byte {
	le := binary.LittleEndian
	b := pad(append(make([]byte, headerSize), d.meta...))
	indexAt := len(b)
	if d.index != nil {
		b = append(b, d.index...)
	}
	for _, l := range d.lines {
		b = append(b, l.bytes()...)
	}
	b = pad(b)
	dataAt := len(b)
	b = append(b, d.data...)
	h := b[:headerSize]
	copy(h, "APR\x00\x02\x00")
	le.PutUint16(h[6:], uint16(RowMajor))
	le.PutUint32(h[8:], uint32(len(d.lines)))
	le.PutUint64(h[12:], headerSize)
	le.PutUint32(h[20:], uint32(len(d.meta)))
	le.PutUint64(h[24:], uint64(indexAt))
	le.PutUint64(h[32:], uint64(dataAt))
	if d.header != nil {
		d.header(h)
	}
	le.PutUint32(h[40:], headerCRC(h))
	if d.crc != nil {
		d.crc(h)
	}
	if !d.noFooter {
		b = le.AppendUint32(b, crc32.ChecksumIEEE(b))
	}
	if d.body != nil {
		b = append(b[:headerSize:headerSize], d.body(b[headerSize:])...)
	}
	return append(b, d.tail...)
}

// one is a good file with one F32 tensor "w" of two elements.
func one() draft {
	return draft{meta: "{}", lines: []line{{"w", 0, []uint64{2}, 0, 8}}, data: make([]byte, 64)}
}

// with returns one() with its tensor replaced, and as much data as it needs.
func with(lines ...line) draft {
	var end uint64
	for _, l := range lines {
		if l.size < 1<<20 && l.offset < 1<<20 {
			end = max(end, uint64(align(int64(l.offset+l.size))))
		}
	}
	return draft{meta: "{}", lines: lines, data: make([]byte, end)}
}

func save(t testing.TB, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.apr")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func mustOpen(t testing.TB, path string) *File {
	t.Helper()
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// readAll reads every payload.
func readAll(t testing.TB, f tensor.File) {
	t.Helper()
	for _, x := range f.Tensors() {
		b, err := io.ReadAll(io.NewSectionReader(x, 0, x.Size))
		if err != nil || int64(len(b)) != x.Size {
			t.Errorf("%s: %d bytes, %v", x.Name, len(b), err)
		}
	}
}

// checkAll reads every payload and runs every check of an opened file.
func checkAll(t testing.TB, f *File) error {
	t.Helper()
	readAll(t, f)
	if err := f.Verify(); err != nil && fault.KindOf(err) != fault.Format {
		t.Errorf("Verify: %v", err)
	}
	for _, err := range append(f.Padding(), f.Metadata().Check()...) {
		if fault.KindOf(err) == fault.Other {
			t.Errorf("not a fault: %v", err)
		}
	}
	f.Deviations()
	if _, err := f.Head(); err != nil && fault.KindOf(err) == fault.Other {
		t.Errorf("Head: %v", err)
	}
	return nil
}
