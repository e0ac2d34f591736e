// Package stored holds what all container formats do alike with the tensors of a file: check their names, find them
// by name, read their payloads, and stream payloads into a new file.
package stored

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"apr/internal/fault"
	"apr/tensor"
)

// Limits that all formats share.
const (
	MaxTensors = 100_000
	MaxName    = 256 // bytes
	MaxRank    = 8
)

// CutOff is the hint of an error about a file that ends before its contents do.
const CutOff = "the file is cut off, as by a download that broke: fetch it again"

// CheckName refuses a tensor name that is empty, longer than limit bytes, not UTF-8, an absolute path, or that has
// control characters or a ".." component, by POSIX and Windows rules: names become file names elsewhere.
func CheckName(name string, limit int) error {
	switch {
	case name == "":
		return errors.New("tensor name is empty")
	case len(name) > limit:
		return fmt.Errorf("tensor name of %d bytes is over the limit of %d", len(name), limit)
	case !utf8.ValidString(name):
		return errors.New("tensor name is not UTF-8")
	case strings.ContainsFunc(name, unicode.IsControl):
		return errors.New("tensor name has a control character")
	case name[0] == '/' || name[0] == '\\' || len(name) > 1 && name[1] == ':' && unicode.IsLetter(rune(name[0])):
		return errors.New("tensor name is an absolute path")
	}
	for part := range strings.FieldsFuncSeq(name, func(r rune) bool { return r == '/' || r == '\\' }) {
		if part == ".." {
			return errors.New(`tensor name has a ".." component`)
		}
	}
	return nil
}

// Set finds the tensors of a file by name.
type Set struct {
	list []tensor.Stored
}

// NewSet returns the set of the tensors given, whose names differ.
func NewSet(list []tensor.Stored) *Set {
	slices.SortFunc(list, func(a, b tensor.Stored) int { return cmp.Compare(a.Name, b.Name) })
	return &Set{list}
}

// Tensors returns the tensors in ascending order of name.
func (s *Set) Tensors() []tensor.Stored { return s.list }

// Tensor returns the tensor of that exact name, and false if there is none.
func (s *Set) Tensor(name string) (tensor.Stored, bool) {
	i, ok := slices.BinarySearchFunc(s.list, name, func(t tensor.Stored, n string) int { return cmp.Compare(t.Name, n) })
	if !ok {
		return tensor.Stored{}, false
	}
	return s.list[i], true
}

// Section reads the payload of one tensor.
type Section struct {
	File   io.ReaderAt
	Path   string
	Name   string
	Offset int64 // of the payload in the file
	Size   int64

	pages pages
}

// ReadAt implements io.ReaderAt; errors name the file, the tensor and the offset.
func (s *Section) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("%s: tensor %q: negative offset %d", s.Path, s.Name, off)
	}
	if off >= s.Size {
		return 0, io.EOF
	}
	want := p[:min(int64(len(p)), s.Size-off)]
	n, err := s.File.ReadAt(want, s.Offset+off)
	s.pages.note(want[:n], off, s.Size)
	if n < len(want) {
		f := fault.In(fault.IO, s.Path, "payload cannot be read").At("tensor %q, offset %d", s.Name, s.Offset+off+int64(n))
		if err == io.EOF {
			f.Msg = "file ends inside the payload; it was shortened after it was opened"
			return n, f.WithID("E-FILE-021")
		}
		return n, f.Because(err).WithID("E-FILE-020")
	}
	if len(want) < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// Emit streams the payload of src to w; anything but src.Size bytes is an error.
func Emit(w io.Writer, src tensor.Source) error {
	e := &exact{w: w, left: src.Size}
	if err := src.Payload(e); err != nil {
		return fmt.Errorf("tensor %q: %w", src.Name, err)
	}
	if e.left != 0 {
		return fmt.Errorf("tensor %q: %d of %d payload bytes were not produced", src.Name, e.left, src.Size)
	}
	return nil
}

// exact passes on at most left bytes.
type exact struct {
	w    io.Writer
	left int64
}

func (e *exact) Write(p []byte) (int, error) {
	if int64(len(p)) > e.left {
		return 0, errors.New("more payload was produced than the shape holds")
	}
	n, err := e.w.Write(p)
	e.left -= int64(n)
	return n, err
}
