package jinja

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

func (u undefined) fail() error { return fmt.Errorf("%s", string(u)) }

// str is Python's str(v), which is also what is printed.
func (s *state) str(v Value) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case safe:
		return string(v), nil
	case undefined:
		return "", nil
	}
	var b strings.Builder
	err := s.repr(&b, v, 0)
	return b.String(), err
}

// repr is Python's repr(v).
func (s *state) repr(b *strings.Builder, v Value, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("values are nested more than %d deep", maxDepth)
	}
	if err := s.work(16); err != nil {
		return err
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case bool:
		b.WriteString(map[bool]string{true: "True", false: "False"}[v])
	case int:
		b.WriteString(strconv.Itoa(v))
	case float64:
		b.WriteString(floatText(v))
	case string:
		b.WriteString(quote(v))
		return s.work(len(v))
	case undefined:
		b.WriteString("Undefined")
	case *List:
		return s.reprList(b, v, depth)
	case *Dict:
		return s.reprDict(b, v, depth)
	case *namespace:
		b.WriteString("<Namespace ")
		err := s.reprDict(b, &v.Dict, depth)
		b.WriteString(">")
		return err
	case *macroValue:
		b.WriteString("<Macro " + quote(v.name) + ">")
	case *loopValue:
		fmt.Fprintf(b, "<LoopContext %d/%d>", v.at+1, len(v.items))
	default:
		return fmt.Errorf("%s cannot be written", typeName(v))
	}
	return nil
}

func (s *state) reprList(b *strings.Builder, v *List, depth int) error {
	before, after := "[", "]"
	switch v.form {
	case tuple:
		before, after = "(", ")"
		if len(v.Items) == 1 {
			after = ",)"
		}
	case keys, values, items:
		before, after = typeName(v)+"([", "])"
	case rangeOf, generator:
		return fmt.Errorf("%s cannot be written", typeName(v))
	}
	b.WriteString(before)
	for i, item := range v.Items {
		if i > 0 {
			b.WriteString(", ")
		}
		if err := s.repr(b, item, depth+1); err != nil {
			return err
		}
	}
	b.WriteString(after)
	return nil
}

func (s *state) reprDict(b *strings.Builder, d *Dict, depth int) error {
	b.WriteByte('{')
	for i, key := range d.keys {
		if i > 0 {
			b.WriteString(", ")
		}
		if err := s.repr(b, key, depth+1); err != nil {
			return err
		}
		b.WriteString(": ")
		if err := s.repr(b, d.values[i], depth+1); err != nil {
			return err
		}
	}
	b.WriteByte('}')
	return nil
}

// floatText is Python's repr of a float: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
func floatText(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	a := math.Abs(f)
	if a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	text := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

// quote is Python's repr of a string.
func quote(s string) string {
	q := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		q = '"'
	}
	var b strings.Builder
	b.WriteByte(q)
	for _, r := range s {
		switch {
		case r == rune(q) || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r != ' ' && !unicode.IsPrint(r) && r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r != ' ' && !unicode.IsPrint(r) && r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		case r != ' ' && !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte(q)
	return b.String()
}

// isSpace reports whether Python's str.isspace holds.
func isSpace(r rune) bool { return unicode.IsSpace(r) || 0x1c <= r && r <= 0x1f }
