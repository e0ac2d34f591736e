package corpus

import (
	"encoding/binary"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/parquet-go/parquet-go"

	"apr/internal/fault"
)

// emit takes what was read of the next row of a Parquet file: a document or what is wrong with it.
type emit func(d Document, bad *fault.Error) error

// readParquet reads the rows of a Parquet file in order. It runs in a process of its own (see parquetProcess), for the
// library allocates what the file claims.
func readParquet(f io.ReaderAt, size int64, opt ReadOptions, out emit) error {
	if err := checkFooter(f, size); err != nil {
		return err
	}
	file, err := parquet.OpenFile(f, size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
		return damaged(err)
	}
	columns, err := findColumns(file.Schema(), opt)
	if err != nil {
		return err
	}
	for _, group := range file.RowGroups() {
		if err := columns.read(group.ColumnChunks(), out); err != nil {
			return err
		}
	}
	return nil
}

// checkFooter compares the length that the file's end claims for its metadata with the file: PAR1 … metadata, length
// u32, PAR1. The library allocates it before it looks.
func checkFooter(f io.ReaderAt, size int64) error {
	const around = 4 + 4 + 4
	if size < around {
		return fault.New(fault.Format, "file of %d bytes is too short for Parquet", size).WithID("E-PARQUET-011")
	}
	var b [8]byte
	if _, err := f.ReadAt(b[:], size-8); err != nil {
		return damaged(err)
	}
	if string(b[4:]) != "PAR1" {
		return nil // the library says what it is instead
	}
	if n := int64(binary.LittleEndian.Uint32(b[:])); n > size-around {
		return fault.New(fault.Format, "offset %d: metadata of %d bytes do not fit the file of %d", size-8, n, size).WithID("E-PARQUET-012")
	}
	return nil
}

func damaged(err error) *fault.Error {
	return fault.New(fault.Format, "damaged Parquet").Because(err).WithID("E-PARQUET-001")
}

// parquetColumns are the columns that hold the text, or the messages.
type parquetColumns struct {
	name          string
	text          int // −1: messages
	role, content int
}

// findColumns chooses columns as parseRecord chooses fields.
func findColumns(schema *parquet.Schema, opt ReadOptions) (parquetColumns, error) {
	paths := schema.Columns()
	names, texts := opt.fields()
	for i, name := range names {
		at := slices.IndexFunc(paths, func(p []string) bool { return p[0] == name })
		if at < 0 {
			if other := slices.IndexFunc(paths, func(p []string) bool { return strings.EqualFold(p[0], name) }); other >= 0 {
				return parquetColumns{}, fault.New(fault.Format, "column %q is not %q", paths[other][0], name).WithID("E-PARQUET-003")
			}
			continue
		}
		if i < texts {
			if len(paths[at]) != 1 || !isString(schema, paths[at], 0) {
				return parquetColumns{}, fault.New(fault.Format, "column %q does not hold strings", name).WithID("E-PARQUET-004")
			}
			return parquetColumns{name: name, text: at}, nil
		}
		c := parquetColumns{name: name, text: -1, role: -1, content: -1}
		for j, p := range paths {
			if p[0] == name && isString(schema, p, 1) {
				switch p[len(p)-1] {
				case "role":
					c.role = j
				case "content":
					c.content = j
				}
			}
		}
		if c.role < 0 || c.content < 0 {
			return parquetColumns{}, fault.New(fault.Format, "column %q does not hold lists of role and content", name).WithID("E-PARQUET-005")
		}
		return c, nil
	}
	return parquetColumns{}, fault.New(fault.Format, "no column %s", quotedList(names)).
		WithHint("name the column with --text-field or --messages-field").WithID("E-PARQUET-002")
}

// isString reports whether the leaf at path holds byte strings, repeated at so many levels.
func isString(schema *parquet.Schema, path []string, repeated int) bool {
	leaf, ok := schema.Lookup(path...)
	return ok && leaf.MaxRepetitionLevel == repeated && leaf.Node.Type().Kind() == parquet.ByteArray
}

