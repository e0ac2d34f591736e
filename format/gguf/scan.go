package gguf

import (
	"encoding/binary"
	"io"

	"apr/format/internal/checked"
	"apr/format/internal/stored"
	"apr/internal/fault"
	"apr/internal/readfile"
)

// scanner reads the beginning of a file in order. Nothing is read, and no memory taken, on a length that the rest of
// the file does not have.
type scanner struct {
	file io.ReaderAt
	path string
	size int64

	buf  []byte // the file's first bytes, as far as they were needed
	at   int    // of the next item
	mark int    // of the latest item, for messages
	in   string // "key" or "tensor" with name, where the item belongs to one
	name string
}

// bad is a fault about the latest item.
func (s *scanner) bad(id int, format string, args ...any) *fault.Error {
	f := bad(s.path, id, format, args...)
	if s.in != "" {
		return f.At("%s %q, offset %d", s.in, clip(s.name), s.mark)
	}
	return f.At("offset %d", s.mark)
}

// left returns the bytes from the next item to the end of the file.
func (s *scanner) left() checked.Size { return checked.Size(s.size) - checked.Size(s.at) }

// take returns the next n bytes, which are what.
func (s *scanner) take(n checked.Size, what string) ([]byte, error) {
	s.mark = s.at
	if n > s.left() {
		return nil, s.bad(5, "%s of %d bytes passes the end of the file at %d", what, n, s.size).WithHint(stored.CutOff)
	}
	if n > maxHeader-checked.Size(s.at) {
		return nil, s.bad(6, "%s of %d bytes makes the header longer than the limit of %d", what, n, maxHeader)
	}
	end := s.at + int(n)
	if end > len(s.buf) {
		if err := s.fill(end); err != nil {
			return nil, err
		}
	}
	b := s.buf[s.at:end]
	s.at = end
	return b, nil
}

// fill reads on until end at least.
func (s *scanner) fill(end int) error {
	have := len(s.buf)
	buf := make([]byte, min(int64(max(end, 2*have, 1<<16)), s.size))
	copy(buf, s.buf)
	if _, err := s.file.ReadAt(buf[have:], int64(have)); err != nil {
		return readfile.Fault(s.path, err)
	}
	s.buf = buf
	return nil
}

func (s *scanner) u32(what string) (uint32, error) {
	b, err := s.take(4, what)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (s *scanner) u64(what string) (checked.Size, error) {
	b, err := s.take(8, what)
	if err != nil {
		return 0, err
	}
	return checked.Size(binary.LittleEndian.Uint64(b)), nil
}

// text reads a string of at most limit bytes; the message about a longer one has identifier id.
func (s *scanner) text(what string, limit checked.Size, id int) ([]byte, error) {
	n, err := s.u64("length")
	if err != nil {
		return nil, err
	}
	if n > limit {
		return nil, s.bad(id, "%s of %d bytes is over the limit of %d", what, n, limit)
	}
	return s.take(n, what)
}
