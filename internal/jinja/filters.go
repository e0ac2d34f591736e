package jinja

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
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

func toList(s *state, v Value, a args) (Value, error) {
	if _, err := a.bind("list"); err != nil {
		return nil, err
	}
	items, err := s.iterate(v)
	if err == nil {
		err = s.work(16 * len(items))
	}
	return &List{Items: slices.Clone(items)}, err
}

func first(s *state, v Value, a args) (Value, error) { return oneOf(s, v, a, false) }

func last(s *state, v Value, a args) (Value, error) {
	if l, ok := v.(*List); ok && l.form == generator {
		return nil, errors.New("a generator has no last item")
	}
	return oneOf(s, v, a, true)
}

func oneOf(s *state, v Value, a args, last bool) (Value, error) {
	if _, err := a.bind("first"); err != nil {
		return nil, err
	}
	list, err := s.iterate(v)
	if err != nil {
		return nil, err
	}
	switch {
	case len(list) == 0:
		return undefined("the sequence was empty"), nil
	case last:
		return list[len(list)-1], nil
	}
	if l, ok := v.(*List); ok && l.form == generator { // what was not taken is still there
		l.Items, l.used = l.Items[1:], false
	}
	return list[0], nil
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

// folded is what values are sorted and compared by: lower case, unless case counts.
func (s *state) folded(v Value, caseSensitive bool) (Value, error) {
	if text, ok := text1(v); ok && !caseSensitive {
		text, err := s.made(lower(text))
		return text, err
	}
	return v, nil
}

// isTrue reports whether an argument is given and true.
func isTrue(v Value) bool { return v != Value(missing{}) && truth(v) }

func dictsort(s *state, v Value, a args) (Value, error) {
	in, err := a.bind("dictsort", "case_sensitive", "by", "reverse")
	if err != nil {
		return nil, err
	}
	d, ok := v.(*Dict)
	if !ok {
		return nil, fmt.Errorf("%s is not a dict", typeName(v))
	}
	by := 0
	switch in[1] {
	case missing{}, "key":
	case "value":
		by = 1
	default:
		return nil, errors.New("by is key or value")
	}
	list := d.pairs()
	err = s.sort(list, isTrue(in[2]), func(v Value) (Value, error) {
		return s.folded(v.(*List).Items[by], isTrue(in[0]))
	})
	return &List{Items: list}, err
}

// sort sorts list by what by makes of each item; equal ones keep their order.
func (s *state) sort(list []Value, reverse bool, by func(Value) (Value, error)) error {
	type keyed struct{ key, v Value }
	all := make([]keyed, len(list))
	for i, v := range list {
		key, err := by(v)
		if err != nil {
			return err
		}
		all[i] = keyed{key, v}
	}
	var failed error
	slices.SortStableFunc(all, func(a, b keyed) int {
		sign, _, err := s.compare("<", a.key, b.key, 0)
		if err != nil && failed == nil {
			failed = err
		}
		if reverse {
			return -sign
		}
		return sign
	})
	for i := range all {
		list[i] = all[i].v
	}
	if failed != nil {
		return failed
	}
	return s.work(64 * len(list))
}

func sortFilter(s *state, v Value, a args) (Value, error) {
	in, err := a.bind("sort", "reverse", "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	list, err := s.iterate(v)
	if err != nil {
		return nil, err
	}
	list = slices.Clone(list)
	err = s.sort(list, isTrue(in[0]), func(v Value) (Value, error) {
		if in[2] != Value(missing{}) && in[2] != nil {
			if v, err = s.path(v, in[2], missing{}); err != nil {
				return nil, err
			}
		}
		return s.folded(v, isTrue(in[1]))
	})
	return &List{Items: list}, err
}

func unique(s *state, v Value, a args) (Value, error) {
	in, err := a.bind("unique", "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	list, err := s.iterate(v)
	if err != nil {
		return nil, err
	}
	seen := map[any]bool{}
	out := &List{form: generator}
	for _, item := range list {
		key := item
		if in[1] != Value(missing{}) && in[1] != nil {
			if key, err = s.path(item, in[1], missing{}); err != nil {
				return nil, err
			}
		}
		if key, err = s.folded(key, isTrue(in[0])); err != nil {
			return nil, err
		}
		h, ok := hashable(key)
		if !ok {
			return nil, fmt.Errorf("%s is not supported", typeName(key))
		}
		if !seen[h] {
			seen[h] = true
			out.Items = append(out.Items, item)
		}
	}
	return out, s.work(64 * len(list))
}

// path is v.a.b for "a.b": an attribute of an attribute; numbers are elements.
func (s *state) path(v Value, path Value, otherwise Value) (Value, error) {
	text, ok := text1(path)
	if i, isInt := asInt(path); isInt {
		text, ok = strconv.Itoa(i), true
	}
	if !ok {
		return nil, fmt.Errorf("%s is not the name of an attribute", typeName(path))
	}
	for part := range strings.SplitSeq(text, ".") {
		if err := s.step(); err != nil {
			return nil, err
		}
		var key Value = part
		if i, err := strconv.Atoi(part); err == nil && !strings.HasPrefix(part, "-") {
			key = i
		}
		var err error
		if v, err = s.item(v, key); err != nil {
			return nil, err
		}
		if _, absent := v.(undefined); absent && otherwise != Value(missing{}) {
			v = otherwise
		}
	}
	return v, nil
}

// attributes is path of each.
func (s *state) attributes(list []Value, path, otherwise Value) ([]Value, error) {
	out := make([]Value, len(list))
	for i, v := range list {
		var err error
		if out[i], err = s.path(v, path, otherwise); err != nil {
			return nil, err
		}
	}
	return out, s.work(16 * len(out))
}

// some is iterate, of nothing for all that is not true.
func (s *state) some(v Value) ([]Value, error) {
	if !truth(v) {
		return nil, nil
	}
	return s.iterate(v)
}

func mapFilter(s *state, v Value, a args) (Value, error) {
	list, err := s.some(v)
	if err != nil {
		return nil, err
	}
	out := &List{form: generator}
	if len(a.list) == 0 {
		in, err := a.bind("map", "attribute", "default")
		if err != nil || in[0] == Value(missing{}) {
			return nil, errors.Join(err, errors.New("map takes a filter or an attribute"))
		}
		if in[1] == nil {
			in[1] = missing{}
		}
		out.Items, err = s.attributes(list, in[0], in[1])
		return out, err
	}
	name, ok := text1(a.list[0])
	if !ok {
		return nil, errors.New("the name of a filter is not a string")
	}
	a.list = a.list[1:]
	for _, item := range list {
		if err := s.step(); err != nil {
			return nil, err
		}
		one, err := s.filter(name, item, a)
		if err != nil {
			return nil, err
		}
		out.Items = append(out.Items, one)
	}
	return out, s.work(16 * len(out.Items))
}

// pick is select, reject, selectattr and rejectattr.
func pick(byAttribute, want bool) filterFunc {
	return func(s *state, v Value, a args) (Value, error) {
		list, err := s.some(v)
		if err != nil {
			return nil, err
		}
		var path Value
		if byAttribute {
			if len(a.list) == 0 {
				return nil, errors.New("the attribute is missing")
			}
			path, a.list = a.list[0], a.list[1:]
		}
		out := &List{form: generator}
		for _, item := range list {
			if err := s.step(); err != nil {
				return nil, err
			}
			of := item
			if byAttribute {
				if of, err = s.path(item, path, missing{}); err != nil {
					return nil, err
				}
			}
			yes := truth(of)
			if len(a.list) > 0 {
				name, ok := text1(a.list[0])
				if !ok {
					return nil, errors.New("the name of a test is not a string")
				}
				if yes, err = s.test(name, of, args{a.list[1:], a.keys, a.named}); err != nil {
					return nil, err
				}
			}
			if yes == want {
				out.Items = append(out.Items, item)
			}
		}
		return out, s.work(16 * len(out.Items))
	}
}

func extreme(sign int) filterFunc {
	return func(s *state, v Value, a args) (Value, error) {
		in, err := a.bind("min", "case_sensitive", "attribute")
		if err != nil {
			return nil, err
		}
		list, err := s.iterate(v)
		if err != nil {
			return nil, err
		}
		var best, bestKey Value = undefined("the sequence was empty"), nil
		for i, item := range list {
			key := item
			if in[1] != Value(missing{}) && in[1] != nil {
				if key, err = s.path(item, in[1], missing{}); err != nil {
					return nil, err
				}
			}
			if key, err = s.folded(key, isTrue(in[0])); err != nil {
				return nil, err
			}
			if i > 0 {
				c, _, err := s.compare("<", key, bestKey, 0)
				if err != nil {
					return nil, err
				}
				if c != sign {
					continue
				}
			}
			best, bestKey = item, key
		}
		return best, nil
	}
}

func sum(s *state, v Value, a args) (Value, error) {
	in, err := a.bind("sum", "attribute", "start")
	if err != nil {
		return nil, err
	}
	list, err := s.iterate(v)
	if err == nil && in[0] != Value(missing{}) && in[0] != nil {
		list, err = s.attributes(list, in[0], missing{})
	}
	if err != nil {
		return nil, err
	}
	var total Value = 0
	if in[1] != Value(missing{}) {
		total = in[1]
	}
	for _, item := range list {
		if total, err = s.operate("+", total, item); err != nil {
			return nil, err
		}
	}
	return total, nil
}

func abs(_ *state, v Value, a args) (Value, error) {
	if _, err := a.bind("abs"); err != nil {
		return nil, err
	}
	if i, ok := asInt(v); ok && i != math.MinInt {
		return max(i, -i), nil
	}
	if f, ok := v.(float64); ok {
		return math.Abs(f), nil
	}
	return nil, fmt.Errorf("%s is not a number", typeName(v))
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

func toInt(_ *state, v Value, a args) (Value, error) {
	in, err := a.bind("int", "default", "base")
	if err != nil {
		return nil, err
	}
	if in[1] != Value(missing{}) && in[1] != Value(10) {
		return nil, errors.New("other bases than 10 are not supported")
	}
	if i, ok := asInt(v); ok {
		return i, nil
	}
	f, ok := v.(float64)
	if text, isText := text1(v); isText {
		text = strings.TrimFunc(text, isSpace)
		if i, err := strconv.Atoi(strings.ReplaceAll(text, "_", "")); err == nil {
			return i, nil
		}
		f, err = strconv.ParseFloat(text, 64)
		ok = err == nil
	}
	if ok && math.Abs(f) < 1<<63 {
		return int(f), nil
	}
	if in[0] != Value(missing{}) {
		return in[0], nil
	}
	return 0, nil
}

func toFloat(_ *state, v Value, a args) (Value, error) {
	in, err := a.bind("float", "default")
	if err != nil {
		return nil, err
	}
	if f, ok := asFloat(v); ok {
		return f, nil
	}
	if text, ok := text1(v); ok {
		if f, err := strconv.ParseFloat(strings.TrimFunc(text, isSpace), 64); err == nil {
			return f, nil
		}
	}
	if in[0] != Value(missing{}) {
		return in[0], nil
	}
	return 0.0, nil
}

// round rounds to a number of digits: common rounds to even of what the float is exactly, as Python does.
func round(_ *state, v Value, a args) (Value, error) {
	in, err := a.bind("round", "precision", "method")
	if err != nil {
		return nil, err
	}
	digits := 0
	if in[0] != Value(missing{}) {
		var ok bool
		if digits, ok = asInt(in[0]); !ok || digits < 0 || digits > 15 {
			return nil, errors.New("the precision is not supported")
		}
	}
	f, ok := asFloat(v)
	if !ok {
		return nil, fmt.Errorf("%s is not a number", typeName(v))
	}
	scale := math.Pow(10, float64(digits))
	switch in[1] {
	case missing{}, "common":
		if i, ok := asInt(v); ok {
			return i, nil
		}
		return strconv.ParseFloat(strconv.FormatFloat(f, 'f', digits, 64), 64)
	case "ceil":
		return math.Ceil(f*scale) / scale, nil
	case "floor":
		return math.Floor(f*scale) / scale, nil
	}
	return nil, errors.New("the method is common, ceil or floor")
}
