//go:build !windows

package corpus

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/hostile"
)

// TestJSONLinesRefused holds one file for each thing that must be refused, with the exact text.
func TestJSONLinesRefused(t *testing.T) {
	good := `{"text": "a"}` + "\n"
	one := "1 of 1 records are bad, more than 1 in 1000; the first: $/f.jsonl: line 1: "
	two := "1 of 2 records are bad, more than 1 in 1000; the first: $/f.jsonl: line 2: "
	deep := strings.Repeat("[", 70) + strings.Repeat("]", 70)
	for _, c := range []struct {
		name, content, want string
		kind                fault.Kind
	}{
		{"empty", "", "$/f.jsonl: no record [E-CORPUS-041]", fault.Invalid},
		{"blank", "\n \r\n\t\n", "$/f.jsonl: no record [E-CORPUS-041]", fault.Invalid},
		{"bad UTF-8", good + "{\"text\": \"a\xffb\"}\n", two + `column 12: byte 0xff is not UTF-8 [E-JSON-002] [E-CORPUS-040]`, fault.Invalid},
		{"surrogate in UTF-8", "{\"text\": \"\xed\xa0\x80\"}\n", one + `column 11: byte 0xed is not UTF-8 [E-JSON-002] [E-CORPUS-040]`, fault.Invalid},
		{"unpaired surrogate", `{"text": "\ud800"}`, one + `column 11: unpaired surrogate [E-JSON-002] [E-CORPUS-040]`, fault.Invalid},
		{"UTF-16 little", "\xff\xfe{\x00\"\x00", "$/f.jsonl: line 1: is in UTF-16, little-endian, by its byte order mark [E-JSONL-002]", fault.Format},
		{"UTF-16 big", "\xfe\xff\x00{\x00\"", "$/f.jsonl: line 1: is in UTF-16, big-endian, by its byte order mark [E-JSONL-002]", fault.Format},
		{"UTF-32 little", "\xff\xfe\x00\x00{\x00\x00\x00", "$/f.jsonl: line 1: is in UTF-32, little-endian, by its byte order mark [E-JSONL-002]", fault.Format},
		{"UTF-32 big", "\x00\x00\xfe\xff\x00\x00\x00{", "$/f.jsonl: line 1: is in UTF-32, big-endian, by its byte order mark [E-JSONL-002]", fault.Format},
		{"UTF-16 without mark", "{\x00\"\x00t\x00", "$/f.jsonl: line 1: is in UTF-16 or UTF-32 [E-JSONL-002]", fault.Format},
		{"NUL", good + "{\"text\": \"a\x00b\"}\n", two + "column 12: NUL [E-JSONL-004] [E-CORPUS-040]", fault.Invalid},
		{"escaped NUL", good + `{"text": "a\\\u0000b"}`, two + `NUL (\u0000) in the text, at byte 3 [E-JSONL-004] [E-CORPUS-040]`, fault.Invalid},
		{"escaped NUL in a message", `{"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "\u0000"}]}`, one + `NUL (\u0000) in message 2 [E-JSONL-004] [E-CORPUS-040]`, fault.Invalid},
		{"escaped NUL in a part", `{"messages": [{"role": "user", "content": [{"type": "text", "text": "\u0000"}]}]}`, one + `NUL (\u0000) in message 1 [E-JSONL-004] [E-CORPUS-040]`, fault.Invalid},
		{"escaped NUL in an answer", `{"prompt": "a", "completion": "\u0000"}`, one + `NUL (\u0000) in message 2 [E-JSONL-004] [E-CORPUS-040]`, fault.Invalid},
		{"control character", good + "{\"text\": \"a\tb\"}\n", two + "column 12: raw control character 0x09 in a string [E-JSON-001] [E-CORPUS-040]", fault.Invalid},
		{"cut", good + `{"text": "a`, two + "column 12: string is cut [E-JSON-001] [E-CORPUS-040]", fault.Invalid},
		{"cut in a key", `{"te`, one + "column 5: string is cut [E-JSON-001] [E-CORPUS-040]", fault.Invalid},
		{"two records", good + `{"text": "a"} {"text": "b"}`, two + "column 15: '{' after the value [E-JSON-006] [E-CORPUS-040]", fault.Invalid},
		{"too deep", `{"text": "a", "x": ` + deep + "}", one + "column 83: nested deeper than 64 [E-JSON-004] [E-CORPUS-040]", fault.Invalid},
		{"array", `[{"text": "a"}]`, one + "the record is an array, not an object [E-JSONL-006] [E-CORPUS-040]", fault.Invalid},
		{"string", `"text"`, one + "the record is a string, not an object [E-JSONL-006] [E-CORPUS-040]", fault.Invalid},
		{"words for the teacher", `{"prompt": "a", "completion": "b", "teacher_prompt": "c"}`, one + `field "teacher_prompt": ` +
			`a teacher that sees other words than the student is built for records of JSON and --on-policy 1 ` +
			`[E-CORPUS-046] [E-CORPUS-040]`, fault.Invalid},
		{"missing", `{"txt": "a"}`, one + `no field "text", "content", "messages", "conversations", "prompt" with "completion" or "instruction" with "output"; the record has "txt" [E-JSONL-007] [E-CORPUS-040]`, fault.Invalid},
		{"twice", `{"text": "a", "text": "b"}`, one + `column 15: key "text" occurs twice [E-JSON-003] [E-CORPUS-040]`, fault.Invalid},
		{"twice by escape", `{"text": "a", "\u0074ext": "b"}`, one + `column 15: key "text" occurs twice [E-JSON-003] [E-CORPUS-040]`, fault.Invalid},
		{"other case", `{"Text": "a", "content": "b"}`, one + `field "Text" is not "text" [E-JSONL-008] [E-CORPUS-040]`, fault.Invalid},
		{"not a string", `{"text": 7}`, one + `field "text" is a number, not a string [E-JSONL-009] [E-CORPUS-040]`, fault.Invalid},
		{"null", `{"text": null}`, one + `field "text" is null, not a string [E-JSONL-009] [E-CORPUS-040]`, fault.Invalid},
		{"messages not an array", `{"messages": "a"}`, one + `field "messages" is a string, not an array [E-JSONL-010] [E-CORPUS-040]`, fault.Invalid},
		{"messages empty", `{"messages": []}`, one + `field "messages" has no message [E-JSONL-011] [E-CORPUS-040]`, fault.Invalid},
		{"message not an object", `{"messages": [7]}`, one + `column 15: message 1: expected an object, found 7 [E-JSON-007] [E-CORPUS-040]`, fault.Invalid},
		{"message without content", `{"messages": [{"role": "user", "content": "a"}, {"role": "user"}]}`, one + `column 49: message 2: key "content" is missing [E-JSON-008] [E-CORPUS-040]`, fault.Invalid},
		{"role not a string", `{"messages": [{"role": 1, "content": "a"}]}`, one + `column 24: message 1: key "role": expected a string, found 1 [E-JSON-007] [E-CORPUS-040]`, fault.Invalid},
		{"gzip cut", string(compress(t, "gz", []byte(good))[:20]), "$/f.jsonl: broken gzip compression: unexpected EOF [E-CORPUS-051]", fault.Format},
		{"gzip header", "\x1f\x8b\x07", "$/f.jsonl: broken gzip compression: unexpected EOF [E-CORPUS-051]", fault.Format},
		{"gzip checksum", flipped(compress(t, "gz", []byte(good)), -8), "$/f.jsonl: broken gzip compression: gzip: invalid checksum [E-CORPUS-051]", fault.Format},
		{"zstd cut", string(compress(t, "zst", []byte(good))[:15]), "$/f.jsonl: broken zstd compression: unexpected EOF [E-CORPUS-051]", fault.Format},
		{"zstd checksum", flipped(compress(t, "zst", []byte(good)), -1), "$/f.jsonl: broken zstd compression: CRC check failed [E-CORPUS-051]", fault.Format},
		{"xz cut", string(compress(t, "xz", []byte(good))[:40]), "$/f.jsonl: broken xz compression: unexpected EOF [E-CORPUS-051]", fault.Format},
		{"xz header", flipped(compress(t, "xz", []byte(good)), 8), "$/f.jsonl: broken xz compression: xz: invalid checksum for file header [E-CORPUS-051]", fault.Format},
		{"xz end", flipped(compress(t, "xz", []byte(good)), -1), "$/f.jsonl: broken xz compression: xz: footer magic invalid [E-CORPUS-051]", fault.Format},
		{"bad line in gzip", string(compress(t, "gz", []byte(good+"{}\n"))), `1 of 2 records are bad, more than 1 in 1000; the first: $/f.jsonl: line 2: no field "text", "content", "messages", "conversations", "prompt" with "completion" or "instruction" with "output"; the record has none [E-JSONL-007] [E-CORPUS-040]`, fault.Invalid},
		{"zip", "PK\x03\x04...", "$/f.jsonl: the content is a zip archive, not what the name says [E-CORPUS-050]", fault.Format},
		{"pickle", "\x80\x04\x95", "$/f.jsonl: the content is a pickle, not what the name says [E-CORPUS-050]", fault.Format},
		{"Parquet", "PAR1", "$/f.jsonl: the content is Parquet, not what the name says [E-CORPUS-050]", fault.Format},
	} {
		t.Run(c.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			path := put(t, "f.jsonl", []byte(c.content))
			_, _, err := readAll([]string{path}, ReadOptions{})
			wantError(t, err, filepath.Dir(path), c.want, c.kind)
		})
	}
}

