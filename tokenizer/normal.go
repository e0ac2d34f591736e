package tokenizer

import (
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// graphemeJoiner is U+034F. The norm package puts one after every 30 combining marks in a row (Unicode's stream-safe
// text), which is not what normalisation form C says and not what a tokenizer is trained on.
const graphemeJoiner = "\u034f"

// NFC returns s in Unicode normalisation form C, exactly: without the joiners of the stream-safe form. Bytes that are
// not UTF-8 stay as they are.
func NFC(s string) string {
	if norm.NFC.IsNormalString(s) {
		return s
	}
	t := norm.NFC.String(s)
	if strings.Count(t, graphemeJoiner) == strings.Count(s, graphemeJoiner) {
		return t
	}
	return composeLong(s)
}

// A mark is one character of a canonical decomposition: its text and its combining class.
type mark struct {
	text string
	ccc  uint8
}

// composeLong is form C for text with more than 30 combining marks in a row: decompose, order each run of marks by
// class (stably), compose (Unicode Standard Annex 15). The tables are those of the norm package.
func composeLong(s string) string {
	marks := decompose(s)
	for i := 0; i < len(marks); {
		j := i
		for j < len(marks) && marks[j].ccc != 0 {
			j++
		}
		slices.SortStableFunc(marks[i:j], func(a, b mark) int { return int(a.ccc) - int(b.ccc) })
		i = j + 1
	}
	return compose(marks)
}

// decompose returns the full canonical decomposition of s, unordered.
func decompose(s string) []mark {
	var marks []mark
	for i := 0; i < len(s); {
		_, n := utf8.DecodeRuneInString(s[i:])
		text := norm.NFD.String(s[i : i+n])
		for j := 0; j < len(text); {
			_, w := utf8.DecodeRuneInString(text[j:])
			marks = append(marks, mark{text[j : j+w], norm.NFD.PropertiesString(text[j : j+w]).CCC()})
			j += w
		}
		i += n
	}
	return marks
}

// compose joins each character with the last starter before it unless a character between them blocks it: one of
// class 0, or of a class as high as its own. A pair composes if its form C is one character.
func compose(marks []mark) string {
	starter, last := -1, -1 // index of the starter; class of the latest character kept after it, -1 if none
	out := marks[:0]
	for _, m := range marks {
		if starter >= 0 && last < int(m.ccc) {
			if t := norm.NFC.String(out[starter].text + m.text); utf8.RuneCountInString(t) == 1 {
				out[starter].text = t
				continue
			}
		}
		out = append(out, m)
		if m.ccc == 0 {
			starter, last = len(out)-1, -1
		} else {
			last = int(m.ccc)
		}
	}
	var b strings.Builder
	for _, m := range out {
		b.WriteString(m.text)
	}
	return b.String()
}
