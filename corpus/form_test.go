package corpus

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

// spoken is a document as a test writes it: a text, or roles and contents.
func spoken(d Document) string {
	var parts []string
	for _, m := range d.Messages {
		parts = append(parts, m.Role+":"+m.Content)
	}
	return d.Text + strings.Join(parts, "|")
}

// TestForms: each form of record is recognised by its fields, and named.
func TestForms(t *testing.T) {
	for _, c := range []struct{ record, want, named string }{
		{`{"prompt": "P", "completion": "C"}`, "user:P|assistant:C", "1 prompt/completion records"},
		{`{"prompt": [{"role": "user", "content": "P"}], "completion": [{"role": "assistant", "content": "C"}]}`, "user:P|assistant:C", "1 prompt/completion records"},
		{`{"prompt": "P", "completion": "C", "system": "S", "id": 7}`, "system:S|user:P|assistant:C", "1 prompt/completion records"},
		{`{"instruction": "I", "input": "", "output": "O"}`, "user:I|assistant:O", "1 Alpaca records"},
		{`{"instruction": "I", "input": "X", "output": "O"}`, "user:I\n\nX|assistant:O", "1 Alpaca records"},
		{`{"instruction": "I", "input": null, "output": "O"}`, "user:I|assistant:O", "1 Alpaca records"},
		{`{"id": "x", "conversations": [{"from": "system", "value": "S"}, {"from": "human", "value": "H"}, {"from": "gpt", "value": "G", "weight": 1}]}`,
			"system:S|user:H|assistant:G", "1 ShareGPT conversations"},
		{`{"messages": [{"from": "human", "value": "H"}, {"from": "gpt", "value": "G"}]}`, "user:H|assistant:G", "1 ShareGPT conversations"},
		{`{"conversations": [{"role": "user", "content": "H"}, {"role": "assistant", "content": "G"}]}`, "user:H|assistant:G", ""},
		{`{"text": "T", "instruction": "I", "output": "O"}`, "T", ""},
		{`{"messages": [{"role": "user", "content": "M"}], "prompt": "P", "completion": "C"}`, "user:M", ""},
	} {
		contracttest.Cases(t, 1)
		docs, rep, err := readAll([]string{put(t, "f.jsonl", []byte(c.record+"\n"))}, ReadOptions{})
		if err != nil || len(docs) != 1 || spoken(docs[0]) != c.want || rep.Recognised() != c.named {
			t.Errorf("%s: %v, %q, %v", c.record, docs, rep.Recognised(), err)
		}
	}
	for _, c := range []struct{ record, want string }{
		{`{"prompt": "P", "response": "C"}`,
			`field "prompt" without "completion"; the record has "prompt", "response" [E-JSONL-015]`},
		{`{"instruction": "I", "output": 7}`, `field "output" is a number, not a string [E-JSONL-009]`},
		{`{"conversations": [{"from": "human", "value": "H"}, {"from": "function", "value": "G"}]}`, `message 2: from "function" is none of human, gpt, system`},
		{`{"conversations": [{"from": "human"}]}`, `message 1: key "value" is missing`},
		{`{"prompt": [{"role": "user", "content": "P"}], "completion": "C"}`, `field "completion" is a string, not an array`},
		{`{"a1": 1, "a2": 1, "a3": 1, "a4": 1, "a5": 1, "a6": 1, "a7": 1, "a8": 1, "a9": 1}`, `"a7", "a8", … [`},
	} {
		contracttest.Cases(t, 1)
		_, _, err := readAll([]string{put(t, "f.jsonl", []byte(c.record+"\n"))}, ReadOptions{})
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "f.jsonl: line 1: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.record, err)
		}
	}
}

