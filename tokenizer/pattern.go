package tokenizer

// A pattern cuts text into pre-tokens, inside which merges happen. Each is a published regular expression, written here
// as a scan over character classes: linear in the text, with no backtracking engine.
type pattern struct {
	name         string // tokenizer.pre_type
	same         string // the name of an earlier pattern that cuts equally; empty: name
	regex        string // as in tokenizer.json; empty: the ByteLevel pre-tokenizer's own pattern
	class        string // tokenizer_class in tokenizer_config.json
	digits       int    // most digits in a pre-token
	nfc          bool   // whether the name stands for form NFC too
	ignoreMerges bool   // whether the name stands for ignore_merges too
	begins       bool   // whether llama.cpp puts BOS in front unless the file says otherwise
	aloneDigits  bool   // the Digits pre-tokenizer goes first
	marks, cases bool   // what the scan needs of classes
	next         func(c classes, s string, i, digits int) int
}

const (
	contractions = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	qwenHead     = contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|`
	blanksTail   = `|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwenTail     = `| ?[^\s\p{L}\p{N}]+[\r\n]*` + blanksTail
	threeDigits  = qwenHead + `\p{N}{1,3}` + qwenTail
	upperWord    = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`
	lowerWord    = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*`
	casedTail    = `| ?[^\s\p{L}\p{N}]+[\r\n/]*` + blanksTail
	anyClass     = "PreTrainedTokenizerFast"
)

