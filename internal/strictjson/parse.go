// Package strictjson reads JSON from strangers so that no two readers can see two different documents.
//
// The whole input is one value. Refused are: bytes that are not UTF-8, a byte order mark, unpaired surrogates, raw
// control characters in strings, numbers outside the grammar, a key given twice in one object (compared unescaped and
// exactly), nesting beyond a limit, more values than a limit, and anything but blanks after the value. encoding/json
// takes duplicate keys, other cases of a name and bad UTF-8, which is why it is not used for files.
//
// A parsed document is a flat tape of eight bytes a value beside the source text. Strings are unescaped and numbers
// converted when asked for, so numbers keep their literal and integers are never passed through a float64.
package strictjson

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits that Options leave at zero.
const (
	DefaultMaxDepth  = 64
	DefaultMaxValues = 1 << 23 // 64 MiB of tape
	maxSource        = 1<<32 - 2
)

// Options bounds what Parse accepts.
type Options struct {
	MaxDepth  int // nesting of arrays and objects; 0 means DefaultMaxDepth
	MaxValues int // values and keys together; 0 means DefaultMaxValues

	// Repeated, if set, is told of each key that occurs again in the same object, in order of offset; the last one
	// then counts. If nil, a repeated key is an error.
	Repeated func(key string, offset int)
}

// Code classifies an Error.
type Code int

// The classes of errors; ID gives their stable identifiers.
const (
	Syntax    Code = iota + 1 // outside the grammar of JSON
	Encoding                  // not UTF-8, byte order mark, unpaired surrogate
	Duplicate                 // key twice in one object
	Depth                     // nested too deeply
	TooLarge                  // too many bytes or values
	Trailing                  // more than one value
	Type                      // value of another type or range than expected
	Missing                   // key absent
	Unknown                   // key not known
)

// ID returns the stable identifier of the class, such as E-JSON-003.
func (c Code) ID() string { return fmt.Sprintf("E-JSON-%03d", int(c)) }

// Error is a refusal with the byte offset it was found at.
type Error struct {
	Code   Code
	Offset int
	Msg    string
}

// Error renders "offset N: message".
func (e *Error) Error() string { return fmt.Sprintf("offset %d: %s", e.Offset, e.Msg) }

// node is one value or key on the tape.
type node struct {
	off uint32 // of its first byte in the source
	// next is, of a value, the tape position behind it and all it contains; of a key, 1 when a later member of the
	// same name replaced it (its value follows on the tape).
	next uint32
}

// document is a parsed text.
type document struct {
	src  string
	tape []node
	// index holds, for each large object, its live members sorted by hash(key)<<32 | tape position of the key.
	index map[uint32][]uint64
}

// parser walks the source once.
type parser struct {
	document
	opt     Options
	pos     int
	depth   int
	scratch []byte
}

// Parse reads src as one JSON value. Errors are *Error.
func Parse(src string, opt Options) (Value, error) {
	if opt.MaxDepth == 0 {
		opt.MaxDepth = DefaultMaxDepth
	}
	if opt.MaxValues == 0 {
		opt.MaxValues = DefaultMaxValues
	}
	if len(src) > maxSource {
		return Value{}, &Error{TooLarge, 0, fmt.Sprintf("text of %d bytes is over the limit of %d", len(src), maxSource)}
	}
	if err := checkEncoding(src); err != nil {
		return Value{}, err
	}
	p := &parser{document: document{src: src}, opt: opt}
	p.tape = make([]node, 0, min(bound(src), opt.MaxValues))
	p.blanks()
	if err := p.value(); err != nil {
		return Value{}, err
	}
	p.blanks()
	if p.pos < len(src) {
		return Value{}, p.fail(Trailing, "%s after the value", p.found())
	}
	return Value{doc: &p.document}, nil
}

// bound returns an upper bound of the values and keys in src: each but the first follows one of four characters.
func bound(src string) int {
	return 1 + strings.Count(src, ",") + strings.Count(src, ":") + strings.Count(src, "[") + strings.Count(src, "{")
}

// checkEncoding refuses a byte order mark and the first byte that is not UTF-8.
func checkEncoding(src string) error {
	if strings.HasPrefix(src, "\xef\xbb\xbf") {
		return &Error{Encoding, 0, "byte order mark"}
	}
	if utf8.ValidString(src) {
		return nil
	}
	for i, r := range src {
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(src[i:]); n == 1 {
				return &Error{Encoding, i, fmt.Sprintf("byte 0x%02x is not UTF-8", src[i])}
			}
		}
	}
	panic("strictjson: ValidString contradicts DecodeRune")
}

func (p *parser) fail(c Code, format string, args ...any) *Error {
	return &Error{c, p.pos, fmt.Sprintf(format, args...)}
}

// found names what stands at the current position, for messages.
func (p *parser) found() string {
	if p.pos >= len(p.src) {
		return "end of text"
	}
	r, _ := utf8.DecodeRuneInString(p.src[p.pos:])
	return fmt.Sprintf("%q", r)
}

