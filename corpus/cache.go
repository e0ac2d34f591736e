package corpus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"apr/internal/disk"
)

// Cache keeps the tokens of corpora in a folder, so that a corpus is encoded once. An entry is a folder of token shards as
// EncodeCorpus writes them, with a mask where there is one and the table of documents; its name is a hash of everything
// that decides the tokens: the content of the files and how each is read, the tokenizer, the chat template, the fields,
// the end-of-text id, the turns, and cacheVersion. Load returns the same with a cache and without.
//
// Entries appear whole, by rename, and are checked by their hashes when they are read; several processes may use a folder at
// once. A nil Cache keeps nothing. The folder is trusted: whoever can write there decides the tokens.
type Cache struct {
	Dir       string
	MinTokens int64 // smaller corpora are not kept
	MaxBytes  int64 // of all entries: the least recently used ones are removed

	free func(dir string) (uint64, bool) // replaced in tests
}

// Defaults of a Cache. A corpus of fewer tokens is encoded in a fraction of a second.
const (
	DefaultCacheTokens = 1 << 20
	DefaultCacheBytes  = 10 << 30
)

// cacheVersion is counted up whenever the same files and settings give other tokens, documents or reports than before.
const cacheVersion = 6

// cacheOfFree bounds an entry: it may take this fraction, one in cacheOfFree, of the free disk.
const cacheOfFree = 10

// IdentifiedEncoder is an Encoder with a hash of everything that decides its ids.
type IdentifiedEncoder interface {
	Encoder
	Identity() Hash
}

// CacheUse says what a Cache did for one corpus.
type CacheUse struct {
	State   string `json:"state"`             // off, hit, written, or "not written"
	Key     string `json:"key,omitempty"`     // of the entry
	Path    string `json:"path,omitempty"`    // its folder, if it is there
	Reason  string `json:"reason,omitempty"`  // why it was not written
	Problem string `json:"problem,omitempty"` // what went wrong, which never fails a Load: a damaged entry, a failed write
}

// The states of CacheUse.
const (
	CacheOff        = "off"
	CacheHit        = "hit"
	CacheWritten    = "written"
	CacheNotWritten = "not written"
)

// Load returns what Load of this package returns, from the cache if it is there. On a miss that the files' sizes prove,
// files are read once, else they are hashed first.
func (c *Cache) Load(ctx context.Context, paths []string, enc IdentifiedEncoder, opt EncodeOptions) (*Tokens, *Report, CacheUse, error) {
	if c == nil || opt.Read.Sources { // entries have no sources
		t, report, err := Load(ctx, paths, enc, opt)
		return t, report, CacheUse{State: CacheOff}, err
	}
	q := newQuestion(enc, opt)
	use := CacheUse{State: CacheNotWritten}
	prefix, err := q.prefix(ctx, paths, opt.Read)
	if err == nil { // else Load meets the same error, and describes it
		if t, report := c.find(ctx, q, prefix, paths, opt, &use); t != nil {
			return t, report, use, nil
		}
	}
	t, report, err := Load(ctx, paths, enc, opt)
	if err != nil {
		return t, report, use, err
	}
	use.Key = q.key(report.inputs)
	c.keep(prefix, paths, t, report, &use)
	return t, report, use, nil
}

// find returns the entry of a question, nil if there is none that is whole.
func (c *Cache) find(ctx context.Context, q question, prefix string, paths []string, opt EncodeOptions, use *CacheUse) (*Tokens, *Report) {
	if same, err := filepath.Glob(filepath.Join(escapeGlob(c.Dir), prefix+"-*")); err != nil || len(same) == 0 {
		return nil, nil
	}
	var files []input
	err := lookAt(ctx, paths, opt.Read, func(in input, f *os.File) error {
		in, err := in.hash(ctx, f)
		files = append(files, in)
		return err
	})
	if err != nil {
		return nil, nil
	}
	use.Key = q.key(files)
	dir := filepath.Join(c.Dir, prefix+"-"+use.Key)
	t, report, err := readEntry(dir, use.Key, files, opt)
	if _, gone := os.Stat(dir); gone != nil {
		return nil, nil // it was not there, or another process has removed it meanwhile
	}
	if err != nil {
		use.Problem = "a damaged entry was made again: " + err.Error()
		if err := c.remove(dir); err != nil {
			use.Problem = "a damaged entry cannot be removed: " + err.Error()
		}
		return nil, nil
	}
	now := time.Now()
	_ = os.Chtimes(dir, now, now) // a folder that cannot be written to is removed earlier than it should be, no more
	use.State, use.Path = CacheHit, dir
	return t, report
}

