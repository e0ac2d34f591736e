package modelfile

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/format/aprfile"
	"apr/format/gguf"
	"apr/tokenizer"
)

// pieceTokenizer is SentencePiece-BPE of few tokens, with what the flat form has to carry: a prefix, an unknown token, bytes,
// a token that takes the blanks behind it, and an end token behind a text.
func pieceTokenizer(t *testing.T) *tokenizer.Tokenizer {
	t.Helper()
	texts := []string{"<unk>", "<s>", "</s>", "<0x78>", "[X]", "▁", "a", "b", "▁a", "ab", "▁ab"}
	d := tokenizer.Data{Vocabulary: texts, BOS: 1, EOS: 2, Pad: tokenizer.None, AddBOS: true, Model: "llama", PreType: "default",
		Merges: []string{"▁ ab", "▁ a", "▁a b", "a b"}, Settings: []string{"prefix=first", "unknown=0", "add_eos=true", "ends=4", "rstrip=4"}}
	for i := range texts {
		kind := tokenizer.Normal
		if i < 5 {
			kind = tokenizer.Control
		}
		d.TokenType = append(d.TokenType, int(kind))
	}
	tok, err := tokenizer.FromData("pieces", d)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestTokenizerStored: both kinds of tokenizers come back from .apr metadata and from GGUF, with and without padding.
func TestTokenizerStored(t *testing.T) {
	gosrc, err := tokenizer.Load("../testdata/models/gosrc")
	if err != nil {
		t.Fatal(err)
	}
	d := gosrc.Data()
	d.Settings = []string{"nfc=false", "ignore_merges=true", "lstrip=4094"}
	bytes, err := tokenizer.FromData("bytes", d)
	if err != nil {
		t.Fatal(err)
	}
	scored := pieceTokenizer(t).Data()
	scored.Scores = []float32{0, 0, 0, 0, 0, -9, -9, -9, -2, -1.5, -3}
	withScores, err := tokenizer.FromData("scores", scored)
	if err != nil {
		t.Fatal(err)
	}
	for name, tok := range map[string]*tokenizer.Tokenizer{"bytes": bytes, "plain": gosrc, "pieces": pieceTokenizer(t), "scores": withScores} {
		for _, rows := range []int{tok.RealIDs(), tok.RealIDs() + 5} {
			for format, back := range map[string]*tokenizer.Tokenizer{".apr": throughAPR(t, tok), "GGUF": throughGGUF(t, tok, rows)} {
				if diff := tokenizer.Compare(tok, back); diff != nil {
					t.Errorf("%s, %s: %v", name, format, diff)
				}
				if !slices.Equal(tok.Data().Settings, back.Data().Settings) || !slices.Equal(tok.Data().Scores, back.Data().Scores) {
					t.Errorf("%s, %s: %v %v", name, format, back.Data().Settings, back.Data().Scores)
				}
				text := "ab x[X]  ab" + strings.Repeat(" b", 3)
				if a, b := tok.Encode(text, tokenizer.Recognise), back.Encode(text, tokenizer.Recognise); !slices.Equal(a, b) {
					t.Errorf("%s, %s: %v, want %v", name, format, b, a)
				}
				if a, b := fmt.Sprint(tok.BOS(), tok.EOS(), tok.AddBOS(), tok.AddEOS(), tok.Ends()), fmt.Sprint(back.BOS(), back.EOS(), back.AddBOS(), back.AddEOS(), back.Ends()); a != b {
					t.Errorf("%s, %s: %s, want %s", name, format, b, a)
				}
			}
		}
	}
}

func throughAPR(t *testing.T, tok *tokenizer.Tokenizer) *tokenizer.Tokenizer {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.apr")
	meta := map[string]any{}
	AddTokenizer(meta, tok)
	if err := aprfile.Write(path, nil, aprfile.Options{Metadata: meta, Writer: "test"}); err != nil {
		t.Fatal(err)
	}
	f, err := aprfile.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	back, err := OpenAPRTokenizer(f)
	if err != nil {
		t.Fatal(err)
	}
	return back
}

func throughGGUF(t *testing.T, tok *tokenizer.Tokenizer, rows int) *tokenizer.Tokenizer {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.gguf")
	keys := ggufTokenizer(arch.Config{Vocab: rows, BOS: -1}, tok)
	if err := gguf.Write(path, nil, gguf.Options{Metadata: keys}); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	back, err := tokenizer.FromGGUF(path, f.Metadata())
	if err != nil {
		t.Fatal(err)
	}
	return back
}
