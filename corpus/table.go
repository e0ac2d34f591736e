package corpus

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"apr/internal/fault"
)

// table reads a file whose first line names its columns, which separate parts. The cells of the column TextField are documents.
func (r *reader) table(path string, f *os.File, size int64, separator rune) error {
	h := newHashed(path, f, size)
	br, what, done, err := decompressed(path, f, h)
	if err != nil {
		return err
	}
	defer done()
	if err := checkStart(path, br); err != nil {
		return err
	}
	src := &perRecord{src: br}
	rows := csv.NewReader(src)
	rows.Comma, rows.ReuseRecord, rows.LazyQuotes = separator, true, separator == '\t'
	src.left = maxRecord
	header, err := rows.Read()
	if err == io.EOF {
		return r.finish(path, h)
	}
	if err != nil {
		return tableFault(path, what, err)
	}
	header = slices.Clone(header) // the next row takes its place
	column, err := r.column(path, header)
	if err != nil {
		return err
	}
	for {
		src.left = maxRecord
		row, err := rows.Read()
		var parse *csv.ParseError
		switch {
		case err == io.EOF:
			return r.finish(path, h)
		case errors.As(err, &parse):
			r.report.Records++
			r.bad(fault.In(fault.Format, path, "%s", rowProblem(parse, len(row), len(header))).At("line %d", parse.StartLine).WithID("E-TABLE-003"))
			continue
		case err != nil:
			return tableFault(path, what, err)
		}
		r.report.Records++
		line, _ := rows.FieldPos(0)
		if bad := badCell(row[column]); bad != nil {
			bad.Path = path
			r.bad(bad.At("line %d, column %q", line, header[column]))
			continue
		}
		d := Document{Text: strings.Clone(row[column]), Path: path, Record: int64(line), form: formText}
		if err := r.document(d); err != nil {
			return err
		}
	}
}

// column returns the index of the column of the text; the error says which there are.
func (r *reader) column(path string, header []string) (int, error) {
	names := quotedNames(slices.Values(header))
	if r.opt.TextField == "" {
		for _, name := range []string{"text", "content"} {
			if at := slices.Index(header, name); at >= 0 {
				return at, nil
			}
		}
		return 0, fault.In(fault.Usage, path, "a table: which column holds the text?").
			WithHint("--text-field COLUMN; its columns are %s", names).WithID("E-TABLE-001")
	}
	at := slices.Index(header, r.opt.TextField)
	if at < 0 {
		return 0, fault.In(fault.Format, path, "no column %q; the first line names %s", r.opt.TextField, names).At("line 1").
			WithHint("name the column with --text-field").WithID("E-TABLE-002")
	}
	return at, nil
}

// rowProblem says what is wrong with a row.
func rowProblem(err *csv.ParseError, cells, columns int) string {
	if errors.Is(err, csv.ErrFieldCount) {
		return fmt.Sprintf("%d cells, the first line names %d columns", cells, columns)
	}
	return fmt.Sprintf("column %d: %v", err.Column, err.Err)
}

// badCell refuses NUL and what is not UTF-8.
func badCell(text string) *fault.Error {
	if i := strings.IndexByte(text, 0); i >= 0 {
		return fault.New(fault.Format, "NUL at byte %d", i+1).WithID("E-TABLE-004")
	}
	if !utf8.ValidString(text) {
		return fault.New(fault.Format, "bad UTF-8 at byte %d", badUTF8([]byte(text))+1).WithID("E-TABLE-004")
	}
	return nil
}

// errLongRow is what perRecord returns.
var errLongRow = errors.New("a row of more than 16 MiB; is a quote not closed?")

// perRecord bounds what a record may take: a quote that is never closed would make the rest of the file one cell.
type perRecord struct {
	src  io.Reader
	left int // bytes before the next record must have begun
}

func (p *perRecord) Read(b []byte) (int, error) {
	if p.left <= 0 {
		return 0, errLongRow
	}
	n, err := p.src.Read(b)
	p.left -= n
	return n, err
}

// tableFault describes an error that ends the reading of a table.
func tableFault(path, what string, err error) error {
	var parse *csv.ParseError
	switch {
	case errors.Is(err, errLongRow):
		return fault.In(fault.Format, path, "%v", errLongRow).WithID("E-TABLE-005")
	case errors.As(err, &parse):
		return fault.In(fault.Format, path, "%s", rowProblem(parse, 0, 0)).At("line %d", parse.StartLine).WithID("E-TABLE-003")
	}
	return streamFault(path, what, err)
}
