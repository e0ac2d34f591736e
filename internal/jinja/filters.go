package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

type filterFunc = func(s *state, v Value, a args) (Value, error)

// filters are Jinja's filters, tojson as transformers has it.
var filters map[string]filterFunc

func init() { // map and select call filters
	filters = map[string]filterFunc{
		"abs": abs, "attr": attr, "capitalize": onText("capitalize", capitalize),
		"count": length, "d": byDefault, "default": byDefault, "dictsort": dictsort, "e": escaped, "escape": escaped,
		"first": first, "float": toFloat, "format": formatFilter, "indent": indent, "int": toInt, "items": itemsFilter,
		"join": joinFilter, "last": last, "length": length, "list": toList, "lower": onText("lower", lower),
		"map": mapFilter, "max": extreme(1), "min": extreme(-1), "reject": pick(false, false), "rejectattr": pick(true, false),
		"replace": replaceFilter, "reverse": reverse, "round": round, "safe": declareSafe, "select": pick(false, true),
		"selectattr": pick(true, true), "sort": sortFilter, "string": toString, "sum": sum, "title": onText("title", titleFilter),
		"tojson": tojson, "trim": trim, "unique": unique, "upper": onText("upper", upper),
	}
}

// onText is a filter of one text.
func onText(name string, f func(string) string) filterFunc {
	return func(s *state, v Value, a args) (Value, error) {
		if _, err := a.bind(name); err != nil {
			return nil, err
		}
		text, err := s.str(v)
		if err != nil {
			return nil, err
		}
		out, err := s.made(f(text))
		return like(v, out), err
	}
}

// titleFilter begins words with a capital; they end at white space, hyphens and opening brackets.
func titleFilter(s string) string {
	var b strings.Builder
	start := true
	from := 0
	flush := func(to int) {
		word := s[from:to]
		if _, n := utf8.DecodeRuneInString(word); n > 0 {
			b.WriteString(upper(word[:n]) + lower(word[n:]))
		}
		from = to
	}
	for i, r := range s {
		split := isSpace(r) || strings.ContainsRune("-({[<", r)
		if split != start {
			flush(i)
			start = split
		}
	}
	flush(len(s))
	return b.String()
}

func trim(s *state, v Value, a args) (Value, error) {
	chars, err := bindText("trim", a, "chars")
	if err != nil {
		return nil, err
	}
	text, err := s.str(v)
	if err != nil {
		return nil, err
	}
	if chars[0] != nil {
		return strip(true, true)(s, text, a)
	}
	out, err := s.made(trimmed(text, nil, true, true))
	return like(v, out), err
}

func length(s *state, v Value, a args) (Value, error) {
	if _, err := a.bind("length"); err != nil {
		return nil, err
	}
	if text, ok := text1(v); ok {
		return utf8.RuneCountInString(text), s.work(len(text))
	}
	switch v := v.(type) {
	case undefined:
		return 0, nil
	case *Dict:
		return v.Len(), nil
	case *List:
		if v.form != generator {
			return len(v.Items), nil
		}
	case *loopValue:
		return len(v.items), nil
	}
	return nil, fmt.Errorf("%s has no length", typeName(v))
}

func byDefault(_ *state, v Value, a args) (Value, error) {
	in, err := a.bind("default", "default_value", "boolean")
	if err != nil {
		return nil, err
	}
	_, absent := v.(undefined)
	if absent || in[1] != Value(missing{}) && truth(in[1]) && !truth(v) {
		if in[0] == Value(missing{}) {
			return "", nil
		}
		return in[0], nil
	}
	return v, nil
}

func toString(s *state, v Value, a args) (Value, error) {
	if _, err := a.bind("string"); err != nil {
		return nil, err
	}
	if m, ok := v.(safe); ok {
		return m, nil
	}
	return s.strOf(v)
}

// strOf is str as a value.
func (s *state) strOf(v Value) (Value, error) {
	text, err := s.str(v)
	return text, err
}

func declareSafe(s *state, v Value, a args) (Value, error) {
	if _, err := a.bind("safe"); err != nil {
		return nil, err
	}
	text, err := s.str(v)
	return safe(text), err
}

