package corpus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"apr/internal/fault"
	"apr/internal/readfile"
)

// Limits of what is read.
const (
	maxRecord = 16 << 20 // bytes of a line of JSON Lines, or of a Parquet row's text
	maxText   = 1 << 30  // bytes of a text file
	maxListed = 100      // bad records and skipped files that a Report lists; all are counted
	oneBadIn  = 1000     // records may be bad
)

// ReadOptions say where the text stands in a record. With both fields empty it is taken from the fields of the first form
// that the record has; see Read.
type ReadOptions struct {
	TextField     string // field or column that holds a text
	MessagesField string // field or column that holds [{"role": …, "content": …}, …]
	Sources       bool   // documents of JSON records and of tables get their field "source"
	// TeacherPrompts lets records of JSON have a field "teacher_prompt", which becomes Document.Teacher; their completion
	// may be absent then. Without it such records are refused.
	TeacherPrompts bool
	// PromptsAlone lets records of JSON have a prompt without a completion: a model writes the replies itself.
	PromptsAlone bool
	// AnyText reads a named file as one text if its name does not end as records (.jsonl) or tables (.csv) do.
	AnyText bool
}

// anyForm reports whether no field was named.
func (o ReadOptions) anyForm() bool { return o.TextField == "" && o.MessagesField == "" }

// fields returns the names to look for in order, texts first; texts says how many those are.
func (o ReadOptions) fields() (names []string, texts int) {
	switch {
	case o.anyForm():
		return []string{"text", "content", "messages", "conversations"}, 2
	case o.MessagesField == "":
		return []string{o.TextField}, 1
	case o.TextField == "":
		return []string{o.MessagesField}, 0
	}
	return []string{o.TextField, o.MessagesField}, 1
}

// Report says what was read. Counts cover everything, lists the first hundred.
type Report struct {
	Files     []File `json:"files"`
	Records   int64  `json:"records"`   // records of JSON Lines and Parquet, good and bad
	Documents int64  `json:"documents"` // handed on
	Talks     int64  `json:"-"`         // of Documents: conversations

	// Forms counts the documents by the form of their record; texts that are whole files have none.
	Forms      map[string]int64 `json:"-"`
	Bytes      int64            `json:"bytes"` // UTF-8 bytes of their text
	BadRecords int64            `json:"bad_records"`
	Bad        []error          `json:"-"` // faults naming file and line
	Skipped    int64            `json:"skipped_files"`
	SkippedIn  []Skip           `json:"skipped,omitempty"`

	Writers map[string]Written `json:"writers,omitempty"` // models that wrote records, by their identities; see RecordSum

	inputs []input // files whose content decided what was read
}

// Idle refuses options, named as on the command line, that the data gives nothing to act on: those for conversations where it holds
// none, and those for the fields of records where it is plain text.
func (r *Report) Idle(forTalks, forRecords []string) error {
	if r.Talks == 0 && len(forTalks) > 0 {
		return fault.In(fault.Invalid, forTalks[0], "has no effect: the data holds no conversation").WithHint("leave it out for plain text").WithID("E-CORPUS-060")
	}
	if r.Records == 0 && len(forRecords) > 0 {
		return fault.In(fault.Invalid, forRecords[0], "has no effect: the data holds no records with fields, only plain text").WithHint("leave it out").WithID("E-CORPUS-063")
	}
	return nil
}

// maxNamed bounds the files that NotText names.
const maxNamed = 5

// NotText says how many files of folders were left out for what they hold, NUL or bytes that are not UTF-8, and names the first of them;
// "" if there is none.
func (r *Report) NotText() string {
	var names []string
	n := 0
	for _, in := range r.inputs {
		if in.skip != notText {
			continue
		}
		if n++; n <= maxNamed {
			names = append(names, in.path)
		}
	}
	switch {
	case n == 0:
		return ""
	case n > maxNamed:
		names = append(names, fmt.Sprintf("%d more", n-maxNamed))
	}
	what := "files are"
	if n == 1 {
		what = "file is"
	}
	return fmt.Sprintf("%d %s left out, not text (NUL or bad UTF-8): %s", n, what, strings.Join(names, ", "))
}

