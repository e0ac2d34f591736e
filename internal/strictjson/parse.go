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
	"hash/maphash"
	"slices"
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

// largeObject is the number of members from which an object is indexed instead of searched.
const largeObject = 16

var seed = maphash.MakeSeed() // unpredictable, so that no file can be built to collide

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

// hex4 reads four hexadecimal digits at i.
func hex4(s string, i int) (rune, bool) {
	if i+4 > len(s) {
		return 0, false
	}
	var u rune
	for _, c := range []byte(s[i : i+4]) {
		switch {
		case '0' <= c && c <= '9':
			u = u<<4 | rune(c-'0')
		case 'a' <= c && c <= 'f':
			u = u<<4 | rune(c-'a'+10)
		case 'A' <= c && c <= 'F':
			u = u<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return u, true
}

// unique looks for repeated keys in the object at tape position at, and indexes it if it is large.
func (p *parser) unique(at, members int) error {
	if members < 2 {
		return nil
	}
	if members < largeObject {
		return p.repeats(p.smallRepeats(at))
	}
	entries := make([]uint64, 0, members)
	for k := at + 1; k < len(p.tape); k = int(p.tape[k+1].next) {
		entries = append(entries, p.hashAt(p.tape[k].off)<<32|uint64(k))
	}
	slices.Sort(entries)
	var again [][2]int // key, earlier key of the same name
	live := entries[:0]
	for i := 0; i < len(entries); {
		j := i + 1
		for j < len(entries) && entries[j]>>32 == entries[i]>>32 {
			j++
		}
		run := entries[i:j]
		again = append(again, p.runRepeats(run)...)
		live = append(live, run...)
		i = j
	}
	if err := p.repeats(again); err != nil {
		return err
	}
	live = slices.DeleteFunc(live, func(e uint64) bool { return p.tape[uint32(e)].next != 0 })
	if p.index == nil {
		p.index = map[uint32][]uint64{}
	}
	p.index[uint32(at)] = live
	return nil
}

// smallRepeats compares all keys of an object that was just read.
func (p *parser) smallRepeats(at int) (again [][2]int) {
	for k := at + 1; k < len(p.tape); k = int(p.tape[k+1].next) {
		earlier := -1
		for e := at + 1; e < k; e = int(p.tape[e+1].next) {
			if p.sameKey(e, k) {
				earlier = e
			}
		}
		if earlier >= 0 {
			again = append(again, [2]int{k, earlier})
		}
	}
	return again
}

// runRepeats compares keys of one hash, given in order of position.
func (p *parser) runRepeats(run []uint64) (again [][2]int) {
	if len(run) == 1 {
		return nil
	}
	last := map[string]int{}
	for _, e := range run {
		k := int(uint32(e))
		key := unescape(p.src, int(p.tape[k].off))
		if earlier, ok := last[key]; ok {
			again = append(again, [2]int{k, earlier})
			if p.opt.Repeated == nil {
				return again // the first is refused
			}
		}
		last[key] = k
	}
	return again
}

// repeats refuses the first repeated key, or marks the earlier members as replaced.
func (p *parser) repeats(again [][2]int) error {
	slices.SortFunc(again, func(a, b [2]int) int { return a[0] - b[0] })
	for _, r := range again {
		key := p.tape[r[0]]
		name := unescape(p.src, int(key.off))
		if p.opt.Repeated == nil {
			return &Error{Duplicate, int(key.off), fmt.Sprintf("key %q occurs twice", name)}
		}
		p.opt.Repeated(name, int(key.off))
		p.tape[r[1]].next = 1
	}
	return nil
}

// sameKey reports whether the keys at two tape positions are equal when unescaped.
func (p *parser) sameKey(a, b int) bool {
	ra, ea := raw(p.src, int(p.tape[a].off))
	rb, eb := raw(p.src, int(p.tape[b].off))
	if !ea && !eb {
		return ra == rb
	}
	return unescape(p.src, int(p.tape[a].off)) == unescape(p.src, int(p.tape[b].off))
}

// hashAt returns 32 bits that depend on the unescaped string at offset off.
func (p *parser) hashAt(off uint32) uint64 {
	s, escaped := raw(p.src, int(off))
	if !escaped {
		return hash(s)
	}
	p.scratch = appendUnescaped(p.scratch[:0], s)
	return maphash.Bytes(seed, p.scratch) >> 32
}

func hash(key string) uint64 { return maphash.String(seed, key) >> 32 }

// raw returns the text between the quotes of the checked string at off, and whether it holds escapes.
func raw(src string, off int) (s string, escaped bool) {
	rest := src[off+1:]
	end := strings.IndexByte(rest, '"')
	if i := strings.IndexByte(rest[:end], '\\'); i < 0 {
		return rest[:end], false
	}
	for i := 0; ; i++ {
		switch rest[i] {
		case '\\':
			i++
		case '"':
			return rest[:i], true
		}
	}
}

// unescape returns the string at off.
func unescape(src string, off int) string {
	s, escaped := raw(src, off)
	if !escaped {
		return s
	}
	return string(appendUnescaped(nil, s))
}

var plainEscape = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// appendUnescaped appends s with its (checked) escapes resolved.
func appendUnescaped(dst []byte, s string) []byte {
	for {
		i := strings.IndexByte(s, '\\')
		if i < 0 {
			return append(dst, s...)
		}
		dst = append(dst, s[:i]...)
		if s[i+1] != 'u' {
			dst, s = append(dst, plainEscape[s[i+1]]), s[i+2:]
			continue
		}
		u, _ := hex4(s, i+2)
		s = s[i+6:]
		if u >= 0xd800 && u <= 0xdfff {
			low, _ := hex4(s, 2)
			u, s = 0x10000+(u-0xd800)<<10+(low-0xdc00), s[6:]
		}
		dst = utf8.AppendRune(dst, u)
	}
}

// Position returns the line and column, both from 1, of a byte offset; the column counts characters.
func Position(src string, offset int) (line, column int) {
	before := src[:max(0, min(offset, len(src)))]
	start := strings.LastIndexByte(before, '\n') + 1
	return strings.Count(before, "\n") + 1, utf8.RuneCountInString(before[start:]) + 1
}
