package corpus

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"apr/internal/atomicfile"
	"apr/internal/disk"
	"apr/internal/fault"
	"apr/internal/readfile"
)

// Names in the folder of a Cache.
var entryName = regexp.MustCompile(`^[0-9a-f]{16}-[0-9a-f]{64}$`)

// Folders that are being written or removed are in a folder of their own, so that other folders are not mistaken for
// them.
const (
	tempFolder = ".apr-tokens-unfinished"
	tempEntry  = "entry-"       // begins their names, which end in a random number
	tempAge    = 24 * time.Hour // after which one was left by a process that was killed
)

var tempName = regexp.MustCompile(`^` + tempEntry + `[0-9]+$`)

// Names in an entry, besides the shards and the manifest. They do not end in .bin, so that ReadShards reads an entry too.
const (
	documentsName = "documents"
	maskName      = "mask"
)

// documentBytes is the size of a document in the table: end and bytes of text as little-endian u64, content hash.
const documentBytes = 8 + 8 + sha256.Size

// maxEntryManifest bounds manifest.json, which lists files that are not text.
const maxEntryManifest = 64 << 20

// entry is the manifest.json of an entry. Files are named by their position among those of the question.
type entry struct {
	Schema    string   `json:"schema"`
	Key       string   `json:"key"`
	Paths     []string `json:"paths"` // as they were when it was written
	Shards    []Shard  `json:"shards"`
	Documents string   `json:"documents_sha256"`
	Mask      *string  `json:"mask_sha256"` // null: no mask
	Records   int64    `json:"records"`
	Read      int64    `json:"documents"`
	Talks     int64    `json:"conversations"`

	Forms      map[string]int64 `json:"forms"`
	Bytes      int64            `json:"bytes"`
	BadRecords int64            `json:"bad_records"`
	Bad        []badRecord      `json:"bad"`
	LeftOut    []int            `json:"left_out"` // not text
	Seal       string           `json:"seal"`     // SHA-256 of this with an empty seal

	Writers map[string]Written `json:"writers"`
}

// badRecord is a record that was left out.
type badRecord struct {
	File    int     `json:"file"`
	Place   string  `json:"place"`
	Problem problem `json:"problem"`
}

// newEntry describes what was read.
func newEntry(key string, paths []string, report *Report) *entry {
	clean := func(s string) string { return strings.ToValidUTF8(s, "\uFFFD") } // else JSON would give back another text
	e := &entry{
		Schema: cacheSchema, Key: key, Records: report.Records, Read: report.Documents, Talks: report.Talks, Forms: report.Forms, Bytes: report.Bytes,
		BadRecords: report.BadRecords, Bad: []badRecord{}, LeftOut: []int{}, Writers: report.Writers,
	}
	for _, p := range paths {
		e.Paths = append(e.Paths, clean(p))
	}
	at := map[string]int{}
	for i, in := range report.inputs {
		at[in.path] = i
		if in.skip != "" {
			e.LeftOut = append(e.LeftOut, i)
		}
	}
	for _, err := range report.Bad {
		var f *fault.Error
		if errors.As(err, &f) {
			p := newProblem(f)
			e.Bad = append(e.Bad, badRecord{at[f.Path], clean(f.Place), problem{clean(p.Msg), clean(p.Hint), p.ID}})
		}
	}
	return e
}

// report is the opposite of newEntry: what a Read of these files reports.
func (e *entry) report(files []input) (*Report, error) {
	r := &reader{report: &Report{Records: e.Records, Documents: e.Read, Talks: e.Talks, Forms: e.Forms, Bytes: e.Bytes,
		BadRecords: e.BadRecords, Writers: e.Writers}}
	left := e.LeftOut // ascending
	for _, in := range files {
		if in.how == "" {
			r.skip(in.path, in.skip)
			continue
		}
		if len(left) > 0 && left[0] == len(r.report.inputs) {
			left, in.skip = left[1:], notText
			r.skip(in.path, in.skip)
		} else {
			r.report.Files = append(r.report.Files, File{Path: in.path, Bytes: in.size, SHA256: in.sum})
		}
		r.report.inputs = append(r.report.inputs, in)
	}
	for _, b := range e.Bad {
		if b.File < 0 || b.File >= len(r.report.inputs) {
			return nil, fault.New(fault.Invalid, "a bad record of file %d of %d", b.File+1, len(r.report.inputs))
		}
		r.report.Bad = append(r.report.Bad, b.Problem.fault(r.report.inputs[b.File].path).At("%s", b.Place))
	}
	return r.report, nil
}

