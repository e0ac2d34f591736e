package strictjson

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"

	"apr/internal/fault"
	"apr/internal/readfile"
)

// Kind is the type of a value.
type Kind uint8

// The kinds. Absent is the kind of the zero Value.
const (
	Absent Kind = iota
	Null
	Bool
	Number
	String
	Array
	Object
)

var kindNames = [...]string{"nothing", "null", "a boolean", "a number", "a string", "an array", "an object"}

// String returns the kind as it reads in a sentence: "an object".
func (k Kind) String() string { return kindNames[k] }

// Value is one value of a parsed document; it is small and meant to be copied. The zero Value is absent.
type Value struct {
	doc *document
	at  uint32
}

// Kind returns the type of v.
func (v Value) Kind() Kind {
	if v.doc == nil {
		return Absent
	}
	switch v.doc.src[v.Offset()] {
	case 'n':
		return Null
	case 't', 'f':
		return Bool
	case '"':
		return String
	case '[':
		return Array
	case '{':
		return Object
	}
	return Number
}

// Offset returns the byte offset of v in its document.
func (v Value) Offset() int {
	if v.doc == nil {
		return 0
	}
	return int(v.doc.tape[v.at].off)
}

// Source returns the text v was parsed from, whole.
func (v Value) Source() string {
	if v.doc == nil {
		return ""
	}
	return v.doc.src
}

// Errorf returns an *Error of class Type at v.
func (v Value) Errorf(format string, args ...any) error {
	return &Error{Type, v.Offset(), fmt.Sprintf(format, args...)}
}

// Expect returns an error unless v is of kind k.
func (v Value) Expect(k Kind) error {
	if v.Kind() != k {
		return v.expected(k.String())
	}
	return nil
}

// expected says what v should be and what it is.
func (v Value) expected(what string) error {
	switch k := v.Kind(); k {
	case Number:
		return v.Errorf("expected %s, found %s", what, clip(v.literal()))
	case String:
		s, _ := v.Str()
		return v.Errorf("expected %s, found the string %s", what, clip(strconv.Quote(s)))
	case Bool:
		return v.Errorf("expected %s, found %s", what, v.literal())
	default:
		return v.Errorf("expected %s, found %s", what, k)
	}
}

// clip shortens a long text in a message.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// literal returns the source text of a number or word.
func (v Value) literal() string {
	rest := v.doc.src[v.Offset():]
	if end := strings.IndexAny(rest, " \t\r\n,:]}"); end >= 0 {
		return rest[:end]
	}
	return rest
}

// Literal returns the source text of a number, such as "1e-06".
func (v Value) Literal() (string, error) {
	if err := v.Expect(Number); err != nil {
		return "", err
	}
	return v.literal(), nil
}

// Str returns the unescaped text of a string; without escapes it shares memory with the source.
func (v Value) Str() (string, error) {
	if v.Kind() != String {
		return "", v.expected(String.String())
	}
	return unescape(v.doc.src, v.Offset()), nil
}

// Bool returns a boolean.
func (v Value) Bool() (bool, error) {
	if err := v.Expect(Bool); err != nil {
		return false, err
	}
	return v.doc.src[v.Offset()] == 't', nil
}

// Uint64 returns an integer written without sign, fraction or exponent.
func (v Value) Uint64() (uint64, error) {
	const what = "a non-negative integer"
	if v.Kind() != Number {
		return 0, v.expected(what)
	}
	s := v.literal()
	u, err := strconv.ParseUint(s, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return 0, v.Errorf("integer %s does not fit 64 bits", clip(s))
	}
	if err != nil {
		return 0, v.expected(what)
	}
	return u, nil
}

// Int64 returns an integer written without fraction or exponent.
func (v Value) Int64() (int64, error) {
	if v.Kind() != Number {
		return 0, v.expected("an integer")
	}
	s := v.literal()
	i, err := strconv.ParseInt(s, 10, 64)
	if errors.Is(err, strconv.ErrRange) {
		return 0, v.Errorf("integer %s does not fit 64 bits", clip(s))
	}
	if err != nil {
		return 0, v.expected("an integer")
	}
	return i, nil
}

