package format_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"apr/format"
	"apr/format/aprfile"
	"apr/format/gguf"
	"apr/format/safetensors"
	"apr/internal/fault"
	"apr/tensor"
)

// changedBack is what becomes of a file whose time of writing was set back: only some systems know of it.
var changedBack = map[string]fault.Kind{"linux": fault.IO, "darwin": fault.IO}[runtime.GOOS]

// changeBack changes a byte of a file, which has the size and the time of before.
func changeBack(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	time.Sleep(20 * time.Millisecond) // clocks of file systems tick every few milliseconds
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	last := []byte{0}
	if _, err := f.ReadAt(last, info.Size()-1); err != nil {
		return err
	}
	last[0] ^= 1
	if _, err := f.WriteAt(last, info.Size()-1); err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Chtimes(path, info.ModTime(), info.ModTime()))
}

// A file of any format that is written to after it was opened is refused, even if it has the same size and a checksum that
// the bytes read so far agree with; one that was replaced is still the one that was opened.
func TestChangedWhileRead(t *testing.T) {
	x := tensor.Source{Info: tensor.Info{Name: "model.norm.weight", DType: tensor.F32, Shape: []int{2}, Size: 8}, Payload: func(w io.Writer) error { _, err := io.WriteString(w, "12345678"); return err }}
	dir := t.TempDir()
	for name, write := range map[string]func(string) error{
		"x.apr":         func(p string) error { return aprfile.Write(p, []tensor.Source{x}, aprfile.Options{}) },
		"x.gguf":        func(p string) error { return gguf.Write(p, []tensor.Source{x}, gguf.Options{}) },
		"x.safetensors": func(p string) error { return safetensors.Write(p, []tensor.Source{x}, safetensors.Options{}) },
	} {
		path := filepath.Join(dir, name)
		if err := write(path); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, change := range []struct {
			what string
			make func() error
			want fault.Kind
		}{
			{"left alone", func() error { return nil }, 0},
			{"replaced", func() error {
				if err := os.WriteFile(path+".new", content, 0o600); err != nil {
					return err
				}
				return os.Rename(path+".new", path)
			}, 0},
			{"written again", func() error {
				later := time.Now().Add(time.Minute)
				if err := os.WriteFile(path, content, 0o600); err != nil {
					return err
				}
				return os.Chtimes(path, later, later)
			}, fault.IO},
			{"a byte changed in place, and the time set back", func() error { return changeBack(path) }, changedBack},
			{"made longer", func() error { return os.WriteFile(path, append(content, 0), 0o600) }, fault.IO},
			{"cut", func() error { return os.Truncate(path, int64(len(content)-1)) }, fault.IO},
		} {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			f, _, err := format.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := change.make(); err != nil {
				t.Fatal(err)
			}
			err = f.Verify()
			if fault.KindOf(err) != change.want || change.want != 0 && !strings.Contains(err.Error(), "E-FILE-009") {
				t.Errorf("%s %s: %v, want kind %v", name, change.what, err, change.want)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