// flipped returns b with all bits of one byte changed; at counts from the end if it is negative.
func flipped(b []byte, at int) string {
	b[(at+len(b))%len(b)] ^= 0xff
	return string(b)
}

// TestEveryPrefixAndFlip reads every prefix and every single-byte change of a small file, and of the same compressed:
// the counts add up, whatever is found.
func TestEveryPrefixAndFlip(t *testing.T) {
	text := []byte(`{"text": "a\u00e9"}` + "\n" + `{"messages": [{"role": "user", "content": "b"}]}` + "\n\n")
	dir := t.TempDir()
	path := filepath.Join(dir, "f.jsonl")
	for how, whole := range map[string][]byte{"plain": text, "gz": compress(t, "gz", text), "zst": compress(t, "zst", text), "xz": compress(t, "xz", text)} {
		refused := 0
		n := hostile.EachDamage(t, whole, func(name string, b []byte) {
			must(t, os.WriteFile(path, b, 0o600))
			if checkRead(t, path) != nil {
				refused++
			} else if how != "plain" && len(b) < len(whole) {
				t.Errorf("%s: %s accepted", how, name)
			}
		})
		if refused < n/3 {
			t.Errorf("%s: %d of %d damaged files refused", how, refused, n)
		}
		contracttest.Cases(t, n)
	}
}

