package format_test

import (
	"io"
	"os"
	"path/filepath"
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
