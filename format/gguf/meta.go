package gguf

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"apr/format/internal/checked"
	"apr/internal/fault"
)

// entry is a key with its value, whose bytes are buf[begin:end] of the Metadata.
type entry struct {
	key        string
	typ, elem  Type // elem: of an array
	n          int  // elements of an array
	begin, end int
}

// Metadata is the keys of a file with their values, which are decoded when asked for.
type Metadata struct {
	path    string
	buf     []byte // the file's first bytes
	entries []entry
	byKey   map[string]int
}

// metadata reads n keys.
func (s *scanner) metadata(n int) (*Metadata, error) {
	m := &Metadata{path: s.path, byKey: map[string]int{}}
	for range n {
		s.in = ""
		key, err := s.key()
		if err != nil {
			return nil, err
		}
		s.in, s.name = "key", key
		if _, twice := m.byKey[key]; twice {
			return nil, s.bad(12, "occurs twice")
		}
		code, err := s.u32("type")
		if err != nil {
			return nil, err
		}
		e := entry{key: key, typ: Type(code)}
		if err := s.value(&e); err != nil {
			return nil, err
		}
		m.byKey[key] = len(m.entries)
		m.entries = append(m.entries, e)
	}
	s.in = ""
	return m, nil
}

// key reads a key: ASCII that can be printed.
func (s *scanner) key() (string, error) {
	b, err := s.text("key", maxKey, 11)
	if err != nil {
		return "", err
	}
	if len(b) == 0 {
		return "", s.bad(11, "key is empty")
	}
	if i := slices.IndexFunc(b, func(c byte) bool { return c < 0x20 || c > 0x7e }); i >= 0 {
		s.mark += i
		return "", s.bad(11, "byte 0x%02x in a key is not printable ASCII", b[i])
	}
	return string(b), nil
}

// value passes over the value of e and notes where it is.
func (s *scanner) value(e *entry) error {
	if int(e.typ) >= len(valueTypes) {
		return s.bad(13, "value type %d is unknown", uint32(e.typ))
	}
	if e.typ == Array {
		return s.array(e)
	}
	return s.items(e, e.typ, 1)
}

// array passes over an array.
func (s *scanner) array(e *entry) error {
	code, err := s.u32("type of the elements")
	if err != nil {
		return err
	}
	e.elem = Type(code)
	switch {
	case int(e.elem) >= len(valueTypes):
		return s.bad(13, "value type %d of elements is unknown", code)
	case e.elem == Array:
		return s.bad(16, "is an array of arrays")
	}
	n, err := s.u64("number of elements")
	if err != nil {
		return err
	}
	if n > maxArray {
		return s.bad(15, "array of %d elements is over the limit of %d", n, maxArray)
	}
	e.n = int(n)
	return s.items(e, e.elem, e.n)
}

// items passes over n values of type t, which are no arrays.
func (s *scanner) items(e *entry, t Type, n int) error {
	e.begin = s.at
	if t == String {
		for range n {
			if _, err := s.text("string", maxString, 14); err != nil {
				return err
			}
		}
		e.end = s.at
		return nil
	}
	size, err := valueTypes[t].bytes.Mul(checked.Size(n))
	if err != nil {
		return s.bad(15, "%d elements of %s overflow", n, t)
	}
	what := "value"
	if e.typ == Array {
		what = "array"
	}
	b, err := s.take(size, what)
	if err != nil {
		return err
	}
	if t == Bool {
		if i := slices.IndexFunc(b, func(c byte) bool { return c > 1 }); i >= 0 {
			s.mark += i
			return s.bad(17, "boolean is %d, not 0 or 1", b[i])
		}
	}
	e.end = s.at
	return nil
}

// Keys returns the keys in the order of the file.
func (m *Metadata) Keys() []string {
	keys := make([]string, len(m.entries))
	for i, e := range m.entries {
		keys[i] = e.key
	}
	return keys
}

// Type returns the type of a value, the type of an array's elements and their number, and false if there is no such key.
func (m *Metadata) Type(key string) (t, elem Type, n int, ok bool) {
	i, ok := m.byKey[key]
	if !ok {
		return 0, 0, 0, false
	}
	e := m.entries[i]
	return e.typ, e.elem, e.n, true
}

