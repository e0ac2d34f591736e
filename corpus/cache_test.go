package corpus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"apr/tokenizer"
)

// identified is byteEncoder with a name, which counts how many texts it encodes.
type identified struct {
	byteEncoder
	name string
	mu   *sync.Mutex
	n    *int
}

func newIdentified(name string) identified {
	return identified{name: name, mu: new(sync.Mutex), n: new(int)}
}

func (e identified) Identity() Hash { return sha256.Sum256([]byte(e.name)) }

func (e identified) AppendText(ids []int32, text string) []int32 {
	e.mu.Lock()
	*e.n++
	e.mu.Unlock()
	return e.byteEncoder.AppendText(ids, text)
}

// corpusFolder makes a folder of every kind of file: texts, records with one bad, a conversation, what is left out by name
// and by content, at its start and beyond.
func corpusFolder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	records := strings.Repeat(`{"text":"a record"}`+"\n", 1500) + "not JSON\n" +
		`{"messages":[{"role":"user","content":"why"},{"role":"assistant","content":"because"}]}` + "\n"
	for name, content := range map[string]string{
		"a.txt": "first text", "b.jsonl": records, "c/d.go": "package d", "c/image.bin": "x", "c/nul": "a\x00b",
		"big": strings.Repeat("\x00", 70<<10), "latin": "caf\xe9", ".hidden": "x", "z.txt": "last",
		"late": strings.Repeat("a", 70<<10) + "\x00",
	} {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must(t, os.WriteFile(path, []byte(content), 0o600))
	}
	return dir
}

// load calls c.Load and fails on errors.
func load(t testing.TB, c *Cache, enc IdentifiedEncoder, opt EncodeOptions, paths ...string) (*Tokens, *Report, CacheUse) {
	t.Helper()
	tokens, report, use, err := c.Load(context.Background(), paths, enc, opt)
	must(t, err)
	return tokens, report, use
}

// entries returns the folders in a cache.
func entries(t testing.TB, c *Cache) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(c.Dir, "[^.]*"))
	must(t, err)
	return all
}

func newCache(t testing.TB) *Cache {
	return &Cache{Dir: filepath.Join(t.TempDir(), "tokens"), MaxBytes: 1 << 30}
}

func TestCacheGivesTheSame(t *testing.T) {
	dir, c, enc := corpusFolder(t), newCache(t), newIdentified("a")
	want, wantReport, err := Load(context.Background(), []string{dir}, enc, options)
	must(t, err)
	if want.Mask == nil || len(wantReport.Bad) != 1 || wantReport.Skipped != 6 {
		t.Fatalf("the corpus does not hold what it is for: %d bad, %d skipped", len(wantReport.Bad), wantReport.Skipped)
	}
	*enc.n = 0
	for i, state := range []string{CacheWritten, CacheHit, CacheHit} {
		got, report, use := load(t, c, enc, options, dir)
		if use.State != state || use.Problem != "" || use.Path != filepath.Join(c.Dir, filepath.Base(use.Path)) || !strings.HasSuffix(use.Path, use.Key) {
			t.Fatalf("load %d: %+v, want %s", i, use, state)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("load %d: other tokens", i)
		}
		if fmt.Sprint(report.Bad) != fmt.Sprint(wantReport.Bad) {
			t.Errorf("load %d: bad records %v, want %v", i, report.Bad, wantReport.Bad)
		}
		report.Bad = wantReport.Bad
		if !reflect.DeepEqual(report, wantReport) {
			t.Errorf("load %d: report\n got %+v\nwant %+v", i, report, wantReport)
		}
	}
	if want := 1503; *enc.n != want {
		t.Errorf("%d texts were encoded, want %d: those of the first load", *enc.n, want)
	}
	moved := filepath.Join(t.TempDir(), "moved")
	must(t, os.Rename(dir, moved))
	_, report, use := load(t, c, enc, options, moved)
	if use.State != CacheHit || !strings.HasPrefix(report.Bad[0].Error(), moved) || !strings.HasPrefix(report.Files[0].Path, moved) {
		t.Errorf("moved: %+v, %v, %v", use, report.Bad, report.Files[0])
	}
	if files, _, err := ReadShards(use.Path, vocab, eos); err != nil || !slices.Equal(files.IDs, want.IDs) {
		t.Errorf("an entry is no folder of shards: %v", err)
	}
}

