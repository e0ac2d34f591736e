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

// table reads a file whose first line names its columns, which separate parts. The cells of the column TextField are
// documents, or those of the columns of a question and its answer.
func (r *reader) table(path string, f *os.File, size int64, separator rune) error {
	h := newHashed(path, f, size)
	br, what, done, err := decompressed(path, f, h)
	if err != nil {
		return err
	}
	defer done()
	if err := skipMark(path, br); err != nil {
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
	columns, err := r.columns(path, header)
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
		if column, bad := columns.check(row); bad != nil {
			bad.Path = path
			r.bad(bad.At("line %d, column %q", line, header[column]))
			continue
		}
		d := columns.document(row)
		d.Path, d.Record = path, int64(line)
		if at := slices.Index(header, sourceField); r.opt.Sources && at >= 0 {
			d.Source = strings.Clone(row[at])
		}
		if err := r.document(d); err != nil {
			return err
		}
	}
}

// tableColumns are the columns that a document is made of: of a text, or of a question and its answer.
type tableColumns struct {
	text  int
	pair  *pair  // nil: text counts
	parts [4]int // of pair, in the order of its names; −1: there is none
}

// columns chooses the columns as parseFields chooses fields; the error says which there are.
func (r *reader) columns(path string, header []string) (c tableColumns, err error) {
	names := quotedNames(slices.Values(header))
	if r.opt.TextField != "" {
		if c.text = slices.Index(header, r.opt.TextField); c.text < 0 {
			return c, fault.In(fault.Format, path, "no column %q; the first line names %s", r.opt.TextField, names).At("line 1").
				WithHint("name the column with --text-field").WithID("E-TABLE-002")
		}
		return c, nil
	}
	for _, name := range []string{"text", "content"} {
		if c.text = slices.Index(header, name); c.text >= 0 {
			return c, nil
		}
	}
	for i := range pairs {
		p := &pairs[i]
		if !r.opt.anyForm() || !slices.Contains(header, p.ask) || !slices.Contains(header, p.answer) {
			continue
		}
		if slices.Contains(header, teacherPrompt) {
			return c, onlyForTeacher(path, "column")
		}
		c.pair = p
		for i, name := range p.names() {
			if c.parts[i] = slices.Index(header, name); name == "" { // the form has no such field, whatever columns are without a name
				c.parts[i] = -1
			}
		}
		return c, nil
	}
	return c, fault.In(fault.Usage, path, "a table: which column holds the text?").
		WithHint("--text-field COLUMN; its columns are %s", names).WithID("E-TABLE-001")
}

// check refuses a row with a cell that cannot be read, and says which.
func (c tableColumns) check(row []string) (column int, bad *fault.Error) {
	if c.pair == nil {
		return c.text, badCell(row[c.text])
	}
	for _, column := range c.parts {
		if column >= 0 {
			if bad := badCell(row[column]); bad != nil {
				return column, bad
			}
		}
	}
	return 0, nil
}

// document is that of a row, whose cells the next row overwrites.
func (c tableColumns) document(row []string) Document {
	if c.pair == nil {
		return Document{Text: strings.Clone(row[c.text]), form: formText}
	}
	var texts [4]string
	for i, column := range c.parts {
		if column >= 0 {
			texts[i] = strings.Clone(row[column])
		}
	}
	return c.pair.document(texts)
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
