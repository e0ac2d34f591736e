package tokenizer

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/format/gguf"
)

// storedWays returns tok after each stored form, and after one form and another.
func storedWays(t *testing.T, tok *Tokenizer) map[string]*Tokenizer {
	t.Helper()
	flat, err := FromData("flat", tok.Data())
	if err != nil {
		t.Fatal(err)
	}
	ways := map[string]*Tokenizer{
		"flat": flat, "file": throughFile(t, tok), "flat, file": throughFile(t, flat), "gguf": throughGGUF(t, tok),
	}
	ways["gguf, file"] = throughFile(t, ways["gguf"])
	for name, back := range ways {
		if d := Compare(tok, back); d != nil {
			t.Errorf("%s: %v", name, d)
		}
		if a, b := withoutEnds(tok), withoutEnds(back); !slices.Equal(a, b) {
			t.Errorf("%s: settings %q, want %q", name, b, a)
		}
		if back.AddBOS() != tok.AddBOS() || back.AddEOS() != tok.AddEOS() || back.BOS() != tok.BOS() || back.EOS() != tok.EOS() {
			t.Errorf("%s: begin or end differ", name)
		}
	}
	return ways
}

// withoutEnds returns the settings but for those that a tokenizer.json has no place for, and the merges.
func withoutEnds(tok *Tokenizer) []string {
	d := tok.Data()
	return append(slices.DeleteFunc(d.Settings, func(s string) bool { return strings.HasPrefix(s, "ends=") }), d.Merges...)
}

// throughFile writes a tokenizer.json and reads it.
func throughFile(t *testing.T, tok *Tokenizer) *Tokenizer {
	t.Helper()
	text, config := string(tok.MarshalTokenizer()), string(tok.MarshalConfig(0))
	back, err := Parse("written", text, config)
	if err != nil {
		t.Fatal(err)
	}
	o, err := parseOutline("written", text, config)
	checkOutline(t, o, err, back)
	return back
}

// ggufKeys are the keys that model.SaveGGUF writes of a tokenizer.
func ggufKeys(tok *Tokenizer) []gguf.KV {
	d := tok.Data()
	kinds := make([]int32, len(d.TokenType))
	for i, k := range d.TokenType {
		kinds[i] = int32(k)
	}
	list := []gguf.KV{
		{Key: "tokenizer.ggml.model", Value: d.Model}, {Key: "tokenizer.ggml.pre", Value: d.PreType},
		{Key: "tokenizer.ggml.tokens", Value: d.Vocabulary}, {Key: "tokenizer.ggml.token_type", Value: kinds},
		{Key: "tokenizer.ggml.merges", Value: d.Merges}, {Key: "tokenizer.ggml.add_bos_token", Value: d.AddBOS},
	}
	for name, id := range map[string]int32{"bos": d.BOS, "eos": d.EOS, "padding": d.Pad} {
		if id != None {
			list = append(list, gguf.KV{Key: "tokenizer.ggml." + name + "_token_id", Value: uint32(id)})
		}
	}
	return append(list, tok.GGUFSettings(len(d.Vocabulary))...)
}

// throughGGUF writes the metadata of a GGUF file and reads it.
func throughGGUF(t *testing.T, tok *Tokenizer) *Tokenizer { return openGGUF(t, ggufKeys(tok)) }

// openGGUF makes the tokenizer that a file with these keys holds.
func openGGUF(t *testing.T, keys []gguf.KV) *Tokenizer {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := gguf.Write(path, nil, gguf.Options{Metadata: keys}); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	back, err := FromGGUF(path, f.Metadata())
	if err != nil {
		t.Fatal(err)
	}
	o, err := OutlineGGUF(path, f.Metadata())
	checkOutline(t, o, err, back)
	return back
}

// scoresAlone is tok as llama.cpp's converter writes it: with scores in place of merges, and no settings.
func scoresAlone(t *testing.T, tok *Tokenizer) *Tokenizer {
	t.Helper()
	keys := ggufKeys(tok)
	kept := keys[:0:0]
	scores := false
	for _, kv := range keys {
		scores = scores || kv.Key == "tokenizer.ggml.scores"
		if kv.Key != "tokenizer.ggml.merges" && kv.Key != SettingsKey {
			kept = append(kept, kv)
		}
	}
	if !scores {
		t.Fatal("no scores stand for the merges")
	}
	back := openGGUF(t, kept)
	if d := Compare(tok, back); d != nil {
		t.Errorf("scores alone: %v", d)
	}
	return back
}
