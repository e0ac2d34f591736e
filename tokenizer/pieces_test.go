package tokenizer

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"apr/format/gguf"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/hostile"
	"pgregory.net/rapid"
)

// The parts of a SentencePiece tokenizer.json that the tests exchange.
const (
	prependReplace = `{"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}`
	replaceAlone   = `{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}`
	spaceSplit     = `{"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false}`
	threeDecoders  = `{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}`
	stripDecoder   = `, {"type": "Strip", "content": " ", "start": 1, "stop": 0}`
)

func metaspace(scheme string) string {
	return `{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "` + scheme + `", "split": false}`
}

// pieceWords are the tokens of smallPieces behind its special tokens and the 256 bytes, and its merges.
var (
	pieceWords  = []string{"▁", "a", "b", "c", "é", "\n", "▁▁", "▁a", "ab", "▁ab", "bc", "abc", "ca", "▁▁▁", "\n\n"}
	pieceMerges = []string{"▁ ▁", "▁▁ ▁", "\n \n", "▁ a", "a b", "▁a b", "b c", "ab c", "c a"}
)

// smallPieces is a tokenizer.json of SentencePiece-BPE whose special tokens are <unk>, <s>, </s> and [INST], followed by
// the bytes and by pieceWords, of which ▁▁▁ and two line breaks are added tokens. Some bytes may be left out.
func smallPieces(normalizer, pre, decoders string, bytes func(int) bool) string {
	var vocab []string
	ids := map[string]int{}
	add := func(text string) {
		ids[text] = len(vocab)
		vocab = append(vocab, fmt.Sprintf("%s: %d", quote(text), len(vocab)))
	}
	for _, text := range []string{"<unk>", "<s>", "</s>", "[INST]"} {
		add(text)
	}
	for b := range 256 {
		if bytes == nil || bytes(b) {
			add(byteToken(b))
		}
	}
	for _, text := range pieceWords {
		add(text)
	}
	var added, merges []string
	for i, text := range []string{"<unk>", "<s>", "</s>", "[INST]", "▁▁▁", "\n\n"} {
		added = append(added, fmt.Sprintf(`{"id": %d, "content": %s, "single_word": false, "lstrip": false, "rstrip": %t, "normalized": false, "special": %t}`,
			ids[text], quote(text), text == "[INST]", i < 4))
	}
	for _, m := range pieceMerges {
		left, right, _ := strings.Cut(m, " ")
		merges = append(merges, fmt.Sprintf("[%s, %s]", quote(left), quote(right)))
	}
	return `{"version": "1.0", "truncation": null, "padding": null,
"added_tokens": [` + strings.Join(added, ",\n") + `],
"normalizer": ` + normalizer + `,
"pre_tokenizer": ` + pre + `,
"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, ` + text0 + `], "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
"decoder": {"type": "Sequence", "decoders": [` + decoders + `]},
"model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
"vocab": {` + strings.Join(vocab, ", ") + `},
"merges": [` + strings.Join(merges, ", ") + `]}}`
}

// pieceKinds are the ways in which SentencePiece files differ.
func pieceKinds() map[string]string {
	strip := threeDecoders + stripDecoder
	return map[string]string{
		"gemma":   smallPieces(replaceAlone, spaceSplit, threeDecoders, nil),
		"mistral": smallPieces(prependReplace, "null", strip, nil),
		"first":   smallPieces("null", metaspace("first"), strip, nil),
		"always":  smallPieces("null", metaspace("always"), strip, nil),
		"never":   smallPieces("null", metaspace("never"), threeDecoders, nil),
		"unknown": smallPieces(prependReplace, "null", strip, func(b int) bool { return b < 0x80 || b >= 0xA0 && b < 0xD0 }),
		"apart":   strings.Replace(smallPieces(replaceAlone, spaceSplit, threeDecoders, func(b int) bool { return b != 'x' }), `"fuse_unk": true`, `"fuse_unk": false`, 1),
	}
}

