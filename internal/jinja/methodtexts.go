package jinja

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// trimmed is text without white space, or the characters of chars, at its ends.
func trimmed(text string, chars *string, left, right bool) string {
	drop := isSpace
	if chars != nil {
		drop = func(r rune) bool { return strings.ContainsRune(*chars, r) }
	}
	if left {
		text = strings.TrimLeftFunc(text, drop)
	}
	if right {
		text = strings.TrimRightFunc(text, drop)
	}
	return text
}

func strip(left, right bool) func(*state, string, args) (Value, error) {
	return func(s *state, text string, a args) (Value, error) {
		chars, err := bindText("strip", a, "chars")
		if err != nil {
			return nil, err
		}
		if chars[0] != nil {
			if n := len(*chars[0]); n > 0 && len(text) > maxWork/n {
				return nil, errWork
			} else if err := s.work(len(text) * n); err != nil {
				return nil, err
			}
		}
		return trimmed(text, chars[0], left, right), nil
	}
}

// pieces is a list of strings.
func (s *state) pieces(parts []string) (Value, error) {
	out := &List{Items: make([]Value, len(parts))}
	n := 0
	for i, p := range parts {
		out.Items[i] = p
		n += 32 + len(p)
	}
	return out, s.work(n)
}

// splitArgs are the separator, nil for white space, and how many cuts are made, -1 for all.
func splitArgs(a args) (sep *string, cuts int, err error) {
	v, err := a.bind("split", "sep", "maxsplit")
	if err != nil {
		return nil, 0, err
	}
	if v[0] != Value(missing{}) && v[0] != nil {
		text, ok := text1(v[0])
		if !ok || text == "" {
			return nil, 0, errors.New("split: the separator is not a string with a character")
		}
		sep = &text
	}
	cuts = -1
	if v[1] != Value(missing{}) {
		n, ok := asInt(v[1])
		if !ok {
			return nil, 0, errors.New("split: maxsplit is not an integer")
		}
		cuts = max(n, -1)
	}
	return sep, cuts, nil
}

func split(s *state, text string, a args) (Value, error) {
	sep, cuts, err := splitArgs(a)
	if err != nil {
		return nil, err
	}
	if sep != nil {
		if err := s.work(16 * strings.Count(text, *sep)); err != nil {
			return nil, err
		}
		if cuts >= 0 {
			return s.pieces(strings.SplitN(text, *sep, min(cuts, len(text))+1))
		}
		return s.pieces(strings.Split(text, *sep))
	}
	var parts []string
	for text = strings.TrimLeftFunc(text, isSpace); text != ""; text = strings.TrimLeftFunc(text, isSpace) {
		if cuts >= 0 && len(parts) == cuts {
			parts = append(parts, text)
			break
		}
		n := strings.IndexFunc(text, isSpace)
		if n < 0 {
			n = len(text)
		}
		parts = append(parts, text[:n])
		text = text[n:]
	}
	return s.pieces(parts)
}

func rsplit(s *state, text string, a args) (Value, error) {
	sep, cuts, err := splitArgs(a)
	if err != nil {
		return nil, err
	}
	if cuts < 0 {
		return split(s, text, a)
	}
	if sep == nil {
		return nil, errors.New("rsplit at white space is not supported")
	}
	var parts []string
	for len(parts) < cuts {
		i := strings.LastIndex(text, *sep)
		if i < 0 {
			break
		}
		parts = append([]string{text[i+len(*sep):]}, parts...)
		text = text[:i]
		if err := s.work(16 * len(parts)); err != nil {
			return nil, err
		}
	}
	return s.pieces(append([]string{text}, parts...))
}

// lineEnds are the characters that end a line for Python.
const lineEnds = "\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029"

// lines is Python's splitlines.
func lines(text string) []string {
	var parts []string
	for text != "" {
		n := strings.IndexAny(text, lineEnds)
		if n < 0 {
			return append(parts, text)
		}
		parts = append(parts, text[:n])
		_, size := utf8.DecodeRuneInString(text[n:])
		if strings.HasPrefix(text[n:], "\r\n") {
			size = 2
		}
		text = text[n+size:]
	}
	return parts
}

func splitlines(s *state, text string, a args) (Value, error) {
	if _, err := a.bind("splitlines"); err != nil {
		return nil, err
	}
	return s.pieces(lines(text))
}