// A cache of text is its user's alone, whatever the umask leaves: shards too.
func TestCacheIsPrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // modes of files say nothing there
	}
	c := newCache(t)
	load(t, c, newIdentified("a"), options, corpusFolder(t))
	shards := 0
	must(t, filepath.WalkDir(c.Dir, func(path string, d fs.DirEntry, err error) error {
		must(t, err)
		info, err := d.Info()
		must(t, err)
		if strings.HasSuffix(path, ".bin") {
			shards++
		}
		if want := map[bool]fs.FileMode{true: 0o700, false: 0o600}[d.IsDir()]; info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode().Perm(), want)
		}
		return nil
	}))
	if shards == 0 {
		t.Error("no shard was written")
	}
}

// TestCacheOfOtherFiles reads Parquet with a bad row, and compressed files, of which one is a text.
func TestCacheOfOtherFiles(t *testing.T) {
	rows := make([]optionalRow, 2000)
	for i := range rows {
		text := fmt.Sprint("row ", i)
		rows[i].Content = &text
	}
	rows[7].Content = nil
	paths := []string{
		put(t, "f.parquet", parquetOf(t, rows)),
		put(t, "a.txt.gz", compress(t, "gz", []byte("a text"))),
		put(t, "b.jsonl.zst", compress(t, "zst", []byte(`{"text":"a record"}`))),
	}
	want, wantReport, err := Load(context.Background(), paths, byteEncoder{}, options)
	must(t, err)
	c, enc := newCache(t), newIdentified("a")
	for _, state := range []string{CacheWritten, CacheHit} {
		got, report, use := load(t, c, enc, options, paths...)
		if use.State != state || !reflect.DeepEqual(got, want) || len(report.Bad) != 1 || report.Bad[0].Error() != wantReport.Bad[0].Error() {
			t.Errorf("%+v, want %s; bad %v", use, state, report.Bad)
		}
		if report.Bad = wantReport.Bad; !reflect.DeepEqual(report, wantReport) {
			t.Errorf("%s: report\n got %+v\nwant %+v", state, report, wantReport)
		}
	}
}

func TestNoCache(t *testing.T) {
	dir := corpusFolder(t)
	got, _, use := load(t, nil, newIdentified("a"), options, dir)
	want, _, err := Load(context.Background(), []string{dir}, byteEncoder{}, options)
	must(t, err)
	if use != (CacheUse{State: CacheOff}) || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", use)
	}
}

// TestCacheKey changes one thing after the other: each must miss, and what was there before must still hit.
func TestCacheKey(t *testing.T) {
	const records = `{"text":"one","content":"two","messages":[{"role":"user","content":"three"}]}` + "\n"
	file := put(t, "a.jsonl", []byte(records))
	other := put(t, "b.jsonl", []byte(strings.Replace(records, "one", "six", 1))) // as long
	asText := put(t, "a.txt", []byte(records))
	c, enc := newCache(t), newIdentified("a")
	changed := func(change func(*EncodeOptions)) EncodeOptions {
		o := options
		change(&o)
		return o
	}
	for _, k := range []struct {
		what  string
		enc   IdentifiedEncoder
		opt   EncodeOptions
		paths []string
	}{
		{"first", enc, options, []string{file}},
		{"tokenizer", newIdentified("b"), options, []string{file}},
		{"content", enc, options, []string{other}},
		{"way of reading", enc, options, []string{asText}},
		{"more files", enc, options, []string{file, other}},
		{"order", enc, options, []string{other, file}},
		{"text field", enc, changed(func(o *EncodeOptions) { o.Read.TextField = "content" }), []string{file}},
		{"messages field", enc, changed(func(o *EncodeOptions) { o.Read.MessagesField = "messages" }), []string{file}},
		{"end of text", enc, changed(func(o *EncodeOptions) { o.EOS = 258 }), []string{file}},
		{"vocabulary", enc, changed(func(o *EncodeOptions) { o.Vocab++ }), []string{file}},
		{"turns", enc, changed(func(o *EncodeOptions) { o.Turns = AllTurns }), []string{file}},
		{"normal form", enc, changed(func(o *EncodeOptions) { o.NFC = true }), []string{file}},
	} {
		for i, state := range []string{CacheWritten, CacheHit} {
			if _, _, use := load(t, c, k.enc, k.opt, k.paths...); use.State != state {
				t.Errorf("%s, load %d: %+v, want %s", k.what, i, use, state)
			}
		}
	}
	if use := loadUse(t, c, enc, file); use.State != CacheHit {
		t.Errorf("the first again: %+v", use)
	}
	must(t, os.WriteFile(file, []byte(strings.Replace(records, "one", "ten", 1)), 0o600))
	if use := loadUse(t, c, enc, file); use.State != CacheWritten {
		t.Errorf("changed in place: %+v", use)
	}
}

