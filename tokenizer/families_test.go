package tokenizer

import (
	"slices"
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"
)

// family is smallTokenizer with another pattern and settings; the token "abcab" is reached by no merge.
func family(t testing.TB, pre string, settings ...string) *Tokenizer {
	t.Helper()
	d := smallTokenizer(t).Data()
	d.PreType, d.Settings = pre, settings
	d.Vocabulary, d.TokenType = append(d.Vocabulary, "abcab", "123", "ĠĠ"), append(d.TokenType, int(Normal), int(Normal), int(Normal))
	tok, err := FromData(pre, d)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestIgnoreMerges(t *testing.T) {
	for _, c := range []struct{ pre, text, want string }{
		{"llama-bpe", "abcab", "abcab"},
		{"llama-bpe", "abcab abcab", "abcab|Ġ|abc|ab"},
		{"llama-bpe", "123456", "123|4|5|6"},
		{"llama-bpe", "   a", "ĠĠ|Ġa"},
		{"dbrx", "abcab", "abc|ab"},
		{"dbrx", "123", "1|2|3"},
		{"tekken", "abcab", "abcab"},
		{"tekken", "123", "1|2|3"},
		{"gpt-4o", "abcab", "abc|ab"},
	} {
		tok := family(t, c.pre)
		if got := names(tok, tok.Encode(c.text, Recognise)); got != c.want {
			t.Errorf("%s: %q is %s, want %s", c.pre, c.text, got, c.want)
		}
	}
}

// White space beside a token that takes it is gone; no other is.
func TestStrippingTokens(t *testing.T) {
	left, right := family(t, "dbrx", "lstrip=259"), family(t, "dbrx", "rstrip=259", "lstrip=260")
	for _, c := range []struct {
		tok        *Tokenizer
		text, want string
	}{
		{left, "a \n<|end|> b", "a|<|end|>|Ġ|b"},
		{left, " <|end|>", "<|end|>"},
		{left, "<|end|>\u00a0<|end|>", "<|end|>|<|end|>"},
		{left, "<|end|", "<|||e|n|d||"},
		{right, "b <|end|> \u3000\tc", "b|Ġ|<|end|>|c"},
		{right, "<|end|>  <|end|>", "<|end|>|<|end|>"},
		{right, "<|end|>  <tool> b", "<|end|>|<tool>|Ġ|b"},
		{right, "c  <tool>", "c|<tool>"},
	} {
		if got := names(c.tok, c.tok.Encode(c.text, Recognise)); got != c.want {
			t.Errorf("%q is %s, want %s", c.text, got, c.want)
		}
	}
	if got := names(left, left.Encode("a <|end|>", PlainText)); got != "a|Ġ|<|||e|n|d|||>" {
		t.Errorf("plain text: %s", got)
	}
}

// Tokens made of white space that take the white space behind them: the work is in proportion to the text.
func TestStrippingBlanks(t *testing.T) {
	d := smallTokenizer(t).Data()
	d.Vocabulary, d.TokenType, d.Settings = append(d.Vocabulary, " "), append(d.TokenType, int(UserDefined)), []string{"rstrip=261"}
	tok, err := FromData("x", d)
	if err != nil {
		t.Fatal(err)
	}
	n := 1 << 20
	if got := len(tok.Encode(strings.Repeat(" ", n), PlainText)); got != n {
		t.Errorf("%d tokens of %d blanks", got, n)
	}
}

// Every pattern, with and without NFC and ignore_merges: ids are those of the definition, and the bytes come back.
func TestFamiliesSlow(t *testing.T) {
	texts := rapid.OneOf(anyText(), rapid.StringOf(rapid.RuneFrom([]rune("abcABC 12\n'/sſé你\u0301\u0e31"))), rapid.StringOfN(rapid.RuneFrom([]rune("abc ")), 100, 300, -1))
	for _, pre := range patternNames() {
		for _, settings := range [][]string{nil, {"nfc=true", "ignore_merges=true"}, {"nfc=false", "ignore_merges=false"}} {
			tok := family(t, pre, settings...)
			rapid.Check(t, func(r *rapid.T) {
				s := strings.ReplaceAll(texts.Draw(r, "text"), "<", "")
				var want []int32
				normal := s
				if tok.nfc {
					normal = NFC(s)
				}
				for _, word := range cut(tok.pattern, normal) {
					if id, ok := tok.whole[word]; ok {
						want = append(want, id)
					} else {
						want = append(want, slowMerge(tok, word)...)
					}
				}
				got := tok.Encode(s, PlainText)
				back, err := tok.AppendBytes(nil, got)
				if !slices.Equal(got, want) || err != nil || string(back) != normal {
					r.Fatalf("%s %v: %q becomes %s, want %s; back %q, %v", pre, settings, s, names(tok, got), names(tok, want), back, err)
				}
			})
		}
	}
}

// The cases of characters are those of their general categories, in the table and beyond it.
func TestCases(t *testing.T) {
	c := patternNamed("gpt-4o").classes()
	for r := range rune(unicode.MaxRune + 1) {
		if r >= 0xD800 && r < 0xE000 {
			continue
		}
		want := letterCase(0)
		if unicode.In(r, unicode.Lu, unicode.Lt, unicode.Lm, unicode.Lo, unicode.M) {
			want |= upperRun
		}
		if unicode.In(r, unicode.Ll, unicode.Lm, unicode.Lo, unicode.M) {
			want |= lowerRun
		}
		if got, n := c.caseAt(string(r), 0); got != want || n != len(string(r)) {
			t.Fatalf("%U: %d of %d bytes, want %d", r, got, n, want)
		}
	}
}

// A long run of one class before another is looked at once or twice: the scans have no way back.
func TestPatternsLinear(t *testing.T) {
	for _, pre := range []string{"gpt-4o", "tekken", "qwen35", "refact"} {
		tok := family(t, pre)
		for name, text := range map[string]string{
			"capitals": strings.Repeat("A", 1<<20), "capitals and marks": strings.Repeat("A\u0301", 1<<18), "marks": strings.Repeat("!\u0301", 1<<18),
			"title case": strings.Repeat("ǅA你A", 1<<16), "slashes": strings.Repeat("/\n", 1<<19), "contractions": strings.Repeat("A's", 1<<18), "blanks and digits": strings.Repeat("  1", 1<<18),
		} {
			if got := strings.Join(cut(tok.pattern, text), ""); got != text {
				t.Errorf("%s, %s: the text does not come back", pre, name)
			}
		}
	}
}