// keep writes an entry, if it is worth it and there is room, and removes old ones.
func (c *Cache) keep(prefix string, paths []string, t *Tokens, report *Report, use *CacheUse) {
	size := 4*int64(len(t.IDs)) + int64(len(t.Mask)) + documentBytes*int64(len(t.Docs))
	switch {
	case prefix == "":
		use.Reason = "the files changed while they were read"
	case t.Words != nil:
		use.Reason = "entries have no words of a teacher's own"
	case int64(len(t.IDs)) < c.MinTokens:
		use.Reason = fmt.Sprintf("fewer than %d tokens: encoding them again takes no longer", c.MinTokens)
	case size > c.MaxBytes:
		use.Reason = fmt.Sprintf("%d bytes are over the cache's limit of %d", size, c.MaxBytes)
	default:
		dir := filepath.Join(c.Dir, prefix+"-"+use.Key)
		if err := c.write(dir, size, newEntry(use.Key, paths, report), t); err != nil {
			use.Reason = "it cannot be written"
			use.Problem = strings.TrimPrefix(use.Problem+"; ", "; ") + "the tokens cannot be kept: " + err.Error()
			return
		}
		use.State, use.Path = CacheWritten, dir
		if err := c.prune(); err != nil {
			use.Problem = strings.TrimPrefix(use.Problem+"; ", "; ") + "old entries cannot be removed: " + err.Error()
		}
	}
}

// freeBytes returns what is free on the disk of c.Dir.
func (c *Cache) freeBytes() (uint64, bool) {
	if c.free != nil {
		return c.free(c.Dir)
	}
	return disk.OS{}.Free(c.Dir)
}

// question is what decides the tokens of a corpus.
type question struct {
	Version       int
	Encoder       string
	EOS           int32
	Vocab         int
	Turns         Turns
	NFC           bool
	TextField     string
	MessagesField string
	OneBadIn      int
	Words         bool     `json:",omitempty"` // of the teacher's own, which are errors otherwise
	PromptsAlone  bool     `json:",omitempty"` // records that are errors otherwise
	Inputs        []string // in order: how each file is read, and its content, or its size
}

func newQuestion(enc IdentifiedEncoder, opt EncodeOptions) question {
	id := enc.Identity()
	return question{
		Version: cacheVersion, Encoder: hex.EncodeToString(id[:]), EOS: opt.EOS, Vocab: opt.Vocab, Turns: opt.Turns, NFC: opt.NFC,
		TextField: opt.Read.TextField, MessagesField: opt.Read.MessagesField, OneBadIn: oneBadIn,
		Words: opt.Read.TeacherPrompts, PromptsAlone: opt.Read.PromptsAlone,
	}
}

// hash returns SHA-256 of the question about these files.
func (q question) hash(files []input, describe func(input) string) string {
	q.Inputs = []string{}
	for _, in := range files {
		if in.how != "" {
			q.Inputs = append(q.Inputs, string(in.how)+" "+describe(in))
		}
	}
	text, err := json.Marshal(q)
	if err != nil {
		panic("corpus: question: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// key is the hash by the files' contents.
func (q question) key(files []input) string {
	return q.hash(files, func(in input) string { return in.sum })
}

// prefix is a hash by the files' sizes, which can be had without reading them.
func (q question) prefix(ctx context.Context, paths []string, opt ReadOptions) (string, error) {
	var files []input
	err := lookAt(ctx, paths, opt, func(in input, _ *os.File) error {
		files = append(files, in)
		return nil
	})
	if err != nil {
		return "", err
	}
	return q.hash(files, func(in input) string { return fmt.Sprint(in.size) })[:16], nil
}

// lookAt calls look with each file that Read would read, and with each that it would leave out by name.
func lookAt(ctx context.Context, paths []string, opt ReadOptions, look func(input, *os.File) error) error {
	r := &reader{ctx: ctx, opt: opt, report: &Report{}, look: look}
	for _, p := range paths {
		if err := r.path(p); err != nil {
			return err
		}
	}
	return nil
}

// hash reads a file as far as Read does.
func (in input) hash(ctx context.Context, f *os.File) (input, error) {
	if in.how == "" {
		return in, nil
	}
	h := newHashed(in.path, untilDone{ctx, f}, in.size)
	if in.how == asFolderText && in.size > textStart {
		start, err := readStart(h)
		if err != nil {
			return in, err
		}
		if strings.IndexByte(string(start), 0) >= 0 {
			in.skip = notText
			return in, nil
		}
	}
	_, err := io.Copy(io.Discard, h)
	in.sum = h.hex()
	return in, err
}

// untilDone reads until ctx ends.
type untilDone struct {
	ctx context.Context
	io.Reader
}

func (u untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.Reader.Read(p)
}

// escapeGlob makes a path a pattern that matches itself.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}