func loadUse(t testing.TB, c *Cache, enc IdentifiedEncoder, paths ...string) CacheUse {
	t.Helper()
	_, _, use := load(t, c, enc, options, paths...)
	return use
}

// TestCacheVersion pins what is read and how it is encoded: when it changes, cacheVersion must, and then this hash.
func TestCacheVersion(t *testing.T) {
	enc, opt := gosrcEncoder(t)
	h := sha256.New()
	pin := func(enc Encoder, opt EncodeOptions, path string) {
		tokens, report, err := Load(context.Background(), []string{path}, enc, opt)
		must(t, err)
		h.Write(tokens.Mask)
		fmt.Fprintln(h, tokens.IDs, tokens.Docs, report.Records, report.Documents, report.Bytes, report.BadRecords, report.Skipped)
	}
	fmt.Fprintln(h, cacheVersion)
	pin(byteEncoder{}, options, corpusFolder(t))
	pin(enc, opt, corpusFolder(t))
	pin(enc, opt, gosrc+"gosrc-val.jsonl.zst")
	const want = "2eb32a5b0efa26c31e92cc835a55457e6378ffe3ec35a40616dadec1da5e268b"
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		t.Errorf("hash %s, want %s: count cacheVersion up, then write the new hash here", got, want)
	}
}

// TestEncoderIdentity compares the identities of tokenizers and templates, each of which must differ from all others.
func TestEncoderIdentity(t *testing.T) {
	tok, err := tokenizer.Load("../testdata/models/gosrc")
	must(t, err)
	data := tok.Data()
	data.Merges = data.Merges[:len(data.Merges)-1]
	fewer, err := tokenizer.FromData("fewer", data)
	must(t, err)
	template := put(t, "template.jinja", []byte(tokenizer.ChatML+"{# another #}"))
	seen := map[Hash]string{}
	for _, k := range []struct {
		name     string
		tok      *tokenizer.Tokenizer
		template string
	}{{"none", tok, "none"}, {"chatml", tok, "chatml"}, {"auto", tok, "auto"}, {"file", tok, template}, {"tokenizer", fewer, "none"}} {
		enc, err := ForTokenizer(k.tok, k.template)
		must(t, err)
		id := enc.Identity()
		if other := seen[id]; other != "" {
			t.Errorf("%s has the identity of %s", k.name, other)
		}
		seen[id] = k.name
		if again, err := ForTokenizer(k.tok, k.template); err != nil || again.Identity() != id {
			t.Errorf("%s: two identities, %v", k.name, err)
		}
	}
	same := put(t, "same.jinja", []byte(tokenizer.ChatML))
	if enc, err := ForTokenizer(tok, same); err != nil || seen[enc.Identity()] != "chatml" {
		t.Errorf("the same template by another way: %v", err)
	}
}

// BenchmarkCache is BenchmarkLoadGoSource with a cache: on a miss, and on a hit.
func BenchmarkCache(b *testing.B) {
	enc, opt := gosrcEncoder(b)
	c := newCache(b)
	for _, state := range []string{CacheWritten, CacheHit} {
		b.Run(state, func(b *testing.B) {
			for b.Loop() {
				if state == CacheWritten {
					must(b, os.RemoveAll(c.Dir))
				}
				tokens, _, use := load(b, c, enc, opt, gosrc+"gosrc-train-sample.jsonl.zst")
				if use.State != state {
					b.Fatalf("%+v", use)
				}
				b.SetBytes(tokens.TextBytes())
			}
		})
	}
}