// patterns lists what is known. GPT-2's pattern is in no file: it is
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// and refact's is the same between digits, each of which is a pre-token.
var patterns = []pattern{
	{name: "qwen2", class: "Qwen2Tokenizer", regex: qwenHead + `\p{N}` + qwenTail, digits: 1, nfc: true, next: nextQwen},
	{name: "llama-bpe", class: anyClass, regex: threeDigits, digits: 3, ignoreMerges: true, begins: true, next: nextQwen},
	{name: "gpt-2", class: "GPT2Tokenizer", next: nextGPT2},
	{name: "dbrx", same: "llama-bpe", class: anyClass, regex: threeDigits, digits: 3, next: nextQwen},
	{name: "smaug-bpe", same: "llama-bpe", class: anyClass, regex: threeDigits, digits: 3, next: nextQwen},
	{name: "qwen35", class: anyClass, nfc: true, digits: 1, marks: true, next: nextQwen,
		regex: contractions + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*` + blanksTail},
	{name: "gpt-4o", class: anyClass, digits: 3, cases: true, next: nextGPT4o,
		regex: upperWord + contractions + `?|` + lowerWord + contractions + `?|\p{N}{1,3}` + casedTail},
	{name: "tekken", class: anyClass, digits: 1, cases: true, ignoreMerges: true, begins: true, next: nextTekken,
		regex: upperWord + `|` + lowerWord + `|\p{N}` + casedTail},
	{name: "refact", class: anyClass, aloneDigits: true, next: nextRefact},
}

// classes returns the tables that the pattern's scan reads.
func (p *pattern) classes() classes {
	c := classes{basic: basicPlane(), marks: p.marks}
	if p.marks {
		c.basic = joinedMarks()
	}
	if p.cases {
		c.cases = basicCases()
	}
	return c
}

// cut returns the name under which patterns that cut equally are known.
func (p *pattern) cut() string {
	if p.same != "" {
		return p.same
	}
	return p.name
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

// nextRefact is nextGPT2 between digits: a digit is a pre-token and ends the text of the pattern.
func nextRefact(c classes, s string, i, _ int) int {
	k, n := c.at(s, i)
	switch k {
	case number:
		return i + n
	case space, newline:
		end, _, _ := c.blanks(s, i)
		if end < len(s) {
			if after, _ := c.at(s, end); after == number {
				return end
			}
		}
	}
	return nextGPT2(c, s, i, 0)
}

// nextGPT4o is nextQwen for the pattern of gpt-4o, in which a contraction ends a word.
func nextGPT4o(c classes, s string, i, digits int) int {
	if end := casedWord(c, s, i); end > i {
		if end < len(s) && s[end] == '\'' {
			if n := contraction(s[end+1:], true); n > 0 {
				end += 1 + n
			}
		}
		return end
	}
	return nextCased(c, s, i, digits)
}

// nextTekken is nextGPT4o without contractions.
func nextTekken(c classes, s string, i, digits int) int {
	if end := casedWord(c, s, i); end > i {
		return end
	}
	return nextCased(c, s, i, digits)
}

// casedWord returns the end of the word at i, or i if there is none:
//
//	N?U*L+ | N?U+L*   with N = [^\r\n\p{L}\p{N}], U = upperRun, L = lowerRun
//
// where the first alternative, with and without N, goes before the second. U* takes all it can and gives back from its end
// until an L follows; so the word ends behind the L after U, or else behind the last of U that is an L too.
func casedWord(c classes, s string, i int) int {
	k, n := c.at(s, i)
	if k == number || k == newline {
		return i
	}
	from := i
	if k != letter {
		from = i + n
	}
	end, lastBoth := from, -1
	for end < len(s) {
		u, w := c.caseAt(s, end)
		if u&upperRun == 0 {
			if u&lowerRun != 0 {
				return c.lowerRunEnd(s, end+w)
			}
			break
		}
		end += w
		if u&lowerRun != 0 {
			lastBoth = end
		}
	}
	if lastBoth >= 0 {
		return lastBoth
	}
	if k == other { // a combining mark can be the whole word
		if u, _ := c.caseAt(s, i); u&lowerRun != 0 {
			return i + n
		}
	}
	if end > from {
		return end
	}
	return i
}

// lowerRunEnd returns the end of the run of lowerRun that begins at i.
func (c classes) lowerRunEnd(s string, i int) int {
	for i < len(s) {
		u, n := c.caseAt(s, i)
		if u&lowerRun == 0 {
			break
		}
		i += n
	}
	return i
}

// nextCased matches `\p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+` at i, where no word begins.
func nextCased(c classes, s string, i, digits int) int {
	k, n := c.at(s, i)
	j := i + n
	if k == number {
		for d := 1; d < digits && j < len(s); d++ {
			k, n = c.at(s, j)
			if k != number {
				break
			}
			j += n
		}
		return j
	}
	if s[i] == ' ' && j < len(s) {
		if k2, n2 := c.at(s, j); k2 == other {
			k, j = other, j+n2
		}
	}
	if k != other {
		return nextBlank(c, s, i, true)
	}
	for j = c.run(s, j, other); j < len(s) && (s[j] == '\n' || s[j] == '\r' || s[j] == '/'); {
		j++
	}
	return j
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

// patternNamed returns the pattern of a tokenizer.pre_type, or nil. llama.cpp has more than one name for some.
func patternNamed(name string) *pattern {
	switch name {
	case "gpt2":
		name = "gpt-2"
	case "llama3", "llama-v3":
		name = "llama-bpe"
	case "deepseek-r1-qwen":
		name = "qwen2"
	case "starcoder", "smollm":
		name = "refact"
	}
	for i := range patterns {
		if patterns[i].name == name {
			return &patterns[i]
		}
	}
	return nil
}

// patternOf returns the pattern of a regular expression of tokenizer.json, or nil. Where several names have one
// expression, ignore_merges decides.
func patternOf(regex string, ignoreMerges bool) *pattern {
	var found *pattern
	for i := range patterns {
		p := &patterns[i]
		if p.regex == regex && (found == nil || found.ignoreMerges != ignoreMerges && p.ignoreMerges == ignoreMerges) {
			found = p
		}
	}
	return found
}

// patternNames lists the known names.
func patternNames() []string {
	var names []string
	for _, p := range patterns {
		names = append(names, p.name)
	}
	return names
}
