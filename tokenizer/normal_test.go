package tokenizer

import (
	"strings"
	"testing"

	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"
)

func TestNFC(t *testing.T) {
	acute := strings.Repeat("\u0301", 40)
	for _, c := range []struct{ name, in, want string }{
		{"plain", "abc", "abc"},
		{"compose", "e\u0301", "é"},
		{"Angstrom sign", "\u212b", "Å"},
		{"Hangul", "\u1100\u1161\u11a8", "각"},
		{"order", "a\u0301\u0323", "\u1ea1\u0301"},
		{"excluded from composition", "\u0958", "\u0915\u093c"},
		{"broken UTF-8 stays", "e\u0301\xff\xe2\x82", "é\xff\xe2\x82"},
		{"40 marks, no joiner", "e" + acute, "é" + acute[2:]},
		{"40 marks out of order", "e" + acute + "\u0323", "\u1eb9" + acute},
		{"joiner of the text stays", "e\u034f" + acute, "e\u034f" + acute},
		{"40 marks and Hangul", "\u1100\u1161\u11a8x" + acute, "각x" + acute},
		{"40 marks after a syllable without end", "\u1100\u1161" + acute, "가" + acute},
		{"40 marks, decomposed first", "\u1e69" + acute, "\u1e69" + acute},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := NFC(c.in); got != c.want {
				t.Errorf("%+q, want %+q", got, c.want)
			}
		})
	}
}

// The way for many marks is form C for every text: where the norm package needs no joiner both agree.
func TestComposeLong(t *testing.T) {
	marks := rapid.StringOf(rapid.RuneFrom([]rune("aeoAsIiḍ\u0301\u0323\u0302\u0307\u0327\u0308\u0338=<각가\u1100\u1161\u11a8\u0915\u093c\u09c7\u09be\u09d7\u212b\U0001d15e\u0344")))
	rapid.Check(t, func(r *rapid.T) {
		s := rapid.OneOf(marks, anyText()).Draw(r, "text")
		want := norm.NFC.String(s)
		if strings.Count(want, graphemeJoiner) != strings.Count(s, graphemeJoiner) {
			return
		}
		if got := composeLong(s); got != want {
			r.Fatalf("composeLong(%+q) = %+q, want %+q", s, got, want)
		}
	})
}
