package corpus

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"apr/internal/fault"
	"apr/internal/readfile"
)

// passedOver are folders of version control and of other people's code.
var passedOver = map[string]bool{"CVS": true, "_darcs": true, "vendor": true, "node_modules": true}

// folder reads the files below dir in lexical order. Links are never followed, and the kernel holds every access below
// dir even if an entry is exchanged for a link meanwhile.
func (r *reader) folder(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return readfile.Fault(dir, err)
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(rel string, d fs.DirEntry, err error) error {
		path := filepath.Join(dir, rel)
		if err != nil {
			return readfile.Fault(path, err)
		}
		if rel == "." {
			return nil
		}
		if err := r.ctx.Err(); err != nil {
			return err
		}
		if reason := leaveOut(d); reason != "" {
			r.skip(path, reason)
			if r.look != nil {
				err = r.look(input{path: path, skip: reason}, nil)
			}
			if d.IsDir() && err == nil {
				return fs.SkipDir
			}
			return err
		}
		if d.IsDir() {
			return nil
		}
		return r.entry(root, rel, path)
	})
}

// leaveOut says why an entry of a folder is left out by its name or type, "" if it is not.
func leaveOut(d fs.DirEntry) string {
	switch {
	case strings.HasPrefix(d.Name(), "."):
		return "hidden"
	case d.Type()&fs.ModeSymlink != 0:
		return "link"
	case d.IsDir() && passedOver[d.Name()]:
		return "vendored or version control"
	case !d.IsDir() && !d.Type().IsRegular():
		return "not a regular file"
	case !d.IsDir() && format(d.Name()) == tokenShard:
		return "not text"
	case !d.IsDir() && unfinished(d.Name()):
		return "unfinished download or backup"
	}
	return ""
}

// unfinished reports whether a name is that of a download that has not ended, by the programs that write such, or of an
// older version.
func unfinished(name string) bool {
	return slices.ContainsFunc([]string{".part", ".partial", ".incomplete", ".crdownload", ".download", ".aria2", ".tmp", ".bak", ".orig", "~"}, func(end string) bool {
		return strings.HasSuffix(strings.ToLower(name), end)
	})
}

// LeavesOut reports whether Read leaves an entry of a folder out by its name or type.
func LeavesOut(d fs.DirEntry) bool { return leaveOut(d) != "" }

// entry reads one file of a folder.
func (r *reader) entry(root *os.Root, rel, path string) error {
	f, err := root.Open(rel)
	if err != nil {
		return readfile.Fault(path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return fault.In(fault.NotFound, path, "changed while it was read").WithID("E-CORPUS-045")
	}
	how, records := asFolderText, false
	switch k := format(rel); {
	case k == jsonLines && !strings.HasSuffix(strings.ToLower(rel), ".json"):
		how = asRecords
	case k == parquetFile:
		how = asParquet
	case k == jsonLines || k == commaTable || k == tabTable:
		head := make([]byte, 4<<10)
		n, _ := f.ReadAt(head, 0) // the text itself is read, and faults told, below
		records = looksLikeRecords(head[:n])
	}
	return r.file(input{path: path, how: how, size: info.Size(), records: records}, f)
}

// recordFields are names of fields of records.
const recordFields = `(messages|conversations|prompt|completion|instruction|output|text)`

// recordHead begins JSON objects, or a list of them, with a field of records, or a table whose first line has one.
var recordHead = regexp.MustCompile(
	`^(?s:\s*\[?\s*\{.*?"` + recordFields + `"\s*:)|^[^\n{\[]*\b` + recordFields + `\b"?\s*[,\t\n]`)

// looksLikeRecords reports whether a file of JSON or a table that begins so may hold records rather than settings.
func looksLikeRecords(head []byte) bool { return recordHead.Match(bytes.TrimPrefix(head, utf8Mark)) }

// notText is the reason for which a file of a folder is left out by its content.
const notText = "not text"

// folderText reads a file of a folder as one document, if it is text.
func (r *reader) folderText(path string, f *os.File, size int64) error {
	h := newHashed(path, f, size)
	err := r.readText(path, h, h, "")
	if !errors.Is(err, errNotText) {
		return err
	}
	reason := notText
	if errors.Is(err, errPointer) {
		reason = errPointer.Error()
	}
	r.skip(path, reason)
	in := input{path: path, how: asFolderText, size: size, skip: reason}
	if int64(h.size) == size { // else its start was enough
		in.sum = h.hex()
	}
	r.report.inputs = append(r.report.inputs, in)
	return nil
}

// text reads a file that the user named as one document.
func (r *reader) text(path string, f *os.File, size int64) error {
	h := newHashed(path, f, size)
	br, what, done, err := decompressed(path, f, h)
	if err != nil {
		return err
	}
	defer done()
	return r.readText(path, br, h, what)
}

// errNotText marks content that is not UTF-8 or holds NUL, or that errPointer marks, which stands for a text that was
// not fetched.
var (
	errNotText = errors.New("not text")
	errPointer = fmt.Errorf("pointer of git-lfs, %w", errNotText)
)

// readText hands src's content on as one document. src reads through h, perhaps decompressed.
func (r *reader) readText(path string, src io.Reader, h *hashed, what string) error {
	buf, err := readStart(src)
	if err != nil {
		return streamFault(path, what, err)
	}
	if bad := checkEncoding(path, buf); bad != nil {
		return bad.Because(errNotText)
	}
	buf = bytes.TrimPrefix(buf, utf8Mark)
	if bytes.IndexByte(buf, 0) < 0 { // else binary: do not read on
		rest, err := io.ReadAll(io.LimitReader(src, maxText+1-int64(len(buf))))
		if err != nil {
			return streamFault(path, what, err)
		}
		buf = append(buf, rest...)
	}
	if int64(len(buf)) > maxText {
		return fault.In(fault.Format, path, "a text of more than 1 GiB").WithHint("split it, or make it JSON Lines").WithID("E-CORPUS-052")
	}
	if i := bytes.IndexByte(buf, 0); i >= 0 {
		return fault.In(fault.Format, path, "NUL").At("offset %d", i).WithHint("text must be UTF-8").Because(errNotText).WithID("E-CORPUS-053")
	}
	if !utf8.Valid(buf) {
		return fault.In(fault.Format, path, "bad UTF-8").At("offset %d", badUTF8(buf)).Because(errNotText).
			WithHint("store it as UTF-8: `iconv -f LATIN1 -t UTF-8` converts old Western texts; what is no text belongs in no --data").WithID("E-CORPUS-054")
	}
	if len(buf) < 1024 && bytes.HasPrefix(buf, []byte("version https://git-lfs.github.com/spec/v1\n")) {
		return fault.In(fault.Format, path, "a pointer of git-lfs instead of the text").WithHint("git lfs pull fetches it").Because(errPointer).WithID("E-CORPUS-066")
	}
	if err := r.finish(path, h); err != nil {
		return err
	}
	return r.document(Document{Text: string(buf), Path: path})
}

// textStart is how many bytes of a file are searched for NUL before the rest is read.
const textStart = 64 << 10

// readStart reads up to textStart bytes.
func readStart(src io.Reader) ([]byte, error) {
	buf := make([]byte, textStart)
	n, err := io.ReadFull(src, buf)
	if err == io.ErrUnexpectedEOF || err == io.EOF {
		err = nil
	}
	return buf[:n:n], err
}