// affix tests for one affix or several.
func affix(name string, has func(text, part string) bool) func(*state, string, args) (Value, error) {
	return func(s *state, text string, a args) (Value, error) {
		v, err := a.bind(name, "prefix")
		if err != nil {
			return nil, err
		}
		list := []Value{v[0]}
		if l, ok := v[0].(*List); ok && l.form == tuple {
			list = l.Items
		}
		for _, each := range list {
			part, ok := text1(each)
			if !ok {
				return nil, fmt.Errorf("%s takes a string, not %s", name, typeName(each))
			}
			if has(text, part) {
				return true, nil
			}
		}
		return false, s.work(len(list))
	}
}

func cut(name string, f func(text, part string) string) func(*state, string, args) (Value, error) {
	return func(_ *state, text string, a args) (Value, error) {
		v, err := bindText(name, a, "part")
		if err != nil {
			return nil, err
		}
		if v[0] == nil {
			return nil, fmt.Errorf("%s takes a string", name)
		}
		return f(text, *v[0]), nil
	}
}

func replace(s *state, text string, a args) (Value, error) {
	v, err := a.bind("replace", "old", "new", "count")
	if err != nil {
		return nil, err
	}
	old, ok := text1(v[0])
	to, ok2 := text1(v[1])
	if !ok || !ok2 {
		return nil, errors.New("replace takes two strings")
	}
	n := -1
	if v[2] != Value(missing{}) && v[2] != nil {
		if n, ok = asInt(v[2]); !ok {
			return nil, errors.New("replace: count is not an integer")
		}
	}
	found := strings.Count(text, old)
	if n >= 0 {
		found = min(n, found)
	}
	if err := s.room(len(text) + found*max(len(to)-len(old), 0)); err != nil {
		return nil, err
	}
	return strings.Replace(text, old, to, n), nil
}

func find(name string, index func(text, part string) int) func(*state, string, args) (Value, error) {
	return func(_ *state, text string, a args) (Value, error) {
		v, err := bindText(name, a, "part")
		if err != nil {
			return nil, err
		}
		if v[0] == nil {
			return nil, fmt.Errorf("%s takes a string", name)
		}
		i := index(text, *v[0])
		if i > 0 {
			i = utf8.RuneCountInString(text[:i])
		}
		return i, nil
	}
}

func count(_ *state, text string, a args) (Value, error) {
	v, err := bindText("count", a, "part")
	if err != nil {
		return nil, err
	}
	if v[0] == nil {
		return nil, errors.New("count takes a string")
	}
	return strings.Count(text, *v[0]), nil
}

func join(s *state, text string, a args) (Value, error) {
	v, err := a.bind("join", "items")
	if err != nil {
		return nil, err
	}
	list, err := s.iterate(v[0])
	if err != nil {
		return nil, err
	}
	for i, item := range list {
		if _, ok := text1(item); !ok {
			return nil, fmt.Errorf("join: item %d is %s, not a string", i, typeName(item))
		}
	}
	return s.joinTexts(text, list)
}

// joinTexts joins the texts of list with sep between.
func (s *state) joinTexts(sep string, list []Value) (string, error) {
	var b strings.Builder
	for i, item := range list {
		text, err := s.str(item)
		if err != nil {
			return "", err
		}
		if b.Len()+len(sep)+len(text) > maxOutput {
			return "", errOutput
		}
		if i > 0 {
			b.WriteString(sep)
		}
		b.WriteString(text)
	}
	return b.String(), s.work(b.Len())
}

// format is Python's str.format, for {}, {0} and {name} without a format of their own.
func format(s *state, text string, a args) (Value, error) {
	var b strings.Builder
	next := 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c != '{' && c != '}' {
			b.WriteByte(c)
			continue
		}
		if i+1 < len(text) && text[i+1] == c {
			b.WriteByte(c)
			i++
			continue
		}
		n := strings.IndexByte(text[i:], '}')
		if c == '}' || n < 0 {
			return nil, errors.New("format: a single bracket")
		}
		field := text[i+1 : i+n]
		i += n
		if field == "" {
			field = strconv.Itoa(next)
			next++
		}
		var v Value
		if k, err := strconv.Atoi(field); err == nil && k >= 0 && k < len(a.list) {
			v = a.list[k]
		} else if k := place(a.keys, field); k < len(a.keys) {
			v = a.named[k]
		} else {
			return nil, fmt.Errorf("format: field %q is not supported", clip(field))
		}
		out, err := s.str(v)
		if err != nil {
			return nil, err
		}
		b.WriteString(out)
		if err := s.grow(b.Len(), len(out)); err != nil {
			return nil, err
		}
	}
	return b.String(), nil
}
