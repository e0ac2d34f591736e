package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// Write a file durably: its bytes, then its name.
func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	d := OS{}
	f, err := d.Create(filepath.Join(dir, "a"))
	if err != nil {
		panic(err)
	}
	_, err = f.Write([]byte("text"))
	fmt.Println(errors.Join(err, f.Sync(), f.Close(), d.SyncDir(dir)))
	fmt.Println(d.ReadDir(dir))
	// Output:
	// <nil>
	// [{a false}] <nil>
}

func TestOS(t *testing.T) {
	d, dir := OS{}, t.TempDir()
	sub := filepath.Join(dir, "sub")
	if err := d.Mkdir(sub); err != nil {
		t.Fatal(err)
	}
	f, err := d.Create(filepath.Join(sub, "a"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("text")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Create(filepath.Join(sub, "a")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second file of the same name: %v", err)
	}
	if err := os.Symlink("a", filepath.Join(sub, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(sub, filepath.Join(dir, "away")); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Open(filepath.Join(sub, "link")); err == nil {
		t.Error("a link was followed")
	}
	r, err := d.Open(filepath.Join(sub, "a"))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(r); string(b) != "text" || err != nil {
		t.Errorf("read %q, %v", b, err)
	}
	r.Close()
	entries, err := d.ReadDir(dir)
	if err != nil || fmt.Sprint(entries) != "[{away false} {sub true}]" {
		t.Errorf("%v, %v: a link is no directory", entries, err)
	}
	if n, ok := d.Free(dir); !ok || n == 0 {
		t.Errorf("%d bytes free, known: %v", n, ok)
	}
	if err := RemoveAll(d, sub); err != nil {
		t.Error(err)
	}
	if err := RemoveAll(d, sub); err != nil {
		t.Errorf("what is not there: %v", err)
	}
	if _, err := os.Lstat(sub); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
}