// TestByteOrderMarks: a mark of UTF-8 is no part of the text, whatever file it begins; other encodings are named, and
// left out of folders.
func TestByteOrderMarks(t *testing.T) {
	const mark = "\xef\xbb\xbf"
	for name, c := range map[string]struct{ content, want string }{
		"a.txt": {mark + "T", "T"}, "README": {mark + "T", "T"}, "a.md": {mark + "a" + mark, "a" + mark}, "a.jsonl": {mark + `{"text": "T"}`, "T"},
		"a.json": {mark + "\r\n" + `[{"text": "T"}]`, "T"}, "a.csv": {mark + "text,b\r\nT,1\r\n", "T"}, "b.csv": {mark + "\"text\"\nT\n", "T"}, "a.tsv": {mark + "text\tb\nT\t1\n", "T"},
	} {
		for _, packed := range []bool{false, true} {
			contracttest.Cases(t, 1)
			content := []byte(c.content)
			if packed {
				name, content = name+".gz", compress(t, "gz", content)
			}
			docs, rep, err := readAll([]string{put(t, name, content)}, ReadOptions{})
			if err != nil || len(docs) != 1 || docs[0].Text != c.want || rep.Bytes != int64(len(c.want)) {
				t.Errorf("%s: %v, %v", name, docs, err)
			}
		}
	}
	folder := filepath.Dir(put(t, "a.go", []byte(mark+"package a")))
	must(t, os.WriteFile(filepath.Join(folder, "b.go"), []byte("\xff\xfep\x00"), 0o600))
	docs, rep, err := readAll([]string{folder}, ReadOptions{})
	if err != nil || len(docs) != 1 || docs[0].Text != "package a" || !strings.Contains(rep.NotText(), "b.go") {
		t.Errorf("a folder: %v, %v, %s", docs, err, rep.NotText())
	}
	for name, c := range map[string]string{"a.txt": "\xff\xfeT\x00", "a.csv": "\xfe\xff\x00T", "a.jsonl": "\xff\xfe{\x00", "a.md": "\xff\xfe\x00\x00T\x00\x00\x00"} {
		contracttest.Cases(t, 1)
		_, _, err := readAll([]string{put(t, name, []byte(c))}, ReadOptions{})
		if fault.KindOf(err) != fault.Format || !strings.Contains(err.Error(), name+": line 1: is in UTF-") || !strings.Contains(err.Error(), "-endian, by its byte order mark") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTableForms: columns of a question and its answer are recognised as fields are.
func TestTableForms(t *testing.T) {
	for _, c := range []struct{ name, content, want, named string }{
		{"a.csv", "prompt,completion\nP,C\n\"Q, R\",\"C\nD\"\n", "user:P|assistant:C\nuser:Q, R|assistant:C\nD", "2 prompt/completion records"},
		{"a.tsv", "id\tcompletion\tprompt\n1\tC\tP\n", "user:P|assistant:C", "1 prompt/completion records"},
		{"a.csv", ",prompt,completion,system\n0,P,C,S\n1,P,C,\n", "system:S|user:P|assistant:C\nuser:P|assistant:C", "2 prompt/completion records"},
		{"a.csv", "instruction,input,output\nI,,O\nI,X,O\n", "user:I|assistant:O\nuser:I\n\nX|assistant:O", "2 Alpaca records"},
		{"a.csv", "prompt,completion,text\nP,C,T\n", "T", ""},
	} {
		contracttest.Cases(t, 1)
		docs, rep, err := readAll([]string{put(t, c.name, []byte(c.content))}, ReadOptions{})
		must(t, err)
		var got []string
		for _, d := range docs {
			got = append(got, spoken(d))
		}
		if strings.Join(got, "\n") != c.want || rep.Recognised() != c.named || rep.Records != int64(len(docs)) {
			t.Errorf("%q: %q, %q", c.content, got, rep.Recognised())
		}
	}
	if docs, _, err := readAll([]string{put(t, "a.csv", []byte("prompt,completion\nP,C\n"))}, ReadOptions{TextField: "completion"}); err != nil || len(docs) != 1 || docs[0].Text != "C" {
		t.Errorf("a column by its name: %v, %v", docs, err)
	}
	for _, c := range []struct {
		content, want string
		kind          fault.Kind
	}{
		{"prompt,response\nP,C\n", `a table: which column holds the text?`, fault.Usage},
		{"prompt,completion\nP,C\x00\n", `line 2, column "completion": NUL at byte 2 [E-TABLE-004]`, fault.Invalid},
	} {
		contracttest.Cases(t, 1)
		if _, _, err := readAll([]string{put(t, "a.csv", []byte(c.content))}, ReadOptions{}); fault.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v", c.content, err)
		}
	}
}

// TestArrays: a .json file may hold one array, whose elements are records; others are refused with their place.
func TestArrays(t *testing.T) {
	const one, two = `{"text": "a, ] } \" \\"}`, "{\n  \"text\": \"b\",\n  \"more\": [{}, [1]]\n}"
	for _, content := range []string{"[" + one + "," + two + "]", " \n[\n" + one + " ,\n" + two + "\n]\n\n", "[" + one + "\n,\t" + two + "]"} {
		contracttest.Cases(t, 1)
		docs, rep, err := readAll([]string{put(t, "f.json", []byte(content))}, ReadOptions{})
		must(t, err)
		if len(docs) != 2 || docs[0].Text != `a, ] } " \` || docs[1].Text != "b" || docs[1].Record != 2 || rep.Records != 2 || len(rep.Files) != 1 {
			t.Errorf("%q: %+v", content, docs)
		}
	}
	packed := compress(t, "gz", []byte("["+one+"]"))
	if docs, _, err := readAll([]string{put(t, "f.json.gz", packed)}, ReadOptions{}); err != nil || len(docs) != 1 {
		t.Errorf("gzip: %v, %v", docs, err)
	}
	for _, c := range []struct {
		content, want string
		kind          fault.Kind
	}{
		{"[" + one + ",\n\n" + `{"txt": 1}]`, "f.json: record 2, from line 3: no field", fault.Invalid},
		{"[" + one, "$/f.json: line 1: the array is cut [E-JSONL-012]", fault.Format},
		{"[", "$/f.json: line 1: the array is cut [E-JSONL-012]", fault.Format},
		{"[" + one + "]\n7", "$/f.json: line 2: something follows the array [E-JSONL-013]", fault.Format},
		{"[] x", "$/f.json: line 1: something follows the array [E-JSONL-013]", fault.Format},
		{"[]", "$/f.json: no record [E-CORPUS-041]", fault.Invalid},
		{"[" + one + ",]", "f.json: record 2, from line 1: ", fault.Invalid},
		{"[{\"text\": \"" + strings.Repeat("a", maxRecord) + "\"}]", "the line is longer than 16 MiB", fault.Invalid},
	} {
		contracttest.Cases(t, 1)
		path := put(t, "f.json", []byte(c.content))
		_, _, err := readAll([]string{path}, ReadOptions{})
		if want := strings.ReplaceAll(c.want, "$", filepath.Dir(path)); fault.KindOf(err) != c.kind || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v", c.content, err)
		}
	}
}

// TestTables: the cells of the named column are documents; without a name the error says which columns there are.
func TestTables(t *testing.T) {
	for _, c := range []struct{ name, content string }{
		{"a.csv", "id,body\n1,\"one, \"\"two\"\"\nlines\"\n2,b\n"}, {"a.CSV", "id,body\r\n1,\"one, \"\"two\"\"\nlines\"\r\n2,b\r\n"}, {"a.tsv", "id\tbody\n1\t\"one, \"\"two\"\"\nlines\"\n2\tb\n"},
	} {
		contracttest.Cases(t, 1)
		docs, rep, err := readAll([]string{put(t, c.name, []byte(c.content))}, ReadOptions{TextField: "body"})
		must(t, err)
		if len(docs) != 2 || docs[0].Text != "one, \"two\"\nlines" || docs[1].Text != "b" || docs[1].Record != 4 || rep.Records != 2 || len(rep.Files) != 1 {
			t.Errorf("%s: %+v", c.name, docs)
		}
	}
	if docs, _, err := readAll([]string{put(t, "a.csv.gz", compress(t, "gz", []byte("b\nx\n")))}, ReadOptions{TextField: "b"}); err != nil || len(docs) != 1 {
		t.Errorf("gzip: %v, %v", docs, err)
	}
	if docs, _, err := readAll([]string{put(t, "a.tsv", []byte("b\ta\nhe said \"x\"\t1\n"))}, ReadOptions{TextField: "b"}); err != nil || docs[0].Text != `he said "x"` {
		t.Errorf("bare quotes: %v, %v", docs, err)
	}
	for _, name := range []string{"text", "content"} {
		if docs, _, err := readAll([]string{put(t, "a.csv", []byte("id,"+name+"\n1,a\n"))}, ReadOptions{}); err != nil || len(docs) != 1 || docs[0].Text != "a" {
			t.Errorf("a column %s: %v, %v", name, docs, err)
		}
	}
	for _, c := range []struct {
		content, field, want string
		kind                 fault.Kind
	}{
		{"id,body\n1,a\n", "", `$/a.csv: a table: which column holds the text? [E-TABLE-001]`, fault.Usage},
		{"id,body\n1,a\n", "text", `$/a.csv: line 1: no column "text"; the first line names "id", "body" [E-TABLE-002]`, fault.Format},
		{"id,body\n1\n", "body", `1 of 1 records are bad, more than 1 in 1000; the first: $/a.csv: line 2: 1 cells, the first line names 2 columns [E-TABLE-003] [E-CORPUS-040]`, fault.Invalid},
		{"id,body\n1,a\"b\n", "body", `1 of 1 records are bad, more than 1 in 1000; the first: $/a.csv: line 2: column 4: bare " in non-quoted-field [E-TABLE-003] [E-CORPUS-040]`, fault.Invalid},
		{"id,body\n1,a\x00\n", "body", `1 of 1 records are bad, more than 1 in 1000; the first: $/a.csv: line 2, column "body": NUL at byte 2 [E-TABLE-004] [E-CORPUS-040]`, fault.Invalid},
		{"id,body\n1,a\xff\n", "body", `1 of 1 records are bad, more than 1 in 1000; the first: $/a.csv: line 2, column "body": bad UTF-8 at byte 2 [E-TABLE-004] [E-CORPUS-040]`, fault.Invalid},
		{"", "body", `$/a.csv: no record [E-CORPUS-041]`, fault.Invalid},
		{"body\n", "body", `$/a.csv: no record [E-CORPUS-041]`, fault.Invalid},
		{"body\n\"" + strings.Repeat("a\n", maxRecord), "body", `$/a.csv: a row of more than 16 MiB; is a quote not closed? [E-TABLE-005]`, fault.Format},
	} {
		contracttest.Cases(t, 1)
		path := put(t, "a.csv", []byte(c.content))
		_, _, err := readAll([]string{path}, ReadOptions{TextField: c.field})
		wantError(t, err, filepath.Dir(path), c.want, c.kind)
		if f, ok := err.(*fault.Error); c.field == "" && (!ok || f.Hint != `--text-field COLUMN; its columns are "id", "body"`) {
			t.Errorf("hint of %v", err)
		}
	}
	path := put(t, "a.csv", []byte("a,b\n1,2\n"))
	docs, _, err := readAll([]string{path}, ReadOptions{AnyText: true, TextField: "b"})
	if err != nil || docs[0].Text != "2" {
		t.Errorf("among any text: %v, %v", docs, err)
	}
}

