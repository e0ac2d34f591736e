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

// parquetColumns are the columns that hold the text, the messages, or a question and its answer.
type parquetColumns struct {
	name          string
	text          int // −1: there is none
	role, content int
	shareGPT      bool // roles are as ShareGPT calls them
	pair          *pair
	parts         [4]int // of pair, in the order of its names; −1: there is none
}

// findColumns chooses columns as parseRecord chooses fields.
func findColumns(schema *parquet.Schema, opt ReadOptions) (parquetColumns, error) {
	paths := schema.Columns()
	column := func(name string) int {
		return slices.IndexFunc(paths, func(p []string) bool { return p[0] == name })
	}
	names, texts := opt.fields()
	for i, name := range names {
		at := column(name)
		if at < 0 {
			if other := slices.IndexFunc(paths, func(p []string) bool { return strings.EqualFold(p[0], name) }); other >= 0 {
				return parquetColumns{}, fault.New(fault.Format, "column %q is not %q", paths[other][0], name).WithID("E-PARQUET-003")
			}
			continue
		}
		if i >= texts {
			return findMessages(schema, paths, name)
		}
		err := checkString(schema, paths[at])
		return parquetColumns{name: name, text: at}, err
	}
	for i := range pairs {
		p := &pairs[i]
		if !opt.anyForm() || column(p.ask) < 0 || column(p.answer) < 0 {
			continue
		}
		if column(teacherPrompt) >= 0 {
			return parquetColumns{}, onlyForTeacher("", "column")
		}
		c := parquetColumns{text: -1, pair: p}
		for i, name := range p.names() {
			if c.parts[i] = column(name); c.parts[i] < 0 {
				continue
			}
			if err := checkString(schema, paths[c.parts[i]]); err != nil {
				return c, err
			}
		}
		return c, nil
	}
	var first []string
	for _, p := range paths {
		first = append(first, p[0])
	}
	return parquetColumns{}, fault.New(fault.Format, "no column %s; the file has %s", opt.sought(), quotedNames(slices.Values(slices.Compact(first)))).
		WithHint("name the column with --text-field or --messages-field").WithID("E-PARQUET-002")
}

// checkString refuses a column that does not hold strings.
func checkString(schema *parquet.Schema, path []string) error {
	if len(path) != 1 || !isString(schema, path, 0) {
		return fault.New(fault.Format, "column %q does not hold strings", path[0]).WithID("E-PARQUET-004")
	}
	return nil
}

// findMessages finds the roles and contents of a column of conversations.
func findMessages(schema *parquet.Schema, paths [][]string, name string) (parquetColumns, error) {
	c := parquetColumns{name: name, text: -1, role: -1, content: -1}
	from, value := -1, -1
	for j, p := range paths {
		if p[0] != name || !isString(schema, p, 1) {
			continue
		}
		switch p[len(p)-1] {
		case "role":
			c.role = j
		case "content":
			c.content = j
		case "from":
			from = j
		case "value":
			value = j
		}
	}
	if c.role < 0 && c.content < 0 && from >= 0 && value >= 0 {
		c.role, c.content, c.shareGPT = from, value, true
	}
	if c.role < 0 || c.content < 0 {
		return c, fault.New(fault.Format, "column %q does not hold lists of role and content, or of from and value", name).WithID("E-PARQUET-005")
	}
	return c, nil
}

// isString reports whether the leaf at path holds byte strings inside `repeated` levels of lists.
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
	if c.pair != nil {
		return c.readPairs(chunks, out)
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
		if err := out(Document{Text: text, form: formText}, bad); err != nil {
			return err
		}
	}
}

// readPairs reads questions and answers. Columns that may be absent may also be empty.
func (c parquetColumns) readPairs(chunks []parquet.ColumnChunk, out emit) error {
	var columns [4]*cells
	for i, at := range c.parts {
		if at >= 0 {
			columns[i] = newCells(chunks[at])
			defer columns[i].close()
		}
	}
	for {
		var texts [4]string
		var bad *fault.Error
		rows := 0 // columns that have another value
		for i, column := range columns {
			if column == nil {
				continue
			}
			ok, err := column.next()
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			if rows++; c.pair.optional(i) && column.value.IsNull() {
				continue
			}
			text, wrong := column.text(c.pair.names()[i])
			if texts[i] = text; bad == nil {
				bad = wrong
			}
		}
		want := 0
		for _, column := range columns {
			if column != nil {
				want++
			}
		}
		switch rows {
		case 0:
			return nil
		case want:
		default:
			return fault.New(fault.Format, "columns of %s have different lengths", c.pair.form).WithID("E-PARQUET-013")
		}
		if bad == nil && len(texts[0])+len(texts[1])+len(texts[2])+len(texts[3]) > maxRecord {
			bad = tooLongCell(c.pair.answer)
		}
		if err := out(c.pair.document(texts), bad); err != nil {
			return err
		}
	}
}

func (c parquetColumns) readChats(roles, contents *cells, out emit) error {
	more, err := step(roles, contents)
	for more && err == nil {
		d, bad := Document{Messages: []Message{}, form: formMessages}, (*fault.Error)(nil)
		if c.shareGPT {
			d.form = formShareGPT
		}
		size := 0
		for first := true; more && (first || roles.value.RepetitionLevel() > 0); first = false {
			role, badRole := c.roleOf(roles)
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

// roleOf returns the role of the current message.
func (c parquetColumns) roleOf(roles *cells) (string, *fault.Error) {
	role, bad := roles.text("role")
	if bad != nil || !c.shareGPT {
		return role, bad
	}
	if own := shareGPTRole(role); own != "" {
		return own, nil
	}
	return "", fault.New(fault.Format, "from %q is none of human, gpt, system", role).WithID("E-PARQUET-014")
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
