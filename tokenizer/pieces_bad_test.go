package tokenizer

import (
	"slices"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/hostile"
)

// Whole texts are one word: the work is in proportion to their length, times a logarithm.
func TestPiecesWorstCases(t *testing.T) {
	tok := pieceTokenizer(t, "gemma")
	for name, text := range map[string]string{
		"1 MB of spaces": strings.Repeat(" ", 1<<20), "1 MB of one word": strings.Repeat("abc", 1<<20/3), "1 MB of words": strings.Repeat("abc a ", 1<<20/6),
		"1 MB of line breaks": strings.Repeat("\n", 1<<20), "unknown": strings.Repeat("好", 1<<18), "beginnings": strings.Repeat("[INST", 1<<17),
		"tokens that take blanks": strings.Repeat("[INST] ", 1<<16), "blanks": "[INST]" + strings.Repeat(" ", 1<<20),
	} {
		e := tok.NewEncoder()
		e.Append(nil, text, PlainText)
		e.Append(nil, text, Recognise)
		if limit := 256 * len(text); e.m.work > limit {
			t.Errorf("%s: %d steps for %d bytes, limit %d", name, e.m.work, len(text), limit)
		}
		if cap(e.m.long.ids) > 1<<16 || cap(e.pieces) > 1<<16 {
			t.Errorf("%s: keeps scratch of %d and %d symbols", name, cap(e.m.long.ids), cap(e.pieces))
		}
	}
}

func TestParsePiecesRefuses(t *testing.T) {
	text := pieceKinds()["mistral"]
	for _, c := range []struct{ name, old, new, want string }{
		{"normalizer", prependReplace, `{"type": "Lowercase"}`, `normalizer "Lowercase" is not supported here`},
		{"NFKC before", `"normalizers": [`, `"normalizers": [{"type": "NFKC"}, `, `normalizer "NFKC" is not supported here`},
		{"replace twice", prependReplace, `{"type": "Sequence", "normalizers": [` + replaceAlone + `, ` + replaceAlone + `]}`, `normalizer "Replace" is not supported here`},
		{"prepend of another", `"prepend": "▁"`, `"prepend": "_"`, `normalizer Prepend of "_" is not supported`},
		{"prepend alone", prependReplace, `{"type": "Prepend", "prepend": "▁"}`, "normalizer Prepend without Replace is not supported"},
		{"replace by a pattern", `{"String": " "}, "content": "▁"}]`, `{"Regex": " "}, "content": "▁"}]`, `unknown key "Regex"`},
		{"replace of another", `{"String": " "}, "content": "▁"}]`, `{"String": "x"}, "content": "▁"}]`, `Replace of "x" by "▁" is not supported`},
		{"nothing replaces spaces", prependReplace, `null`, "0 pre-tokenizers; Metaspace is supported"},
		{"metaspace after replace", `"pre_tokenizer": null`, `"pre_tokenizer": ` + metaspace("first"), `pre-tokenizer "Metaspace" is not supported here`},
		{"split by a pattern", `"pre_tokenizer": null`, `"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": false}`, `unknown key "Regex"`},
		{"split at a letter", `"pre_tokenizer": null`, `"pre_tokenizer": {"type": "Split", "pattern": {"String": "a"}, "behavior": "Isolated", "invert": false}`, `Split at "a" with behavior "Isolated", invert false is not supported`},
		{"split removes", `"pre_tokenizer": null`, `"pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": false}`, `Split at " " with behavior "Removed", invert false is not supported`},
		{"decoder", threeDecoders + stripDecoder, `{"type": "ByteFallback"}`, "decoder [\"ByteFallback\" \"\" \"\" \"\"] is not supported"},
		{"decoder metaspace", `{"type": "Sequence", "decoders": [` + threeDecoders + stripDecoder + `]}`, `{"type": "Metaspace"}`, `decoder ["Metaspace" "" "" ""] is not supported`},
		{"decoder missing", `{"type": "Sequence", "decoders": [` + threeDecoders + stripDecoder + `]}`, `null`, `decoder ["" "" "" ""] is not supported`},
		{"strip of two", `"start": 1`, `"start": 2`, `Strip of " ", start 2, stop 0 is not supported`},
		{"decoder's replace", `"String": "▁"`, `"String": "_"`, `Replace of "_" by " " is not supported; "▁" by " " is`},
		{"ignore_merges", `"ignore_merges": false`, `"ignore_merges": true`, "BPE with byte_fallback and ignore_merges is not supported"},
		{"unknown token", `"unk_token": "<unk>"`, `"unk_token": "<UNK>"`, `unknown token "<UNK>" is not in the vocabulary`},
		{"bytes missing", `"unk_token": "<unk>", `, ``, ""},
		{"bytes and unknown token missing", `"<0xE2>": 230, `, ``, ""},
		{"merge of a byte", `["b", "c"]`, `["<0x41>", "c"]`, `the left part is not in the vocabulary`},
		{"merge of an unknown part", `["b", "c"]`, `["b", "d"]`, `the right part is not in the vocabulary`},
		{"two begin tokens", `"ids": [1]`, `"ids": [2]`, ""},
		{"single_word", `"single_word": false`, `"single_word": true`, `added token "<unk>" with single_word is not supported`},
	} {
		t.Run(c.name, func(t *testing.T) {
			changed := strings.Replace(text, c.old, c.new, 1)
			if changed == text {
				t.Fatalf("%q is not in the file", c.old)
			}
			contracttest.Cases(t, 1)
			_, err := Parse("f", changed, `{"bos_token": "<s>"}`)
			switch c.name {
			case "two begin tokens":
				c.want = "post_processor adds token 2, but bos_token is token 1"
			case "bytes missing":
				if err != nil {
					t.Errorf("all bytes are there, and no unknown token is needed: %v", err)
				}
				return
			case "bytes and unknown token missing":
				if err != nil {
					t.Errorf("characters without bytes are unknown: %v", err)
				}
				changed = strings.Replace(changed, `"unk_token": "<unk>"`, `"unk_token": null`, 1)
				_, err = Parse("f", changed, "")
				c.want = "1 of the tokens <0x00> to <0xFF> are missing, and there is no unknown token"
			}
			if err == nil || !strings.Contains(err.Error(), c.want) || fault.KindOf(err) != fault.Format {
				t.Errorf("got  %v (%v)\nwant %s", err, fault.KindOf(err), c.want)
			}
		})
	}
}

