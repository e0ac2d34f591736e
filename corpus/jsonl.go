package corpus

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"apr/internal/fault"
)

// records splits a stream into the texts of its records, in bounded memory.
type records interface {
	// next returns the next record, valid until the following call, or io.EOF. Of one longer than maxRecord it returns nothing
	// but tooLong.
	next() (record []byte, tooLong bool, err error)
	// place says where the record last returned is: its number, from 1, and in words.
	place() (number int64, text string)
}

// jsonLines reads a file of one JSON object a line, whose blank lines are passed over, or of one array of objects.
func (r *reader) jsonLines(path string, f *os.File, size int64) error {
	h := newHashed(path, f, size)
	br, what, done, err := decompressed(path, f, h)
	if err != nil {
		return err
	}
	defer done()
	if err := skipMark(path, br); err != nil {
		return err
	}
	var all records = &lineReader{br: br}
	if array, err := isArray(path, br); err != nil {
		return streamFault(path, what, err)
	} else if array {
		all = &arrayReader{br: br, line: 1}
	}
	for {
		line, tooLong, err := all.next()
		if err == io.EOF {
			return r.finish(path, h)
		}
		if err != nil {
			return placed(path, streamFault(path, what, err))
		}
		if _, lines := all.(*lineReader); lines && !tooLong && len(bytes.TrimLeft(line, " \t\r\n")) == 0 {
			continue
		}
		r.report.Records++
		number, place := all.place()
		var d Document
		bad := lineTooLong(tooLong)
		if bad == nil {
			d, bad = parseRecord(line, r.opt)
		}
		if bad != nil {
			bad.Path = path
			r.spread = r.spread || number == 1 && !tooLong && goesOn(line)
			r.bad(bad.At("%s", place))
			continue
		}
		d.Path, d.Record = path, number
		if err := r.document(d); err != nil {
			return err
		}
	}
}

// goesOn reports whether a line is the beginning of a JSON value that ends on a later one.
func goesOn(line []byte) bool {
	var whole json.RawMessage
	return errors.Is(json.NewDecoder(bytes.NewReader(line)).Decode(&whole), io.ErrUnexpectedEOF)
}

// placed names the file in a fault that names none.
func placed(path string, err error) error {
	var f *fault.Error
	if errors.As(err, &f) && f.Path == "" {
		f.Path = path
	}
	return err
}

func lineTooLong(is bool) *fault.Error {
	if !is {
		return nil
	}
	return fault.New(fault.Format, "the line is longer than 16 MiB").WithID("E-JSONL-003")
}

// skipMark passes over a byte order mark of UTF-8, which programs on Windows write, and refuses files that are not
// UTF-8 from their first bytes on.
func skipMark(path string, br *bufio.Reader) error {
	head, _ := br.Peek(4) // an error shows again at the first read
	if bad := checkEncoding(path, head); bad != nil {
		return bad
	}
	if len(head) >= 2 && (head[0] == 0) != (head[1] == 0) {
		return fault.In(fault.Format, path, "is in UTF-16 or UTF-32").At("line 1").WithHint("store it as UTF-8").WithID("E-JSONL-002")
	}
	if bytes.HasPrefix(head, utf8Mark) {
		_, _ = br.Discard(len(utf8Mark)) // they were peeked at
	}
	return nil
}

// utf8Mark is the byte order mark of UTF-8.
var utf8Mark = []byte("\xef\xbb\xbf")

// checkEncoding refuses a file whose byte order mark says that it is in another encoding than UTF-8.
func checkEncoding(path string, head []byte) *fault.Error {
	for _, e := range []struct{ mark, name, tool string }{
		{"\xff\xfe\x00\x00", "UTF-32, little-endian", "UTF-32"}, {"\x00\x00\xfe\xff", "UTF-32, big-endian", "UTF-32"}, // before the shorter marks
		{"\xff\xfe", "UTF-16, little-endian", "UTF-16"}, {"\xfe\xff", "UTF-16, big-endian", "UTF-16"},
	} {
		if bytes.HasPrefix(head, []byte(e.mark)) {
			return fault.In(fault.Format, path, "is in %s, by its byte order mark", e.name).At("line 1").
				WithHint("store it as UTF-8; `iconv -f %s -t UTF-8` converts it", e.tool).WithID("E-JSONL-002")
		}
	}
	return nil
}

// lineReader splits a stream into lines in bounded memory.
type lineReader struct {
	br     *bufio.Reader
	number int64 // of the line last returned, from 1
	buf    []byte
}

