package tokenizer

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/text/unicode/norm"

	"apr/internal/near"
)

// goSource returns the documents of a corpus of Go source.
func goSource(t testing.TB, name string) []string {
	t.Helper()
	f, err := os.Open("../examples/gosrc/data/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := zstd.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 16<<20)
	var texts []string
	for lines.Scan() {
		var record struct {
			Text string `json:"text"`
		}
		if err := json.Unmarshal(lines.Bytes(), &record); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, record.Text)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if len(texts) == 0 {
		t.Fatalf("%s holds no text", name)
	}
	return texts
}

func TestCorpusRoundTrip(t *testing.T) {
	tok := fixture(t)
	for _, name := range []string{"gosrc-val.jsonl.zst", "gosrc-train-sample.jsonl.zst"} {
		for i, text := range goSource(t, name) {
			for _, mode := range []Mode{PlainText, Recognise} {
				got, err := tok.Decode(tok.Encode(text, mode))
				if err != nil || got != norm.NFC.String(text) {
					t.Fatalf("%s, document %d, mode %d: does not come back (%v)", name, i, mode, err)
				}
			}
		}
	}
}

// The protocol of reference.json: the held-out documents, each followed by the end token, have 71927 tokens and 208569
// bytes.
func TestCorpusCount(t *testing.T) {
	tok := fixture(t)
	tokens, size := 0, 0
	for _, text := range goSource(t, "gosrc-val.jsonl.zst") {
		tokens += len(tok.Encode(text, Recognise)) + 1
		size += len(text)
	}
	if tokens != 71927 || size != 208569 {
		t.Errorf("%d tokens of %d bytes, want 71927 of 208569", tokens, size)
	}
}

func BenchmarkEncodeGoSource(b *testing.B) {
	texts := goSource(b, "gosrc-train-sample.jsonl.zst")
	size := 0
	for _, text := range texts {
		size += len(text)
	}
	tok := fixture(b)
	var ids []int32
	b.SetBytes(int64(size))
	before := near.CPUTime() // on a busy machine the clock measures the neighbours
	for b.Loop() {
		e := tok.NewEncoder() // its cache begins empty
		for _, text := range texts {
			ids = e.Append(ids[:0], text, PlainText)
		}
	}
	b.ReportMetric(float64(size)*float64(b.N)/1e6/(near.CPUTime()-before).Seconds(), "MB/cpu-s")
}
