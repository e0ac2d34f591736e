package tokenizer

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/format/gguf"
	"apr/internal/fault"
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

func TestGGUFRefused(t *testing.T) {
	const prefix = "tokenizer.ggml."
	for _, c := range []struct {
		name string
		meta []gguf.KV
		kind fault.Kind
		want string // after the path
	}{
		{"none", nil, fault.Load, "holds no tokenizer [E-TOK-020]"},
		{"model", []gguf.KV{{Key: prefix + "model", Value: "bert"}}, fault.Format, `key "tokenizer.ggml.model": tokenizer of type "bert" is not supported; supported: gpt2, llama, gemma4 [E-TOK-021]`},
		{"scores missing", []gguf.KV{{Key: prefix + "model", Value: "llama"}}, fault.Load, `key "tokenizer.ggml.scores": is missing; a model without it can be inspected, not used [E-GGUF-022]`},
		{"model a number", []gguf.KV{{Key: prefix + "model", Value: uint32(1)}}, fault.Format, `key "tokenizer.ggml.model": expected a string, found u32 [E-GGUF-020]`},
		{"pre missing", []gguf.KV{{Key: prefix + "model", Value: "gpt2"}}, fault.Load, `key "tokenizer.ggml.pre": is missing; a model without it can be inspected, not used [E-GGUF-022]`},
		{"pre unknown", complete("pre", "mine"), fault.Format, `pre_type: unknown pre-tokenizer "mine" [E-TOK-008]`},
		{"merges missing", complete("merges", nil), fault.Load, `key "tokenizer.ggml.merges": is missing; a model without it can be inspected, not used [E-GGUF-022]`},
		{"types too few", complete("token_type", []int32{1}), fault.Format, "token_type: 1 types for 2 tokens [E-TOK-004]"},
		{"type of another model", complete("token_type", []int32{1, 6}), fault.Format, "token_type: token 1 has type 6, which byte-level BPE does not know [E-TOK-004]"},
		{"type negative", complete("token_type", []int32{-7, 1}), fault.Format, "token_type: token 0 has type -1, which byte-level BPE does not know [E-TOK-004]"},
		{"vocabulary", complete("pre", "qwen2"), fault.Format, `vocabulary: no token for the byte 0x00 ("Ā") [E-TOK-011]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "m.gguf")
			if err := gguf.Write(path, nil, gguf.Options{Metadata: c.meta}); err != nil {
				t.Fatal(err)
			}
			f, err := gguf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := OutlineGGUF(path, f.Metadata()); c.name != "vocabulary" && (err == nil || err.Error() != path+": "+c.want) {
				t.Errorf("outline: %v, want %s", err, c.want)
			}
			if _, err = FromGGUF(path, f.Metadata()); err == nil || err.Error() != path+": "+c.want || fault.KindOf(err) != c.kind {
				t.Errorf("got %v (%v), want %s", err, fault.KindOf(err), c.want)
			}
		})
	}
}

// complete is metadata of a tokenizer with one value replaced or (nil) left out.
func complete(key string, value any) []gguf.KV {
	list := []gguf.KV{
		{Key: "model", Value: "gpt2"}, {Key: "pre", Value: "qwen2"}, {Key: "tokens", Value: []string{"a", "b"}},
		{Key: "token_type", Value: []int32{1, 1}}, {Key: "merges", Value: []string{}},
	}
	list = slices.DeleteFunc(list, func(kv gguf.KV) bool { return kv.Key == key })
	if value != nil {
		list = append(list, gguf.KV{Key: key, Value: value})
	}
	for i := range list {
		if !strings.HasPrefix(list[i].Key, "tokenizer.") {
			list[i].Key = "tokenizer.ggml." + list[i].Key
		}
	}
	return list
}
