package corpus

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"apr/internal/fault"
)

// byteEncoder gives each byte of text its value as id. A conversation is, per message, an id 256 (user or other) or
// 257 (assistant), its content, and id 258, which counts as the assistant's in its turns.
type byteEncoder struct{}

const (
	eos   = 259
	vocab = 260
)

func (byteEncoder) AppendText(ids []int32, text string) []int32 {
	for i := range len(text) {
		ids = append(ids, int32(text[i]))
	}
	return ids
}

func (e byteEncoder) AppendChat(ids []int32, written []uint8, messages []Message) ([]int32, []uint8, error) {
	for _, m := range messages {
		var by uint8
		switch m.Role {
		case "user":
			ids = append(ids, 256)
		case "assistant":
			by = 1
			ids = append(ids, 257)
		default:
			return nil, nil, fault.New(fault.Invalid, "role %q", m.Role)
		}
		written = append(written, 0)
		ids = append(e.AppendText(ids, m.Content), 258)
		for range len(m.Content) + 1 {
			written = append(written, by)
		}
	}
	return ids, written, nil
}

// options are those of byteEncoder.
var options = EncodeOptions{EOS: eos, Vocab: vocab}

// put writes a file into a new folder and returns its path.
func put(t testing.TB, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// readAll reads paths into a slice.
func readAll(paths []string, opt ReadOptions) ([]Document, *Report, error) {
	var docs []Document
	rep, err := Read(context.Background(), paths, opt, func(d Document) error {
		docs = append(docs, d)
		return nil
	})
	return docs, rep, err
}

// wantError compares an error's text, with $ for the folder of the file, and its kind.
func wantError(t *testing.T, err error, dir, want string, kind fault.Kind) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %s", want)
	}
	got := err.Error()
	if dir != "" {
		got = strings.ReplaceAll(got, dir, "$")
	}
	if got != want {
		t.Errorf("error\n got %s\nwant %s", got, want)
	}
	if got := fault.KindOf(err); got != kind {
		t.Errorf("kind %v, want %v", got, kind)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// compress returns s compressed by name.
func compress(t testing.TB, name string, s []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	switch name {
	case "gz":
		w := gzip.NewWriter(&b)
		_, err := w.Write(s)
		must(t, err)
		must(t, w.Close())
	case "zst":
		w, err := zstd.NewWriter(&b)
		must(t, err)
		_, err = w.Write(s)
		must(t, err)
		must(t, w.Close())
	case "xz":
		w, err := xz.NewWriter(&b)
		must(t, err)
		_, err = w.Write(s)
		must(t, err)
		must(t, w.Close())
	default:
		panic(fmt.Sprintf("compression %q", name))
	}
	return b.Bytes()
}
