package corpus

import (
	"context"
	"os"
	"path/filepath"
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
