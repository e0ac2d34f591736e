// Package train learns the merges of small tokenizers from text: byte-level BPE (Sennrich et al. 2016,
// arXiv:1508.07909; Radford et al. 2019) and BPE over characters with a sign for spaces and bytes for what the
// vocabulary does not have, as SentencePiece writes it (Kudo and Richardson 2018, arXiv:1808.06226).
//
// Programs of bench and tests make tokenizers of other vocabularies with it. It counts words in memory and looks at all
// of them for each merge: enough for some megabytes of text and some thousands of ids.
//
// # Caveats
//
//   - Words are cut more simply than the tokenizer's own pattern cuts them. Merges across a boundary of that pattern
//     are never used; they cost an id.
//   - Of equally frequent pairs the one whose text is smaller is merged: the result depends on the texts alone.
package train

import (
	"cmp"
	"slices"
	"strings"
	"unicode"

	"apr/internal/fault"
	"apr/tokenizer"
)

// word is a distinct word with its symbols, and how often it occurs.
type word struct {
	symbols []string
	count   int
}

// minimum is how often a pair has to occur.
const minimum = 2

// merges learns up to n merges of neighbouring symbols: each time those of the most frequent pair.
func merges(words []word, n int, allowed func(joined string) bool) [][2]string {
	var out [][2]string
	for len(out) < n {
		counts := map[[2]string]int{}
		for _, w := range words {
			for i := range len(w.symbols) - 1 {
				counts[[2]string{w.symbols[i], w.symbols[i+1]}] += w.count
			}
		}
		var best [2]string
		most := 0
		for p, c := range counts {
			order := cmp.Or(cmp.Compare(c, most), cmp.Compare(best[0], p[0]), cmp.Compare(best[1], p[1]))
			if c >= minimum && order > 0 && allowed(p[0]+p[1]) {
				best, most = p, c
			}
		}
		if most == 0 {
			return out
		}
		out = append(out, best)
		for k := range words {
			words[k].symbols = join(words[k].symbols, best)
		}
	}
	return out
}

// join merges a pair wherever it is, from the left.
func join(symbols []string, p [2]string) []string {
	out := symbols[:0]
	for i := 0; i < len(symbols); i++ {
		if i+1 < len(symbols) && symbols[i] == p[0] && symbols[i+1] == p[1] {
			out = append(out, p[0]+p[1])
			i++
			continue
		}
		out = append(out, symbols[i])
	}
	return out
}

// count returns the distinct words of texts in order, cut by next, which returns where the word at the begin ends.
func count(texts []string, next func(s string) int) (all []word) {
	counts := map[string]int{}
	for _, s := range texts {
		for len(s) > 0 {
			n := next(s)
			counts[s[:n]]++
			s = s[n:]
		}
	}
	names := make([]string, 0, len(counts))
	for w := range counts {
		names = append(names, w)
	}
	slices.Sort(names)
	for _, w := range names {
		all = append(all, word{strings.Split(w, ""), counts[w]})
	}
	return all
}

// kind is what keeps neighbouring characters in one word.
func kind(r rune) int {
	switch {
	case unicode.IsLetter(r) || r == '_':
		return 1
	case unicode.IsDigit(r):
		return 2
	case unicode.IsSpace(r):
		return 3
	}
	return 4
}

// cut returns the length of the word at the begin of s: characters of one kind, with one space before them; a digit is
// a word of its own.
func cut(s string) int {
	first, n := -1, 0
	for i, r := range s {
		k := kind(r)
		switch {
		case i == 0 && r == ' ' && len(s) > 1 && kind(rune(s[1])) != 3:
			n = 1
			continue
		case first < 0:
			first = k
		case k != first, first == 2, first == 3 && r == ' ' && i+1 < len(s) && kind(rune(s[i+1])) != 3:
			return i
		}
		n = i + len(string(r))
	}
	return max(n, 1)
}