func pieceTokenizer(t testing.TB, kind string) *Tokenizer {
	t.Helper()
	tok, err := Parse(kind, pieceKinds()[kind], `{"eos_token": "</s>"}`)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// names writes ids as the texts of their tokens with | between.
func names(tok *Tokenizer, ids []int32) string {
	var list []string
	for _, id := range ids {
		list = append(list, tok.tokens[id].text)
	}
	return strings.Join(list, "|")
}

func TestPieces(t *testing.T) {
	for _, c := range []struct{ kind, text, want, decoded string }{
		{"gemma", "", "", ""},
		{"gemma", "ab c", "ab|▁|c", "ab c"},
		{"gemma", " ab", "▁ab", " ab"},
		{"gemma", "   a    b", "▁▁▁|a|▁▁|▁▁|b", "   a    b"},
		{"gemma", "a\n\nb\n", "a|\n\n|b|\n", "a\n\nb\n"},
		{"gemma", "▁▁▁a", "▁▁▁|a", "   a"},
		{"gemma", "éx好", "é|<0x78>|<0xE5>|<0xA5>|<0xBD>", "éx好"},
		{"gemma", "<s>a[INST]  b</s>", "<s>|a|[INST]|b|</s>", "<s>a[INST]b</s>"},
		{"gemma", "<0x41>", "<0x3C>|<0x30>|<0x78>|<0x34>|<0x31>|<0x3E>", "<0x41>"},
		{"gemma", "\xff", "<0xFF>", "\ufffd"},
		{"mistral", "", "", ""},
		{"mistral", "abc", "▁ab|c", "abc"},
		{"mistral", " abc", "▁▁|abc", " abc"},
		{"mistral", "<s>a", "<s>|▁a", "<s> a"},
		{"mistral", "a</s>b", "▁a|</s>|▁|b", "a</s> b"},
		{"mistral", "[INST] a", "[INST]|▁a", "[INST] a"},
		{"first", "abc", "▁ab|c", "abc"},
		{"first", " abc", "▁ab|c", "abc"},
		{"first", "a</s>b", "▁a|</s>|b", "a</s>b"},
		{"first", "<s>a", "<s>|a", "<s>a"},
		{"always", "a</s>b", "▁a|</s>|▁|b", "a</s> b"},
		{"always", "a</s> b", "▁a|</s>|▁|b", "a</s> b"},
		{"never", " a b", "▁a|▁|b", " a b"},
		{"unknown", "好好a", "▁|<unk>|a", "<unk>a"},
		{"unknown", "好x好a", "▁|<0x78>|<unk>|a", "x<unk>a"}, // as in Hugging Face's library: the unknown token waits for a token
		{"unknown", "好ô", "▁|<0xC3>|<0xB4>|<unk>", "ô<unk>"},
		{"apart", "xxa x", "<unk>|<unk>|a|▁|<unk>", "<unk><unk>a <unk>"},
	} {
		tok := pieceTokenizer(t, c.kind)
		ids := tok.Encode(c.text, Recognise)
		if got := names(tok, ids); got != c.want {
			t.Errorf("%s: %q is %s, want %s", c.kind, c.text, got, c.want)
		}
		checkText(t, tok, ids, c.decoded)
	}
}

func TestPiecesStored(t *testing.T) {
	for kind, text := range pieceKinds() {
		t.Run(kind, func(t *testing.T) {
			tok, err := Parse(kind, text, `{"eos_token": "</s>", "add_eos_token": true}`)
			if err != nil {
				t.Fatal(err)
			}
			o, err := parseOutline(kind, text, `{"eos_token": "</s>", "add_eos_token": true}`)
			checkOutline(t, o, err, tok)
			if !tok.AddBOS() || tok.BOS() != 1 || !tok.AddEOS() || tok.EOS() != 2 {
				t.Errorf("begin %d %t, end %d %t", tok.BOS(), tok.AddBOS(), tok.EOS(), tok.AddEOS())
			}
			ways := storedWays(t, tok)
			rapid.Check(t, func(r *rapid.T) {
				s := pieceText().Draw(r, "text")
				want := tok.Encode(s, Recognise)
				text, err := tok.Decode(want)
				for name, back := range ways {
					got := back.Encode(s, Recognise)
					again, err2 := back.Decode(got)
					if !slices.Equal(got, want) || err != nil || err2 != nil || text != again {
						r.Fatalf("%s: %q becomes %v, want %v; %q, want %q", name, s, got, want, again, text)
					}
				}
			})
		})
	}
}

// pieceText draws texts of the few characters that smallPieces knows, and of others.
func pieceText() *rapid.Generator[string] {
	part := rapid.SampledFrom([]string{"a", "b", "c", "abc", "ca", " ", "  ", "   ", "\n", "\n\n", "é", "▁", "x", "好", "\u00a1", "<s>", "</s>", "[INST]", "[INST", "▁▁▁", "\xff"})
	words := rapid.Map(rapid.SliceOfN(part, 0, 40), func(p []string) string { return strings.Join(p, "") })
	return rapid.OneOf(words, anyText(), rapid.Map(words, func(s string) string { return strings.Repeat(s, 8) }))
}

// slowPieces encodes a text without added tokens by the definition: symbols, then the leftmost pair of the lowest rank.
func slowPieces(tok *Tokenizer, s string, first bool) []int32 {
	p := tok.pieces
	s = p.pretokenise(p.normaliseAny(s), first)
	vocab := map[string]int32{}
	for id, k := range tok.tokens {
		if k.kind == Normal || k.kind == UserDefined {
			vocab[k.text] = int32(id)
		}
	}
	var ids []int32
	waits := false
	for s != "" {
		_, n := utf8.DecodeRuneInString(s)
		char := s[:n]
		s = s[n:]
		if id, ok := vocab[char]; ok {
			if waits {
				ids = append(ids, p.unk)
			}
			waits = false
			ids = append(ids, id)
			continue
		}
		if tok.hasBytes(char) {
			for _, b := range []byte(char) {
				ids = append(ids, tok.byteID[b])
			}
			continue
		}
		if waits && !p.fuseUnk {
			ids = append(ids, p.unk)
		}
		waits = true
	}
	if waits {
		ids = append(ids, p.unk)
	}
	return slowRules(tok, ids)
}

func (p *pieceRules) normaliseAny(s string) string {
	if p.normalises() {
		return p.normalise(s)
	}
	return s
}

func TestPiecesSlow(t *testing.T) {
	for kind := range pieceKinds() {
		tok := pieceTokenizer(t, kind)
		rapid.Check(t, func(r *rapid.T) {
			s := pieceText().Draw(r, "text")
			var want []int32
			from := 0
			for i := 0; i < len(s); { // PlainText finds ▁▁▁ and two line breaks
				start, end, id := tok.raw[PlainText].find(s, i)
				if start > from {
					want = append(want, slowPieces(tok, s[from:start], from == 0)...)
				}
				if id != None {
					want = append(want, id)
				}
				i, from = end, end
			}
			if got := tok.Encode(s, PlainText); !slices.Equal(got, want) {
				r.Fatalf("%s: %q becomes %s, want %s", kind, s, names(tok, got), names(tok, want))
			}
		})
	}
}

// decode(encode(x)) is x for files with all bytes, by the rules of each: ▁ comes back as a space, and a space at the begin
// is dropped where one is put there if there is none.
func TestPiecesRoundTrip(t *testing.T) {
	for kind, back := range map[string]func(string) string{
		"gemma":   func(s string) string { return s },
		"never":   func(s string) string { return s },
		"mistral": func(s string) string { return s },
		"first":   func(s string) string { return strings.TrimPrefix(s, " ") },
	} {
		tok := pieceTokenizer(t, kind)
		rapid.Check(t, func(r *rapid.T) {
			s := strings.ToValidUTF8(pieceText().Draw(r, "text"), "?")
			if kind == "mistral" || kind == "first" { // added tokens part the text, and each part begins anew
				s = strings.NewReplacer("▁", "", "\n", "").Replace(s)
			}
			ids := tok.Encode(s, PlainText)
			got, err := tok.Decode(ids)
			if want := back(strings.ReplaceAll(s, "▁", " ")); err != nil || got != want {
				r.Fatalf("%s: %q comes back as %q, %v; want %q", kind, s, got, err, want)
			}
			for _, id := range ids {
				if tok.Kind(id) == Control {
					r.Fatalf("%s: %q has the special token %d in plain text", kind, s, id)
				}
			}
		})
	}
}

func TestPiecesStreamIsDecode(t *testing.T) {
	for kind := range pieceKinds() {
		tok := pieceTokenizer(t, kind)
		top := int32(tok.RealIDs() - 1)
		rapid.Check(t, func(r *rapid.T) {
			ids := rapid.SliceOf(rapid.OneOf(rapid.Int32Range(0, top), rapid.Int32Range(top-16, top), rapid.SampledFrom([]int32{tok.byteID[0xC3], tok.byteID[0xA9], tok.byteID['a']}))).Draw(r, "ids")
			want, err := tok.Decode(ids)
			if err != nil || !utf8.ValidString(want) {
				r.Fatalf("%q, %v", want, err)
			}
			var b strings.Builder
			s := tok.NewStream()
			for _, id := range ids {
				piece, err := s.Push(id)
				if err != nil {
					r.Fatal(err)
				}
				b.WriteString(piece)
			}
			if b.WriteString(s.Flush()); b.String() != want {
				r.Fatalf("stream %q, Decode %q", b.String(), want)
			}
		})
	}
}

// Byte tokens in a row are text only if all of them are.
func TestPiecesDecodeBytes(t *testing.T) {
	tok := pieceTokenizer(t, "gemma")
	id := func(b int32) int32 { return 4 + b }
	checkText(t, tok, []int32{id(0xC3), id(0xA9), id('x')}, "éx")
	checkText(t, tok, []int32{id(0xC3), id(0xA9), id(0xC3)}, "\ufffd\ufffd\ufffd")
	checkText(t, tok, []int32{id(0xC3), 1, id(0xA9)}, "\ufffd<s>\ufffd")
	if _, err := tok.Decode([]int32{1, 5000}); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "position 1") {
		t.Errorf("an id without text: %v", err)
	}
}

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
			switch {
			case c.name == "two begin tokens":
				c.want = "post_processor adds token 2, but bos_token is token 1"
			case c.name == "bytes missing":
				if err != nil {
					t.Errorf("all bytes are there, and no unknown token is needed: %v", err)
				}
				return
			case c.name == "bytes and unknown token missing":
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

// A GGUF file of llama.cpp's converter has scores in place of merges; the highest goes first, and the leftmost of equals.
func TestScores(t *testing.T) {
	d := Data{Model: "llama", BOS: 1, EOS: 2, Pad: None}
	add := func(text string, kind Kind, score float32) {
		d.Vocabulary, d.TokenType, d.Scores = append(d.Vocabulary, text), append(d.TokenType, int(kind)), append(d.Scores, score)
	}
	add("<unk>", Unknown, 0)
	add("<s>", Control, 0)
	add("</s>", Control, 0)
	for b := range 256 {
		add(byteToken(b), Byte, 0)
	}
	for i, text := range []string{"ab", "bc", "▁a", "abc", "</", "s>"} {
		add(text, Normal, -float32(i))
	}
	for i, text := range []string{"▁", "a", "b", "c", "<", "/", "s", ">"} {
		add(text, Normal, -100-float32(i))
	}
	add("[X]", UserDefined, -1000)
	keys := []gguf.KV{{Key: "tokenizer.ggml.model", Value: "llama"}, {Key: "tokenizer.ggml.tokens", Value: d.Vocabulary}, {Key: "tokenizer.ggml.scores", Value: d.Scores}}
	kinds := make([]int32, len(d.TokenType))
	for i, k := range d.TokenType {
		kinds[i] = int32(k)
	}
	keys = append(keys, gguf.KV{Key: "tokenizer.ggml.token_type", Value: kinds}, gguf.KV{Key: "tokenizer.ggml.bos_token_id", Value: uint32(1)},
		gguf.KV{Key: "tokenizer.ggml.eos_token_id", Value: uint32(2)}, gguf.KV{Key: "tokenizer.ggml.eot_token_id", Value: uint32(len(kinds) - 1)},
		gguf.KV{Key: "tokenizer.ggml.unknown_token_id", Value: uint32(0)}, gguf.KV{Key: "tokenizer.ggml.add_bos_token", Value: true})
	tok := openGGUF(t, keys)
	for text, want := range map[string]string{
		"abc": "▁|abc", "bcab": "▁|bc|ab", "aab": "▁a|ab", "xa": "▁|<0x78>|a", "a[X]b": "▁a|[X]|▁|b", "</s>": "</s>", "ababc": "▁|ab|abc",
	} {
		if got := names(tok, tok.Encode(text, Recognise)); got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	}
	if got := names(tok, tok.Encode("</s>", PlainText)); got != "▁|</|s>" {
		t.Errorf("a special token in plain text is %s", got)
	}
	if !tok.AddBOS() || tok.BOS() != 1 || !slices.Equal(tok.Ends(), []int32{int32(len(kinds) - 1)}) {
		t.Errorf("begin %d %t, ends %v", tok.BOS(), tok.AddBOS(), tok.Ends())
	}
	if got := names(openGGUF(t, append(slices.Clone(keys), gguf.KV{Key: "tokenizer.ggml.add_space_prefix", Value: false})), tok.Encode("abc", Recognise)); got != "▁|abc" {
		t.Errorf("names: %s", got)
	}
	bare := openGGUF(t, append(slices.Clone(keys), gguf.KV{Key: "tokenizer.ggml.add_space_prefix", Value: false}))
	if got := names(bare, bare.Encode("abc", Recognise)); got != "abc" {
		t.Errorf("without prefix: %s", got)
	}
	storedWays(t, tok)
	scoresAlone(t, tok)
}

func TestSettingsRefused(t *testing.T) {
	flat := pieceTokenizer(t, "mistral").Data()
	for _, c := range []struct {
		d    Data
		add  string
		want string
	}{
		{flat, "dropout=0.1", `unknown setting "dropout"`},
		{flat, "nfc=true", `unknown setting "nfc"`},
		{flat, "strip=1", `strip: "1" is not possible`},
		{flat, "prefix=each", `"prefix" is given twice`},
		{flat, "ends=1,x", `ends: "1,x" is not possible`},
		{flat, "lstrip=5", `lstrip: "5" is not possible`},
		{flat, "ends=99999", `ends: "99999" is not possible`},
		{smallTokenizer(t).Data(), "prefix=each", `unknown setting "prefix"`},
		{smallTokenizer(t).Data(), "unknown=1", `unknown setting "unknown"`},
		{smallTokenizer(t).Data(), "ignore_merges=", `ignore_merges: "" is not possible`},
		{smallTokenizer(t).Data(), "userdefined=259", `userdefined: "259" is not possible`},
	} {
		d := c.d
		d.Settings = append(slices.Clone(d.Settings), c.add)
		if _, err := FromData("m.apr", d); fault.KindOf(err) != fault.Format || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.add, err, c.want)
		}
	}
}