// checkRead reads a file: counts add up, an error is a fault about the file, and without one there is a document.
func checkRead(t testing.TB, path string) error {
	docs, rep, err := readAll([]string{path}, ReadOptions{})
	if rep.Documents != int64(len(docs)) || rep.Records != rep.Documents+rep.BadRecords {
		t.Errorf("report %+v of %d documents", rep, len(docs))
	}
	if err == nil && len(docs) == 0 {
		t.Error("nothing read, no error")
	}
	if err != nil && fault.KindOf(err) != fault.Format && fault.KindOf(err) != fault.Invalid {
		t.Errorf("kind %v: %v", fault.KindOf(err), err)
	}
	return err
}

// TestTruncatedWhileReading shortens a file at 100 moments of reading it, where lines end: every line is whole, and yet
// the file was not.
func TestTruncatedWhileReading(t *testing.T) {
	const line = "{\"text\": \"0123456789abcdef\"}\n"
	const lines = 20_000 // 560 kB: the reader holds 64 KiB
	whole := strings.Repeat(line, lines)
	for i := range 100 {
		path := put(t, "f.jsonl", []byte(whole))
		at := i * 7919 % (lines * 3 / 4) // the moment: so many documents are read
		keep := int64(len(line)) * int64(at)
		n := 0
		_, err := Read(context.Background(), []string{path}, ReadOptions{}, func(Document) error {
			if n++; n == at+1 {
				return os.Truncate(path, keep)
			}
			return nil
		})
		if fault.KindOf(err) != fault.IO || !strings.Contains(err.Error(), "it was shortened while it was read [E-FILE-008]") {
			t.Errorf("cut to %d lines when %d were read: %v", at, n, err)
		}
	}
	contracttest.Cases(t, 100)
}

