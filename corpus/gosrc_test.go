package corpus

import (
	"context"
	"slices"
	"testing"

	"apr/tokenizer"
)

const gosrc = "../examples/gosrc/data/"

// gosrcEncoder is the tokenizer of the gosrc model.
func gosrcEncoder(t testing.TB) (*TextEncoder, EncodeOptions) {
	tok, err := tokenizer.Load("../testdata/models/gosrc")
	must(t, err)
	enc, err := ForTokenizer(tok, "auto")
	must(t, err)
	eos, err := EndOfText(tok)
	must(t, err)
	return enc, EncodeOptions{EOS: eos, Vocab: tok.RealIDs()}
}

// TestGoSource compares counts with those of reference.json, which transformers computed.
func TestGoSource(t *testing.T) {
	enc, opt := gosrcEncoder(t)
	val, rep, err := Load(context.Background(), []string{gosrc + "gosrc-val.jsonl.zst"}, enc, opt)
	must(t, err)
	if len(val.IDs) != 71927 || val.TextBytes() != 208569 || len(val.Docs) != 33 || rep.Bytes != 208569 {
		t.Errorf("%d ids, %d bytes, %d documents", len(val.IDs), val.TextBytes(), len(val.Docs))
	}
	w, err := NewWindows(val, 512, 512)
	must(t, err)
	b := w.Batch(0, w.Len())
	if w.Len() != 140 || b.TargetCount() != 140*512 || !slices.Equal(b.Targets[:511], b.Tokens[1:512]) {
		t.Errorf("%d windows, %d targets", w.Len(), b.TargetCount())
	}
	train, _, err := Load(context.Background(), []string{gosrc + "gosrc-train-sample.jsonl.zst"}, enc, opt)
	must(t, err)
	must(t, CheckOverlap(train, val))
	if len(train.Docs) != 835 {
		t.Errorf("%d training documents", len(train.Docs))
	}
	rows, err := Pack(train, 512)
	must(t, err)
	if rows.Len() != len(train.IDs)/513 || rows.NoTargets != 0 {
		t.Errorf("%d rows of %d ids, %d without targets", rows.Len(), len(train.IDs), rows.NoTargets)
	}
}

// BenchmarkLoadGoSource reads, decompresses, parses and encodes 6.4 MB of text.
func BenchmarkLoadGoSource(b *testing.B) {
	enc, opt := gosrcEncoder(b)
	for b.Loop() {
		k, _, err := Load(context.Background(), []string{gosrc + "gosrc-train-sample.jsonl.zst"}, enc, opt)
		must(b, err)
		b.SetBytes(k.TextBytes())
	}
}

// BenchmarkReadGoSource does all but encode.
func BenchmarkReadGoSource(b *testing.B) {
	for b.Loop() {
		_, rep, err := readAll([]string{gosrc + "gosrc-train-sample.jsonl.zst"}, ReadOptions{})
		must(b, err)
		b.SetBytes(rep.Bytes)
	}
}
