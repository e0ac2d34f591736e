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

// TestRecordsAsText: files of a folder that are read as texts though they look like records are named; settings, and
// what is read as records, are not.
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
