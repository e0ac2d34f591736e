package tokenizer

import (
	"os"
	"path/filepath"
	"testing"

	"apr/format/gguf"
)

// checkOutline compares an outline with that of the tokenizer that was made of the same.
func checkOutline(t testing.TB, o Outline, err error, tok *Tokenizer) {
	t.Helper()
	if err != nil || o != tok.Outline() {
		t.Errorf("outline %+v, %v; the tokenizer is %+v", o, err, tok.Outline())
	}
}

func TestOutline(t *testing.T) {
	want := Outline{Tokens: 4096, Merges: 3837, PreType: "qwen2", BOS: None, EOS: 4093, Pad: 4093, ChatTemplate: true}
	if got := fixture(t).Outline(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	o, err := LoadOutline(gosrc)
	checkOutline(t, o, err, fixture(t))
	f, err := gguf.Open("../testdata/models/gosrc-q4_k_m.gguf")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	o, err = OutlineGGUF(f.Path(), f.Metadata())
	checkOutline(t, o, err, fromGGUF(t))
	d := fixture(t).Data()
	o, err = OutlineData("m.apr", d)
	checkOutline(t, o, err, fixture(t))
}

// TestOutlineOfUnused counts up to the last id with text, with types and without.
func TestOutlineOfUnused(t *testing.T) {
	for _, types := range []bool{true, false} {
		d := smallTokenizer(t).Data()
		d.Vocabulary = append(d.Vocabulary, "", "<|late|>", "", "")
		d.TokenType = append(d.TokenType, int(Unused), int(Control), int(Unused), int(Unused))
		if !types {
			d.TokenType = nil
		}
		tok, err := FromData("x", d)
		if err != nil {
			t.Fatal(err)
		}
		o, err := OutlineData("x", d)
		checkOutline(t, o, err, tok)
		if o.Tokens != 263 {
			t.Errorf("types %t: %d tokens, want 263", types, o.Tokens)
		}
		list := []gguf.KV{{Key: "tokenizer.ggml.model", Value: "gpt2"}, {Key: "tokenizer.ggml.pre", Value: d.PreType},
			{Key: "tokenizer.ggml.tokens", Value: d.Vocabulary}, {Key: "tokenizer.ggml.merges", Value: d.Merges}}
		path := filepath.Join(t.TempDir(), "m.gguf")
		if err := gguf.Write(path, nil, gguf.Options{Metadata: list}); err != nil {
			t.Fatal(err)
		}
		f, err := gguf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if o, err = OutlineGGUF(path, f.Metadata()); err != nil || o.Tokens != 263 || o.Merges != len(d.Merges) {
			t.Errorf("GGUF without types: %+v, %v", o, err)
		}
	}
}

// TestOutlineTemplate finds the template that stands in a file of its own.
func TestOutlineTemplate(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"tokenizer.json": small(), "chat_template.jinja": "x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tok, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	o, err := LoadOutline(dir)
	checkOutline(t, o, err, tok)
	if !o.ChatTemplate {
		t.Error("no template")
	}
}
