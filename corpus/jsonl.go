package corpus

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"unicode/utf8"

	"apr/internal/fault"
)

// jsonLines reads a file of one JSON object a line. Blank lines are passed over.
func (r *reader) jsonLines(path string, f *os.File, size int64) error {
	h := newHashed(path, f, size)
	br, what, done, err := decompressed(path, f, h)
	if err != nil {
		return err
	}
	defer done()
	if err := checkStart(path, br); err != nil {
		return err
	}
	lines := lineReader{br: br}
	for {
		line, tooLong, err := lines.next()
		if err == io.EOF {
			return r.finish(path, h)
		}
		if err != nil {
			return streamFault(path, what, err)
		}
		if !tooLong && len(bytes.TrimLeft(line, " \t\r\n")) == 0 {
			continue
		}
		r.report.Records++
		var d Document
		bad := lineTooLong(tooLong)
		if bad == nil {
			d, bad = parseRecord(line, r.opt)
		}
		if bad != nil {
			bad.Path = path
			r.bad(bad.At("line %d", lines.number))
			continue
		}
		d.Path, d.Record = path, lines.number
		if err := r.document(d); err != nil {
			return err
		}
	}
}

func lineTooLong(is bool) *fault.Error {
	if !is {
		return nil
	}
	return fault.New(fault.Format, "the line is longer than 16 MiB").WithID("E-JSONL-003")
}

// checkStart refuses files that are not UTF-8 from their first bytes on.
func checkStart(path string, br *bufio.Reader) error {
	head, _ := br.Peek(4) // an error shows again at the first read
	switch {
	case bytes.HasPrefix(head, []byte("\xef\xbb\xbf")):
		return fault.In(fault.Format, path, "starts with a byte order mark").At("line 1").WithHint("store it as UTF-8 without BOM").WithID("E-JSONL-001")
	case bytes.HasPrefix(head, []byte("\xff\xfe")), bytes.HasPrefix(head, []byte("\xfe\xff")),
		len(head) >= 2 && (head[0] == 0) != (head[1] == 0):
		return fault.In(fault.Format, path, "is in UTF-16 or UTF-32").At("line 1").WithHint("store it as UTF-8").WithID("E-JSONL-002")
	}
	return nil
}

// lineReader splits a stream into lines in bounded memory.
type lineReader struct {
	br     *bufio.Reader
	number int64 // of the line last returned, from 1
	buf    []byte
}

// next returns the next line without its newline, valid until the following call, or io.EOF. Of a line longer than
// maxRecord it returns nothing but tooLong.
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
