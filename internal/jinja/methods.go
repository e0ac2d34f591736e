package jinja

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// member is an attribute or a method of a value as Python knows it. Methods that are not known here, or that a sandbox
// forbids, are functions that say so when they are called.
func member(of Value, name string) (Value, bool) {
	switch v := of.(type) {
	case string, safe:
		if m, ok := stringMethods[name]; ok {
			return &Func{name, func(s *state, a args) (Value, error) {
				text, _ := text1(v)
				if err := s.work(len(text)); err != nil {
					return nil, err
				}
				out, err := m(s, text, a)
				if result, ok := out.(string); ok && err == nil {
					_, err = s.made(result)
					out = like(v, result)
				}
				return out, err
			}}, true
		}
		return unknownMethod("str", name, "casefold center count encode expandtabs format_map index isalnum isascii isidentifier isprintable istitle ljust maketrans partition rindex rjust rpartition swapcase translate zfill")
	case *Dict:
		if m, ok := dictMethods[name]; ok {
			return &Func{name, func(s *state, a args) (Value, error) { return m(s, v, a) }}, true
		}
		return unknownMethod("dict", name, "clear fromkeys pop popitem setdefault update")
	case *List:
		return unknownMethod(typeName(v), name, map[form]string{list: "append clear copy count extend index insert pop remove reverse sort", tuple: "count index", rangeOf: "count index"}[v.form])
	case *loopValue:
		return v.attribute(name)
	case *macroValue:
		if name == "name" {
			return v.name, true
		}
	}
	return nil, false
}

// unknownMethod is a method of Python that is not known here.
func unknownMethod(of, name, known string) (Value, bool) {
	if !has(strings.Fields(known), name) {
		return nil, false
	}
	return &Func{name, func(*state, args) (Value, error) {
		return nil, fmt.Errorf("method %s of %s is not supported", name, of)
	}}, true
}

// bindText is bind for strings; what is not given is nil.
func bindText(of string, a args, names ...string) ([]*string, error) {
	list, err := a.bind(of, names...)
	if err != nil {
		return nil, err
	}
	out := make([]*string, len(list))
	for i, v := range list {
		if v == Value(missing{}) || v == nil {
			continue
		}
		text, ok := text1(v)
		if !ok {
			return nil, fmt.Errorf("%s: %s where a string is expected", of, typeName(v))
		}
		out[i] = &text
	}
	return out, nil
}

// stringMethods are the methods of strings.
var stringMethods map[string]func(s *state, text string, a args) (Value, error)

func init() { // filters name each other
	plain := func(name string, f func(string) string) func(*state, string, args) (Value, error) {
		return func(_ *state, text string, a args) (Value, error) {
			_, err := a.bind(name)
			return f(text), err
		}
	}
	is := func(name string, f func(rune) bool) func(*state, string, args) (Value, error) {
		return func(_ *state, text string, a args) (Value, error) {
			_, err := a.bind(name)
			return text != "" && strings.IndexFunc(text, func(r rune) bool { return !f(r) }) < 0, err
		}
	}
	stringMethods = map[string]func(s *state, text string, a args) (Value, error){
		"strip":        strip(true, true),
		"lstrip":       strip(true, false),
		"rstrip":       strip(false, true),
		"split":        split,
		"rsplit":       rsplit,
		"splitlines":   splitlines,
		"startswith":   affix("startswith", strings.HasPrefix),
		"endswith":     affix("endswith", strings.HasSuffix),
		"removeprefix": cut("removeprefix", strings.TrimPrefix),
		"removesuffix": cut("removesuffix", strings.TrimSuffix),
		"replace":      replace,
		"find":         find("find", strings.Index),
		"rfind":        find("rfind", strings.LastIndex),
		"count":        count,
		"join":         join,
		"format":       format,
		"upper":        plain("upper", upper),
		"lower":        plain("lower", lower),
		"title":        plain("title", title),
		"capitalize":   plain("capitalize", capitalize),
		"isspace":      is("isspace", isSpace),
		"isdigit":      is("isdigit", unicode.IsDigit),
		"isdecimal":    is("isdecimal", unicode.IsDigit),
		"isnumeric":    is("isnumeric", unicode.IsNumber),
		"isalpha":      is("isalpha", unicode.IsLetter),
		"isupper":      cased("isupper", unicode.IsUpper),
		"islower":      cased("islower", unicode.IsLower),
	}
}

// cased reports whether all letters with case are of one.
func cased(name string, f func(rune) bool) func(*state, string, args) (Value, error) {
	return func(_ *state, text string, a args) (Value, error) {
		_, err := a.bind(name)
		some := false
		for _, r := range text {
			if unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r) {
				if some = true; !f(r) {
					return false, err
				}
			}
		}
		return some, err
	}
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// upper and lower are Unicode's full mappings.
func upper(s string) string {
	if isASCII(s) {
		return strings.ToUpper(s)
	}
	return cases.Upper(language.Und).String(s)
}

func lower(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	return cases.Lower(language.Und).String(s)
}

// titled is the first letter of a word.
func titled(r rune) string {
	if r < utf8.RuneSelf {
		return strings.ToUpper(string(r))
	}
	return cases.Title(language.Und, cases.NoLower).String(string(r))
}

func capitalize(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return ""
	}
	return titled(r) + lower(s)[len(lower(s[:n])):]
}

// title begins each run of letters with a capital.
func title(s string) string {
	var b strings.Builder
	inside := false
	for i, r := range s {
		isCased := unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r)
		switch {
		case isCased && !inside:
			b.WriteString(titled(r))
		default:
			b.WriteString(lower(s[i : i+utf8.RuneLen(r)]))
		}
		inside = isCased
	}
	return b.String()
}

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

// dictMethods are the methods of dicts.
var dictMethods = map[string]func(s *state, d *Dict, a args) (Value, error){
	"get": func(s *state, d *Dict, a args) (Value, error) {
		v, err := a.bind("get", "key", "default")
		if err != nil {
			return nil, err
		}
		if text, ok := text1(v[0]); ok {
			if err := s.work(len(text)); err != nil {
				return nil, err
			}
		}
		if _, ok := hashable(v[0]); !ok {
			return nil, errors.New("get takes a key")
		}
		if value, ok := d.Get(v[0]); ok {
			return value, nil
		}
		if v[1] == Value(missing{}) {
			return nil, nil
		}
		return v[1], nil
	},
	"keys": func(s *state, d *Dict, a args) (Value, error) {
		_, err := a.bind("keys")
		return &List{form: keys, Items: d.keys}, err
	},
	"values": func(s *state, d *Dict, a args) (Value, error) {
		_, err := a.bind("values")
		return &List{form: values, Items: d.values}, err
	},
	"items": func(s *state, d *Dict, a args) (Value, error) {
		if _, err := a.bind("items"); err != nil {
			return nil, err
		}
		return &List{form: items, Items: d.pairs()}, s.work(64 * d.Len())
	},
	"copy": func(s *state, d *Dict, a args) (Value, error) {
		if _, err := a.bind("copy"); err != nil {
			return nil, err
		}
		out := NewDict()
		for i, key := range d.keys {
			out.Set(key, d.values[i])
		}
		return out, s.work(64 * d.Len())
	},
}