// text returns manifest.json, sealed.
func (e entry) text() []byte {
	marshal := func() []byte {
		text, err := json.MarshalIndent(e, "", "  ")
		if err != nil {
			panic("corpus: entry: " + err.Error())
		}
		return append(text, '\n')
	}
	e.Seal = ""
	sum := sha256.Sum256(marshal())
	e.Seal = hex.EncodeToString(sum[:])
	return marshal()
}

// write makes the entry dir, of about size bytes.
func (c *Cache) write(dir string, size int64, e *entry, t *Tokens) error {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return fault.In(fault.IO, c.Dir, "cannot be made").Because(err)
	}
	if free, ok := c.freeBytes(); ok && uint64(size) > free/cacheOfFree {
		return fault.In(fault.IO, c.Dir, "%d bytes would take more than a tenth of the %d that are free", size, free)
	}
	tmp, err := c.temp()
	if err != nil {
		return fault.In(fault.IO, c.Dir, "cannot be written").Because(err)
	}
	defer os.RemoveAll(tmp)
	if err := e.writeFiles(tmp, t); err != nil {
		return err
	}
	err = os.Rename(tmp, dir)
	if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, fs.ErrExist) {
		return nil // another process was faster, with the same
	}
	if err == nil {
		err = disk.OS{}.SyncDir(c.Dir)
	}
	if err != nil {
		return fault.In(fault.IO, dir, "cannot be written").Because(err)
	}
	return nil
}

// writeFiles writes the files of an entry durably, the manifest last.
func (e *entry) writeFiles(dir string, t *Tokens) error {
	w := &shardWriter{dir: dir, create: atomicfile.CreatePrivate, limit: DefaultShardTokens, all: sha256.New()}
	defer w.abort()
	if err := w.write(t.IDs); err != nil {
		return err
	}
	if err := w.finish(); err != nil {
		return err
	}
	e.Shards = w.shards
	table := make([]byte, 0, documentBytes*len(t.Docs))
	for _, d := range t.Docs {
		table = binary.LittleEndian.AppendUint64(table, uint64(d.End))
		table = binary.LittleEndian.AppendUint64(table, uint64(d.Bytes))
		table = append(table, d.Hash[:]...)
	}
	put := func(name string, data []byte) (sum string, err error) {
		return hashOf(data), atomicfile.WritePrivate(filepath.Join(dir, name), data, false)
	}
	var err error
	if e.Documents, err = put(documentsName, table); err != nil {
		return err
	}
	if t.Mask != nil {
		sum, err := put(maskName, t.Mask)
		if err != nil {
			return err
		}
		e.Mask = &sum
	}
	_, err = put(manifestName, e.text())
	return err
}

func hashOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// readEntry reads the entry dir of a question whose files these are. Everything is compared with its hash.
func readEntry(dir, key string, files []input, opt EncodeOptions) (*Tokens, *Report, error) {
	path := filepath.Join(dir, manifestName)
	text, err := readfile.String(path, maxEntryManifest)
	if err != nil {
		return nil, nil, err
	}
	var e entry
	if err := json.Unmarshal([]byte(text), &e); err != nil || !bytes.Equal(e.text(), []byte(text)) || e.Key != key {
		return nil, nil, fault.In(fault.Invalid, path, "is not as it was written")
	}
	report, err := e.report(files)
	if err != nil {
		return nil, nil, err
	}
	t := &Tokens{EOS: opt.EOS}
	t.IDs = make([]int32, 0, sizeOf(dir)/4)
	for _, s := range e.Shards {
		if !shardName.MatchString(s.Name) {
			return nil, nil, fault.In(fault.Invalid, path, "%q is no shard", s.Name)
		}
		f, err := t.readShard(filepath.Join(dir, s.Name), opt.Vocab, io.Discard)
		if err != nil {
			return nil, nil, err
		}
		if f.SHA256 != s.SHA256 {
			return nil, nil, changed(f.Path)
		}
	}
	if err := t.readDocuments(filepath.Join(dir, documentsName), e.Documents); err != nil || e.Mask == nil {
		return t, report, err
	}
	t.Mask, err = readSealed(filepath.Join(dir, maskName), *e.Mask)
	if err == nil && len(t.Mask) != len(t.IDs) {
		err = changed(filepath.Join(dir, maskName))
	}
	return t, report, err
}

