package corpus

import (
	"bytes"
	"testing"

	"apr/internal/fault"
	"apr/internal/hostile"
)

// FuzzParquet reads any bytes as Parquet, as the child process does: rows, or a fault, and no panic that is not caught.
// Memory is bounded by the child's limit, not here.
func FuzzParquet(f *testing.F) {
	s := "a"
	f.Add(parquetOf(f, []textRow{{1, "some text"}, {2, "some more text"}, {3, "a"}}))
	f.Add(parquetOf(f, []optionalRow{{&s}, {nil}}))
	f.Add(parquetOf(f, []chatRow{{[]turn{{"user", "q"}, {"assistant", "a"}}, "x"}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		rows := 0
		err := parquetRows(bytes.NewReader(b), int64(len(b)), ReadOptions{}, func(r reply) error {
			rows++
			if r.Text == nil && r.Messages == nil && r.Bad == nil {
				t.Errorf("row %d is neither text nor messages nor bad: %+v", rows, r)
			}
			if rows > 1<<20 {
				return errChild
			}
			return nil
		})
		if err != nil && err != errChild && fault.KindOf(err) != fault.Format {
			t.Errorf("kind %v: %v", fault.KindOf(err), err)
		}
	})
}

// FuzzParquetFrames reads any bytes as the answer of the child that parses Parquet.
func FuzzParquetFrames(f *testing.F) {
	text := "a"
	var good bytes.Buffer
	for _, r := range []reply{{Text: &text}, {Messages: []Message{{Role: "user", Content: "q"}}}, {Bad: &problem{Msg: "m", ID: "E"}}, {End: true}} {
		must(f, writeFrame(&good, r))
	}
	f.Add(good.Bytes())
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &reader{ctx: t.Context(), report: &Report{}, yield: func(Document) error { return nil }}
		hostile.Bounded(t, len(b), func() { _ = r.parquetFrames("f", bytes.NewReader(b), func() {}) })
		if r.report.Records != r.report.Documents+r.report.BadRecords {
			t.Errorf("report %+v", r.report)
		}
	})
}
