package tokenizer

import (
	"slices"
	"testing"

	"apr/format/gguf"
)

// fromGGUF is the tokenizer of the gosrc model as llama.cpp's converter wrote it.
func fromGGUF(t *testing.T) *Tokenizer {
	t.Helper()
	f, err := gguf.Open("../testdata/models/gosrc-q4_k_m.gguf")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tok, err := FromGGUF(f.Path(), f.Metadata())
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// The tokenizer of a GGUF file is that of tokenizer.json, by all cases and by its parts.
func TestGGUF(t *testing.T) {
	tok, want := fromGGUF(t), fixture(t)
	r := references(t)
	for _, c := range r.TokenizerCases {
		checkIDs(t, tok, c.Text, c.IDs)
		checkText(t, tok, c.IDs, c.Decoded)
	}
	for _, c := range r.Greedy {
		checkIDs(t, tok, c.Prompt, c.PromptIDs)
	}
	if d := Compare(tok, want); d != nil {
		t.Error(d)
	}
	if tok.RealIDs() != want.RealIDs() || tok.EOS() != want.EOS() || tok.Pad() != None || tok.AddBOS() {
		t.Errorf("%d ids, end %d, padding %d, begin first: %v", tok.RealIDs(), tok.EOS(), tok.Pad(), tok.AddBOS())
	}
	if !slices.Equal(tok.Encode("<|im_end|>", Recognise), want.Encode("<|im_end|>", Recognise)) {
		t.Error("special tokens differ")
	}
}
