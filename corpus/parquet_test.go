package corpus

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

type textRow struct {
	ID   int64  `parquet:"id"`
	Text string `parquet:"text,dict,snappy"`
}

type optionalRow struct {
	Content *string `parquet:"content,optional,zstd"`
}

type turn struct {
	Role    string `parquet:"role,dict"`
	Content string `parquet:"content"`
}

type chatRow struct {
	Messages []turn `parquet:"messages,list"`
	Source   string `parquet:"source"`
}

// parquetOf writes rows in groups of three.
func parquetOf[T any](t testing.TB, rows []T) []byte {
	var b bytes.Buffer
	w := parquet.NewGenericWriter[T](&b)
	for i := 0; i < len(rows); i += 3 {
		_, err := w.Write(rows[i:min(i+3, len(rows))])
		must(t, err)
		must(t, w.Flush())
	}
	must(t, w.Close())
	return b.Bytes()
}

func TestParquetTexts(t *testing.T) {
	var rows []textRow
	var want []string
	for i := range 100 {
		s := strings.Repeat("aé", i)
		rows = append(rows, textRow{int64(i), s})
		want = append(want, s)
	}
	path := put(t, "f.parquet", parquetOf(t, rows))
	docs, rep, err := readAll([]string{path}, ReadOptions{})
	must(t, err)
	for i, d := range docs {
		if d.Text != want[i] || d.Record != int64(i+1) || d.Path != path || d.Messages != nil {
			t.Errorf("row %d: %+v", i+1, d)
		}
	}
	if len(docs) != 100 || rep.Records != 100 || len(rep.Files) != 1 || len(rep.Files[0].SHA256) != 64 {
		t.Errorf("%d documents, report %+v", len(docs), rep)
	}
}

func TestParquetConversations(t *testing.T) {
	rows := []chatRow{
		{[]turn{{"user", "q"}, {"assistant", "a"}}, "x"},
		{[]turn{{"user", "only"}}, "x"},
		{[]turn{{"system", ""}, {"user", "q"}, {"assistant", "b"}, {"user", "r"}}, "x"},
		{[]turn{{"user", "last"}}, "x"},
	}
	path := put(t, "f.parquet", parquetOf(t, rows))
	docs, _, err := readAll([]string{path}, ReadOptions{})
	must(t, err)
	if len(docs) != len(rows) {
		t.Fatalf("%d documents of %d rows", len(docs), len(rows))
	}
	for i, d := range docs {
		if len(d.Messages) != len(rows[i].Messages) {
			t.Fatalf("row %d: %+v", i+1, d.Messages)
		}
		for j, m := range d.Messages {
			if want := rows[i].Messages[j]; m != (Message{Role: want.Role, Content: want.Content}) {
				t.Errorf("row %d message %d: %+v", i+1, j+1, m)
			}
		}
	}
	rows = append(rows, chatRow{nil, "x"})
	path = put(t, "f.parquet", parquetOf(t, rows))
	_, _, err = readAll([]string{path}, ReadOptions{})
	wantError(t, err, filepath.Dir(path), `1 of 5 records are bad, more than 1 in 1000; the first: $/f.parquet: row 5: column "role" is empty [E-PARQUET-007] [E-CORPUS-040]`, fault.Invalid)
}