// TestStreams: reading holds a document and some buffers at a time, however large the file.
func TestStreams(t *testing.T) {
	line := `{"text": "` + strings.Repeat("some text ", 100) + `"}` + "\n"
	const lines = 16_000 // 16 MB
	whole := []byte(strings.Repeat(line, lines))
	for _, how := range []string{"gz", "zst"} {
		path := put(t, "f.jsonl", compress(t, how, whole))
		var before, now runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		n, most := 0, uint64(0)
		_, err := Read(context.Background(), []string{path}, ReadOptions{}, func(Document) error {
			if n++; n%2000 == 0 {
				runtime.GC()
				runtime.ReadMemStats(&now)
				most = max(most, now.HeapAlloc)
			}
			return nil
		})
		must(t, err)
		if n != lines || most > before.HeapAlloc+12<<20 {
			t.Errorf("%s: %d documents, %d bytes held, %d before", how, n, most, before.HeapAlloc)
		}
	}
}

// TestLongLine: a line over 16 MiB is refused in bounded memory, and the next one is read.
func TestLongLine(t *testing.T) {
	var b bytes.Buffer
	b.WriteString(`{"text": "`)
	b.Write(bytes.Repeat([]byte("a"), maxRecord+1-len(`{"text": ""}`)))
	b.WriteString("\"}\n{\"text\": \"next\"}\n")
	path := put(t, "f.jsonl", b.Bytes())
	docs, rep, err := readAll([]string{path}, ReadOptions{})
	wantError(t, err, filepath.Dir(path), "1 of 2 records are bad, more than 1 in 1000; the first: $/f.jsonl: line 1: the line is longer than 16 MiB [E-JSONL-003] [E-CORPUS-040]", fault.Invalid)
	if len(docs) != 1 || docs[0].Text != "next" || docs[0].Record != 2 || rep.BadRecords != 1 {
		t.Errorf("%d documents, report %+v", len(docs), rep)
	}
	fits := append(bytes.Replace(b.Bytes(), []byte("aa"), []byte("a"), 1), []byte{}...)
	docs, _, err = readAll([]string{put(t, "f.jsonl", fits)}, ReadOptions{})
	must(t, err)
	if len(docs) != 2 || len(docs[0].Text) != maxRecord-len(`{"text": ""}`) {
		t.Errorf("a line of 16 MiB gives %d documents", len(docs))
	}
}

// TestBadShare: one bad record in 1,000 is listed, two are too many.
func TestBadShare(t *testing.T) {
	lines := func(bad ...int) string {
		var b strings.Builder
		for i := range 1000 {
			fmt.Fprintf(&b, "{\"text\": \"%d\"}\n", i)
		}
		s := strings.SplitAfter(b.String(), "\n")
		for _, i := range bad {
			s[i] = "{}\n"
		}
		return strings.Join(s, "")
	}
	path := put(t, "f.jsonl", []byte(lines(7)))
	docs, rep, err := readAll([]string{path}, ReadOptions{})
	must(t, err)
	if len(docs) != 999 || rep.Records != 1000 || rep.Documents != 999 || rep.BadRecords != 1 || len(rep.Bad) != 1 {
		t.Errorf("%d documents, report %+v", len(docs), rep)
	}
	wantError(t, rep.Bad[0], filepath.Dir(path), `$/f.jsonl: line 8: no field "text", "content", "messages", "conversations", "prompt" with "completion" or "instruction" with "output"; the record has none [E-JSONL-007]`, fault.Format)
	path = put(t, "f.jsonl", []byte(lines(7, 9)))
	_, rep, err = readAll([]string{path}, ReadOptions{})
	wantError(t, err, filepath.Dir(path), `2 of 1000 records are bad, more than 1 in 1000; the first: $/f.jsonl: line 8: no field "text", "content", "messages", "conversations", "prompt" with "completion" or "instruction" with "output"; the record has none [E-JSONL-007] [E-CORPUS-040]`, fault.Invalid)
	if len(rep.Bad) != 2 {
		t.Errorf("%d bad records listed", len(rep.Bad))
	}
}