func TestMetaspaceRefuses(t *testing.T) {
	text := pieceKinds()["first"]
	for old, want := range map[string]string{
		`"split": false`:            "Metaspace with split is not supported",
		`"replacement": "▁"`:        `Metaspace with replacement "_", prepend_scheme "first" is not supported`,
		`"prepend_scheme": "first"`: `Metaspace with replacement "▁", prepend_scheme "last" is not supported`,
	} {
		changed := map[string]string{`"split": false`: `"split": true`, `"replacement": "▁"`: `"replacement": "_"`, `"prepend_scheme": "first"`: `"prepend_scheme": "last"`}[old]
		if _, err := Parse("f", strings.Replace(text, old, changed, 1), ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", changed, err, want)
		}
	}
	older := strings.Replace(text, `"prepend_scheme": "first"`, `"str_rep": "▁", "add_prefix_space": true`, 1)
	tok, err := Parse("f", older, "")
	if err != nil || tok.pieces.prefix != prefixAlways {
		t.Errorf("without a scheme: %v", err)
	}
}

// Every prefix is refused, and no changed byte makes a panic.
func TestPiecesDamage(t *testing.T) {
	text := pieceKinds()["first"]
	i, j := strings.Index(text, `"<0x10>"`), strings.Index(text, `"<0xF0>"`) // between them tokens all alike
	first, alike, last := text[:i], text[i:j], text[j:]
	accepted := 0
	contracttest.Cases(t, hostile.EachDamage(t, []byte(first+last), func(name string, b []byte) {
		if len(b) > i {
			b = slices.Concat(b[:i], []byte(alike), b[i:])
		}
		tok, err := Parse("x", string(b), "")
		if o, outlineErr := parseOutline("x", string(b), ""); err == nil {
			checkOutline(t, o, outlineErr, tok)
		}
		switch {
		case err != nil && fault.KindOf(err) != fault.Format:
			t.Errorf("%s: no fault of kind Format: %v", name, err)
		case err == nil && len(b) < len(text):
			t.Errorf("%s: accepted", name)
		case err == nil:
			accepted++
			storedAgain(t, name, tok)
		}
	}))
	if accepted == 0 {
		t.Error("no change was accepted, though an added token may have any text")
	}
}

// storedAgain checks that what was accepted can be stored.
func storedAgain(t *testing.T, name string, tok *Tokenizer) {
	flat, err := FromData("x", tok.Data())
	if err != nil {
		t.Errorf("%s: flat: %v", name, err)
		return
	}
	file, err := Parse("x", string(tok.MarshalTokenizer()), string(tok.MarshalConfig(0)))
	if err != nil {
		t.Errorf("%s: file: %v", name, err)
		return
	}
	if d := Compare(tok, flat); d != nil {
		t.Errorf("%s: flat: %v", name, d)
	}
	if d := Compare(tok, file); d != nil {
		t.Errorf("%s: file: %v", name, d)
	}
}