func (p *parser) blanks() {
	for p.pos < len(p.src) {
		switch p.src[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

// push adds a node at the current position and returns its place on the tape.
func (p *parser) push() (int, error) {
	if len(p.tape) >= p.opt.MaxValues {
		return 0, p.fail(TooLarge, "more than %d values", p.opt.MaxValues)
	}
	p.tape = append(p.tape, node{off: uint32(p.pos)})
	return len(p.tape) - 1, nil
}

// value reads one value at the current position.
func (p *parser) value() error {
	if p.pos >= len(p.src) {
		return p.fail(Syntax, "expected a value, found end of text")
	}
	at, err := p.push()
	if err != nil {
		return err
	}
	switch c := p.src[p.pos]; {
	case c == '{':
		err = p.nested(func() error { return p.object(at) })
	case c == '[':
		err = p.nested(p.array)
	case c == '"':
		err = p.str()
	case c == '-' || '0' <= c && c <= '9':
		err = p.number()
	case c == 't':
		err = p.word("true")
	case c == 'f':
		err = p.word("false")
	case c == 'n':
		err = p.word("null")
	default:
		err = p.fail(Syntax, "expected a value, found %s", p.found())
	}
	if err != nil {
		return err
	}
	p.tape[at].next = uint32(len(p.tape))
	return nil
}

// nested reads the inside of an array or object, one level deeper.
func (p *parser) nested(inside func() error) error {
	if p.depth++; p.depth > p.opt.MaxDepth {
		return p.fail(Depth, "nested deeper than %d", p.opt.MaxDepth)
	}
	p.pos++
	p.blanks()
	err := inside()
	p.depth--
	return err
}

func (p *parser) array() error {
	if p.accept(']') {
		return nil
	}
	for {
		if err := p.value(); err != nil {
			return err
		}
		p.blanks()
		if p.accept(']') {
			return nil
		}
		if !p.accept(',') {
			return p.fail(Syntax, "expected ',' or ']', found %s", p.found())
		}
		p.blanks()
	}
}

func (p *parser) object(at int) error {
	if p.accept('}') {
		return nil
	}
	members := 0
	for {
		if p.pos >= len(p.src) || p.src[p.pos] != '"' {
			return p.fail(Syntax, "expected a key, found %s", p.found())
		}
		if _, err := p.push(); err != nil {
			return err
		}
		if err := p.str(); err != nil {
			return err
		}
		p.blanks()
		if !p.accept(':') {
			return p.fail(Syntax, "expected ':', found %s", p.found())
		}
		p.blanks()
		if err := p.value(); err != nil {
			return err
		}
		members++
		p.blanks()
		if p.accept('}') {
			return p.unique(at, members)
		}
		if !p.accept(',') {
			return p.fail(Syntax, "expected ',' or '}', found %s", p.found())
		}
		p.blanks()
	}
}

func (p *parser) accept(c byte) bool {
	if p.pos < len(p.src) && p.src[p.pos] == c {
		p.pos++
		return true
	}
	return false
}

func (p *parser) word(w string) error {
	if !strings.HasPrefix(p.src[p.pos:], w) {
		return p.fail(Syntax, "expected %s", w)
	}
	p.pos += len(w)
	return nil
}

// number reads -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
func (p *parser) number() error {
	p.accept('-')
	if !p.accept('0') && !p.digits() {
		return p.fail(Syntax, "expected a digit, found %s", p.found())
	}
	if p.pos < len(p.src) && '0' <= p.src[p.pos] && p.src[p.pos] <= '9' {
		return p.fail(Syntax, "number with a leading zero")
	}
	if p.accept('.') && !p.digits() {
		return p.fail(Syntax, "expected a digit, found %s", p.found())
	}
	if p.accept('e') || p.accept('E') {
		if !p.accept('+') {
			p.accept('-')
		}
		if !p.digits() {
			return p.fail(Syntax, "expected a digit, found %s", p.found())
		}
	}
	return nil
}

func (p *parser) digits() bool {
	start := p.pos
	for p.pos < len(p.src) && '0' <= p.src[p.pos] && p.src[p.pos] <= '9' {
		p.pos++
	}
	return p.pos > start
}

// str reads a string and checks its escapes; the tape keeps only where it starts.
func (p *parser) str() error {
	p.pos++
	for p.pos < len(p.src) {
		switch c := p.src[p.pos]; {
		case c == '"':
			p.pos++
			return nil
		case c < 0x20:
			return p.fail(Syntax, "raw control character 0x%02x in a string", c)
		case c == '\\':
			if err := p.escape(); err != nil {
				return err
			}
		default:
			p.pos++
		}
	}
	return p.fail(Syntax, "string is cut")
}

// escape checks one escape sequence at the current position; a surrogate needs its other half.
func (p *parser) escape() error {
	if p.pos+1 >= len(p.src) {
		p.pos = len(p.src)
		return p.fail(Syntax, "string is cut")
	}
	if c := p.src[p.pos+1]; c != 'u' {
		if strings.IndexByte(`"\/bfnrt`, c) < 0 {
			return p.fail(Syntax, "unknown escape")
		}
		p.pos += 2
		return nil
	}
	u, ok := hex4(p.src, p.pos+2)
	if !ok {
		return p.fail(Syntax, `\u without four hexadecimal digits`)
	}
	if u < 0xd800 || u > 0xdfff {
		p.pos += 6
		return nil
	}
	if u < 0xdc00 && strings.HasPrefix(p.src[p.pos+6:], `\u`) {
		if low, ok := hex4(p.src, p.pos+8); ok && low >= 0xdc00 && low <= 0xdfff {
			p.pos += 12
			return nil
		}
	}
	return p.fail(Encoding, "unpaired surrogate")
}