// RecordsAsText says which files of folders were read as texts though they look like records; "" if none was.
func (r *Report) RecordsAsText() string {
	var names []string
	for _, in := range r.inputs {
		if in.records && in.skip == "" {
			names = append(names, in.path)
		}
	}
	if len(names) == 0 {
		return ""
	}
	if more := len(names) - maxNamed; more > 0 {
		names = append(names[:maxNamed], fmt.Sprintf("%d more", more))
	}
	return "read as one text each, though they look like records: " + strings.Join(names, ", ") +
		"; of a folder, .jsonl and .parquet are read as records, and any file that is named itself"
}

// leftOut says what was left out of folders and why, and names the first of it; "" if nothing was.
func (r *Report) leftOut() string {
	var names []string
	for _, s := range r.SkippedIn[:min(maxNamed, len(r.SkippedIn))] {
		names = append(names, s.Path+" ("+s.Reason+")")
	}
	if more := r.Skipped - int64(len(names)); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	if len(names) == 0 {
		return ""
	}
	return "left out: " + strings.Join(names, ", ")
}

// Empty names the first of the files that hold nothing, and counts the others; "" if there is none.
func (r *Report) Empty() string {
	var names []string
	for _, f := range r.Files {
		if f.Bytes == 0 {
			names = append(names, f.Path)
		}
	}
	n := len(names)
	switch {
	case n == 0:
		return ""
	case n == 1:
		return "1 file is empty: " + names[0]
	case n > maxNamed:
		names = append(names[:maxNamed], fmt.Sprintf("%d more", n-maxNamed))
	}
	return fmt.Sprintf("%d files are empty: %s", n, strings.Join(names, ", "))
}

// File is a file that was read whole.
type File struct {
	Path   string `json:"path"`
	Bytes  int64  `json:"bytes"`  // as stored
	SHA256 string `json:"sha256"` // of the bytes as stored
}

// Skip is an entry of a folder that was left out, and why.
type Skip struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

// Read streams the documents of paths, in their order, to yield, and stops at yield's first error. A path is
//
//   - a file of JSON Lines (.jsonl, .ndjson, .json: one object a line), of one JSON array of objects (.json), or Parquet (.parquet), whose
//     records are documents;
//   - a table (.csv, .tsv) whose first line names its columns; the option TextField chooses one, whose cells are documents; without it
//     columns are recognised as fields are, of texts and of questions with answers;
//   - a file of text (.txt, .text, .md, .markdown, or a name without an ending): one text, valid UTF-8 without NUL. A file of
//     another ending is refused: a table read as prose teaches the wrong thing, silently;
//   - a folder, walked recursively in lexical order. Records are read from .jsonl, .ndjson and .parquet; every other
//     file is one text. Hidden entries, version control's and vendored folders (CVS, _darcs, vendor, node_modules),
//     links, and files that are not text are left out and counted.
//
// A byte order mark of UTF-8 at the start of a file is passed over; files in UTF-16 and UTF-32 are refused by name.
// Files compressed by gzip, zstd or xz are recognised by content; within folders only those of JSON Lines. A record is
// recognised by its fields, in this order:
//
//	text, content         a text
//	messages              a conversation, [{"role": …, "content": …}, …]
//	conversations         the same, or as ShareGPT has it: [{"from": "human", "value": …}, {"from": "gpt", …}, …]
//	prompt, completion    a question and its answer: a conversation of two turns, or of those that lists hold
//	instruction, output   Alpaca, likewise; a non-empty input follows the instruction behind an empty line
//
// A non-empty system of the last two forms is the system's turn. A teacher_prompt of these two, a text or a list of
// messages, is what a teacher reads in the place of the question; see ReadOptions.TeacherPrompts. The answer
// is needed unless ReadOptions.PromptsAlone says otherwise.
//
// Bad records are left out; if they are more than 1 in 1,000, or there is no document, Read returns a fault of kind
// Invalid. The Report is returned with every error too.
func Read(ctx context.Context, paths []string, opt ReadOptions, yield func(Document) error) (*Report, error) {
	r := &reader{ctx: ctx, opt: opt, yield: yield, report: &Report{}}
	for _, p := range paths {
		if err := r.path(p); err != nil {
			return r.report, err
		}
	}
	return r.report, r.verdict(paths)
}