// other is a fault about a value of another type than expected.
func (m *Metadata) other(e entry, want string) error {
	got := e.typ.String()
	if e.typ == Array {
		got = "array of " + e.elem.String()
	}
	return bad(m.path, 20, "expected %s, found %s", want, got).At("key %q", clip(e.key))
}

// number decodes the scalar of type t at the start of b, as an integer or, for the types with a point, as a float.
func number(t Type, b []byte) (i int64, u uint64, f float64, isFloat bool) {
	le := binary.LittleEndian
	switch t {
	case Uint8, Bool:
		u = uint64(b[0])
	case Int8:
		i = int64(int8(b[0]))
	case Uint16:
		u = uint64(le.Uint16(b))
	case Int16:
		i = int64(int16(le.Uint16(b)))
	case Uint32:
		u = uint64(le.Uint32(b))
	case Int32:
		i = int64(int32(le.Uint32(b)))
	case Uint64:
		u = le.Uint64(b)
	case Int64:
		i = int64(le.Uint64(b))
	case Float32:
		return 0, 0, widen(math.Float32frombits(le.Uint32(b))), true
	case Float64:
		return 0, 0, math.Float64frombits(le.Uint64(b)), true
	}
	return i, u, 0, false
}

// widen returns the number with the shortest decimal that is x in float32: 1e-6 was written as the nearest float32, and
// 1e-6 comes back.
func widen(x float32) float64 {
	f, err := strconv.ParseFloat(strconv.FormatFloat(float64(x), 'g', -1, 32), 64)
	if err != nil {
		return float64(x) // what is printed can be parsed
	}
	return f
}

// integer reports whether t is an integer.
func (t Type) integer() bool { return t <= Int32 || t == Uint64 || t == Int64 }

// Uint returns a non-negative integer of any width, and false if there is no such key. Another value is a fault of kind
// Format.
func (m *Metadata) Uint(key string) (uint64, bool, error) {
	at, ok := m.byKey[key]
	if !ok {
		return 0, false, nil
	}
	e := m.entries[at]
	if !e.typ.integer() {
		return 0, true, m.other(e, "an integer")
	}
	i, u, _, _ := number(e.typ, m.buf[e.begin:e.end])
	if i < 0 {
		return 0, true, bad(m.path, 20, "expected a non-negative integer, found %d", i).At("key %q", clip(key))
	}
	return u + uint64(i), true, nil // one of them is 0
}

// Float returns a number, and false if there is no such key. A float32 becomes the shortest decimal that stands for it.
// Another value is a fault of kind Format.
func (m *Metadata) Float(key string) (float64, bool, error) {
	at, ok := m.byKey[key]
	if !ok {
		return 0, false, nil
	}
	e := m.entries[at]
	if !e.typ.integer() && e.typ != Float32 && e.typ != Float64 {
		return 0, true, m.other(e, "a number")
	}
	i, u, f, isFloat := number(e.typ, m.buf[e.begin:e.end])
	if isFloat {
		return f, true, nil
	}
	return float64(i) + float64(u), true, nil
}

// Bool returns a boolean, and false if there is no such key. Another value is a fault of kind Format.
func (m *Metadata) Bool(key string) (value, ok bool, err error) {
	at, ok := m.byKey[key]
	if !ok {
		return false, false, nil
	}
	e := m.entries[at]
	if e.typ != Bool {
		return false, true, m.other(e, "a boolean")
	}
	return m.buf[e.begin] == 1, true, nil
}

// Str returns a string, and false if there is no such key. Another value, or text that is not UTF-8, is a fault of kind
// Format.
func (m *Metadata) Str(key string) (string, bool, error) {
	at, ok := m.byKey[key]
	if !ok {
		return "", false, nil
	}
	e := m.entries[at]
	if e.typ != String {
		return "", true, m.other(e, "a string")
	}
	s := string(m.buf[e.begin+8 : e.end])
	if !utf8.ValidString(s) {
		return "", true, bad(m.path, 21, "string is not UTF-8").At("key %q", clip(key))
	}
	return s, true, nil
}

