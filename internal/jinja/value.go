package jinja

import (
	"fmt"
	"math"
	"strings"
)

// A Value is what a template computes with, by Python's rules:
//
//	nil        None
//	bool, int, float64, string
//	*List      a list, tuple, range, view of a dict, or generator
//	*Dict      a dict, in the order of insertion
//	undefined  what is not there
//	safe       a string that was declared safe: + escapes what is joined to it
//	*Func, *macroValue, *loopValue, *namespace
type Value any

// A List is a sequence.
type List struct {
	Items []Value
	form  form
	used  bool // a generator that is at its end
}

// form says what kind of sequence a List is.
type form byte

const (
	list form = iota
	tuple
	rangeOf   // range(…)
	keys      // views of a dict
	values    //
	items     //
	generator // what select, map and the like return: can be walked once
)

// NewList returns a list.
func NewList(items ...Value) *List { return &List{Items: items} }

// indexed reports whether l has elements by number.
func (l *List) indexed() bool { return l.form <= rangeOf }

// Dict is a dict. Keys are strings, numbers, booleans or None.
type Dict struct {
	keys, values []Value
	at           map[any]int
}

// NewDict returns an empty dict.
func NewDict() *Dict { return &Dict{at: map[any]int{}} }

// hashable returns the form of a key in which equal keys are equal.
func hashable(key Value) (any, bool) {
	switch k := key.(type) {
	case nil, string, int:
		return k, true
	case safe:
		return string(k), true
	case bool:
		return number(k), true
	case float64:
		if k == math.Trunc(k) && math.Abs(k) < 1<<53 {
			return int(k), true
		}
		return k, true
	}
	return nil, false
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Set adds or replaces a value. It reports whether the key is of a kind that a dict can have.
func (d *Dict) Set(key, value Value) bool {
	h, ok := hashable(key)
	if !ok {
		return false
	}
	if i, there := d.at[h]; there {
		d.values[i] = value
		return true
	}
	d.at[h] = len(d.keys)
	d.keys, d.values = append(d.keys, key), append(d.values, value)
	return true
}

// Get returns the value of a key.
func (d *Dict) Get(key Value) (Value, bool) {
	h, ok := hashable(key)
	if !ok {
		return nil, false
	}
	i, ok := d.at[h]
	if !ok {
		return nil, false
	}
	return d.values[i], true
}

// Len returns the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

// pairs returns the items as tuples.
func (d *Dict) pairs() []Value {
	out := make([]Value, len(d.keys))
	for i := range d.keys {
		out[i] = &List{form: tuple, Items: []Value{d.keys[i], d.values[i]}}
	}
	return out
}

type (
	// undefined is what is not there; it says why.
	undefined string

	// safe is a string that needs no escapes.
	safe string

	// Func is a function, a method or a filter.
	Func struct {
		name string
		call func(s *state, a args) (Value, error)
	}

	// namespace has attributes that can be set.
	namespace struct{ Dict }
)

// typeName is Python's name of a value's type.
func typeName(v Value) string {
	switch v := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case safe:
		return "Markup"
	case *Dict:
		return "dict"
	case undefined:
		return "Undefined"
	case *List:
		return [...]string{"list", "tuple", "range", "dict_keys", "dict_values", "dict_items", "generator"}[v.form]
	case *namespace:
		return "Namespace"
	case *macroValue:
		return "Macro"
	case *loopValue:
		return "LoopContext"
	}
	return "function"
}

// truth is Python's truth of a value.
func truth(v Value) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case safe:
		return v != ""
	case *List:
		return v.form == generator || len(v.Items) > 0
	case *Dict:
		return v.Len() > 0
	}
	return true
}

// text returns a string's text.
func text1(v Value) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case safe:
		return string(v), true
	}
	return "", false
}

// asFloat returns the value of a number.
func asFloat(v Value) (float64, bool) {
	switch v := v.(type) {
	case bool:
		return float64(number(v)), true
	case int:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

// asInt returns the value of an integer.
func asInt(v Value) (int, bool) {
	switch v := v.(type) {
	case bool:
		return number(v), true
	case int:
		return v, true
	}
	return 0, false
}

// equal is Python's ==.
func (s *state) equal(a, b Value, depth int) (bool, error) {
	if depth > maxDepth {
		return false, fmt.Errorf("values are nested more than %d deep", maxDepth)
	}
	if err := s.work(16); err != nil {
		return false, err
	}
	if x, ok := asFloat(a); ok {
		y, ok := asFloat(b)
		return ok && x == y, nil
	}
	if x, ok := text1(a); ok {
		y, ok := text1(b)
		return ok && x == y, s.work(min(len(x), len(y)))
	}
	switch x := a.(type) {
	case nil:
		return b == nil, nil
	case undefined:
		_, ok := b.(undefined)
		return ok, nil
	case *List:
		y, ok := b.(*List)
		if !ok || x.form != y.form || x.form > rangeOf {
			return x == y && ok, nil
		}
		return s.equalLists(x.Items, y.Items, depth)
	case *Dict:
		y, ok := b.(*Dict)
		if !ok || x.Len() != y.Len() {
			return false, nil
		}
		for i, key := range x.keys {
			v, ok := y.Get(key)
			if !ok {
				return false, nil
			}
			if same, err := s.equal(x.values[i], v, depth+1); err != nil || !same {
				return false, err
			}
		}
		return true, nil
	}
	return a == b, nil
}

func (s *state) equalLists(a, b []Value, depth int) (bool, error) {
	if len(a) != len(b) {
		return false, nil
	}
	for i := range a {
		if same, err := s.equal(a[i], b[i], depth+1); err != nil || !same {
			return false, err
		}
	}
	return true, nil
}

// compare returns the sign of a - b, for strings, numbers and lists of them; operator is for the error. NaN is
// unordered: ok is false.
func (s *state) compare(operator string, a, b Value, depth int) (sign int, ok bool, err error) {
	if depth > maxDepth {
		return 0, false, fmt.Errorf("values are nested more than %d deep", maxDepth)
	}
	if err := s.work(16); err != nil {
		return 0, false, err
	}
	if x, isInt := asInt(a); isInt {
		if y, isInt := asInt(b); isInt {
			return order(x < y, x > y), true, nil
		}
	}
	if x, isNumber := asFloat(a); isNumber {
		if y, isNumber := asFloat(b); isNumber {
			return order(x < y, x > y), x == x && y == y, nil
		}
	}
	if x, isText := text1(a); isText {
		if y, isText := text1(b); isText {
			return strings.Compare(x, y), true, s.work(min(len(x), len(y)))
		}
	}
	x, isList := a.(*List)
	y, isList2 := b.(*List)
	if isList && isList2 && x.form == y.form && x.form <= tuple {
		for i := range min(len(x.Items), len(y.Items)) {
			same, err := s.equal(x.Items[i], y.Items[i], depth+1)
			if err != nil {
				return 0, false, err
			}
			if !same {
				return s.compare(operator, x.Items[i], y.Items[i], depth+1)
			}
		}
		return order(len(x.Items) < len(y.Items), len(x.Items) > len(y.Items)), true, nil
	}
	for _, v := range []Value{a, b} {
		if u, ok := v.(undefined); ok {
			return 0, false, u.fail()
		}
	}
	return 0, false, fmt.Errorf("%s does not order %s and %s", operator, typeName(a), typeName(b))
}

func order(less, more bool) int { return number(more) - number(less) }