// ByteLevel learns a byte-level tokenizer of up to ids ids, end of text included, that cuts text as GPT-2's does.
func ByteLevel(texts []string, ids int) (*tokenizer.Tokenizer, error) {
	d := tokenizer.Data{Model: "gpt2", PreType: "gpt-2", BOS: tokenizer.None, EOS: 256, Pad: tokenizer.None}
	letters := tokenizer.ByteLetters()
	for b := range 256 {
		d.Vocabulary, d.TokenType = append(d.Vocabulary, letters[b]), append(d.TokenType, int(tokenizer.Normal))
	}
	d.Vocabulary, d.TokenType = append(d.Vocabulary, "<|endoftext|>"), append(d.TokenType, int(tokenizer.Control))
	if ids < len(d.Vocabulary) {
		return nil, fault.New(fault.Usage, "a byte-level tokenizer has at least %d ids, not %d", len(d.Vocabulary), ids)
	}
	words := count(texts, cut)
	for k, w := range words {
		raw := strings.Join(w.symbols, "")
		words[k].symbols = make([]string, len(raw))
		for i := range len(raw) {
			words[k].symbols[i] = letters[raw[i]]
		}
	}
	learnt := merges(words, ids-len(d.Vocabulary), func(string) bool { return true })
	return finish("byte-level tokenizer", d, learnt)
}

// sign is what SentencePiece writes for a space.
const sign = "▁"

// Pieces learns a SentencePiece-like tokenizer of up to ids ids: <unk>, <s>, </s>, 256 bytes, the characters that occur
// often, and merges. Words may span no space but the one before them; what follows a line's end is a word of its own.
func Pieces(texts []string, ids int) (*tokenizer.Tokenizer, error) {
	d := tokenizer.Data{Model: tokenizer.ModelPieces, BOS: 1, EOS: 2, Pad: tokenizer.None, AddBOS: true}
	add := func(text string, k tokenizer.Kind) {
		d.Vocabulary, d.TokenType = append(d.Vocabulary, text), append(d.TokenType, int(k))
	}
	for i, s := range []string{"<unk>", "<s>", "</s>"} {
		add(s, []tokenizer.Kind{tokenizer.Unknown, tokenizer.Control, tokenizer.Control}[i])
	}
	for b := range 256 {
		const hex = "0123456789ABCDEF"
		add("<0x"+string([]byte{hex[b>>4], hex[b&15]})+">", tokenizer.Byte)
	}
	words, letters := count(texts, cut), map[string]int{}
	for k, w := range words {
		for i, c := range w.symbols {
			if c == " " {
				words[k].symbols[i] = sign
			}
			letters[words[k].symbols[i]] += w.count
		}
	}
	names := make([]string, 0, len(letters))
	for c, n := range letters {
		if n >= minimum {
			names = append(names, c)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(letters[b], letters[a]), cmp.Compare(a, b)) })
	if room := ids - len(d.Vocabulary); room < 1 {
		return nil, fault.New(fault.Usage, "a tokenizer of pieces has more than %d ids, not %d", len(d.Vocabulary), ids)
	} else if len(names) > room/2 {
		names = names[:room/2]
	}
	known := map[string]bool{}
	for _, c := range names {
		add(c, tokenizer.Normal)
		known[c] = true
	}
	for k, w := range words { // a character that is written as bytes is in no merge
		for i, c := range w.symbols {
			if !known[c] {
				words[k].symbols[i] = "\x00"
			}
		}
	}
	learnt := merges(words, ids-len(d.Vocabulary), func(s string) bool { return !strings.Contains(s, "\x00") })
	return finish("tokenizer of pieces", d, learnt)
}

// finish adds merges and makes the tokenizer.
func finish(name string, d tokenizer.Data, learnt [][2]string) (*tokenizer.Tokenizer, error) {
	seen := map[string]bool{}
	for _, s := range d.Vocabulary {
		seen[s] = true
	}
	for _, m := range learnt {
		d.Merges = append(d.Merges, m[0]+" "+m[1])
		if joined := m[0] + m[1]; !seen[joined] {
			seen[joined] = true
			d.Vocabulary, d.TokenType = append(d.Vocabulary, joined), append(d.TokenType, int(tokenizer.Normal))
		}
	}
	return tokenizer.FromData(name, d)
}
