package tokenizer

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/format/gguf"
	"apr/internal/fault"
)

// without leaves out keys, by their names behind tokenizer.ggml.
func without(keys []gguf.KV, names ...string) []gguf.KV {
	return slices.DeleteFunc(slices.Clone(keys), func(kv gguf.KV) bool {
		return slices.Contains(names, strings.TrimPrefix(kv.Key, "tokenizer.ggml."))
	})
}

// What a GGUF file of others leaves out means what llama.cpp takes for it.
func TestGGUFDefaults(t *testing.T) {
	const add = "add_bos_token"
	no := gguf.KV{Key: "tokenizer.ggml." + add, Value: false}
	for _, c := range []struct {
		kind  string
		leave []string
		more  []gguf.KV
		want  string
	}{
		{"llama-bpe", []string{add}, nil, "begins"},
		{"tekken", []string{add}, nil, "begins"},
		{"dbrx", []string{add}, nil, "does not"},
		{"qwen2", []string{add}, nil, "does not"},
		{"gpt-4o", []string{add}, nil, "does not"},
		{"llama-bpe", []string{add}, []gguf.KV{no}, "does not"},
		{"mistral-scores", []string{add, SettingsKey}, nil, "begins with <s>, ends with </s>, prefix=each"},
		{"mistral-scores", []string{add, SettingsKey}, []gguf.KV{no}, "does not, ends with </s>, prefix=each"},
		{"mistral-scores", []string{add, SettingsKey, "bos_token_id", "eos_token_id", "unknown_token_id", "add_space_prefix", "add_eos_token"}, nil, "begins with <s>, ends with </s>, prefix=each"},
		{"gemma", []string{add, SettingsKey}, nil, "begins"},
		{"gemma", []string{add, SettingsKey}, []gguf.KV{no}, "begins"}, // llama.cpp's rule for files of an early converter
		{"gemma", []string{add}, []gguf.KV{no}, "does not"},            // ours
	} {
		tok, err := Load(filepath.Join(fixtures, c.kind))
		if err != nil {
			t.Fatal(err)
		}
		keys := append(without(ggufKeys(tok), c.leave...), c.more...)
		if c.kind == "gemma" {
			for i := range keys {
				if keys[i].Key == "tokenizer.ggml.model" {
					keys[i].Value = "gemma4"
				}
			}
		}
		back := openGGUF(t, keys)
		got := map[bool]string{true: "begins", false: "does not"}[back.AddBOS()]
		if strings.Contains(c.want, ",") {
			if back.AddBOS() {
				got += " with " + back.tokens[back.BOS()].text
			}
			got += fmt.Sprintf(", ends with %s, prefix=%s", back.tokens[back.EOS()].text, back.pieces.prefix)
		}
		if got != c.want || back.AddEOS() != (tok.AddEOS() && !slices.Contains(c.leave, "add_eos_token")) {
			t.Errorf("%s without %q, %v: %s, want %s; adds an end: %v", c.kind, c.leave, c.more, got, c.want, back.AddEOS())
		}
	}
}

// Llama 3's pre-tokenizer puts a token in front: without its id, llama.cpp would take another model's.
func TestGGUFBeginMissing(t *testing.T) {
	tok, err := Load(filepath.Join(fixtures, "llama-bpe"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := gguf.Write(path, nil, gguf.Options{Metadata: without(ggufKeys(tok), "add_bos_token", "bos_token_id")}); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := FromGGUF(path, f.Metadata()); fault.KindOf(err) != fault.Load || !strings.Contains(err.Error(), `key "tokenizer.ggml.bos_token_id": is missing`) {
		t.Errorf("%v", err)
	}
}

// The classes of Llama and Gemma make what is put around a text of tokenizer_config.json; others take tokenizer.json's.
func TestOwnProcessor(t *testing.T) {
	text := pieceKinds()["mistral"]
	for _, c := range []struct {
		config     string
		begin, end bool
	}{
		{`{"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": false}`, false, false},
		{`{"tokenizer_class": "LlamaTokenizer", "add_bos_token": false, "add_eos_token": true, "eos_token": "</s>"}`, false, true},
		{`{"tokenizer_class": "GemmaTokenizer", "add_bos_token": false}`, false, false},
		{`{"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": true}`, true, false},
		{`{"tokenizer_class": "LlamaTokenizerFast"}`, true, false},
		{`{"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": false}`, true, false},
		{`{"tokenizer_class": null, "add_bos_token": false}`, true, false},
		{``, true, false},
	} {
		tok, err := Parse("tokenizer.json", text, c.config)
		if err != nil {
			t.Fatal(err)
		}
		o, err := parseOutline("tokenizer.json", text, c.config)
		checkOutline(t, o, err, tok)
		if tok.AddBOS() != c.begin || tok.AddEOS() != c.end || tok.BOS() != 1 {
			t.Errorf("%s: begin %v, end %v, token %d", c.config, tok.AddBOS(), tok.AddEOS(), tok.BOS())
		}
	}
}