// TestCacheDamage changes every file of an entry in every way: a flipped byte at each end, cut short, removed.
func TestCacheDamage(t *testing.T) {
	dir, c, enc := corpusFolder(t), newCache(t), newIdentified("a")
	want, _, use := load(t, c, enc, options, dir)
	files, err := os.ReadDir(use.Path)
	must(t, err)
	if len(files) != 4 {
		t.Fatalf("%d files, want manifest, shard, documents and mask", len(files))
	}
	flip := func(at func([]byte) int) func(string, []byte) error {
		return func(path string, b []byte) error {
			b[at(b)] ^= 1
			return os.WriteFile(path, b, 0o600)
		}
	}
	damages := map[string]func(string, []byte) error{
		"first byte":  flip(func([]byte) int { return 0 }),
		"middle byte": flip(func(b []byte) int { return len(b) / 2 }),
		"last byte":   flip(func(b []byte) int { return len(b) - 1 }),
		"cut":         func(path string, b []byte) error { return os.WriteFile(path, b[:len(b)-4], 0o600) },
		"empty":       func(path string, b []byte) error { return os.WriteFile(path, nil, 0o600) },
		"removed":     func(path string, _ []byte) error { return os.Remove(path) },
	}
	for _, f := range files {
		for what, damage := range damages {
			path := filepath.Join(use.Path, f.Name())
			content, err := os.ReadFile(path)
			must(t, err)
			must(t, damage(path, content))
			got, _, now := load(t, c, enc, options, dir)
			if now.State != CacheWritten || !strings.HasPrefix(now.Problem, "a damaged entry was made again: "+use.Path) || !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %s: %+v", f.Name(), what, now)
			}
			if again := loadUse(t, c, enc, dir); again.State != CacheHit || again.Problem != "" {
				t.Errorf("%s, %s, afterwards: %+v", f.Name(), what, again)
			}
		}
	}
}

// TestCacheManifestIsSealed flips a bit of each byte of a manifest.
func TestCacheManifestIsSealed(t *testing.T) {
	file, c, enc := put(t, "a.txt", []byte("some text")), newCache(t), newIdentified("a")
	_, report, use := load(t, c, enc, options, file)
	path := filepath.Join(use.Path, manifestName)
	text, err := os.ReadFile(path)
	must(t, err)
	for i := range text {
		text[i] ^= 1
		must(t, os.WriteFile(path, text, 0o600))
		text[i] ^= 1
		if _, _, err := readEntry(use.Path, use.Key, report.inputs, options); err == nil {
			t.Errorf("byte %d changed, and nobody noticed", i)
		}
	}
}

// TestCacheTwoWriters writes an entry that another process has written meanwhile.
func TestCacheTwoWriters(t *testing.T) {
	file, c, enc := put(t, "a.txt", []byte("some text")), newCache(t), newIdentified("a")
	tokens, report, use := load(t, c, enc, options, file)
	second := CacheUse{Key: use.Key}
	prefix, _, _ := strings.Cut(filepath.Base(use.Path), "-")
	c.keep(prefix, []string{file}, tokens, report, &second)
	all := entries(t, c)
	if second != use || len(all) != 1 {
		t.Errorf("%+v, want %+v; %v", second, use, all)
	}
}

func TestCacheNotWritten(t *testing.T) {
	file := put(t, "a.txt", []byte("some text"))
	blocked := put(t, "file", []byte("x"))
	for _, k := range []struct {
		what, reason, problem string
		cache                 Cache
	}{
		{"small", "fewer than 11 tokens: encoding them again takes no longer", "", Cache{Dir: t.TempDir(), MinTokens: 11, MaxBytes: 1 << 20}},
		{"large", "88 bytes are over the cache's limit of 87", "", Cache{Dir: t.TempDir(), MaxBytes: 87}},
		{"full disk", "it cannot be written", "88 bytes would take more than a tenth of the 879 that are free",
			Cache{Dir: t.TempDir(), MaxBytes: 1 << 20, free: func(string) (uint64, bool) { return 879, true }}},
		{"no folder", "it cannot be written", "the tokens cannot be kept: " + filepath.Join(blocked, "tokens") + ": cannot be made",
			Cache{Dir: filepath.Join(blocked, "tokens"), MaxBytes: 1 << 20}},
	} {
		tokens, _, use := load(t, &k.cache, newIdentified("a"), options, file)
		if use.State != CacheNotWritten || use.Reason != k.reason || !strings.Contains(use.Problem, k.problem) || (k.problem == "") != (use.Problem == "") || len(tokens.IDs) != 10 {
			t.Errorf("%s: %+v", k.what, use)
		}
		if left := entries(t, &k.cache); len(left) > 0 {
			t.Errorf("%s: %v is left", k.what, left)
		}
	}
	enough := Cache{Dir: t.TempDir(), MinTokens: 10, MaxBytes: 88, free: func(string) (uint64, bool) { return 880, true }}
	if use := loadUse(t, &enough, newIdentified("a"), file); use.State != CacheWritten {
		t.Errorf("at the limits: %+v", use)
	}
}

func TestCacheKeepsNoFailure(t *testing.T) {
	file := put(t, "a.jsonl", []byte("not JSON\n"))
	c := newCache(t)
	_, report, _, err := c.Load(context.Background(), []string{file}, newIdentified("a"), options)
	if err == nil || report.BadRecords != 1 || len(entries(t, c)) > 0 {
		t.Errorf("%v, %+v, %v", err, report, entries(t, c))
	}
}

