package tokenizer

import (
	"slices"
	"strings"
	"testing"

	"apr/format/gguf"
	"apr/internal/fault"
	"pgregory.net/rapid"
)

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
	bare := openGGUF(t, append(slices.Clone(keys), gguf.KV{Key: "tokenizer.ggml.add_space_prefix", Value: false}))
	if got := names(bare, bare.Encode("abc", Recognise)); got != "abc" {
		t.Errorf("without prefix: %s", got)
	}
	named := openGGUF(t, append(slices.Clone(keys), gguf.KV{Key: "general.name", Value: "Phi-3 mini"}))
	if got := names(named, named.Encode("<s> a</s>  a[X] a", Recognise)); got != "<s>|▁|▁a|</s>|▁a|[X]|▁a" {
		t.Errorf("Phi-3: %s", got)
	}
	storedWays(t, named)
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

// Merges that no scores stand for are stored as they are.
func TestMergesWithoutScores(t *testing.T) {
	tok := pieceTokenizer(t, "mistral")
	if d := tok.Data(); d.Model != "gemma4" || d.Scores != nil {
		t.Errorf("%s, %v", d.Model, d.Scores)
	}
	d := tok.Data()
	d.Model, d.Merges, d.Scores = "llama", nil, make([]float32, len(d.Vocabulary))
	for id, text := range d.Vocabulary {
		d.Scores[id] = -float32(id)
		if text == "ca" {
			d.Vocabulary[id] = strings.Repeat("c", maxScored+1)
		}
	}
	if _, err := FromData("m.apr", d); err == nil || !strings.Contains(err.Error(), "has 1025 bytes; with scores at most 1024 are possible") {
		t.Errorf("a long token: %v", err)
	}
}

// Every way to put a token together is a merge, in the order of the scores; and the merges give scores of this order back.
func TestScoresOfMerges(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		words := rapid.SliceOfNDistinct(rapid.StringOfN(rapid.RuneFrom([]rune("ab▁é")), 2, 5, -1), 1, 12, rapid.ID).Draw(r, "words")
		d := Data{Model: "llama", BOS: None, EOS: None, Pad: None, Settings: []string{"prefix=none"}}
		for b := range 256 {
			d.Vocabulary, d.Scores = append(d.Vocabulary, byteToken(b)), append(d.Scores, 0)
		}
		for i, text := range append([]string{"a", "b", "▁", "é"}, words...) {
			d.Vocabulary, d.Scores = append(d.Vocabulary, text), append(d.Scores, -float32(i))
		}
		tok, err := FromData("x", d)
		if err != nil {
			r.Fatal(err)
		}
		back, err := Parse("x", string(tok.MarshalTokenizer()), "")
		if err != nil {
			r.Fatal(err)
		}
		again := back.Data()
		if again.Model != "llama" {
			r.Fatal("no scores stand for the merges")
		}
		again.Merges = nil
		scored, err := FromData("x", again)
		if err != nil {
			r.Fatal(err)
		}
		if diff := Compare(tok, scored); diff != nil || tok.IDsSHA256() != scored.IDsSHA256() {
			r.Fatal(diff)
		}
	})
}

func TestComparePieces(t *testing.T) {
	mistral, first := pieceTokenizer(t, "mistral"), pieceTokenizer(t, "first")
	if d := Compare(mistral, first); d != nil || mistral.IDsSHA256() != first.IDsSHA256() {
		t.Errorf("the way of a prefix: %v", d)
	}
	if d := Compare(mistral, pieceTokenizer(t, "never")); d == nil || d.String() != `setting 2 is "prefix=true" and "prefix=false"` {
		t.Errorf("a prefix: %v", d)
	}
	d := mistral.Data()
	d.Merges[3], d.Merges[4] = d.Merges[4], d.Merges[3]
	other, err := FromData("x", d)
	if err != nil {
		t.Fatal(err)
	}
	if d := Compare(mistral, other); d == nil || mistral.IDsSHA256() == other.IDsSHA256() || d.What != "merge" || d.At != 3 {
		t.Errorf("merges: %v", d)
	}
}
