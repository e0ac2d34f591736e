package tokenizer

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/internal/fault"
)

// small is a tokenizer.json of the 256 bytes, three merges and two added tokens; the tests change one thing in it.
// The forms of merges are interchangeable, so it has the older one.
func small() string {
	var vocab []string
	for b := range 256 {
		vocab = append(vocab, fmt.Sprintf("%s: %d", quote(byteText[b]), b))
	}
	vocab = append(vocab, `"ab": 256`, `"abc": 257`, `"Ġa": 258`)
	return `{"version": "1.0", "truncation": null, "padding": null,
"added_tokens": [
{"id": 259, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
{"id": 260, "content": "<tool>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": false}],
"normalizer": {"type": "NFC"},
"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
{"type": "Split", "pattern": {"Regex": ` + quote(patterns[0].regex) + `}, "behavior": "Isolated", "invert": false},
{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}]},
"post_processor": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
"decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
"model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false,
"vocab": {` + strings.Join(vocab, ", ") + `},
"merges": ["a b", "ab c", "Ġ a"]}}`
}

func smallTokenizer(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := Parse("tokenizer.json", small(), "")
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestParseSmall(t *testing.T) {
	tok := smallTokenizer(t)
	for _, c := range []struct {
		text string
		mode Mode
		want []int32
	}{
		{"abc ab a", Recognise, []int32{257, ' ', 256, 258}},
		{"x<|end|>y", Recognise, []int32{'x', 259, 'y'}},
		{"<|end|", Recognise, []int32{'<', '|', 'e', 'n', 'd', '|'}},
		{"<|end|>", PlainText, []int32{'<', '|', 'e', 'n', 'd', '|', '>'}},
		{"a<tool>", PlainText, []int32{'a', 260}},
		{"\xff", PlainText, []int32{255}},
	} {
		if got := tok.Encode(c.text, c.mode); !slices.Equal(got, c.want) {
			t.Errorf("Encode(%q, %d) = %v, want %v", c.text, c.mode, got, c.want)
		}
	}
	pairs := strings.Replace(small(), `["a b", "ab c", "Ġ a"]`, `[["a", "b"], ["ab", "c"], ["Ġ", "a"]]`, 1)
	other, err := Parse("", pairs, "")
	if err != nil {
		t.Fatal(err)
	}
	if d := Compare(tok, other); d != nil {
		t.Errorf("the two forms of merges differ: %v", d)
	}
}

// An added token that is normalized is looked for after normalisation, the others before.
func TestNormalizedAddedToken(t *testing.T) {
	text := strings.Replace(small(), `"<tool>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false`,
		`"éx", "single_word": false, "lstrip": false, "rstrip": false, "normalized": true`, 1)
	tok, err := Parse("", text, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"aéxa", "ae\u0301xa"} {
		if got, want := tok.Encode(s, PlainText), []int32{'a', 260, 'a'}; !slices.Equal(got, want) {
			t.Errorf("Encode(%+q) = %v, want %v", s, got, want)
		}
	}
	text = strings.Replace(text, `"normalized": true, "special": false`, `"normalized": true, "special": true`, 1)
	if tok, err = Parse("", text, ""); err != nil {
		t.Fatal(err)
	}
	if got, want := tok.Encode("éx", Recognise), []int32{260}; !slices.Equal(got, want) {
		t.Errorf("special: %v, want %v", got, want)
	}
	if got, want := tok.Encode("éx", PlainText), []int32{0xC3, 0xA9, 'x'}; !slices.Equal(got, want) {
		t.Errorf("special in plain text: %v, want %v", got, want)
	}
}

func TestParseRefuses(t *testing.T) {
	const added = `"<|end|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true`
	for _, c := range []struct{ name, old, new, want string }{
		{"not JSON", `{"version"`, `"version"`, "E-JSON"},
		{"not an object", small(), `[]`, "E-JSON-007"},
		{"two values", `"Ġ a"]}}`, `"Ġ a"]}} {}`, "E-JSON-006"},
		{"key twice", `"truncation": null`, `"version": "1.0"`, "E-JSON-003"},
		{"unknown key", `"truncation": null`, `"truncated": null`, "truncation"},
		{"version", `"1.0"`, `"2.0"`, "E-TOK-002"},
		{"truncation", `"truncation": null`, `"truncation": {"max_length": 5}`, "E-TOK-010"},
		{"padding", `"padding": null`, `"padding": {}`, "E-TOK-010"},
		{"model type", `"type": "BPE"`, `"type": "Unigram"`, "E-TOK-003"},
		{"dropout", `"dropout": null`, `"dropout": 0.1`, "dropout"},
		{"unknown token", `"unk_token": null`, `"unk_token": "<unk>"`, "unk_token"},
		{"byte fallback", `"byte_fallback": false`, `"byte_fallback": true`, "byte_fallback"},
		{"ignore merges", `"fuse_unk": false`, `"ignore_merges": true`, "ignore_merges"},
		{"subword prefix", `"continuing_subword_prefix": ""`, `"continuing_subword_prefix": "##"`, "continuing_subword_prefix"},
		{"vocabulary is a list", `"vocab": {`, `"vocab": [], "merges": [], "x": {`, "E-JSON"},
		{"merges is an object", `["a b", "ab c", "Ġ a"]`, `{}`, "E-JSON-007"},
		{"id a fraction", `"ab": 256`, `"ab": 256.0`, "E-JSON-007"},
		{"id negative", `"ab": 256`, `"ab": -1`, "E-JSON-007"},
		{"id a string", `"ab": 256`, `"ab": "256"`, "E-JSON-007"},
		{"id over the limit", `"ab": 256`, `"ab": 4194304`, "E-TOK-004"},
		{"id far beyond", `"ab": 256`, `"ab": 4194303`, "E-TOK-004"},
		{"id twice", `"ab": 256`, `"ab": 257`, "E-TOK-004"},
		{"token twice", `"ab": 256`, `"ab": 256, "\u0061b": 300`, "E-JSON-003"},
		{"byte missing", `"A": 65`, `"AA": 65`, "E-TOK-011"},
		{"merge of one part", `"a b"`, `"ab"`, "E-TOK-006"},
		{"merge of three parts", `"a b"`, `"a b c"`, "E-TOK-006"},
		{"pair of three", `["a b", "ab c", "Ġ a"]`, `[["a", "b", "c"]]`, "E-TOK-006"},
		{"merge a number", `"a b"`, `7`, "E-TOK-006"},
		{"mixed forms", `"ab c"`, `["ab", "c"]`, "E-TOK-006"},
		{"left part unknown", `"ab c"`, `"xy c"`, "the left part"},
		{"right part unknown", `"ab c"`, `"ab xy"`, "the right part"},
		{"result unknown", `"ab c"`, `"ab x"`, "the result"},
		{"part with a space", `"a b", "ab c", "Ġ a"`, `["a b", "c"]`, "holds a space"},
		{"merge twice", `"ab c"`, `"a b"`, "the same pair"},
		{"merge makes a special token", `259, "content": "<|end|>"`, `257, "content": "abc"`, "the result"},
		{"added without content", `"content": "<|end|>", `, ``, "content"},
		{"added with empty content", `"<|end|>"`, `""`, "E-TOK-007"},
		{"added with long content", `"<|end|>"`, quote(strings.Repeat("x", maxAddedText+1)), "E-TOK-007"},
		{"added under another's id", `"id": 259`, `"id": 257`, "E-TOK-004"},
		{"added with another id", `"content": "<|end|>"`, `"content": "ab"`, "E-TOK-007"},
		{"added twice", `"content": "<tool>"`, `"content": "<|end|>"`, "E-TOK-007"},
		{"added id twice", `"id": 260`, `"id": 259`, "E-TOK-004"},
		{"added id negative", `"id": 260`, `"id": -5`, "E-JSON-007"},
		{"lstrip", added, strings.Replace(added, `"lstrip": false`, `"lstrip": true`, 1), "lstrip"},
		{"rstrip", added, strings.Replace(added, `"rstrip": false`, `"rstrip": true`, 1), "rstrip"},
		{"single word", added, strings.Replace(added, `"single_word": false`, `"single_word": true`, 1), "single_word"},
		{"normalizer", `"NFC"`, `"NFKC"`, "E-TOK-009"},
		{"no normalizer", `{"type": "NFC"}`, `null`, "E-TOK-009"},
		{"pattern", `\\p{N}|`, `\\p{N}{1,2}|`, "E-TOK-008"},
		{"evil pattern", quote(patterns[0].regex), `"(a+)+$"`, "E-TOK-008"},
		{"pattern a string", `{"Regex": `, `{"String": `, "String"},
		{"pre-tokenizer", `"Sequence"`, `"Metaspace"`, "E-TOK-008"},
		{"no pre-tokenizer", `"pre_tokenizer"`, `"post_processor_"`, "E-JSON"},
		{"behavior", `"Isolated"`, `"Removed"`, "E-TOK-008"},
		{"inverted", `"invert": false`, `"invert": true`, "E-TOK-008"},
		{"three pre-tokenizers", `{"type": "Split"`, `{"type": "Digits"}, {"type": "Split"`, "E-TOK-008"},
		{"prefix space", `"add_prefix_space": false, "trim_offsets": false, "use_regex": false}]`, `"add_prefix_space": true, "use_regex": false}]`, "E-TOK-008"},
		{"two patterns", `"trim_offsets": false, "use_regex": false}]`, `"use_regex": true}]`, "E-TOK-008"},
		{"post-processor", `"post_processor": {"type": "ByteLevel"`, `"post_processor": {"type": "TemplateProcessing"`, "E-TOK-010"},
		{"decoder", `"decoder": {"type": "ByteLevel"`, `"decoder": {"type": "WordPiece"`, "E-TOK-010"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(small(), c.old, c.new, 1)
			if text == small() {
				t.Fatalf("%q is not in the file", c.old)
			}
			_, err := Parse("some/tokenizer.json", text, "")
			if fault.KindOf(err) != fault.Format || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "some/tokenizer.json: ") {
				t.Errorf("%v (kind %v), want a format error of the file with %q", err, fault.KindOf(err), c.want)
			}
		})
	}
}