// reader is the state of one Read.
type reader struct {
	ctx     context.Context
	opt     ReadOptions
	yield   func(Document) error
	report  *Report
	how     way  // in which the present file is read
	records bool // the present file looks like records
	spread  bool // a file began with a record that does not end on its line

	// look, if not nil, is called with each file instead of reading documents, and with each entry that is left out.
	look func(input, *os.File) error
}

// A way of reading a file.
type way string

const (
	asRecords    way = "records"
	asParquet    way = "parquet"
	asCSV        way = "csv"
	asTSV        way = "tsv"
	asText       way = "text"        // named by the user: perhaps compressed, and refused if it is not text
	asFolderText way = "folder text" // as it is, and left out if it is not text
)

// input is a file as it was found.
type input struct {
	path string
	how  way // "": left out by its name
	size int64
	sum  string // SHA-256 in hexadecimal; "": not looked at, or its start alone showed that it is not text
	skip string // why it was left out

	records bool // it looks like records, and is read as one text
}

// document hands d on.
func (r *reader) document(d Document) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	r.report.Documents++
	if d.form != "" {
		if r.report.Forms == nil {
			r.report.Forms = map[string]int64{}
		}
		r.report.Forms[string(d.form)]++
	}
	if d.Messages != nil {
		r.report.Talks++
	}
	r.report.wrote(d)
	r.report.Bytes += d.Bytes()
	return r.yield(d)
}

// bad counts and lists a bad record.
func (r *reader) bad(err *fault.Error) {
	r.report.BadRecords++
	if len(r.report.Bad) < maxListed {
		r.report.Bad = append(r.report.Bad, err)
	}
}

// skip counts and lists a left out entry of a folder.
func (r *reader) skip(path, reason string) {
	r.report.Skipped++
	if len(r.report.SkippedIn) < maxListed {
		r.report.SkippedIn = append(r.report.SkippedIn, Skip{path, reason})
	}
}

// verdict judges the whole once all is read.
func (r *reader) verdict(paths []string) error {
	rep := r.report
	if rep.BadRecords*oneBadIn > rep.Records {
		f := fault.New(fault.Invalid, "%d of %d records are bad, more than 1 in %d; the first", rep.BadRecords, rep.Records, oneBadIn).
			Because(rep.Bad[0]).WithID("E-CORPUS-040")
		first := (*fault.Error)(nil)
		if errors.As(rep.Bad[0], &first) && first.ID == "E-JSONL-015" {
			return f.WithHint("%s", first.Hint)
		}
		if first != nil && first.ID == "E-JSONL-007" {
			hint := "--text-field or --messages-field names another field; apr help data shows the forms of records"
			if rep.Records == 1 {
				hint += "; records in a list of that object: jq -c '.NAME[]' FILE > records.jsonl"
			}
			return f.WithHint("%s", hint)
		}
		if r.spread && rep.BadRecords > 1 {
			return f.WithHint("a record is one line (JSON Lines), and here it goes over several: " +
				"jq -c . FILE > records.jsonl writes each on one; " +
				"jq -c '.[]' those of a list, jq -c '.NAME[]' of a list in an object")
		}
		return f
	}
	if note := rep.NotText(); rep.Documents == 0 && note != "" {
		return fault.In(fault.Invalid, strings.Join(paths, ", "), "holds no text: %s", note).WithHint("name files of text, or a folder with such files").WithID("E-CORPUS-065")
	}
	if rep.Documents == 0 {
		f := fault.In(fault.Invalid, strings.Join(paths, ", "), "no record").WithID("E-CORPUS-041")
		if note := rep.leftOut(); note != "" {
			f = fault.In(fault.Invalid, strings.Join(paths, ", "), "no record; %s", note).WithID("E-CORPUS-041").
				WithHint("a file that is named itself is read whatever folders leave out")
		}
		return f
	}
	return nil
}

