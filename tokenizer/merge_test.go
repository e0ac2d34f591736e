package tokenizer

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// slowMerge is the definition: merge the leftmost pair of the lowest rank until no pair has a rule.
func slowMerge(t *Tokenizer, word string) []int32 {
	var ids []int32
	for i := range len(word) {
		ids = append(ids, t.byteID[word[i]])
	}
	return slowRules(t, ids)
}

// slowRules applies the rules to symbols.
func slowRules(t *Tokenizer, ids []int32) []int32 {
	for {
		best, at := noMerge, 0
		for i := 0; i+1 < len(ids); i++ {
			if r := t.rules.of(ids[i], ids[i+1]); r < best {
				best, at = r, i
			}
		}
		if best == noMerge {
			return ids
		}
		ids[at] = t.rules.result[best]
		ids = slices.Delete(ids, at+1, at+2)
	}
}

// longMerge is merge by the heap, whatever the length of the word.
func longMerge(m *merger, word string, byteID *[256]int32) []int32 {
	ids := m.long.symbols(len(word))
	for i := range ids {
		ids[i] = byteID[word[i]]
	}
	return m.long.run(nil, m)
}

// All three ways give the same ids: the definition, the scan for short words and the heap for long ones.
func TestMergeWays(t *testing.T) {
	tok := fixture(t)
	m := merger{rules: &tok.rules}
	rapid.Check(t, func(r *rapid.T) {
		word := rapid.OneOf(
			rapid.StringOfN(rapid.RuneFrom([]rune("aeinrst_ \t=é")), 1, 200, -1),
			rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]string{"return", "err", "    ", "ee", "==", "func", "x"}), 1, 60), func(s []string) string { return strings.Join(s, "") }),
			rapid.Map(rapid.SliceOfN(rapid.Byte(), 1, 300), func(b []byte) string { return string(b) }),
		).Draw(r, "word")
		want := slowMerge(tok, word)
		if got := m.merge(nil, word, &tok.byteID); !slices.Equal(got, want) {
			r.Fatalf("merge(%q) = %v, want %v", word, got, want)
		}
		if got := longMerge(&m, word, &tok.byteID); !slices.Equal(got, want) {
			r.Fatalf("long merge(%q) = %v, want %v", word, got, want)
		}
	})
}

// The words on both sides of the border between the two ways.
func TestMergeBorder(t *testing.T) {
	tok := fixture(t)
	m := merger{rules: &tok.rules}
	for n := longWord - 2; n <= longWord+2; n++ {
		for _, unit := range []string{"e", " ", "er", "=", "return"} {
			word := strings.Repeat(unit, n)[:n]
			if got, want := m.merge(nil, word, &tok.byteID), slowMerge(tok, word); !slices.Equal(got, want) {
				t.Errorf("%d bytes of %q: %v, want %v", n, unit, got, want)
			}
		}
	}
}

// Text made to be slow takes work in proportion to its length (times a logarithm): the count of pairs looked at and
// heap entries moved, not a clock, is the measure. A scan over all pairs for each merge would need 10⁹ and more.
func TestWorstCases(t *testing.T) {
	tok := fixture(t)
	for _, c := range []struct{ name, text string }{
		{"40,000 equal letters", strings.Repeat("e", 40_000)},
		{"1 MB of spaces", strings.Repeat(" ", 1<<20)},
		{"1 MB of spaces before a letter", strings.Repeat(" ", 1<<20) + "x"},
		{"1 MB of line breaks", strings.Repeat("\n", 1<<20)},
		{"1 MB of one word", strings.Repeat("return", 1<<20/6)},
		{"1 MB of signs", strings.Repeat("=!", 1<<19)},
		{"1 MB of beginnings of a special token", strings.Repeat("<|im_", 1<<20/5)},
		{"200,000 words of 128 letters", strings.Repeat(strings.Repeat("e", 127)+" ", 1600)},
		{"100,000 combining marks", "a" + strings.Repeat("\u0301\u0323", 50_000)},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := tok.NewEncoder()
			ids := e.Append(nil, c.text, Recognise)
			text, err := tok.Decode(ids)
			if err != nil || text != NFC(c.text) {
				t.Errorf("does not come back (%v)", err)
			}
			if limit := 128 * len(c.text); e.m.work > limit {
				t.Errorf("%d steps for %d bytes, limit %d", e.m.work, len(c.text), limit)
			}
			if n := cap(e.m.long.ids); n > 1<<16 {
				t.Errorf("keeps scratch of %d symbols", n)
			}
		})
	}
}