func TestParquetRefused(t *testing.T) {
	s, bad, nul := "a", "\xff", "b\x00"
	optional := parquetOf(t, []optionalRow{{&s}, {nil}, {&bad}, {&nul}})
	texts := parquetOf(t, []textRow{{1, "a"}})
	chats := parquetOf(t, []chatRow{{[]turn{{"user", "q"}}, "x"}})
	for _, c := range []struct {
		name    string
		content []byte
		opt     ReadOptions
		want    string
		kind    fault.Kind
	}{
		{"records", optional, ReadOptions{}, `3 of 4 records are bad, more than 1 in 1000; the first: $/f.parquet: row 2: column "content" is empty [E-PARQUET-007] [E-CORPUS-040]`, fault.Invalid},
		{"no column", texts, ReadOptions{TextField: "body"}, `$/f.parquet: no column "body"; the file has "id", "text" [E-PARQUET-002]`, fault.Format},
		{"other case", texts, ReadOptions{TextField: "Text"}, `$/f.parquet: column "text" is not "Text" [E-PARQUET-003]`, fault.Format},
		{"number", texts, ReadOptions{TextField: "id"}, `$/f.parquet: column "id" does not hold strings [E-PARQUET-004]`, fault.Format},
		{"list as text", chats, ReadOptions{TextField: "messages"}, `$/f.parquet: column "messages" does not hold strings [E-PARQUET-004]`, fault.Format},
		{"text as messages", texts, ReadOptions{MessagesField: "text"}, `$/f.parquet: column "text" does not hold lists of role and content, or of from and value [E-PARQUET-005]`, fault.Format},
		{"not Parquet", []byte("{}"), ReadOptions{}, "$/f.parquet: file of 2 bytes is too short for Parquet [E-PARQUET-011]", fault.Format},
		{"empty", nil, ReadOptions{}, "$/f.parquet: file of 0 bytes is too short for Parquet [E-PARQUET-011]", fault.Format},
		{"magic alone", []byte("PAR1PAR1"), ReadOptions{}, "$/f.parquet: file of 8 bytes is too short for Parquet [E-PARQUET-011]", fault.Format},
		{"encrypted", []byte("PARE" + strings.Repeat("\x00", 8) + "PARE"), ReadOptions{}, `$/f.parquet: damaged Parquet: invalid magic header of parquet file: "PARE" [E-PARQUET-001]`, fault.Format},
		{"footer longer than the file", []byte("PAR1\xff\xff\xff\x7fPAR1"), ReadOptions{}, "$/f.parquet: offset 4: metadata of 2147483647 bytes do not fit the file of 12 [E-PARQUET-012]", fault.Format},
		{"end cut", texts[:len(texts)-1], ReadOptions{}, `$/f.parquet: damaged Parquet: invalid magic footer of parquet file: "\x00PAR" [E-PARQUET-001]`, fault.Format},
		{"footer of zeros", slices.Concat(texts[:len(texts)-40], make([]byte, 32), texts[len(texts)-8:]), ReadOptions{}, "$/f.parquet: damaged Parquet: reading parquet file metadata: unexpected trailing bytes at the end of thrift input: 8 [E-PARQUET-001]", fault.Format},
		{"first page of zeros", slices.Concat(optional[:4], make([]byte, 30), optional[34:]), ReadOptions{}, "$/f.parquet: damaged Parquet: missing required field: 1:FIELD<I32> [E-PARQUET-001]", fault.Format},
	} {
		t.Run(c.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			path := put(t, "f.parquet", c.content)
			_, _, err := readAll([]string{path}, c.opt)
			wantError(t, err, filepath.Dir(path), c.want, c.kind)
		})
	}
}

// TestParquetDamage changes bytes and cuts the file; the parent always gets an answer and never more rows than there are.
func TestParquetDamage(t *testing.T) {
	whole := parquetOf(t, []textRow{{1, "some text"}, {2, "some more text"}, {3, "a"}, {4, "b"}})
	count := 0
	defer func() { contracttest.Cases(t, count) }()
	try := func(name string, b []byte) {
		count++
		path := put(t, "f.parquet", b)
		_, _, err := readAll([]string{path}, ReadOptions{})
		if k := fault.KindOf(err); err != nil && k != fault.Format && k != fault.Invalid {
			t.Errorf("%s: kind %v: %v", name, k, err)
		}
	}
	for cut := 0; cut < len(whole); cut += len(whole)/15 + 1 {
		try("cut", whole[:cut])
	}
	for i := 3; i < len(whole); i += len(whole)/15 + 1 {
		b := bytes.Clone(whole)
		b[i] ^= 0xff
		try("flip", b)
	}
}

// TestParquetChildDies: a child that crashes or is killed is a refused file, not a crash of this process.
func TestParquetChildDies(t *testing.T) {
	var stderr tail
	_, _ = stderr.Write([]byte("fatal error: runtime: out of memory\n\nruntime stack:\n"))
	if got := stderr.reason(); got != `"fatal error: runtime: out of memory"` {
		t.Errorf("reason %s", got)
	}
	r := &reader{report: &Report{}}
	for name, frames := range map[string]string{"nothing": "", "cut head": "\x01\x00", "cut frame": "\x09\x00\x00\x00{", "huge": "\xff\xff\xff\xff", "no JSON": "\x01\x00\x00\x00x"} {
		if err := r.parquetFrames("f", strings.NewReader(frames), func() {}); err != errChild {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestParquetMemory: the child's memory is bounded: the same file is read with 2 GiB and refused with too few.
func TestParquetMemory(t *testing.T) {
	long := strings.Repeat("x", 12<<20)
	large := put(t, "large.parquet", parquetOf(t, []optionalRow{{&long}, {&long}, {&long}}))
	docs, _, err := readAll([]string{large}, ReadOptions{})
	must(t, err)
	if len(docs) != 3 || docs[2].Text != long {
		t.Fatalf("%d documents", len(docs))
	}
	defer func(m uint64) { parquetMemory = m }(parquetMemory)
	parquetMemory = 64 << 20
	_, _, err = readAll([]string{large}, ReadOptions{})
	if fault.KindOf(err) != fault.Format || !strings.Contains(err.Error(), "large.parquet: the Parquet reader gave up: ") {
		t.Errorf("under 64 MiB: %v", err)
	}
}