// Strings returns an array of strings, and false if there is no such key. Another value is a fault of kind Format. The
// strings may be any bytes.
func (m *Metadata) Strings(key string) ([]string, bool, error) {
	at, ok := m.byKey[key]
	if !ok {
		return nil, false, nil
	}
	e := m.entries[at]
	if e.typ != Array || e.elem != String {
		return nil, true, m.other(e, "an array of strings")
	}
	all := string(m.buf[e.begin:e.end])
	list := make([]string, e.n)
	for i := range list {
		n := int(binary.LittleEndian.Uint64(m.buf[e.end-len(all):]))
		list[i], all = all[8:8+n], all[8+n:]
	}
	return list, true, nil
}

// Count returns the number of elements of an array of strings, and false if there is no such key. Another value is a fault
// of kind Format.
func (m *Metadata) Count(key string) (int, bool, error) {
	at, ok := m.byKey[key]
	if !ok {
		return 0, false, nil
	}
	e := m.entries[at]
	if e.typ != Array || e.elem != String {
		return 0, true, m.other(e, "an array of strings")
	}
	return e.n, true, nil
}

// Ints returns an array of integers, and false if there is no such key. Another value, or an integer over an int64, is
// a fault of kind Format.
func (m *Metadata) Ints(key string) ([]int64, bool, error) {
	at, ok := m.byKey[key]
	if !ok {
		return nil, false, nil
	}
	e := m.entries[at]
	if e.typ != Array || !e.elem.integer() {
		return nil, true, m.other(e, "an array of integers")
	}
	list := make([]int64, e.n)
	width := int(valueTypes[e.elem].bytes)
	for k := range list {
		i, u, _, _ := number(e.elem, m.buf[e.begin+k*width:])
		if u > math.MaxInt64 {
			return nil, true, bad(m.path, 20, "element %d is %d, over %d", k, u, math.MaxInt64).At("key %q", clip(key))
		}
		list[k] = i + int64(u) // one of them is 0
	}
	return list, true, nil
}

// Floats returns an array of numbers, and false if there is no such key. Another value is a fault of kind Format.
func (m *Metadata) Floats(key string) ([]float32, bool, error) {
	at, ok := m.byKey[key]
	if !ok {
		return nil, false, nil
	}
	e := m.entries[at]
	if e.typ != Array || e.elem != Float32 {
		return nil, true, m.other(e, "an array of f32")
	}
	list := make([]float32, e.n)
	for k := range list {
		list[k] = math.Float32frombits(binary.LittleEndian.Uint32(m.buf[e.begin+4*k:]))
	}
	return list, true, nil
}

// Missing returns a fault of kind Load about a key that a model needs to be used.
func (m *Metadata) Missing(key string) error {
	return fault.In(fault.Load, m.path, "is missing; a model without it can be inspected, not used").At("key %q", key).WithID("E-GGUF-022")
}

// Value returns a value as it is in the file: a string, a bool, an integer or a float of its width, or a slice of one of
// these; false if there is no such key, or if a string is not UTF-8.
func (m *Metadata) Value(key string) (any, bool) {
	at, ok := m.byKey[key]
	if !ok {
		return nil, false
	}
	e := m.entries[at]
	raw := m.buf[e.begin:e.end]
	switch {
	case e.typ == String:
		s, _, err := m.Str(key)
		return s, err == nil
	case e.typ != Array:
		return scalar(e.typ, raw), true
	case e.elem == String:
		list, _, err := m.Strings(key)
		return list, err == nil
	}
	width := int(valueTypes[e.elem].bytes)
	list := make([]any, e.n)
	for i := range list {
		list[i] = scalar(e.elem, raw[i*width:])
	}
	return list, true
}

// scalar decodes the value of type t at the start of b in its own type.
func scalar(t Type, b []byte) any {
	i, u, _, _ := number(t, b)
	switch t {
	case Bool:
		return u == 1
	case Uint8:
		return uint8(u)
	case Int8:
		return int8(i)
	case Uint16:
		return uint16(u)
	case Int16:
		return int16(i)
	case Uint32:
		return uint32(u)
	case Int32:
		return int32(i)
	case Uint64:
		return u
	case Int64:
		return i
	case Float32:
		return math.Float32frombits(binary.LittleEndian.Uint32(b))
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(b))
}