func TestFieldChoice(t *testing.T) {
	line := `{"text": "T", "content": "C", "messages": [{"role": "user", "content": "M", "name": "x"}], "Body": "B"}`
	for _, c := range []struct {
		opt  ReadOptions
		line string
		want string
	}{
		{ReadOptions{}, line, "T"},
		{ReadOptions{}, strings.Replace(line, `"text": "T", `, "", 1), "C"},
		{ReadOptions{}, strings.Replace(line, `"text": "T", "content": "C", `, "", 1), "user:M"},
		{ReadOptions{TextField: "content"}, line, "C"},
		{ReadOptions{TextField: "Body"}, line, "B"},
		{ReadOptions{MessagesField: "messages"}, line, "user:M"},
		{ReadOptions{TextField: "code", MessagesField: "messages"}, line, "user:M"},
		{ReadOptions{}, "  " + `{"text": "a\u00e9\ud83d\ude00\n\"\\"}` + "\r", "aé😀\n\"\\"},
		{ReadOptions{}, `{"text": ""}`, ""},
	} {
		d, bad := parseRecord([]byte(c.line), c.opt)
		got := d.Text
		for _, m := range d.Messages {
			got += m.Role + ":" + m.Content
		}
		if bad != nil || got != c.want {
			t.Errorf("%+v of %s: %q, %v, want %q", c.opt, c.line, got, bad, c.want)
		}
	}
	_, bad := parseRecord([]byte(line), ReadOptions{TextField: "body"})
	if bad == nil || bad.Error() != `field "Body" is not "body" [E-JSONL-008]` {
		t.Errorf("another case: %v", bad)
	}
}

// TestCompressed: the compression is found by content, whatever the name; damage is refused.
func TestCompressed(t *testing.T) {
	text := []byte(strings.Repeat("{\"text\": \"some text to compress\"}\n", 500))
	for _, how := range []string{"gz", "zst", "xz"} {
		packed := compress(t, how, text)
		for _, name := range []string{"f.jsonl." + how, "f.jsonl"} {
			path := put(t, name, packed)
			docs, rep, err := readAll([]string{path}, ReadOptions{})
			must(t, err)
			sum := sha256.Sum256(packed)
			if len(docs) != 500 || rep.Bytes != 500*21 || rep.Files[0] != (File{path, int64(len(packed)), hex.EncodeToString(sum[:])}) {
				t.Errorf("%s: %d documents, report %+v", name, len(docs), rep)
			}
		}
		for _, cut := range []int{7, len(packed) / 2, len(packed) - 1} {
			path := put(t, "f.jsonl", packed[:cut])
			_, _, err := readAll([]string{path}, ReadOptions{})
			if err == nil || fault.KindOf(err) != fault.Format || !strings.Contains(err.Error(), "f.jsonl: broken ") {
				t.Errorf("%s cut to %d bytes: %v", how, cut, err)
			}
		}
	}
	path := put(t, "f.jsonl", append(compress(t, "gz", text), "tail"...))
	_, _, err := readAll([]string{path}, ReadOptions{})
	wantError(t, err, filepath.Dir(path), "$/f.jsonl: broken gzip compression: unexpected EOF [E-CORPUS-051]", fault.Format)
}

// TestXZDictionary: a block that claims a 4 GiB dictionary is refused before anything is allocated.
func TestXZDictionary(t *testing.T) {
	packed := compress(t, "xz", []byte("{\"text\": \"a\"}\n"))
	i := bytes.Index(packed, []byte{0x21, 1})
	if i < 0 {
		t.Fatal("no LZMA2 filter found")
	}
	two := append(bytes.Clone(packed), packed...)
	for name, b := range map[string][]byte{"first stream": packed, "second stream": two} {
		b[len(b)-len(packed)+i+2] = 40
		path := put(t, "f.jsonl", b)
		_, _, err := readAll([]string{path}, ReadOptions{})
		t.Log(name)
		wantError(t, err, filepath.Dir(path), "$/f.jsonl: broken xz compression: needs a dictionary of more than 128 MiB [E-CORPUS-051]", fault.Format)
	}
}