// TestCacheGrowth uses three entries of which two fit, and finds the one that was used least recently gone.
func TestCacheGrowth(t *testing.T) {
	c, enc := newCache(t), newIdentified("a")
	file := func(i int) string { return put(t, "a.txt", []byte(strings.Repeat(fmt.Sprint(i), 10_000))) }
	age := func(path string, hours int) {
		at := time.Now().Add(-time.Duration(hours) * time.Hour)
		must(t, os.Chtimes(path, at, at))
	}
	first, second, third := file(1), file(2), file(3)
	one, two := loadUse(t, c, enc, first).Path, loadUse(t, c, enc, second).Path
	c.MaxBytes = 2*sizeOf(one) + 100
	age(one, 2)
	age(two, 1)
	if use := loadUse(t, c, enc, first); use.State != CacheHit { // so that the second is the oldest
		t.Fatalf("%+v", use)
	}
	killed, running := filepath.Join(c.Dir, tempFolder, tempEntry+"1"), filepath.Join(c.Dir, tempFolder, tempEntry+"2")
	must(t, os.Mkdir(killed, 0o700))
	must(t, os.Mkdir(running, 0o700))
	age(killed, 25)
	age(running, 23)
	foreign := []string{filepath.Join(c.Dir, "notes"), filepath.Join(c.Dir, ".tmp-corpus"), filepath.Join(c.Dir, tempEntry+"1"), filepath.Join(c.Dir, tempFolder, "entry-mine")}
	for _, dir := range foreign {
		must(t, os.Mkdir(dir, 0o700))
		age(dir, 1000)
	}
	three := loadUse(t, c, enc, third)
	want := append(foreign, running, one, three.Path)
	slices.Sort(want)
	var got []string
	for _, pattern := range []string{"[^.]*", ".tmp*", tempFolder + "/*"} {
		found, err := filepath.Glob(filepath.Join(c.Dir, pattern))
		must(t, err)
		got = append(got, found...)
	}
	if slices.Sort(got); !slices.Equal(got, want) || three.Problem != "" {
		t.Errorf("left are %v, want %v; %+v", got, want, three)
	}
	if _, err := os.Stat(killed); err == nil {
		t.Errorf("%s is left", killed)
	}
	if use := loadUse(t, c, enc, second); use.State != CacheWritten {
		t.Errorf("what was removed: %+v", use)
	}
}

// TestCacheIsShared lets many loads run at once over a cache that fits one entry and whose entries are damaged meanwhile.
func TestCacheIsShared(t *testing.T) {
	c, enc := newCache(t), newIdentified("a")
	var files []string
	var want []*Tokens
	for i := range 3 {
		files = append(files, put(t, "a.txt", []byte(strings.Repeat(fmt.Sprint(i), 5_000))))
		tokens, _, err := Load(context.Background(), files[i:], enc, options)
		must(t, err)
		want = append(want, tokens)
	}
	c.MaxBytes = sizeOf(loadUse(t, c, enc, files[0]).Path) + 100
	var wg sync.WaitGroup
	for worker := range 6 {
		wg.Go(func() {
			own := &Cache{Dir: c.Dir, MaxBytes: c.MaxBytes} // as another process has
			for round := range 20 {
				i := (worker + round) % 3
				tokens, _, use, err := own.Load(context.Background(), files[i:i+1], enc, options)
				if err != nil || !reflect.DeepEqual(tokens, want[i]) {
					t.Errorf("worker %d: %v, %+v", worker, err, use)
				}
				if worker == 0 && use.Path != "" {
					_ = os.WriteFile(filepath.Join(use.Path, documentsName), []byte("damaged"), 0o600) // perhaps removed already
				}
			}
		})
	}
	wg.Wait()
	left, err := filepath.Glob(filepath.Join(c.Dir, tempFolder, "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}

// TestEntryOfOddPaths writes a path that is not UTF-8, and characters that patterns know.
func TestEntryOfOddPaths(t *testing.T) {
	c := &Cache{Dir: filepath.Join(t.TempDir(), "[a]*?\\"), MaxBytes: 1 << 20}
	file := put(t, "caf\xe9.txt", []byte("text"))
	for _, state := range []string{CacheWritten, CacheHit} {
		if use := loadUse(t, c, newIdentified("a"), file); use.State != state || use.Problem != "" {
			t.Errorf("%+v, want %s", use, state)
		}
	}
}