func changed(path string) error {
	return fault.In(fault.Invalid, path, "has changed since it was written")
}

// readSealed returns the content of a file with this hash.
func readSealed(path, sum string) ([]byte, error) {
	f, size, err := readfile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data := make([]byte, size)
	if _, err := f.ReadAt(data, 0); err != nil && size > 0 {
		return nil, readfile.Fault(path, err)
	}
	if hashOf(data) != sum {
		return nil, changed(path)
	}
	return data, nil
}

// readDocuments reads the table of the documents of t's ids.
func (t *Tokens) readDocuments(path, sum string) error {
	table, err := readSealed(path, sum)
	if err != nil {
		return err
	}
	last := int64(0)
	for ; len(table) >= documentBytes; table = table[documentBytes:] {
		d := Doc{End: int64(binary.LittleEndian.Uint64(table)), Bytes: int64(binary.LittleEndian.Uint64(table[8:]))}
		copy(d.Hash[:], table[16:])
		if d.End <= last || d.End > int64(len(t.IDs)) {
			return changed(path)
		}
		last = d.End
		t.Docs = append(t.Docs, d)
	}
	if len(table) > 0 || last != int64(len(t.IDs)) {
		return changed(path)
	}
	return nil
}

// prune removes the entries that were used least recently, until the others hold no more than c.MaxBytes, and what killed
// processes have left.
func (c *Cache) prune() error {
	names, err := os.ReadDir(c.Dir)
	if err != nil {
		return err
	}
	type used struct {
		dir  string
		at   time.Time
		size int64
	}
	var all []used
	for _, d := range names {
		info, err := d.Info()
		if err != nil || !info.IsDir() {
			continue // removed meanwhile, or not ours
		}
		dir := filepath.Join(c.Dir, d.Name())
		if entryName.MatchString(d.Name()) {
			all = append(all, used{dir, info.ModTime(), sizeOf(dir)})
		}
	}
	c.pruneTemp()
	slices.SortFunc(all, func(a, b used) int { return b.at.Compare(a.at) })
	var errs []error
	kept := int64(0)
	for i, u := range all {
		if kept += u.size; kept > c.MaxBytes && i > 0 {
			errs = append(errs, c.remove(u.dir))
		}
	}
	return errors.Join(errs...)
}

// temp makes a folder for an entry that is being written or removed.
func (c *Cache) temp() (string, error) {
	dir := filepath.Join(c.Dir, tempFolder)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return os.MkdirTemp(dir, tempEntry)
}

// pruneTemp removes what killed processes have left.
func (c *Cache) pruneTemp() {
	dir := filepath.Join(c.Dir, tempFolder)
	names, _ := os.ReadDir(dir) // not there: nothing is left
	for _, d := range names {
		if info, err := d.Info(); err == nil && info.IsDir() && tempName.MatchString(d.Name()) && time.Since(info.ModTime()) > tempAge {
			_ = os.RemoveAll(filepath.Join(dir, d.Name())) // tried again the next time
		}
	}
}

// sizeOf returns the bytes of the files in a folder.
func sizeOf(dir string) (n int64) {
	files, _ := os.ReadDir(dir) // what is gone has no size
	for _, f := range files {
		if info, err := f.Info(); err == nil {
			n += info.Size()
		}
	}
	return n
}

// remove removes an entry at once for others, by rename.
func (c *Cache) remove(dir string) error {
	tmp, err := c.temp()
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := os.Rename(dir, filepath.Join(tmp, "entry")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