// path reads one path given by the user.
func (r *reader) path(path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return r.folder(path)
	}
	f, size, err := readfile.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	how := asText
	switch format(path) {
	case jsonLines:
		how = asRecords
	case parquetFile:
		how = asParquet
	case commaTable, tabTable:
		if how = asCSV; format(path) == tabTable {
			how = asTSV
		}
	case tokenShard:
		return fault.In(fault.Usage, path, "a shard of tokens, not text").WithHint("give its folder to --dataset").WithID("E-CORPUS-042")
	case otherKind:
		if !r.opt.AnyText {
			return unknownKind(path, f)
		}
	}
	return r.file(input{path: path, how: how, size: size}, f)
}

// file reads one file.
func (r *reader) file(in input, f *os.File) error {
	if r.look != nil {
		return r.look(in, f)
	}
	r.how, r.records = in.how, in.records
	switch in.how {
	case asRecords:
		return r.jsonLines(in.path, f, in.size)
	case asParquet:
		return r.parquet(in.path, f, in.size)
	case asCSV:
		return r.table(in.path, f, in.size, ',')
	case asTSV:
		return r.table(in.path, f, in.size, '\t')
	case asText:
		return r.text(in.path, f, in.size)
	}
	return r.folderText(in.path, f, in.size)
}

// A kind of file, by its name.
type kind int

const (
	plainText kind = iota
	jsonLines
	parquetFile
	commaTable
	tabTable
	tokenShard
	otherKind // text in a folder of sources; by itself, anything
)

// format tells the kind of a file that was named by the user.
func format(path string) kind {
	name := strings.ToLower(filepath.Base(path))
	switch filepath.Ext(name) {
	case ".gz", ".zst", ".xz":
		name = strings.TrimSuffix(name, filepath.Ext(name))
	}
	switch ext := filepath.Ext(name); {
	case ext == ".jsonl" || ext == ".ndjson" || ext == ".json":
		return jsonLines
	case ext == ".parquet":
		return parquetFile
	case ext == ".csv":
		return commaTable
	case ext == ".tsv":
		return tabTable
	case ext == ".bin":
		return tokenShard
	case ext == ".txt" || ext == ".text" || ext == ".md" || ext == ".markdown" || !ending.MatchString(ext) || ext == name:
		return plainText
	}
	return otherKind
}

// ending is what says of what kind a file is: a dot, a letter and what follows. part.00001 has none.
var ending = regexp.MustCompile(`^\.[a-z][a-z0-9_+-]*$`)

// unknownKind refuses a file whose name says that it is something else than text or records, or whose content does.
func unknownKind(path string, f *os.File) error {
	_, _, done, err := decompressed(path, f, f)
	if err != nil {
		return err
	}
	done()
	return fault.In(fault.Format, path, "%q is no kind of data that is read", filepath.Ext(path)).
		WithHint("records: .jsonl, .ndjson, .json, .parquet, .csv, .tsv; texts: .txt, .md, or no ending; each also compressed (.gz, .zst, .xz); or a folder, whose text files are read whatever they are called").
		WithID("E-CORPUS-055")
}

// hashed reads a file and hashes what it reads; a file that is shortened meanwhile is a fault.
type hashed struct {
	io.Reader
	sum  interface{ Sum([]byte) []byte }
	size counter
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

func newHashed(path string, r io.Reader, size int64) *hashed {
	h := &hashed{}
	sum := sha256.New()
	h.sum = sum
	h.Reader = io.TeeReader(readfile.Whole(r, path, size), io.MultiWriter(sum, &h.size))
	return h
}

// finish reads what is left, so that the hash is the file's, and records it.
func (r *reader) finish(path string, h *hashed) error {
	if _, err := io.Copy(io.Discard, h); err != nil {
		return streamFault(path, "", err)
	}
	file := File{Path: path, Bytes: int64(h.size), SHA256: h.hex()}
	r.report.Files = append(r.report.Files, file)
	r.report.inputs = append(r.report.inputs, input{
		path: path, how: r.how, size: file.Bytes, sum: file.SHA256, records: r.records})
	return nil
}

// hex returns the hash of what was read so far.
func (h *hashed) hex() string { return hex.EncodeToString(h.sum.Sum(nil)) }
