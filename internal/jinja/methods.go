package jinja

import (
	"errors"
	"fmt"
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
		return unknownMethod(typeName(v), name, "casefold center count encode expandtabs format_map index isalnum isascii isidentifier isprintable istitle ljust maketrans partition rindex rjust rpartition swapcase translate zfill")
	case *Dict:
		if m, ok := dictMethods[name]; ok {
			return &Func{name, func(s *state, a args) (Value, error) { return m(s, v, a) }}, true
		}
		return unknownMethod("dict", name, "clear fromkeys pop popitem setdefault update")
	case *List:
		return unknownMethod(typeName(v), name, map[form]string{list: "append clear copy count extend index insert pop remove reverse sort", tuple: "count index", rangeOf: "count index"}[v.form])
	case bool, int:
		i, _ := asInt(v)
		switch name {
		case "real", "numerator":
			return i, true
		case "imag":
			return 0, true
		case "denominator":
			return 1, true
		}
		return unknownMethod(typeName(v), name, "as_integer_ratio bit_count bit_length conjugate from_bytes is_integer to_bytes")
	case float64:
		switch name {
		case "real":
			return v, true
		case "imag":
			return 0., true
		}
		return unknownMethod("float", name, "as_integer_ratio conjugate fromhex hex is_integer")
	case *loopValue:
		return v.attribute(name)
	case *macroValue:
		return v.attribute(name)
	}
	return nil, false
}

// unknownAttributes are attributes of Python's values, by type, that are not known here.
var unknownAttributes = map[string]string{
	"range": "start step stop", "generator": "close gi_code gi_frame gi_running gi_suspended gi_yieldfrom send throw",
	"dict_keys": "isdisjoint mapping", "dict_values": "mapping", "dict_items": "isdisjoint mapping", "Markup": "escape striptags unescape",
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
		"isdigit":      is("isdigit", isDigit),
		"isdecimal":    is("isdecimal", unicode.IsDigit),
		"isnumeric":    is("isnumeric", isNumeric),
		"isalpha":      is("isalpha", unicode.IsLetter),
		"isupper":      cased("isupper", isUpper),
		"islower":      cased("islower", isLower),
	}
}

// cased reports whether all letters with case are of one.
func cased(name string, f func(rune) bool) func(*state, string, args) (Value, error) {
	return func(_ *state, text string, a args) (Value, error) {
		_, err := a.bind(name)
		some := false
		for _, r := range text {
			if isCased(r) {
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
		hasCase := isCased(r)
		switch {
		case hasCase && !inside:
			b.WriteString(titled(r))
		default:
			b.WriteString(lower(s[i : i+utf8.RuneLen(r)]))
		}
		inside = hasCase
	}
	return b.String()
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
