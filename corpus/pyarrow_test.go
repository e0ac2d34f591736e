package corpus

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

// pyArrowRows is what testdata/pyarrow/make.py put into each file: no text, or no conversation, where there is none.
type pyArrowRows struct {
	Text     []*string
	Messages []*[]Message
}

// TestPyArrow reads files that pyarrow wrote, each in another codec, page format or encoding, or beside other columns: texts and conversations are
// those that went in; a row without one is bad.
func TestPyArrow(t *testing.T) {
	var want pyArrowRows
	b, err := os.ReadFile("testdata/pyarrow/expected.json")
	must(t, err)
	must(t, json.Unmarshal(b, &want))
	files, err := filepath.Glob("testdata/pyarrow/*.parquet")
	must(t, err)
	if len(files) < 12 {
		t.Fatalf("%d files", len(files))
	}
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".parquet")
		t.Run(name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			rows := want
			switch name {
			case "empty":
				rows = pyArrowRows{}
			case "required":
				rows.Text = slices.Clone(rows.Text)
				for i, s := range rows.Text {
					if s == nil {
						rows.Text[i] = new(string)
					}
				}
			}
			var texts []*string
			for _, d := range documentsOf(t, path, ReadOptions{TextField: "text"}) {
				if d == nil {
					texts = append(texts, nil)
				} else {
					texts = append(texts, &d.Text)
				}
			}
			if !slices.EqualFunc(texts, rows.Text, func(a, b *string) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }) {
				t.Errorf("%d texts are not the %d that went in", len(texts), len(rows.Text))
			}
			if name == "required" {
				return // it has no conversations
			}
			talks := documentsOf(t, path, ReadOptions{MessagesField: "messages"})
			if !slices.EqualFunc(talks, rows.Messages, func(d *Document, m *[]Message) bool {
				return (d == nil) == (m == nil || len(*m) == 0) && (d == nil || slices.Equal(d.Messages, *m))
			}) {
				t.Errorf("%d conversations are not the %d that went in", len(talks), len(rows.Messages))
			}
		})
	}
}

// documentsOf reads a Parquet file: a document for each row, nil for a bad one.
func documentsOf(t *testing.T, path string, opt ReadOptions) (all []*Document) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	info, err := f.Stat()
	must(t, err)
	must(t, readParquet(f, info.Size(), opt, func(d Document, bad *fault.Error) error {
		if all = append(all, &d); bad != nil {
			all[len(all)-1] = nil
		}
		return nil
	}))
	return all
}