func TestParseConfig(t *testing.T) {
	for _, c := range []struct{ name, config, want string }{
		{"strings", `{"eos_token": "<|end|>", "bos_token": null, "pad_token": "<|end|>", "chat_template": "x", "add_bos_token": true}`, "eos 259 bos -1 pad 259 x true"},
		{"object", `{"eos_token": {"content": "<|end|>", "lstrip": false}, "other": [1, 2]}`, "eos 259 bos -1 pad -1  false"},
		{"normal token", `{"eos_token": "ab"}`, "eos 256 bos -1 pad -1  false"},
		{"several templates", `{"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}`, "eos -1 bos -1 pad -1 d false"},
		{"decoder agrees", `{"added_tokens_decoder": {"259": {"content": "<|end|>", "special": true}}}`, "eos -1 bos -1 pad -1  false"},
		{"decoder differs", `{"added_tokens_decoder": {"259": {"content": "<|start|>"}}}`, "E-TOK-016"},
		{"decoder has more", `{"added_tokens_decoder": {"261": {"content": "<|more|>"}}}`, "E-TOK-016"},
		{"decoder's id", `{"added_tokens_decoder": {"x": {"content": "<|end|>"}}}`, "E-TOK-016"},
		{"unknown token", `{"eos_token": "<eos>"}`, "E-TOK-012"},
		{"token a number", `{"eos_token": 7}`, "E-JSON-007"},
		{"template a number", `{"chat_template": 7}`, "E-JSON-007"},
		{"not an object", `7`, "E-JSON-007"},
		{"not JSON", `{`, "E-JSON-001"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tok, err := Parse("dir/tokenizer.json", small(), c.config)
			if strings.HasPrefix(c.want, "E-") {
				if fault.KindOf(err) != fault.Format || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), filepath.FromSlash("dir/tokenizer_config.json")) {
					t.Errorf("%v, want a format error of the configuration with %s", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprintf("eos %d bos %d pad %d %s %t", tok.EOS(), tok.BOS(), tok.Pad(), tok.ChatTemplate(), tok.AddBOS())
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(dir); fault.KindOf(err) != fault.NotFound || !strings.Contains(err.Error(), "tokenizer.json") {
		t.Errorf("empty folder: %v", err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("tokenizer.json", small())
	tok, err := Load(dir)
	if err != nil || tok.EOS() != None || tok.RealIDs() != 261 {
		t.Fatalf("tokenizer.json alone: %v", err)
	}
	write("tokenizer_config.json", `{"eos_token": "<|end|>", "chat_template": "old"}`)
	write("chat_template.jinja", "new")
	if tok, err = Load(dir); err != nil || tok.EOS() != 259 || tok.ChatTemplate() != "new" {
		t.Fatalf("with the files beside it: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "chat_template.jinja")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "chat_template.jinja"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil {
		t.Error("a folder in place of chat_template.jinja is no error")
	}
}

// Cut at any place the file is refused, and no flipped byte makes a panic.
func TestParseDamaged(t *testing.T) {
	text := small()
	for n := 0; n < len(text); n += 7 {
		if _, err := Parse("x", text[:n], ""); fault.KindOf(err) != fault.Format {
			t.Fatalf("the first %d bytes: %v", n, err)
		}
		flipped := []byte(text)
		flipped[n] ^= 1 << (n % 8)
		if _, err := Parse("x", string(flipped), ""); err != nil && fault.KindOf(err) != fault.Format {
			t.Fatalf("byte %d flipped: %v", n, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(small(), `{"eos_token": "<|end|>"}`)
	f.Add(`{"model": {"vocab": {}, "merges": []}}`, ``)
	f.Fuzz(func(t *testing.T, text, config string) {
		tok, err := Parse("x", text, config)
		if err != nil {
			if fault.KindOf(err) != fault.Format {
				t.Errorf("kind %v: %v", fault.KindOf(err), err)
			}
			return
		}
		back, err := Parse("x", string(tok.MarshalTokenizer()), string(tok.MarshalConfig(0)))
		if err != nil {
			t.Fatalf("what was written is refused: %v", err)
		}
		if d := Compare(tok, back); d != nil {
			t.Fatal(d)
		}
		if back, err = FromData("x", tok.Data()); err != nil {
			t.Fatalf("the flat form is refused: %v", err)
		}
		if d := Compare(tok, back); d != nil {
			t.Fatal(d)
		}
	})
}
