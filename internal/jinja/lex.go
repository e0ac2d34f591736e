package jinja

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Error says what is wrong with a template, or what it uses that is not known here.
type Error struct {
	Line   int // from 1
	Msg    string
	Raised bool // by the template's own raise_exception
}

// Error returns the message with its line.
func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Msg) }

func failAt(line int, format string, args ...any) *Error {
	return &Error{Line: line, Msg: fmt.Sprintf(format, args...)}
}

// kind is the kind of a token.
type kind byte

const (
	end      kind = iota // of the template
	data                 // text outside of tags
	varBegin             // {{
	varEnd               // }}
	tagBegin             // {%
	tagEnd               // %}
	name
	str
	integer
	float
	operator
)

// A token is a piece of the template; value is what a literal stands for.
type token struct {
	kind  kind
	text  string
	value Value
	line  int
}

// lexer cuts a template into tokens by Jinja's rules of white space: the line break after a tag and the blanks between
// a line's begin and a tag vanish, a minus inside a tag strips all white space on its side, a plus keeps it.
type lexer struct {
	src       string
	at        int
	line      int
	lineStart bool // the text at at begins a line
	out       []token
}

func lex(src string) ([]token, error) {
	src = strings.ReplaceAll(strings.ReplaceAll(src, "\r\n", "\n"), "\r", "\n")
	l := &lexer{src: strings.TrimSuffix(src, "\n"), line: 1, lineStart: true}
	for l.at < len(l.src) {
		if err := l.next(); err != nil {
			return nil, err
		}
	}
	l.emit(end, "", nil)
	return l.out, nil
}

func (l *lexer) emit(k kind, text string, v Value) {
	l.out = append(l.out, token{k, text, v, l.line})
}

// take moves behind n bytes.
func (l *lexer) take(n int) {
	l.line += strings.Count(l.src[l.at:l.at+n], "\n")
	l.at += n
}

// next emits text up to the next tag, and the tag.
func (l *lexer) next() error {
	open := nextTag(l.src, l.at)
	text := l.src[l.at:open]
	if open == len(l.src) {
		l.text(text)
		l.take(len(text))
		return nil
	}
	begin, sign := l.src[open:open+2], byte(0)
	if open+2 < len(l.src) && (l.src[open+2] == '-' || l.src[open+2] == '+') {
		sign = l.src[open+2]
	}
	l.text(l.before(text, begin, sign))
	l.take(len(text) + 2)
	if sign != 0 {
		l.take(1)
	}
	switch {
	case begin == "{#":
		return l.comment()
	case begin == "{%" && rawTag(l.src[l.at:], "raw") > 0:
		return l.raw()
	case begin == "{%":
		l.emit(tagBegin, "{%", nil)
	default:
		l.emit(varBegin, "{{", nil)
	}
	return l.inside(begin == "{%")
}

// before returns the text that is left before a tag.
func (l *lexer) before(text, begin string, sign byte) string {
	switch {
	case sign == '-':
		return strings.TrimRightFunc(text, isSpace)
	case sign == '+' || begin == "{{":
		return text
	}
	line := strings.LastIndexByte(text, '\n') + 1
	if (line > 0 || l.lineStart) && strings.TrimLeftFunc(text[line:], isSpace) == "" {
		return text[:line]
	}
	return text
}

func (l *lexer) text(s string) {
	if s != "" {
		l.emit(data, s, nil)
	}
}

// nextTag returns the offset of the next {{, {% or {# at or after i, or the length of src.
func nextTag(src string, i int) int {
	for {
		n := strings.IndexByte(src[i:], '{')
		if n < 0 || i+n+1 >= len(src) {
			return len(src)
		}
		if i += n; strings.IndexByte("{%#", src[i+1]) >= 0 {
			return i
		}
		i++
	}
}

// after moves behind the end of a tag, of two bytes, and the white space that it takes: all behind a minus, else a line
// break behind %} and #}.
func (l *lexer) after(sign byte, closing string) {
	n := len(closing)
	rest := l.src[l.at+n:]
	switch {
	case sign == '-':
		n += len(rest) - len(strings.TrimLeftFunc(rest, isSpace))
	case sign == 0 && closing != "}}" && strings.HasPrefix(rest, "\n"):
		n++
	}
	l.take(n)
	l.lineStart = l.src[l.at-1] == '\n'
}

func (l *lexer) comment() error {
	i := strings.Index(l.src[l.at:], "#}")
	if i < 0 {
		return failAt(l.line, "a comment without end")
	}
	sign := byte(0)
	if i > 0 && (l.src[l.at+i-1] == '-' || l.src[l.at+i-1] == '+') {
		sign = l.src[l.at+i-1]
	}
	l.take(i)
	l.after(sign, "#}")
	return nil
}

