package jinja

import (
	"errors"
	"fmt"
)

// maxRange is the largest range, as in Jinja's sandbox.
const maxRange = 100_000

// clock is the function that reads the time. Without one it is undefined, for templates that have a date of their own then.
const clock = "strftime_now"

// functions are the functions that every template can call.
var functions = map[string]*Func{
	"range":           {"range", makeRange},
	"dict":            {"dict", makeDict},
	"namespace":       {"namespace", makeNamespace},
	"raise_exception": {"raise_exception", raise},
	clock: {clock, func(s *state, a args) (Value, error) {
		in, err := bindText("strftime_now", a, "format")
		if err != nil || in[0] == nil {
			return nil, errors.Join(err, errors.New("strftime_now takes a format"))
		}
		text, err := strftime(s.now, *in[0])
		if err == nil {
			text, err = s.made(text)
		}
		return text, err
	}},
	"lipsum": unsupported("lipsum"),
	"cycler": unsupported("cycler"),
	"joiner": unsupported("joiner"),
}

func unsupported(name string) *Func {
	return &Func{name, func(*state, args) (Value, error) { return nil, fmt.Errorf("function %s is not supported", name) }}
}

func makeRange(s *state, a args) (Value, error) {
	if len(a.list) == 0 || len(a.list) > 3 || len(a.keys) > 0 {
		return nil, errors.New("range takes one to three integers")
	}
	n := [3]int{0, 0, 1}
	for i, v := range a.list {
		k, ok := asInt(v)
		if !ok {
			return nil, fmt.Errorf("range of %s", typeName(v))
		}
		n[i] = k
	}
	if len(a.list) == 1 {
		n[0], n[1] = 0, n[0]
	}
	if n[2] == 0 {
		return nil, errors.New("range with step 0")
	}
	out := &List{form: rangeOf}
	for i := n[0]; n[2] > 0 && i < n[1] || n[2] < 0 && i > n[1]; i += n[2] {
		if len(out.Items) == maxRange {
			return nil, fmt.Errorf("a range has at most %d numbers", maxRange)
		}
		out.Items = append(out.Items, i)
		if next := i + n[2]; (next > i) != (n[2] > 0) {
			break // beyond 64 bits
		}
	}
	return out, s.work(16 * len(out.Items))
}

// makeDict is dict(…) of another dict, pairs, and names.
func makeDict(s *state, a args) (Value, error) {
	if len(a.list) > 1 {
		return nil, errors.New("dict takes at most one value")
	}
	out := NewDict()
	for _, v := range a.list {
		var pairs []Value
		var err error
		if d, ok := v.(*Dict); ok {
			pairs = d.pairs()
		} else if pairs, err = s.iterate(v); err != nil {
			return nil, err
		}
		for _, each := range pairs {
			pair, err := s.iterate(each)
			if err != nil || len(pair) != 2 || !out.Set(pair[0], pair[1]) {
				return nil, errors.Join(err, errors.New("dict takes pairs of a key and a value"))
			}
		}
	}
	for i, key := range a.keys {
		out.Set(key, a.named[i])
	}
	return out, s.work(64 * out.Len())
}

func makeNamespace(s *state, a args) (Value, error) {
	d, err := makeDict(s, a)
	if err != nil {
		return nil, err
	}
	return &namespace{*d.(*Dict)}, nil
}

// raise ends the template with its own message.
func raise(s *state, a args) (Value, error) {
	in, err := a.bind("raise_exception", "message")
	if err != nil {
		return nil, err
	}
	text := "no message"
	if in[0] != Value(missing{}) {
		if text, err = s.str(in[0]); err != nil {
			return nil, err
		}
	}
	return nil, &Error{Msg: text, Raised: true}
}

// test applies a test to v.
func (s *state) test(name string, v Value, a args) (bool, error) {
	if op, ok := comparisons[name]; ok {
		if len(a.list) != 1 || len(a.keys) > 0 {
			return false, fmt.Errorf("test %q takes one value", name)
		}
		return s.holds(op, v, a.list[0])
	}
	f, ok := tests[name]
	switch {
	case name == "divisibleby" && len(a.list) == 1:
		rest, err := s.operate("%", v, a.list[0])
		same, _ := s.equal(rest, 0, 0)
		return same && err == nil, err
	case !ok:
		return false, fmt.Errorf("test %q is not supported", clip(name))
	case len(a.list)+len(a.keys) > 0:
		return false, fmt.Errorf("test %q takes no values", name)
	}
	return f(v), nil
}

// comparisons are the tests that compare with a value.
var comparisons = map[string]string{
	"==": "==", "eq": "==", "equalto": "==", "!=": "!=", "ne": "!=", ">": ">", "gt": ">", "greaterthan": ">", ">=": ">=", "ge": ">=",
	"<": "<", "lt": "<", "lessthan": "<", "<=": "<=", "le": "<=", "in": "in",
}

// is reports whether v is of type T.
func is[T any](v Value) bool {
	_, ok := v.(T)
	return ok
}

var tests = map[string]func(v Value) bool{
	"defined":   func(v Value) bool { return !is[undefined](v) },
	"undefined": is[undefined],
	"none":      func(v Value) bool { return v == nil },
	"string":    func(v Value) bool { return is[string](v) || is[safe](v) },
	"boolean":   is[bool],
	"true":      func(v Value) bool { return v == Value(true) },
	"false":     func(v Value) bool { return v == Value(false) },
	"integer":   is[int],
	"float":     is[float64],
	"number":    func(v Value) bool { return is[int](v) || is[float64](v) || is[bool](v) },
	"mapping":   is[*Dict],
	"iterable":  iterable,
	"sequence": func(v Value) bool {
		l, ok := v.(*List)
		return ok && l.indexed() || !ok && iterable(v) && !is[*loopValue](v)
	},
	"callable": func(v Value) bool { return is[*Func](v) || is[*macroValue](v) || is[*loopValue](v) || is[undefined](v) },
	"lower":    func(v Value) bool { text, ok := text1(v); return ok && yes(stringMethods["islower"], text) },
	"upper":    func(v Value) bool { text, ok := text1(v); return ok && yes(stringMethods["isupper"], text) },
	"odd":      func(v Value) bool { i, ok := asInt(v); return ok && i%2 != 0 },
	"even":     func(v Value) bool { i, ok := asInt(v); return ok && i%2 == 0 },
}

func yes(m func(*state, string, args) (Value, error), text string) bool {
	v, err := m(&state{}, text, args{})
	return err == nil && v == Value(true)
}

func iterable(v Value) bool {
	return is[*List](v) || is[*Dict](v) || is[undefined](v) || is[string](v) || is[safe](v) || is[*loopValue](v)
}
