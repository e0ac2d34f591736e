package tokenizer

// A pattern cuts text into pre-tokens, inside which merges happen. Each is a published regular expression, written here
// as a scan over character classes: linear in the text, with no backtracking engine.
type pattern struct {
	name   string // tokenizer.pre_type
	regex  string // as in tokenizer.json; empty: the ByteLevel pre-tokenizer's own pattern
	class  string // tokenizer_class in tokenizer_config.json
	digits int    // most digits in a pre-token
	nfc    bool   // the normaliser that comes with it: NFC or none
	next   func(c classes, s string, i, digits int) int
}

const (
	qwenHead = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|`
	qwenTail = `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// patterns lists what is known. GPT-2's pattern stands in no file: it is
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
var patterns = []pattern{
	{name: "qwen2", class: "Qwen2Tokenizer", regex: qwenHead + `\p{N}` + qwenTail, digits: 1, nfc: true, next: nextQwen},
	{name: "llama-bpe", class: "PreTrainedTokenizerFast", regex: qwenHead + `\p{N}{1,3}` + qwenTail, digits: 3, next: nextQwen},
	{name: "gpt-2", class: "GPT2Tokenizer", next: nextGPT2},
}

// nextQwen returns the end of the pre-token that begins at s[i], by the alternatives of the pattern in their order.
func nextQwen(c classes, s string, i, digits int) int {
	if s[i] == '\'' {
		if n := contraction(s[i+1:], true); n > 0 { // (?i:'s|'t|'re|'ve|'m|'ll|'d)
			return i + 1 + n
		}
	}
	k, n := c.at(s, i)
	j := i + n
	switch k {
	case letter: // \p{L}+
		return c.run(s, j, letter)
	case number: // \p{N}{1,digits}
		for d := 1; d < digits && j < len(s); d++ {
			k, n = c.at(s, j)
			if k != number {
				break
			}
			j += n
		}
		return j
	case newline:
		return nextBlank(c, s, i, true)
	}
	following, width := other, 0
	if j < len(s) {
		following, width = c.at(s, j)
		if following == letter { // [^\r\n\p{L}\p{N}]\p{L}+
			return c.run(s, j+width, letter)
		}
	}
	if k == other { // [^\s\p{L}\p{N}]+[\r\n]*
		return lineBreaks(s, c.run(s, j, other))
	}
	if s[i] == ' ' && width > 0 && following == other { // the same after one space
		return lineBreaks(s, c.run(s, j+width, other))
	}
	return nextBlank(c, s, i, true)
}

// nextGPT2 is nextQwen for GPT-2's pattern.
func nextGPT2(c classes, s string, i, _ int) int {
	if s[i] == '\'' {
		if n := contraction(s[i+1:], false); n > 0 {
			return i + 1 + n
		}
	}
	j := i
	if s[i] == ' ' && i+1 < len(s) {
		j++
	}
	k, n := c.at(s, j)
	if k == space || k == newline {
		return nextBlank(c, s, i, false)
	}
	return c.run(s, j+n, k)
}

// nextBlank matches `\s+(?!\S)|\s+` at i, where white space begins: the whole run at the end of the text, else all but
// its last character, else that character. With breaks, `\s*[\r\n]+` goes first: up to the run's last line break.
func nextBlank(c classes, s string, i int, breaks bool) int {
	end, last, afterBreak := c.blanks(s, i)
	switch {
	case breaks && afterBreak >= 0:
		return afterBreak
	case end == len(s) || last == i:
		return end
	}
	return last
}

// contraction returns the length of s, t, re, ve, m, ll or d at the start of s, which follows an apostrophe, or 0. With
// fold, case is ignored as regular expressions ignore it: U+017F (long s) is an s.
func contraction(s string, fold bool) int {
	if s == "" {
		return 0
	}
	lower := func(b byte) byte {
		if fold && 'A' <= b && b <= 'Z' {
			b += 'a' - 'A'
		}
		return b
	}
	var second byte
	switch lower(s[0]) {
	case 's', 't', 'm', 'd':
		return 1
	case 'r', 'v':
		second = 'e'
	case 'l':
		second = 'l'
	case 0xC5:
		if fold && len(s) > 1 && s[1] == 0xBF {
			return 2
		}
		return 0
	default:
		return 0
	}
	if len(s) > 1 && lower(s[1]) == second {
		return 2
	}
	return 0
}

// patternNamed returns the pattern of a tokenizer.pre_type, or nil.
func patternNamed(name string) *pattern {
	for i := range patterns {
		if patterns[i].name == name || name == "gpt2" && patterns[i].name == "gpt-2" {
			return &patterns[i]
		}
	}
	return nil
}

// patternNames lists the known names.
func patternNames() []string {
	var names []string
	for _, p := range patterns {
		names = append(names, p.name)
	}
	return names
}
