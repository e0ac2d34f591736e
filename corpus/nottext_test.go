package corpus

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/fault"
)

// A folder in which nothing is text is refused with what was left out, not as a file without records.
func TestFolderWithoutText(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.png"), []byte("\x89PNG\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	read := func() error {
		_, err := Read(context.Background(), []string{dir}, ReadOptions{}, func(Document) error { return nil })
		return err
	}
	want := dir + ": holds no text: 1 file is left out, not text (NUL or bad UTF-8): " + filepath.Join(dir, "a.png") + " [E-CORPUS-065]"
	if err := read(); err == nil || err.Error() != want || fault.KindOf(err) != fault.Invalid {
		t.Errorf("%v, want %s", err, want)
	}
	if err := os.WriteFile(filepath.Join(dir, "b.txt"), []byte("words"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := read(); err != nil {
		t.Error(err)
	}
}

// TestRecordsAsText: a file of a folder that looks like records and is read as a text is named. A file of settings is
// not named, and neither is a file that is read as records.
func TestRecordsAsText(t *testing.T) {
	for name, x := range map[string]struct {
		content string
		told    bool
	}{
		"data.json":    {`[{"instruction": "a", "input": "", "output": "b"}]`, true},
		"lines.json":   {"{\"prompt\": \"a\",\n\"completion\": \"b\"}", true},
		"data.csv":     {"prompt,completion\na,b\n", true},
		"quoted.csv":   {"\"id\",\"text\"\n1,b\n", true},
		"package.json": {`{"name": "x", "version": "1"}`, false},
		"list.json":    {`["prompt", "text"]`, false},
		"numbers.csv":  {"x,y\n1,2\n", false},
		"data.jsonl":   {`{"text": "a"}`, false},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(x.content), 0o600))
		rep, err := Read(context.Background(), []string{dir}, ReadOptions{}, func(Document) error { return nil })
		must(t, err)
		if note := rep.RecordsAsText(); strings.Contains(note, path) != x.told || (note != "") != x.told {
			t.Errorf("%s: %q", name, note)
		}
	}
}

// TestRecordsAsTextFromCache: text that comes from the cache of tokens has the same warning as text that was read.
func TestRecordsAsTextFromCache(t *testing.T) {
	dir, c, enc := t.TempDir(), newCache(t), newIdentified("a")
	path := filepath.Join(dir, "data.json")
	must(t, os.WriteFile(path, []byte(`[{"prompt": "a b c", "completion": "d e f"}]`), 0o600))
	for i, state := range []string{CacheWritten, CacheHit} {
		_, report, use := load(t, c, enc, options, dir)
		if note := report.RecordsAsText(); use.State != state || !strings.Contains(note, path) {
			t.Errorf("load %d: %+v, note %q", i, use, note)
		}
	}
}