// rawTag returns the length of "raw %}" or "endraw %}" at the start of s, without the %}, or 0.
func rawTag(s, word string) int {
	trimmed := strings.TrimLeftFunc(s, isSpace)
	if !strings.HasPrefix(trimmed, word) {
		return 0
	}
	trimmed = strings.TrimLeftFunc(trimmed[len(word):], isSpace)
	n := len(s) - len(trimmed)
	if len(trimmed) > 0 && (trimmed[0] == '-' || word == "endraw" && trimmed[0] == '+') {
		n, trimmed = n+1, trimmed[1:]
	}
	if !strings.HasPrefix(trimmed, "%}") {
		return 0
	}
	return n
}

// raw emits the text up to endraw.
func (l *lexer) raw() error {
	line := l.line
	l.take(rawTag(l.src[l.at:], "raw"))
	minus := l.src[l.at-1] == '-'
	l.take(2)
	if minus {
		rest := l.src[l.at:]
		l.take(len(rest) - len(strings.TrimLeftFunc(rest, isSpace)))
	}
	l.lineStart = l.src[l.at-1] == '\n'
	for i := l.at; ; i++ {
		n := strings.Index(l.src[i:], "{%")
		if n < 0 {
			return failAt(line, "raw without endraw")
		}
		i += n
		body, sign := i+2, byte(0)
		if body < len(l.src) && (l.src[body] == '-' || l.src[body] == '+') {
			sign = l.src[body]
			body++
		}
		n = rawTag(l.src[body:], "endraw")
		if n == 0 {
			continue
		}
		text := l.src[l.at:i]
		l.text(l.before(text, "{%", sign))
		l.take(body + n - l.at)
		sign = 0
		if c := l.src[l.at-1]; c == '-' || c == '+' {
			sign = c
		}
		l.after(sign, "%}")
		return nil
	}
}

// brackets pairs closing with opening ones.
var brackets = map[string]string{")": "(", "]": "[", "}": "{"}

// inside emits the tokens of a tag up to its end, which counts outside of brackets only.
func (l *lexer) inside(tag bool) error {
	closing, last, line := "}}", varEnd, l.line
	if tag {
		closing, last = "%}", tagEnd
	}
	var open []string
	for l.at < len(l.src) {
		rest := l.src[l.at:]
		if len(open) == 0 {
			sign := byte(0)
			if rest[0] == '-' || rest[0] == '+' && tag {
				sign, rest = rest[0], rest[1:]
			}
			if strings.HasPrefix(rest, closing) {
				if sign != 0 {
					l.take(1)
				}
				l.emit(last, closing, nil)
				l.after(sign, closing)
				return nil
			}
			rest = l.src[l.at:]
		}
		if r, n := utf8.DecodeRuneInString(rest); isSpace(r) {
			l.take(n)
			continue
		}
		if err := l.word(rest); err != nil {
			return err
		}
		t := l.out[len(l.out)-1]
		switch {
		case t.kind != operator:
		case t.text == "(" || t.text == "[" || t.text == "{":
			open = append(open, t.text)
		case brackets[t.text] != "":
			if len(open) == 0 || open[len(open)-1] != brackets[t.text] {
				return failAt(t.line, "unexpected %q", t.text)
			}
			open = open[:len(open)-1]
		}
	}
	return failAt(line, "a tag without end")
}

// operators of two bytes come before those of one.
var operators = []string{"**", "//", "==", "!=", "<=", ">="}

// word emits one token.
func (l *lexer) word(rest string) error {
	r, _ := utf8.DecodeRuneInString(rest)
	switch {
	case r == '\'' || r == '"':
		return l.str(rest)
	case '0' <= r && r <= '9':
		return l.number(rest)
	case isWord(r):
		n := len(rest) - len(strings.TrimLeftFunc(rest, isWord))
		if n > maxName {
			return failAt(l.line, "a name of %d bytes", n)
		}
		l.emit(name, rest[:n], nil)
		l.take(n)
		return nil
	}
	for _, op := range operators {
		if strings.HasPrefix(rest, op) {
			l.emit(operator, op, nil)
			l.take(2)
			return nil
		}
	}
	if strings.IndexByte("+-*/%~<>=()[]{}.,:|;", rest[0]) < 0 {
		return failAt(l.line, "unexpected %q", r)
	}
	l.emit(operator, rest[:1], nil)
	l.take(1)
	return nil
}

func isWord(r rune) bool {
	return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r)
}