// Float64 returns the nearest float64 of a number; one that overflows is an error.
func (v Value) Float64() (float64, error) {
	if v.Kind() != Number {
		return 0, v.expected("a number")
	}
	f, err := strconv.ParseFloat(v.literal(), 64)
	if err != nil || math.IsInf(f, 0) {
		return 0, v.Errorf("number %s does not fit a float64", clip(v.literal()))
	}
	return f, nil
}

// Len returns the number of elements of an array or members of an object, 0 for other kinds.
func (v Value) Len() int {
	n := 0
	switch v.Kind() {
	case Array:
		for range v.Items() {
			n++
		}
	case Object:
		for range v.Members() {
			n++
		}
	}
	return n
}

// Items yields the elements of an array in order, and nothing for other kinds.
func (v Value) Items() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		if v.Kind() != Array {
			return
		}
		for at, end := v.at+1, v.doc.tape[v.at].next; at < end; at = v.doc.tape[at].next {
			if !yield(Value{v.doc, at}) {
				return
			}
		}
	}
}

// Members yields the members of an object in order, keys unescaped, and nothing for other kinds.
func (v Value) Members() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		if v.Kind() != Object {
			return
		}
		d := v.doc
		for k, end := v.at+1, d.tape[v.at].next; k < end; k = d.tape[k+1].next {
			if d.tape[k].next != 0 {
				continue // replaced by a later member
			}
			if !yield(unescape(d.src, int(d.tape[k].off)), Value{d, k + 1}) {
				return
			}
		}
	}
}

// MemberValues yields the values of the members of an object in order, without their keys, and nothing for other kinds.
func (v Value) MemberValues() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		if v.Kind() != Object {
			return
		}
		d := v.doc
		for k, end := v.at+1, d.tape[v.at].next; k < end; k = d.tape[k+1].next {
			if d.tape[k].next == 0 && !yield(Value{d, k + 1}) {
				return
			}
		}
	}
}

// Get returns the member of an object of exactly that key, and false if there is none.
func (v Value) Get(key string) (Value, bool) {
	if v.Kind() != Object {
		return Value{}, false
	}
	entries, ok := v.doc.index[v.at]
	if !ok {
		for k, m := range v.Members() {
			if k == key {
				return m, true
			}
		}
		return Value{}, false
	}
	h := hash(key)
	i, _ := slices.BinarySearch(entries, h<<32)
	for ; i < len(entries) && entries[i]>>32 == h; i++ {
		k := uint32(entries[i])
		if unescape(v.doc.src, int(v.doc.tape[k].off)) == key {
			return Value{v.doc, k + 1}, true
		}
	}
	return Value{}, false
}

// Strings returns the elements of an array of strings.
func (v Value) Strings() ([]string, error) {
	if err := v.Expect(Array); err != nil {
		return nil, err
	}
	out := make([]string, 0, v.Len())
	for e := range v.Items() {
		s, err := e.Str()
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// Uints returns the elements of an array of non-negative integers.
func (v Value) Uints() ([]uint64, error) {
	if err := v.Expect(Array); err != nil {
		return nil, err
	}
	out := make([]uint64, 0, v.Len())
	for e := range v.Items() {
		u, err := e.Uint64()
		if err != nil {
			return nil, err
		}
		out = append(out, u)
	}
	return out, nil
}

// Fault turns an error of this package into a fault of kind Format about the text file path, with line and column in
// src and the class's identifier. Other errors are passed on unchanged.
func Fault(path, src string, err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	line, column := Position(src, e.Offset)
	return fault.In(fault.Format, path, "%s", e.Msg).At("line %d, column %d", line, column).WithID(e.Code.ID())
}

// ParseFile reads and parses a regular file of at most maxBytes. Errors are faults that name path, line and column.
func ParseFile(path string, maxBytes int64, opt Options) (Value, error) {
	src, err := readfile.String(path, maxBytes)
	if err != nil {
		return Value{}, err
	}
	v, err := Parse(src, opt)
	if err != nil {
		return Value{}, Fault(path, src, err)
	}
	return v, nil
}