func (l *lineReader) place() (int64, string) { return l.number, fmt.Sprintf("line %d", l.number) }

// next returns the next line without its newline.
func (l *lineReader) next() (line []byte, tooLong bool, err error) {
	l.buf = l.buf[:0]
	l.number++
	for {
		part, err := l.br.ReadSlice('\n')
		if n := len(part); n > 0 && part[n-1] == '\n' {
			part = part[:n-1]
		}
		if len(l.buf)+len(part) > maxRecord {
			tooLong = true
		}
		if !tooLong {
			l.buf = append(l.buf, part...)
		}
		switch err {
		case nil:
			return l.buf, tooLong, nil
		case bufio.ErrBufferFull:
		case io.EOF:
			if len(l.buf) == 0 && !tooLong {
				return nil, false, io.EOF
			}
			return l.buf, tooLong, nil
		default:
			return nil, false, err
		}
	}
}

// isArray reports whether a .json file holds one array, by its first byte that is not blank.
func isArray(path string, br *bufio.Reader) (bool, error) {
	name := strings.ToLower(path)
	for _, packed := range []string{".gz", ".zst", ".xz"} {
		name = strings.TrimSuffix(name, packed)
	}
	if !strings.HasSuffix(name, ".json") {
		return false, nil
	}
	for n := 1; ; n++ {
		head, err := br.Peek(n)
		switch {
		case err == io.EOF || err == bufio.ErrBufferFull:
			return false, nil
		case err != nil:
			return false, err
		case !bytes.ContainsRune([]byte(" \t\r\n"), rune(head[n-1])):
			return head[n-1] == '[', nil
		}
	}
}

// arrayReader splits [element, element, …] into its elements.
type arrayReader struct {
	br             *bufio.Reader
	line           int64 // of the byte last read, from 1
	number, starts int64 // of the element last returned: which, and the line where it starts
	opened, done   bool
	buf            []byte
}

func (a *arrayReader) place() (int64, string) {
	return a.number, fmt.Sprintf("record %d, from line %d", a.number, a.starts)
}

func (a *arrayReader) byte() (byte, error) {
	c, err := a.br.ReadByte()
	if c == '\n' && err == nil {
		a.line++
	}
	return c, err
}

// start reads blanks, and returns the first byte behind them.
func (a *arrayReader) start() (byte, error) {
	for {
		c, err := a.byte()
		if err != nil || c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return c, err
		}
	}
}

// next returns the next element, whose syntax is not checked beyond where it ends.
func (a *arrayReader) next() (element []byte, tooLong bool, err error) {
	if a.done {
		return nil, false, io.EOF
	}
	c, err := a.start()
	if !a.opened && err == nil {
		a.opened = true // c is the bracket that isArray saw
		if c, err = a.start(); c == ']' && err == nil {
			if a.done = true; a.end() != io.EOF {
				return nil, false, a.follows()
			}
			return nil, false, io.EOF
		}
	}
	a.number++
	a.buf, a.starts = a.buf[:0], a.line
	depth, quoted, escaped := 0, false, false
	for ; err == nil; c, err = a.byte() {
		switch {
		case escaped:
			escaped = false
		case quoted:
			escaped, quoted = c == '\\', c != '"'
		case c == '"':
			quoted = true
		case c == '{' || c == '[':
			depth++
		case depth > 0 && (c == '}' || c == ']'):
			depth--
		case depth == 0 && c == ',':
			return a.buf, tooLong, nil
		case depth == 0 && c == ']':
			if a.done = true; a.end() != io.EOF { // known now: the next call has nothing to return
				return nil, false, a.follows()
			}
			return a.buf, tooLong, nil
		}
		if tooLong = tooLong || len(a.buf) == maxRecord; !tooLong {
			a.buf = append(a.buf, c)
		}
	}
	if err == io.EOF {
		err = fault.New(fault.Format, "the array is cut").At("line %d", a.line).WithID("E-JSONL-012")
	}
	return nil, false, err
}

func (a *arrayReader) follows() error {
	return fault.New(fault.Format, "something follows the array").At("line %d", a.line).WithID("E-JSONL-013")
}

// end returns io.EOF if nothing follows the array.
func (a *arrayReader) end() error {
	_, err := a.start()
	return err
}

// badUTF8 returns the offset of the first byte that is not valid UTF-8.
func badUTF8(s []byte) int {
	for i := 0; i < len(s); {
		c, n := utf8.DecodeRune(s[i:])
		if c == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(s)
}
