package corpus

import (
	"os"
	"path/filepath"
	"testing"

	"apr/internal/fault"
)

// A file that is named is text only if its name does not say that it is something else; a folder of sources takes all texts.
func TestKinds(t *testing.T) {
	const rows = "a,b\n1,2\n"
	for name, text := range map[string]bool{ // tables: TestTables
		"a.txt": true, "A.TXT": true, "notes.md": true, "a.markdown": true, "a.text": true, "README": true, ".profile": true, "part.00001": true, "model-0.5": true,
		"a.html": false, "a.xml": false, "a.pdf": false, "main.go": false, "a.h5": false,
		"a.txt.gz": true, "a.txt.zst": true,
	} {
		content := []byte(rows)
		if ext := filepath.Ext(name); ext == ".gz" || ext == ".zst" || ext == ".xz" {
			content = compress(t, ext[1:], content)
		}
		path := put(t, name, content)
		docs, _, err := readAll([]string{path}, ReadOptions{})
		if text != (err == nil) || text && (len(docs) != 1 || docs[0].Text != rows) {
			t.Errorf("%s: %v, %v", name, docs, err)
		}
		if !text {
			wantError(t, err, filepath.Dir(path), `$/`+name+`: "`+filepath.Ext(name)+`" is no kind of data that is read [E-CORPUS-055]`, fault.Format)
		}
		if docs, _, err := readAll([]string{path}, ReadOptions{AnyText: true}); err != nil || len(docs) != 1 || docs[0].Text != rows {
			t.Errorf("%s, as any text: %v, %v", name, docs, err)
		}
	}
	path := put(t, "a.xlsx", []byte("PK\x03\x04 and more"))
	_, _, err := readAll([]string{path}, ReadOptions{})
	wantError(t, err, filepath.Dir(path), "$/a.xlsx: the content is a zip archive, not what the name says [E-CORPUS-050]", fault.Format)

	dir := t.TempDir()
	for _, name := range []string{"main.go", "a.py", "a.html"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("text"), 0o600))
	}
	if docs, _, err := readAll([]string{dir}, ReadOptions{}); err != nil || len(docs) != 3 {
		t.Errorf("a folder of sources: %d documents, %v", len(docs), err)
	}
}
