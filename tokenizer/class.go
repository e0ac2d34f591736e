package tokenizer

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// A class is what the pre-token patterns can see of a character.
type class uint8

const (
	other   class = iota // [^\s\p{L}\p{N}], and bytes that are not UTF-8
	letter               // \p{L}
	number               // \p{N}
	space                // \s without the line breaks
	newline              // [\r\n]
)

// basicPlane returns the class of every rune below U+10000; the few others go through the range tables.
var basicPlane = sync.OnceValue(func() *[1 << 16]class {
	var t [1 << 16]class
	mark := func(table *unicode.RangeTable, c class) {
		for _, r := range table.R16 {
			for u := uint32(r.Lo); u <= uint32(r.Hi); u += uint32(r.Stride) {
				t[u] = c
			}
		}
	}
	mark(unicode.L, letter)
	mark(unicode.N, number)
	mark(unicode.White_Space, space)
	t['\n'], t['\r'] = newline, newline
	return &t
})

// joinedMarks is basicPlane with combining marks (\p{M}) as letters.
var joinedMarks = sync.OnceValue(func() *[1 << 16]class {
	t := *basicPlane()
	for r := range rune(1 << 16) {
		if unicode.Is(unicode.M, r) {
			t[r] = letter
		}
	}
	return &t
})

// A letterCase says in which of the two runs of a cased word a character can stand; marks and letters without case can
// stand in both.
type letterCase uint8

const (
	upperRun letterCase = 1 << iota // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
	lowerRun                        // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
)

func caseOf(r rune) letterCase {
	switch {
	case unicode.In(r, unicode.Lu, unicode.Lt):
		return upperRun
	case unicode.Is(unicode.Ll, r):
		return lowerRun
	case unicode.In(r, unicode.Lm, unicode.Lo, unicode.M):
		return upperRun | lowerRun
	}
	return 0
}

// basicCases returns caseOf of every rune below U+10000.
var basicCases = sync.OnceValue(func() *[1 << 16]letterCase {
	var t [1 << 16]letterCase
	for r := range rune(1 << 16) {
		t[r] = caseOf(r)
	}
	return &t
})

// classes reads the class of characters from a string.
type classes struct {
	basic *[1 << 16]class
	cases *[1 << 16]letterCase // nil unless the pattern asks for cases
	marks bool                 // combining marks are letters
}

// caseAt returns the case of the character at s[i] and its width; i < len(s).
func (c classes) caseAt(s string, i int) (letterCase, int) {
	if b := s[i]; b < utf8.RuneSelf {
		return c.cases[b], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	switch {
	case r == utf8.RuneError && n == 1:
		return 0, 1
	case r < 1<<16:
		return c.cases[r], n
	}
	return caseOf(r), n
}

// at returns the class and the width in bytes of the character at s[i]; i < len(s).
func (c classes) at(s string, i int) (class, int) {
	if b := s[i]; b < utf8.RuneSelf {
		return c.basic[b], 1
	}
	return c.wide(s[i:])
}

// wide is at for characters beyond ASCII. A byte that is not UTF-8 is one character of class other.
func (c classes) wide(s string) (class, int) {
	r, n := utf8.DecodeRuneInString(s)
	switch {
	case r == utf8.RuneError && n == 1:
		return other, 1
	case r < 1<<16:
		return c.basic[r], n
	case unicode.Is(unicode.L, r), c.marks && unicode.Is(unicode.M, r):
		return letter, n
	case unicode.Is(unicode.N, r):
		return number, n
	}
	return other, n
}

// run returns the end of the longest run of class want that begins at i.
func (c classes) run(s string, i int, want class) int {
	for i < len(s) {
		k, n := c.at(s, i)
		if k != want {
			break
		}
		i += n
	}
	return i
}

// lineBreaks returns the end of the run of CR and LF that begins at i.
func lineBreaks(s string, i int) int {
	for i < len(s) && (s[i] == '\n' || s[i] == '\r') {
		i++
	}
	return i
}

// blanks describes the run of white space at i: its end, the start of its last character, and the position after its
// last line break (-1 if it has none).
func (c classes) blanks(s string, i int) (end, last, afterBreak int) {
	end, last, afterBreak = i, i, -1
	for end < len(s) {
		k, n := c.at(s, end)
		if k != space && k != newline {
			break
		}
		last = end
		end += n
		if k == newline {
			afterBreak = end
		}
	}
	return end, last, afterBreak
}