func TestTextRefused(t *testing.T) {
	for _, c := range []struct {
		name, file, content, want string
		kind                      fault.Kind
	}{
		{"NUL", "a.txt", "a\x00", "$/a.txt: offset 1: NUL: not text [E-CORPUS-053]", fault.Format},
		{"bad UTF-8", "a.txt", "ab\xc3", "$/a.txt: offset 2: bad UTF-8: not text [E-CORPUS-054]", fault.Format},
		{"shard", "a.bin", "1234", "$/a.bin: a shard of tokens, not text [E-CORPUS-042]", fault.Usage},
	} {
		t.Run(c.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			path := put(t, c.file, []byte(c.content))
			_, _, err := readAll([]string{path}, ReadOptions{})
			wantError(t, err, filepath.Dir(path), c.want, c.kind)
		})
	}
	dir := t.TempDir()
	_, _, err := readAll([]string{dir + "/none"}, ReadOptions{})
	wantError(t, err, dir, "$/none: file not found [E-FILE-001]", fault.NotFound)
	must(t, syscall.Mkfifo(dir+"/pipe.jsonl", 0o600))
	_, _, err = readAll([]string{dir + "/pipe.jsonl"}, ReadOptions{})
	wantError(t, err, dir, "$/pipe.jsonl: not a file: only regular files are read, no FIFO, device or socket [E-FILE-003]", fault.NotFound)
}

// TestFolder: the walk is in lexical order and stays inside.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	outside := put(t, "secret.txt", []byte("secret"))
	for name, content := range map[string]string{
		"b.txt":                 "B",
		"a/z.go":                "Z",
		"a/y.jsonl":             `{"text": "Y1"}` + "\n" + `{"text": "Y2"}`,
		"a.txt":                 "A",
		"package.json":          "{}",
		"c/empty.txt":           "",
		".git/config":           "hidden",
		".hidden":               "hidden",
		"vendor/x.go":           "vendored",
		"c/node_modules/m/a.js": "vendored",
		"c/CVS/Entries":         "vendored",
		"image.png":             "\x89PNG\x00",
		"latin.txt":             "caf\xe9",
		"tokens.bin":            "1234",
		"x.jsonl.part":          `{"text": "cut`,
		"y.txt.crdownload":      "cut",
		"old.txt~":              "old",
		"large.txt":             "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
	} {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must(t, os.WriteFile(path, []byte(content), 0o600))
	}
	must(t, os.Symlink(outside, dir+"/link.txt"))
	must(t, os.Symlink(filepath.Dir(outside), dir+"/linked"))
	must(t, os.Symlink(dir, dir+"/c/loop"))
	must(t, syscall.Mkfifo(dir+"/pipe", 0o600))

	docs, rep, err := readAll([]string{dir, dir + "/b.txt"}, ReadOptions{})
	must(t, err)
	var got []string
	for _, d := range docs {
		rel, _ := filepath.Rel(dir, d.Path)
		got = append(got, fmt.Sprintf("%s:%d=%s", rel, d.Record, d.Text))
	}
	want := "a/y.jsonl:1=Y1 a/y.jsonl:2=Y2 a/z.go:0=Z a.txt:0=A b.txt:0=B c/empty.txt:0= package.json:0={} b.txt:0=B"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("documents\n got %s\nwant %s", s, want)
	}
	reasons := map[string]int{}
	for _, s := range rep.SkippedIn {
		reasons[s.Reason]++
	}
	if s := fmt.Sprint(reasons); s != "map[hidden:2 link:3 not a regular file:1 not text:3 pointer of git-lfs, not text:1 unfinished download or backup:3 vendored or version control:3]" {
		t.Errorf("skipped %s", s)
	}
	if len(rep.Files) != 7 || rep.Skipped != 16 || rep.Documents != 8 {
		t.Errorf("%d files, %d skipped, %d documents: %+v", len(rep.Files), rep.Skipped, rep.Documents, rep.SkippedIn)
	}
}

