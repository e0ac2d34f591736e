package tokenizer

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// pretokens.json was written by a regular expression engine (its origin says which) from the published patterns.
func TestPatterns(t *testing.T) {
	checkPretokens(t, "testdata/pretokens.json", 150, "qwen2", "llama-bpe", "gpt-2")
}

// pretokens-cased.json was written by another engine, for the patterns that look at cases and marks; see pretokens.mjs.
func TestPatternsOfCases(t *testing.T) {
	checkPretokens(t, "testdata/pretokens-cased.json", 250, "qwen2", "llama-bpe", "gpt-2", "qwen35", "gpt-4o", "tekken", "refact")
}

// checkPretokens compares what the named patterns make of the cases in a file.
func checkPretokens(t *testing.T, path string, count int, names ...string) {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []map[string]json.RawMessage
	}
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) != count {
		t.Fatalf("%d cases, want %d", len(file.Cases), count)
	}
	for _, c := range file.Cases {
		var text string
		if err := json.Unmarshal(c["text"], &text); err != nil {
			t.Fatal(err)
		}
		if len(c) != len(names)+1 {
			t.Fatalf("%q has %d members, want the text and %q", text, len(c), names)
		}
		for _, name := range names {
			var want []string
			if err := json.Unmarshal(c[name], &want); err != nil {
				t.Fatal(err)
			}
			if got := cut(patternNamed(name), text); !slices.Equal(got, want) {
				t.Errorf("%s of %q\n got %q\nwant %q", name, text, got, want)
			}
		}
	}
}

// cut returns the pre-tokens of s.
func cut(p *pattern, s string) []string {
	c := p.classes()
	var words []string
	for i := 0; i < len(s); {
		end := p.next(c, s, i, p.digits)
		if end <= i {
			return append(words, "stands still")
		}
		words = append(words, s[i:end])
		i = end
	}
	return words
}

// Pre-tokens cover the text, whatever it is.
func TestPatternsCover(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		s := anyText().Draw(r, "text")
		for i := range patterns {
			if got := strings.Join(cut(&patterns[i], s), ""); got != s {
				r.Fatalf("%s: %q becomes %q", patterns[i].name, s, got)
			}
		}
	})
}

// anyText draws strings that are hard for tokenizers: random characters, runs, contractions, marks, broken UTF-8.
func anyText() *rapid.Generator[string] {
	part := rapid.OneOf(
		rapid.String(),
		rapid.StringOf(rapid.RuneFrom([]rune(" \t\n\r'sſtSTab01.\u00a0\u0301\u0323\u1100\u1161\u11a8éÅ你😀"))),
		rapid.SampledFrom([]string{"'s", "'LL", "'\u017f", "<|im_end|>", "<|endoftext|>", "<|im_", "\r\n", "    ", "\u0338", "\xff", "\xe2\x82", "\xed\xa0\x80"}),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 8), func(b []byte) string { return string(b) }),
	)
	return rapid.Map(rapid.SliceOfN(part, 0, 8), func(parts []string) string { return strings.Join(parts, "") })
}
