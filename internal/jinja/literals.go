package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// number emits an integer or a float.
func (l *lexer) number(rest string) error {
	digits := func(i int) int {
		for i < len(rest) && ('0' <= rest[i] && rest[i] <= '9' || rest[i] == '_') {
			i++
		}
		return i
	}
	n := digits(0)
	isFloat := false
	if n+1 < len(rest) && rest[n] == '.' && '0' <= rest[n+1] && rest[n+1] <= '9' && (l.at == 0 || l.src[l.at-1] != '.') {
		n, isFloat = digits(n+1), true
	}
	if n < len(rest) && (rest[n] == 'e' || rest[n] == 'E') {
		from := n + 1
		if from < len(rest) && (rest[from] == '+' || rest[from] == '-') {
			from++
		}
		if to := digits(from); to > from {
			n, isFloat = to, true
		}
	}
	if !isFloat && n == 1 && rest[0] == '0' && n < len(rest) && strings.IndexByte("xXoObB", rest[n]) >= 0 {
		n = len(rest) - len(strings.TrimLeftFunc(rest, isWord))
	}
	text := rest[:n]
	var v Value
	var err error
	if isFloat {
		v, err = strconv.ParseFloat(strings.ReplaceAll(text, "_", ""), 64)
	} else {
		var i int64
		i, err = strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 0, 64)
		if len(text) > 1 && text[0] == '0' && strings.Trim(text, "0_") != "" && '0' <= text[1] && text[1] <= '9' {
			err = strconv.ErrSyntax // Python has no octal numbers of this form
		}
		v = int(i)
	}
	if err != nil || strings.HasSuffix(text, "_") || strings.Contains(text, "__") {
		return failAt(l.line, "number %q is not supported", clip(text))
	}
	k := integer
	if isFloat {
		k = float
	}
	l.emit(k, text, v)
	l.take(n)
	return nil
}

// str emits a string literal.
func (l *lexer) str(rest string) error {
	i := 1
	for i < len(rest) && rest[i] != rest[0] {
		if rest[i] == '\\' {
			i++
		}
		i++
	}
	if i >= len(rest) {
		return failAt(l.line, "a string without end")
	}
	text, err := unquote(rest[1:i])
	if err != nil {
		return failAt(l.line, "%v", err)
	}
	l.emit(str, rest[:i+1], text)
	l.take(i + 1)
	return nil
}

// unquote resolves the escapes of a string literal as Python's unicode-escape does.
func unquote(s string) (string, error) {
	if !strings.Contains(s, `\`) {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		i++
		if at := strings.IndexByte(`ntrabfv\'"`, s[i]); at >= 0 {
			b.WriteByte("\n\t\r\a\b\f\v\\'\""[at])
			continue
		}
		digits, base := 0, 16
		switch c := s[i]; {
		case c == '\n':
			continue
		case c == 'x':
			digits = 2
		case c == 'u':
			digits = 4
		case c == 'U':
			digits = 8
		case '0' <= c && c <= '7':
			base, digits = 8, 1
			for digits < 3 && i+digits < len(s) && '0' <= s[i+digits] && s[i+digits] <= '7' {
				digits++
			}
			i--
		case c == 'N':
			return "", fmt.Errorf(`escape \N is not supported`)
		default:
			b.WriteByte('\\')
			i-- // an unknown escape stands for itself
			r, n := utf8.DecodeRuneInString(s[i+1:])
			b.WriteRune(r)
			i += n
			continue
		}
		if i+digits >= len(s) {
			return "", fmt.Errorf("a shortened escape in %q", clip(s))
		}
		code, err := strconv.ParseUint(s[i+1:i+1+digits], base, 32)
		if err != nil || !utf8.ValidRune(rune(code)) || code > unicode.MaxRune {
			return "", fmt.Errorf("escape %q is not supported", clip(s[i:i+1+digits]))
		}
		b.WriteRune(rune(code))
		i += digits
	}
	return b.String(), nil
}

// clip shortens text for a message.
func clip(s string) string {
	if len(s) > 60 {
		s = strings.ToValidUTF8(s[:60], "") + "…"
	}
	return s
}