// TestStops: an error of the consumer and a cancelled context end the reading.
func TestStops(t *testing.T) {
	path := put(t, "f.jsonl", []byte(strings.Repeat("{\"text\": \"a\"}\n", 10)))
	n := 0
	_, err := Read(context.Background(), []string{path}, ReadOptions{}, func(Document) error {
		if n++; n == 3 {
			return os.ErrDeadlineExceeded
		}
		return nil
	})
	if err != os.ErrDeadlineExceeded || n != 3 {
		t.Errorf("%v after %d documents", err, n)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := Load(ctx, []string{path}, byteEncoder{}, options); err != context.Canceled {
		t.Errorf("cancelled: %v", err)
	}
}

// FuzzJSONLines: whatever a file holds, reading ends without panic, and counts add up.
func FuzzJSONLines(f *testing.F) {
	f.Add([]byte(`{"text": "a"}` + "\n" + `{"messages": [{"role": "user", "content": "b"}]}`))
	f.Add([]byte("\xef\xbb\xbf{}"))
	f.Add([]byte(`{"text": "\ud800"}`))
	for _, how := range []string{"gz", "zst", "xz"} {
		f.Add(compress(f, how, []byte(`{"text": "a"}`)))
	}
	path := filepath.Join(f.TempDir(), "f.jsonl")
	f.Fuzz(func(t *testing.T, content []byte) {
		must(t, os.WriteFile(path, content, 0o600))
		hostile.Bounded(t, len(content), func() { _ = checkRead(t, path) })
	})
}

// FuzzRecord: a line gives either a document or a fault with an identifier, and its text is valid UTF-8.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"text": "a\u00e9", "x": [1, {"y": null}]}`))
	f.Add([]byte(`{"messages": [{"role": "user", "content": "b"}]}`))
	f.Add([]byte(`{"Text": 1}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		var d Document
		var bad *fault.Error
		hostile.Bounded(t, len(line), func() { d, bad = parseRecord(line, ReadOptions{}) })
		if bad != nil && (bad.ID == "" || bad.Msg == "" || bad.Kind != fault.Format) {
			t.Errorf("fault %#v", bad)
		}
		texts := []string{d.Text}
		for _, m := range d.Messages {
			texts = append(texts, m.Role, m.Content)
		}
		for _, s := range texts {
			if !utf8.ValidString(s) {
				t.Errorf("text %q", s)
			}
		}
	})
}

// TestDictionarySize: the sizes that a property byte of LZMA2 stands for, by its definition in the format.
func TestDictionarySize(t *testing.T) {
	for p, want := range map[byte]error{
		0: nil, 18: nil, 28: nil, 29: nil, 30: nil, // 4 KiB, 2, 64, 96 and 128 MiB
		31: errDictionary, 32: errDictionary, 40: errDictionary, 41: errDictionary, 255: errDictionary, // 192 MiB and more
	} {
		if err := checkDictionary([]byte{0, 0x21, 1, p, 0, 0, 0}); err != want {
			t.Errorf("property %d: %v, want %v", p, err, want)
		}
	}
}

// TestClaimedWindow: a zstd frame of a few bytes may claim a window of 60 MiB, and is read; more is refused. The library
// reserves the window before it believes it, so this limit is what a tiny hostile file can cost. A larger file may
// claim more.
func TestClaimedWindow(t *testing.T) {
	text := "{\"text\": \"a\"}\n"
	frame := func(window byte) []byte {
		// magic, descriptor without size, window (exponent<<3 | mantissa), last raw block
		n := len(text)
		return append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, window, byte(n<<3 | 1), byte(n >> 5), 0}, text...)
	}
	const MiB32 = 15 << 3 // and eighths of it
	path := put(t, "f.jsonl", frame(MiB32|7))
	hostile.Bounded(t, len(frame(0)), func() {
		docs, _, err := readAll([]string{path}, ReadOptions{})
		must(t, err)
		if len(docs) != 1 || docs[0].Text != "a" {
			t.Errorf("%d documents", len(docs))
		}
	})
	path = put(t, "f.jsonl", frame(16<<3))
	_, _, err := readAll([]string{path}, ReadOptions{})
	wantError(t, err, filepath.Dir(path), "$/f.jsonl: broken zstd compression: window size exceeded [E-CORPUS-051]", fault.Format)
	for size, want := range map[int64]uint64{0: 60 << 20, 1 << 20: 64 << 20, 17 << 20: 128 << 20, 1 << 62: 128 << 20} {
		if got := window(size); got != want {
			t.Errorf("a file of %d bytes may claim %d, want %d", size, got, want)
		}
	}
}
