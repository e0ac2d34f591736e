package tokenizer

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/hostile"
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
	removed := strings.Replace(small(), `"behavior": "Isolated", "invert": false`, `"behavior": "Removed", "invert": true`, 1)
	if same, err := Parse("", removed, ""); err != nil || Compare(tok, same) != nil {
		t.Errorf("removing what is no match: %v", err)
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

// Parts of post-processors.
const (
	postByteLevel = `{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}`
	begin         = `{"SpecialToken": {"id": "<|end|>", "type_id": 0}}`
	text0         = `{"Sequence": {"id": "A", "type_id": 0}}`
)

// template is a TemplateProcessing whose template for one text is single, with what follows it in small.
func template(single string) string {
	return `{"type": "TemplateProcessing", "single": [` + single + `], "pair": [], "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [259], "tokens": ["<|end|>"]}}}`
}

func TestParseRefuses(t *testing.T) {
	part := func(from, to string) string { // of the file, from one text up to another, or to its end
		_, after, _ := strings.Cut(small(), from)
		if to != "" {
			after, _, _ = strings.Cut(after, to)
		}
		return from + after
	}
	const added = `"<|end|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true`
	for _, c := range []struct{ name, old, new, want string }{
		{"not JSON", `{"version"`, `"version"`, "line 1, column 10: ':' after the value [E-JSON-006]"},
		{"empty", small(), ``, "line 1, column 1: expected a value, found end of text [E-JSON-001]"},
		{"cut", part(`"merges"`, ``), `"merges": ["a b`, "line 13, column 16: string is cut [E-JSON-001]"},
		{"byte order mark", `{"version"`, "\ufeff{\"version\"", "line 1, column 1: byte order mark [E-JSON-002]"},
		{"not UTF-8", `"1.0"`, "\"1.0\xff\"", "line 1, column 17: byte 0xff is not UTF-8 [E-JSON-002]"},
		{"unpaired surrogate", `"1.0"`, `"\ud800"`, "line 1, column 14: unpaired surrogate [E-JSON-002]"},
		{"too deep", `"truncation": null`, `"truncation": ` + strings.Repeat("[", 65) + strings.Repeat("]", 65), "line 1, column 97: nested deeper than 64 [E-JSON-004]"},
		{"key in another case", `"version"`, `"Version"`, `line 1, column 13: unknown key "Version"; did you mean "version"? [E-JSON-009]`},
		{"id over u64", `"ab": 256`, `"ab": 18446744073709551616`, "line 12, column 2469: integer 18446744073709551616 does not fit 64 bits [E-JSON-007]"},
		{"merge with an empty part", `"ab c"`, `"ab "`, `merge 1 "ab" "": a part is empty [E-TOK-006]`},
		{"added an object", part(`"added_tokens": [`, `"normalizer"`), `"added_tokens": {}, `, "line 2, column 17: expected an array, found an object [E-JSON-007]"},
		{"added without id", `"id": 259, `, ``, `line 3, column 1: key "id" is missing [E-JSON-008]`},
		{"added id over the limit", `"id": 260`, `"id": 4194304`, `line 4, column 8: id 4194304 of token "<tool>" is beyond what 2 tokens need [E-TOK-004]`},
		{"added field unknown", `"lstrip"`, `"Lstrip"`, `line 3, column 67: unknown key "Lstrip"; did you mean "lstrip"? [E-JSON-009]`},
		{"not an object", small(), `[]`, "line 1, column 1: expected an object, found an array [E-JSON-007]"},
		{"two values", `"Ġ a"]}}`, `"Ġ a"]}} {}`, "line 13, column 36: '{' after the value [E-JSON-006]"},
		{"key twice", `"truncation": null`, `"version": "1.0"`, `line 1, column 20: key "version" occurs twice [E-JSON-003]`},
		{"unknown key", `"truncation": null`, `"truncated": null`, `line 1, column 33: unknown key "truncated"; did you mean "truncation"? [E-JSON-009]`},
		{"version", `"1.0"`, `"2.0"`, `line 1, column 1: version "2.0" is unknown; 1.0 is supported [E-TOK-002]`},
		{"truncation", `"truncation": null`, `"truncation": {"max_length": 5}`, "line 1, column 34: truncation inside a tokenizer is not supported [E-TOK-010]"},
		{"padding", `"padding": null`, `"padding": {}`, "line 1, column 51: padding inside a tokenizer is not supported [E-TOK-010]"},
		{"model type", `"type": "BPE"`, `"type": "Unigram"`, `line 11, column 10: model "Unigram" is not supported; BPE is [E-TOK-003]`},
		{"dropout", `"dropout": null`, `"dropout": 0.1`, "line 11, column 10: BPE with dropout is not supported [E-TOK-003]"},
		{"unknown token a number", `"unk_token": null`, `"unk_token": 5`, `line 11, column 56: key "unk_token": expected a string, found 5 [E-JSON-007]`},
		{"byte fallback", `"byte_fallback": false`, `"byte_fallback": true`, `line 5, column 15: normalizer "NFC" is not supported here; Prepend followed by Replace is, and Replace alone [E-TOK-009]`},
		{"byte fallback a number", `"byte_fallback": false`, `"byte_fallback": 1`, `line 11, column 157: key "byte_fallback": expected a boolean, found 1 [E-JSON-007]`},
		{"ignore merges with byte fallback", `"byte_fallback": false`, `"ignore_merges": true, "byte_fallback": true`, "line 11, column 10: BPE with byte_fallback and ignore_merges is not supported [E-TOK-003]"},
		{"ignore merges a string", `"fuse_unk": false`, `"ignore_merges": "true"`, `line 11, column 138: key "ignore_merges": expected a boolean, found the string "true" [E-JSON-007]`},
		{"subword prefix", `"continuing_subword_prefix": ""`, `"continuing_subword_prefix": "##"`, "line 11, column 10: BPE with continuing_subword_prefix is not supported [E-TOK-003]"},
		{"vocabulary is a list", part(`"vocab"`, `"merges"`), `"vocab": [], `, "line 12, column 10: expected an object, found an array [E-JSON-007]"},
		{"no vocabulary", part(`"vocab"`, `"merges"`), ``, `line 11, column 10: key "vocab" is missing [E-JSON-008]`},
		{"vocabulary empty", part(`"vocab"`, `"merges"`), `"vocab": {}, `, `vocabulary: no token for the byte 0x00 ("Ā") [E-TOK-011]`},
		{"model null", part(`"model"`, ``), `"model": null}`, `line 1, column 1: key "model" is missing [E-JSON-008]`},
		{"no merges", ",\n" + part(`"merges"`, ``), `}}`, `line 11, column 10: key "merges" is missing [E-JSON-008]`},
		{"merges is an object", `["a b", "ab c", "Ġ a"]`, `{}`, "line 13, column 11: expected an array, found an object [E-JSON-007]"},
		{"id a fraction", `"ab": 256`, `"ab": 256.0`, "line 12, column 2469: expected a non-negative integer, found 256.0 [E-JSON-007]"},
		{"id negative", `"ab": 256`, `"ab": -1`, "line 12, column 2469: expected a non-negative integer, found -1 [E-JSON-007]"},
		{"id a string", `"ab": 256`, `"ab": "256"`, `line 12, column 2469: expected a non-negative integer, found the string "256" [E-JSON-007]`},
		{"id over the limit", `"ab": 256`, `"ab": 4194304`, `line 12, column 2469: id 4194304 of token "ab" is beyond what 259 tokens need [E-TOK-004]`},
		{"id far beyond", `"ab": 256`, `"ab": 4194303`, `line 12, column 2469: id 4194303 of token "ab" is beyond what 259 tokens need [E-TOK-004]`},
		{"id twice", `"ab": 256`, `"ab": 257`, `line 12, column 2481: id 257 belongs to two tokens, "ab" and "abc" [E-TOK-004]`},
		{"token twice", `"ab": 256`, `"ab": 256, "\u0061b": 300`, `line 12, column 2474: key "ab" occurs twice [E-JSON-003]`},
		{"byte missing", `"A": 65`, `"AA": 65`, `vocabulary: no token for the byte 0x41 ("A") [E-TOK-011]`},
		{"merge of one part", `"a b"`, `"ab"`, "line 13, column 12: merge 0 has 1 parts; 2 are expected [E-TOK-006]"},
		{"merge of three parts", `"a b"`, `"a b c"`, "line 13, column 12: merge 0 has 3 parts; 2 are expected [E-TOK-006]"},
		{"pair of three", `["a b", "ab c", "Ġ a"]`, `[["a", "b", "c"]]`, "line 13, column 12: merge 0 has 3 parts; 2 are expected [E-TOK-006]"},
		{"merge a number", `"a b"`, `7`, "line 13, column 12: merge 0 is a number; all merges are strings, or all are pairs [E-TOK-006]"},
		{"mixed forms", `"ab c"`, `["ab", "c"]`, "line 13, column 19: merge 1 is an array; all merges are strings, or all are pairs [E-TOK-006]"},
		{"left part unknown", `"ab c"`, `"xy c"`, `merge 1 "xy" "c": the left part is not in the vocabulary [E-TOK-006]`},
		{"right part unknown", `"ab c"`, `"ab xy"`, `merge 1 "ab" "xy": the right part is not in the vocabulary [E-TOK-006]`},
		{"result unknown", `"ab c"`, `"ab x"`, `merge 1 "ab" "x": the result is not in the vocabulary [E-TOK-006]`},
		{"part with a space", `"a b", "ab c", "Ġ a"`, `["a b", "c"]`, `merge 0 "a b" "c": a part holds a space, which the vocabulary writes as Ġ [E-TOK-006]`},
		{"part of nothing", `"a b", "ab c", "Ġ a"`, `["a", ""]`, `merge 0 "a" "": a part is empty [E-TOK-006]`},
		{"merge twice", `"ab c"`, `"a b"`, `merge 1 "a" "b": the same pair is merge 0 [E-TOK-006]`},
		{"merge makes a special token", `259, "content": "<|end|>"`, `257, "content": "abc"`, `merge 1 "ab" "c": the result is not in the vocabulary [E-TOK-006]`},
		{"added without content", `"content": "<|end|>", `, ``, `line 3, column 1: key "content" is missing [E-JSON-008]`},
		{"added with empty content", `"<|end|>"`, `""`, "added token: id 259 has 0 bytes of text; 1 to 256 are possible [E-TOK-007]"},
		{"added with long content", `"<|end|>"`, quote(strings.Repeat("x", maxAddedText+1)), "added token: id 259 has 257 bytes of text; 1 to 256 are possible [E-TOK-007]"},
		{"added under another's id", `"id": 259`, `"id": 257`, `line 3, column 8: id 257 belongs to two tokens, "abc" and "<|end|>" [E-TOK-004]`},
		{"added with another id", `"content": "<|end|>"`, `"content": "ab"`, `line 3, column 1: added token "ab" has id 259 here and 256 in the vocabulary [E-TOK-007]`},
		{"added twice", `"content": "<tool>"`, `"content": "<|end|>"`, `line 4, column 1: added token "<|end|>" is given twice [E-TOK-007]`},
		{"added id twice", `"id": 260`, `"id": 259`, `line 4, column 8: id 259 belongs to two tokens, "<|end|>" and "<tool>" [E-TOK-004]`},
		{"added id negative", `"id": 260`, `"id": -5`, `line 4, column 8: key "id": expected a non-negative integer, found -5 [E-JSON-007]`},
		{"single word", added, strings.Replace(added, `"single_word": false`, `"single_word": true`, 1), `line 3, column 1: added token "<|end|>" with single_word is not supported [E-TOK-007]`},
		{"normalizer", `"NFC"`, `"NFKC"`, `line 5, column 15: normalizer "NFKC" is not supported; NFC and none are [E-TOK-009]`},
		{"normalizer without type", `{"type": "NFC"}`, `{}`, `line 5, column 15: key "type" is missing [E-JSON-008]`},
		{"digits in runs", part(`"pre_tokenizer"`, `"post_processor"`), `"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": false}, {"type": "ByteLevel", "add_prefix_space": false}]}, `, "line 6, column 57: Digits with individual_digits false before ByteLevel with use_regex true is not supported; true, true is [E-TOK-008]"},
		{"pattern", `\\p{N}|`, `\\p{N}{1,2}|`, `line 7, column 1: unknown pattern "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{…" [E-TOK-008]`},
		{"evil pattern", quote(patterns[0].regex), `"(a+)+$"`, `line 7, column 1: unknown pattern "(a+)+$" [E-TOK-008]`},
		{"pattern a string", `{"Regex": `, `{"String": `, `line 7, column 41: unknown key "String" [E-JSON-009]`},
		{"pre-tokenizer", `"Sequence"`, `"Metaspace"`, `line 6, column 18: pre-tokenizer "Metaspace" is not supported [E-TOK-008]`},
		{"no pre-tokenizer", part(`"pre_tokenizer"`, `"post_processor"`), ``, `line 1, column 1: key "pre_tokenizer" is missing [E-JSON-008]`},
		{"behavior", `"Isolated"`, `"Removed"`, `line 7, column 1: Split with behavior "Removed", invert false is not supported; Isolated, false is [E-TOK-008]`},
		{"inverted", `"invert": false`, `"invert": true`, `line 7, column 1: Split with behavior "Isolated", invert true is not supported; Isolated, false is [E-TOK-008]`},
		{"three pre-tokenizers", `{"type": "Split"`, `{"type": "Digits"}, {"type": "Split"`, "line 6, column 56: 3 pre-tokenizers; Split followed by ByteLevel is supported [E-TOK-008]"},
		{"prefix space", `"add_prefix_space": false, "trim_offsets": false, "use_regex": false}]`, `"add_prefix_space": true, "use_regex": false}]`, "line 8, column 1: add_prefix_space is not supported [E-TOK-008]"},
		{"two patterns", `"trim_offsets": false, "use_regex": false}]`, `"use_regex": true}]`, "line 8, column 1: a second pattern (use_regex) after Split is not supported [E-TOK-008]"},
		{"post-processor", `"post_processor": ` + postByteLevel, `"post_processor": ` + `{"type": "BertProcessing"}`, `line 9, column 19: post_processor "BertProcessing" is not supported; ByteLevel and TemplateProcessing are [E-TOK-010]`},
		{"sequence in a sequence", `"post_processor": ` + postByteLevel, `"post_processor": ` + `{"type": "Sequence", "processors": [{"type": "Sequence", "processors": []}]}`, `line 9, column 55: post_processor "Sequence" is not supported; ByteLevel and TemplateProcessing are [E-TOK-010]`},
		{"two templates", `"post_processor": ` + postByteLevel, `"post_processor": ` + `{"type": "Sequence", "processors": [` + template(text0) + `, ` + template(text0) + `]}`, `line 9, column 239: post_processor "TemplateProcessing" is not supported; ByteLevel and TemplateProcessing are [E-TOK-010]`},
		{"template without text", `"post_processor": ` + postByteLevel, `"post_processor": ` + template(begin), `line 9, column 19: a template for one text has the sequence A once [E-TOK-010]`},
		{"template with the text twice", `"post_processor": ` + postByteLevel, `"post_processor": ` + template(text0+", "+text0), `line 9, column 102: a template for one text has the sequence A once [E-TOK-010]`},
		{"template with a second text", `"post_processor": ` + postByteLevel, `"post_processor": ` + template(`{"Sequence": {"id": "B", "type_id": 0}}`), `line 9, column 61: a template for one text has the sequence A once [E-TOK-010]`},
		{"template with two tokens before", `"post_processor": ` + postByteLevel, `"post_processor": ` + template(begin+", "+begin+", "+text0), `line 9, column 112: post_processor adds more than one token at one end of a text, which is not supported [E-TOK-010]`},
		{"template with an unnamed token", `"post_processor": ` + postByteLevel, `"post_processor": ` + template(strings.Replace(begin, "end", "END", 1)+", "+text0), `line 9, column 61: special token "<|END|>" of the template is not in special_tokens [E-TOK-010]`},
		{"template with two ids", `"post_processor": ` + postByteLevel, `"post_processor": ` + strings.Replace(template(begin+", "+text0), "[259]", "[259, 260]", 1), `line 9, column 221: special token "<|end|>" of the template stands for 2 ids; 1 is supported [E-TOK-010]`},
		{"template of an unknown id", `"post_processor": ` + postByteLevel, `"post_processor": ` + strings.Replace(template(begin+", "+text0), "[259]", "[999]", 1), `bos token: id 999 is not in the vocabulary of 261 tokens [E-TOK-012]`},
		{"decoder", `"decoder": {"type": "ByteLevel"`, `"decoder": {"type": "WordPiece"`, `line 10, column 12: decoder "WordPiece" is not supported; ByteLevel is [E-TOK-010]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(small(), c.old, c.new, 1)
			if text == small() {
				t.Fatalf("%q is not in the file", c.old)
			}
			contracttest.Cases(t, 1)
			_, err := Parse("f", text, "")
			if err == nil {
				t.Fatal("accepted")
			}
			if err.Error() != "f: "+c.want || fault.KindOf(err) != fault.Format {
				t.Errorf("got  %v (%v)\nwant f: %s", err, fault.KindOf(err), c.want)
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
		{"decoder differs", `{"added_tokens_decoder": {"259": {"content": "<|start|>"}}}`, `line 1, column 34: added token "<|start|>" with id "259" is not in tokenizer.json [E-TOK-016]`},
		{"decoder has more", `{"added_tokens_decoder": {"261": {"content": "<|more|>"}}}`, `line 1, column 34: added token "<|more|>" with id "261" is not in tokenizer.json [E-TOK-016]`},
		{"decoder's id", `{"added_tokens_decoder": {"x": {"content": "<|end|>"}}}`, `line 1, column 32: added token "<|end|>" with id "x" is not in tokenizer.json [E-TOK-016]`},
		{"unknown token", `{"eos_token": "<eos>"}`, `line 1, column 15: token "<eos>" is not in the vocabulary [E-TOK-012]`},
		{"token a number", `{"eos_token": 7}`, "line 1, column 15: expected a string, found 7 [E-JSON-007]"},
		{"template a number", `{"chat_template": 7}`, "line 1, column 19: expected a string, found 7 [E-JSON-007]"},
		{"not an object", `7`, "line 1, column 1: expected an object, found 7 [E-JSON-007]"},
		{"not JSON", `{`, "line 1, column 2: expected a key, found end of text [E-JSON-001]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tok, err := Parse("dir/tokenizer.json", small(), c.config)
			o, outlineErr := parseOutline("dir/tokenizer.json", small(), c.config)
			if err != nil {
				if outlineErr == nil || outlineErr.Error() != err.Error() {
					t.Errorf("outline: %v", outlineErr)
				}
				contracttest.Cases(t, 1)
				path := filepath.FromSlash("dir/tokenizer_config.json: ")
				if err.Error() != path+c.want || fault.KindOf(err) != fault.Format {
					t.Errorf("got  %s (%v)\nwant %s", strings.TrimPrefix(err.Error(), path), fault.KindOf(err), c.want)
				}
				return
			}
			checkOutline(t, o, outlineErr, tok)
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

// Every prefix is refused, and no changed byte makes a panic.
func TestEveryPrefixAndFlip(t *testing.T) {
	text := small()
	i, j := strings.Index(text, `"vocab": {`)+120, strings.Index(text, `"ab": 256`) // between them 240 tokens all alike
	first, alike, last := text[:i], text[i:j], text[j:]
	accepted := 0
	contracttest.Cases(t, hostile.EachDamage(t, []byte(first+last), func(name string, b []byte) {
		if len(b) > i {
			b = slices.Concat(b[:i], []byte(alike), b[i:])
		}
		tok, err := Parse("x", string(b), "")
		if o, outlineErr := parseOutline("x", string(b), ""); err == nil {
			checkOutline(t, o, outlineErr, tok)
		} else if outlineErr != nil && fault.KindOf(outlineErr) != fault.Format {
			t.Errorf("%s: outline: %v", name, outlineErr)
		}
		switch {
		case err != nil && fault.KindOf(err) != fault.Format:
			t.Errorf("%s: no fault of kind Format: %v", name, err)
		case err == nil && len(b) < len(text):
			t.Errorf("%s: accepted", name)
		case err == nil:
			accepted++
		}
	}))
	if accepted == 0 {
		t.Error("no change was accepted, though an added token may have any text")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(small(), `{"eos_token": "<|end|>"}`)
	f.Add(`{"model": {"vocab": {}, "merges": []}}`, ``)
	for _, text := range pieceKinds() {
		f.Add(text, `{"eos_token": "</s>"}`)
	}
	f.Fuzz(func(t *testing.T, text, config string) {
		var tok *Tokenizer
		var err error
		var o Outline
		var outlineErr error
		hostile.Bounded(t, len(text)+len(config), func() { o, outlineErr = parseOutline("x", text, config) })
		hostile.Bounded(t, len(text)+len(config), func() { tok, err = Parse("x", text, config) })
		if err == nil {
			checkOutline(t, o, outlineErr, tok)
		}
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