func escaped(s *state, v Value, a args) (Value, error) {
	if _, err := a.bind("escape"); err != nil {
		return nil, err
	}
	if m, ok := v.(safe); ok {
		return m, nil
	}
	text, err := s.str(v)
	if err == nil {
		text, err = s.made(escape(text))
	}
	return safe(text), err
}

func joinFilter(s *state, v Value, a args) (Value, error) {
	in, err := a.bind("join", "d", "attribute")
	if err != nil {
		return nil, err
	}
	sep := ""
	if in[0] != Value(missing{}) {
		if sep, err = s.str(in[0]); err != nil {
			return nil, err
		}
	}
	list, err := s.iterate(v)
	if err != nil {
		return nil, err
	}
	if in[1] != Value(missing{}) && in[1] != nil {
		if list, err = s.attributes(list, in[1], missing{}); err != nil {
			return nil, err
		}
	}
	return s.joinTexts(sep, list)
}

func replaceFilter(s *state, v Value, a args) (Value, error) {
	if _, ok := v.(safe); ok {
		return nil, errors.New("of a safe string is not supported")
	}
	text, err := s.str(v)
	if err != nil {
		return nil, err
	}
	return replace(s, text, a)
}

func reverse(s *state, v Value, a args) (Value, error) {
	if _, err := a.bind("reverse"); err != nil {
		return nil, err
	}
	if text, ok := text1(v); ok {
		runes := []rune(text)
		slices.Reverse(runes)
		out, err := s.made(string(runes))
		return out, err
	}
	list, err := s.iterate(v)
	if err != nil {
		return nil, err
	}
	list = slices.Clone(list)
	slices.Reverse(list)
	return &List{form: generator, Items: list}, s.work(16 * len(list))
}

func itemsFilter(s *state, v Value, a args) (Value, error) {
	if _, err := a.bind("items"); err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case undefined:
		return &List{form: generator}, nil
	case *Dict:
		return &List{form: generator, Items: v.pairs()}, s.work(64 * v.Len())
	}
	return nil, fmt.Errorf("%s has no items", typeName(v))
}

// attr is an attribute, never an item.
func attr(_ *state, v Value, a args) (Value, error) {
	in, err := bindText("attr", a, "name")
	if err != nil || in[0] == nil {
		return nil, errors.Join(err, errors.New("the name is missing"))
	}
	if u, ok := v.(undefined); ok {
		return nil, u.fail()
	}
	if m, ok := member(v, *in[0]); ok {
		return m, nil
	}
	return undefined(fmt.Sprintf("%s has no attribute %q", typeName(v), clip(*in[0]))), nil
}

func formatFilter(s *state, v Value, a args) (Value, error) {
	if len(a.keys) > 0 {
		return nil, errors.New("named values are not supported")
	}
	text, err := s.str(v)
	if err != nil {
		return nil, err
	}
	out, err := s.percent(text, &List{form: tuple, Items: a.list})
	return out, err
}

func indent(s *state, v Value, a args) (Value, error) {
	in, err := a.bind("indent", "width", "first", "blank")
	if err != nil {
		return nil, err
	}
	text, ok := text1(v)
	if !ok {
		return nil, fmt.Errorf("%s is not a string", typeName(v))
	}
	pad := "    "
	if in[0] != Value(missing{}) {
		if n, ok := asInt(in[0]); ok && n <= 1000 {
			pad = strings.Repeat(" ", max(n, 0))
		} else if pad, ok = text1(in[0]); !ok {
			return nil, errors.New("the width is not supported")
		}
	}
	parts := lines(text + "\n")
	if err := s.room(len(text) + len(parts)*(len(pad)+1)); err != nil {
		return nil, err
	}
	for i := range parts {
		if i == 0 && !isTrue(in[1]) || i > 0 && parts[i] == "" && !isTrue(in[2]) {
			continue
		}
		parts[i] = pad + parts[i]
	}
	return like(v, strings.Join(parts, "\n")), nil
}