type pairRow struct {
	Prompt     string `parquet:"prompt"`
	Completion string `parquet:"completion"`
}

type alpacaRow struct {
	Instruction string  `parquet:"instruction"`
	Input       *string `parquet:"input,optional"`
	Output      *string `parquet:"output,optional"`
}

type gptTurn struct {
	From  string `parquet:"from"`
	Value string `parquet:"value"`
}

type gptRow struct {
	Conversations []gptTurn `parquet:"conversations,list"`
}

// TestParquetForms: columns are recognised as fields are.
func TestParquetForms(t *testing.T) {
	x, o := "X", "O"
	for _, c := range []struct {
		content     []byte
		want, named string
	}{
		{parquetOf(t, []pairRow{{"P", "C"}, {"Q", ""}}), "user:P|assistant:C\nuser:Q|assistant:", "2 prompt/completion records"},
		{parquetOf(t, []alpacaRow{{"I", nil, &o}, {"J", &x, &o}, {"K", nil, &x}, {"L", nil, &x}}), "user:I|assistant:O\nuser:J\n\nX|assistant:O\nuser:K|assistant:X\nuser:L|assistant:X", "4 Alpaca records"},
		{parquetOf(t, []gptRow{{[]gptTurn{{"human", "H"}, {"gpt", "G"}}}, {[]gptTurn{{"system", "S"}}}}), "user:H|assistant:G\nsystem:S", "2 ShareGPT conversations"},
	} {
		contracttest.Cases(t, 1)
		docs, rep, err := readAll([]string{put(t, "f.parquet", c.content)}, ReadOptions{})
		must(t, err)
		var got []string
		for _, d := range docs {
			got = append(got, spoken(d))
		}
		if strings.Join(got, "\n") != c.want || rep.Recognised() != c.named {
			t.Errorf("%q, %s; want %q", got, rep.Recognised(), c.want)
		}
	}
	for _, c := range []struct {
		content []byte
		want    string
	}{
		{parquetOf(t, []alpacaRow{{"I", nil, nil}}), `row 1: column "output" is empty`},
		{parquetOf(t, []gptRow{{[]gptTurn{{"tool", "H"}}}}), `row 1: from "tool" is none of human, gpt, system`},
	} {
		contracttest.Cases(t, 1)
		if _, _, err := readAll([]string{put(t, "f.parquet", c.content)}, ReadOptions{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

// TestSpreadRecordsHint: records over several lines are told how to become JSON Lines; a line that is cut, among whole
// ones or alone, is not taken for one.
func TestSpreadRecordsHint(t *testing.T) {
	for _, c := range []struct {
		name, content string
		spread        bool
	}{
		{"f.json", "{\n  \"text\": \"a\"\n}\n", true},
		{"f.jsonl", "[\n{\"text\": \"a\"},\n{\"text\": \"b\"}\n]\n", true},
		{"f.json", "{\"data\": [{\"text\": \"a\"},\n{\"text\": \"b\"}]}\n", true},
		{"f.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b", false},
		{"f.jsonl", "{\"text\": \"a", false},
		{"f.jsonl", "{\"text\": 7}\n{\"text\": 8}\n", false},
	} {
		contracttest.Cases(t, 1)
		_, _, err := readAll([]string{put(t, c.name, []byte(c.content))}, ReadOptions{})
		f, ok := err.(*fault.Error)
		if !ok || f.ID != "E-CORPUS-040" || strings.Contains(f.Hint, "jq -c . FILE > records.jsonl") != c.spread {
			t.Errorf("%s %q: %v, hint %q", c.name, c.content, err, f.Hint)
		}
	}
}
