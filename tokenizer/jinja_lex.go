package tokenizer

import (
	"fmt"
	"strings"
)

// Limits of the template subset: a template is data, and no template can take long or much.
const (
	maxTemplate     = 64 << 10 // bytes
	maxJinjaDepth   = 50       // nesting of blocks and expressions
	maxJinjaSteps   = 20_000   // evaluated nodes
	maxJinjaOutput  = 64 << 10 // bytes, also of one string
	jinjaWhitespace = " \t\r\n\v\f"
)

// jinjaError says what a template uses that is not in the subset, or where it is wrong.
type jinjaError struct {
	offset int
	msg    string
}

func (e *jinjaError) Error() string { return fmt.Sprintf("offset %d: %s", e.offset, e.msg) }

// A piece of a template: text, {{ expression }} or {% statement %}; comments are dropped.
type piece struct {
	kind   byte // 't', 'e', 's'
	text   string
	tokens []jinjaToken
	offset int
}

// A jinjaToken is a word of an expression; offset is where it begins in the template.
type jinjaToken struct {
	kind   byte // 'n' name, 's' string, 'i' integer, 'o' operator, 0 end
	text   string
	offset int
}

// splitTemplate cuts a template into pieces as Jinja does with trim_blocks and lstrip_blocks, the setting of chat
// templates: the line break after a statement and the blanks between a line's beginning and a statement vanish; a
// minus inside a tag strips all white space on its side.
func splitTemplate(src string) ([]piece, error) {
	src = strings.TrimSuffix(strings.ReplaceAll(src, "\r\n", "\n"), "\n")
	var pieces []piece
	lineStart := true
	for i := 0; i < len(src); {
		open := nextTag(src, i)
		text := src[i:open]
		if open == len(src) {
			return append(pieces, piece{kind: 't', text: text, offset: i}), nil
		}
		kind, body := src[open+1], open+2
		switch {
		case body < len(src) && src[body] == '-':
			text = strings.TrimRight(text, jinjaWhitespace)
			body++
		case body < len(src) && src[body] == '+':
			body++
		case kind != '{':
			text = stripIndent(text, lineStart)
		}
		if text != "" {
			pieces = append(pieces, piece{kind: 't', text: text, offset: i})
		}
		end, err := tagEnd(src, body, kind)
		if err != nil {
			return nil, err
		}
		inner := src[body:end]
		i = end + 2
		trimmed := strings.HasSuffix(inner, "-")
		switch {
		case trimmed:
			inner = inner[:len(inner)-1]
			i = len(src) - len(strings.TrimLeft(src[i:], jinjaWhitespace))
		case kind != '{' && i < len(src) && src[i] == '\n':
			i++
		}
		lineStart = src[i-1] == '\n'
		if kind == '#' {
			continue
		}
		p := piece{kind: 'e', offset: open}
		if kind == '%' {
			p.kind = 's'
		}
		if p.tokens, err = jinjaTokens(inner, body); err != nil {
			return nil, err
		}
		pieces = append(pieces, p)
	}
	return pieces, nil
}

// nextTag returns the offset of the next {{, {% or {# at or after i, or the length of src.
func nextTag(src string, i int) int {
	for ; i+1 < len(src); i++ {
		if src[i] == '{' && (src[i+1] == '{' || src[i+1] == '%' || src[i+1] == '#') {
			return i
		}
	}
	return len(src)
}

// stripIndent removes the blanks at the end of text if they begin a line.
func stripIndent(text string, lineStart bool) string {
	line := strings.LastIndexByte(text, '\n') + 1
	if (line > 0 || lineStart) && strings.Trim(text[line:], " \t") == "" {
		return text[:line]
	}
	return text
}

// tagEnd returns the offset of the }}, %} or #} that closes the tag whose body begins at i. Strings are skipped.
func tagEnd(src string, i int, kind byte) (int, error) {
	closing := map[byte]string{'{': "}}", '%': "%}", '#': "#}"}[kind]
	start := i
	for ; i < len(src); i++ {
		if strings.HasPrefix(src[i:], closing) {
			return i, nil
		}
		if kind != '#' && (src[i] == '\'' || src[i] == '"') {
			n := stringLength(src[i:])
			if n == 0 {
				return 0, &jinjaError{i, "string without end"}
			}
			i += n - 1
		}
	}
	return 0, &jinjaError{start, "tag without end"}
}

// stringLength returns the length of the quoted string at the start of s, 0 if it has no end.
func stringLength(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case s[0]:
			return i + 1
		}
	}
	return 0
}

// jinjaTokens cuts the inside of a tag into tokens; an end token closes the list.
func jinjaTokens(s string, offset int) ([]jinjaToken, error) {
	var tokens []jinjaToken
	word := func(c byte) bool {
		return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
	}
	for i := 0; i < len(s); {
		c, n := s[i], 1
		t := jinjaToken{kind: 'o', offset: offset + i}
		switch {
		case strings.IndexByte(jinjaWhitespace, c) >= 0:
			i++
			continue
		case c == '\'' || c == '"':
			if n = stringLength(s[i:]); n == 0 {
				return nil, &jinjaError{t.offset, "string without end"}
			}
			text, err := unquote(s[i+1 : i+n-1])
			if err != nil {
				return nil, &jinjaError{t.offset, err.Error()}
			}
			tokens = append(tokens, jinjaToken{'s', text, t.offset})
			i += n
			continue
		case word(c):
			for i+n < len(s) && word(s[i+n]) {
				n++
			}
			t.kind = 'n'
			if '0' <= c && c <= '9' {
				t.kind = 'i'
			}
		case i+1 < len(s) && strings.Contains("== != <= >= // **", s[i:i+2]) && s[i+1] != ' ' && c != ' ':
			n = 2
		case strings.IndexByte("+-*/%~<>=()[]{}.,:|", c) < 0:
			return nil, &jinjaError{t.offset, fmt.Sprintf("unexpected %q", c)}
		}
		t.text = s[i : i+n]
		tokens = append(tokens, t)
		i += n
	}
	return append(tokens, jinjaToken{offset: offset + len(s)}), nil
}

// unquote resolves the escapes of a string literal.
func unquote(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		i++
		at := strings.IndexByte("ntr\\'\"", s[i])
		if at < 0 {
			return "", fmt.Errorf("escape \\%c is not supported", s[i])
		}
		b.WriteByte("\n\t\r\\'\""[at])
	}
	return b.String(), nil
}