// read reads one row group.
func (c parquetColumns) read(chunks []parquet.ColumnChunk, out emit) error {
	if c.text >= 0 {
		texts := newCells(chunks[c.text])
		defer texts.close()
		return c.readTexts(texts, out)
	}
	roles, contents := newCells(chunks[c.role]), newCells(chunks[c.content])
	defer roles.close()
	defer contents.close()
	return c.readChats(roles, contents, out)
}

func (c parquetColumns) readTexts(texts *cells, out emit) error {
	for {
		ok, err := texts.next()
		if err != nil || !ok {
			return err
		}
		text, bad := texts.text(c.name)
		if err := out(Document{Text: text}, bad); err != nil {
			return err
		}
	}
}

func (c parquetColumns) readChats(roles, contents *cells, out emit) error {
	more, err := step(roles, contents)
	for more && err == nil {
		d, bad := Document{Messages: []Message{}}, (*fault.Error)(nil)
		size := 0
		for first := true; more && (first || roles.value.RepetitionLevel() > 0); first = false {
			role, badRole := roles.text("role")
			content, badContent := contents.text("content")
			size += len(role) + len(content)
			switch {
			case bad != nil:
			case badRole != nil:
				bad = badRole
			case badContent != nil:
				bad = badContent
			case size > maxRecord:
				bad = tooLongCell(c.name)
				d.Messages = nil
			default:
				d.Messages = append(d.Messages, Message{Role: role, Content: content})
			}
			if more, err = step(roles, contents); err != nil {
				return err
			}
		}
		if err := out(d, bad); err != nil {
			return err
		}
	}
	return err
}

// step moves both columns to their next value.
func step(roles, contents *cells) (bool, error) {
	a, err := roles.next()
	if err != nil {
		return false, err
	}
	b, err := contents.next()
	if err != nil {
		return false, err
	}
	if a != b || a && roles.value.RepetitionLevel() != contents.value.RepetitionLevel() {
		return false, fault.New(fault.Format, "roles and contents do not belong together").WithID("E-PARQUET-006")
	}
	return a, nil
}

// cells are the values of one column in one row group.
type cells struct {
	pages  parquet.Pages
	page   parquet.Page // nil: none open
	values parquet.ValueReader
	buf    [64]parquet.Value
	i, n   int
	value  parquet.Value // the current one, valid until next
}

func newCells(chunk parquet.ColumnChunk) *cells { return &cells{pages: chunk.Pages()} }

func (c *cells) close() {
	parquet.Release(c.page)
	c.pages.Close()
}

// next moves to the next value; false: there is none.
func (c *cells) next() (bool, error) {
	for c.i == c.n {
		if c.page == nil {
			page, err := c.pages.ReadPage()
			if err == io.EOF {
				return false, nil
			}
			if err != nil {
				return false, damaged(err)
			}
			c.page, c.values = page, page.Values()
		}
		n, err := c.values.ReadValues(c.buf[:])
		if err != nil && err != io.EOF {
			return false, damaged(err)
		}
		c.i, c.n = 0, n
		if n == 0 {
			parquet.Release(c.page)
			c.page = nil
		}
	}
	c.value = c.buf[c.i]
	c.i++
	return true, nil
}

// text returns the current value as text; name is for messages.
func (c *cells) text(name string) (string, *fault.Error) {
	if c.value.IsNull() {
		return "", fault.New(fault.Format, "column %q is empty", name).WithID("E-PARQUET-007")
	}
	b := c.value.ByteArray()
	if len(b) > maxRecord {
		return "", tooLongCell(name)
	}
	if i := slices.Index(b, 0); i >= 0 {
		return "", fault.New(fault.Format, "column %q: NUL at byte %d", name, i+1).WithID("E-PARQUET-009")
	}
	if !utf8.Valid(b) {
		return "", fault.New(fault.Format, "column %q: bad UTF-8 at byte %d", name, badUTF8(b)+1).WithID("E-PARQUET-010")
	}
	return string(b), nil
}

func tooLongCell(name string) *fault.Error {
	return fault.New(fault.Format, "column %q is longer than 16 MiB", name).WithID("E-PARQUET-008")
}
