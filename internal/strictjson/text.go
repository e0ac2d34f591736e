package strictjson

import (
	"strings"
	"unicode/utf8"
)

// raw returns the text between the quotes of the checked string at off, and whether it holds escapes.
func raw(src string, off int) (s string, escaped bool) {
	rest := src[off+1:]
	end := strings.IndexByte(rest, '"')
	if i := strings.IndexByte(rest[:end], '\\'); i < 0 {
		return rest[:end], false
	}
	for i := 0; ; i++ {
		switch rest[i] {
		case '\\':
			i++
		case '"':
			return rest[:i], true
		}
	}
}

// unescape returns the string at off.
func unescape(src string, off int) string {
	s, escaped := raw(src, off)
	if !escaped {
		return s
	}
	return string(appendUnescaped(nil, s))
}

var plainEscape = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// appendUnescaped appends s with its (checked) escapes resolved.
func appendUnescaped(dst []byte, s string) []byte {
	for {
		i := strings.IndexByte(s, '\\')
		if i < 0 {
			return append(dst, s...)
		}
		dst = append(dst, s[:i]...)
		if s[i+1] != 'u' {
			dst, s = append(dst, plainEscape[s[i+1]]), s[i+2:]
			continue
		}
		u, _ := hex4(s, i+2)
		s = s[i+6:]
		if u >= 0xd800 && u <= 0xdfff {
			low, _ := hex4(s, 2)
			u, s = 0x10000+(u-0xd800)<<10+(low-0xdc00), s[6:]
		}
		dst = utf8.AppendRune(dst, u)
	}
}

// Position returns the line and column, both from 1, of a byte offset; the column counts characters.
func Position(src string, offset int) (line, column int) {
	before := src[:max(0, min(offset, len(src)))]
	start := strings.LastIndexByte(before, '\n') + 1
	return strings.Count(before, "\n") + 1, utf8.RuneCountInString(before[start:]) + 1
}

// hex4 reads four hexadecimal digits at i.
func hex4(s string, i int) (rune, bool) {
	if i+4 > len(s) {
		return 0, false
	}
	var u rune
	for _, c := range []byte(s[i : i+4]) {
		switch {
		case '0' <= c && c <= '9':
			u = u<<4 | rune(c-'0')
		case 'a' <= c && c <= 'f':
			u = u<<4 | rune(c-'a'+10)
		case 'A' <= c && c <= 'F':
			u = u<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return u, true
}
