package jinja

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// expr is an expression.
type expr interface {
	line() int
	eval(s *state, sc *scope) (Value, error)
}

// pos is the line of an expression.
type pos int

func (p pos) line() int { return int(p) }

// eval evaluates e; its errors have a line.
func (s *state) eval(e expr, sc *scope) (Value, error) {
	if err := s.step(); err != nil {
		return nil, at(e.line(), err)
	}
	v, err := e.eval(s, sc)
	if err != nil {
		return nil, at(e.line(), err)
	}
	return v, nil
}

func (s *state) evalAll(list []expr, sc *scope) ([]Value, error) {
	if len(list) == 0 {
		return nil, nil
	}
	out := make([]Value, len(list))
	for i, e := range list {
		v, err := s.eval(e, sc)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, s.work(16 * len(out))
}

type constant struct {
	pos
	value Value
}

func (c *constant) eval(*state, *scope) (Value, error) { return c.value, nil }

type variable struct {
	pos
	name string
}

func (v *variable) eval(s *state, sc *scope) (Value, error) {
	if value, ok := sc.get(v.name); ok {
		return value, nil
	}
	if f, ok := functions[v.name]; ok && !(v.name == clock && s.now.IsZero()) {
		return f, nil
	}
	if v.name == "self" { // Jinja's reference to the template
		return nil, errors.New("self is not supported")
	}
	return undefined(fmt.Sprintf("%q is undefined", clip(v.name))), nil
}

type logic struct {
	pos
	or   bool
	a, b expr
}

// eval returns one of the operands, as in Python.
func (l *logic) eval(s *state, sc *scope) (Value, error) {
	v, err := s.eval(l.a, sc)
	if err != nil || truth(v) == l.or {
		return v, err
	}
	return s.eval(l.b, sc)
}

type not struct {
	pos
	of expr
}

func (n *not) eval(s *state, sc *scope) (Value, error) {
	v, err := s.eval(n.of, sc)
	return !truth(v), err
}

type choice struct {
	pos
	test, then, otherwise expr
}

func (c *choice) eval(s *state, sc *scope) (Value, error) {
	v, err := s.eval(c.test, sc)
	switch {
	case err != nil:
		return nil, err
	case truth(v):
		return s.eval(c.then, sc)
	case c.otherwise == nil:
		return undefined("the inline if-expression was false and has no else"), nil
	}
	return s.eval(c.otherwise, sc)
}

type listOf struct {
	pos
	tuple bool
	items []expr
}

func (l *listOf) eval(s *state, sc *scope) (Value, error) {
	items, err := s.evalAll(l.items, sc)
	out := &List{Items: items}
	if l.tuple {
		out.form = tuple
	}
	return out, err
}

type dictOf struct {
	pos
	keys, values []expr
}

func (d *dictOf) eval(s *state, sc *scope) (Value, error) {
	out := NewDict()
	for i := range d.keys {
		key, err := s.eval(d.keys[i], sc)
		if err != nil {
			return nil, err
		}
		v, err := s.eval(d.values[i], sc)
		if err != nil {
			return nil, err
		}
		if !out.Set(key, v) {
			return nil, fmt.Errorf("%s as a key is not supported", typeName(key))
		}
		if text, ok := text1(key); ok {
			if err := s.work(len(text)); err != nil {
				return nil, err
			}
		}
	}
	return out, s.work(48 * len(d.keys))
}

type concat struct {
	pos
	parts []expr
}

func (c *concat) eval(s *state, sc *scope) (Value, error) {
	var b strings.Builder
	for _, e := range c.parts {
		v, err := s.eval(e, sc)
		if err != nil {
			return nil, err
		}
		text, err := s.str(v)
		if err != nil {
			return nil, err
		}
		if err := s.grow(b.Len(), len(text)); err != nil {
			return nil, err
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

type compare struct {
	pos
	first    expr
	ops      []string
	operands []expr
}

func (c *compare) eval(s *state, sc *scope) (Value, error) {
	a, err := s.eval(c.first, sc)
	if err != nil {
		return nil, err
	}
	for i, op := range c.ops {
		b, err := s.eval(c.operands[i], sc)
		if err != nil {
			return nil, err
		}
		yes, err := s.holds(op, a, b)
		if err != nil || !yes {
			return false, err
		}
		a = b
	}
	return true, nil
}

// holds reports whether a op b.
func (s *state) holds(op string, a, b Value) (bool, error) {
	switch op {
	case "==":
		return s.equal(a, b, 0)
	case "!=":
		same, err := s.equal(a, b, 0)
		return !same, err
	case "in":
		return s.contains(b, a)
	case "not in":
		in, err := s.contains(b, a)
		return !in, err
	}
	sign, ok, err := s.compare(op, a, b, 0)
	if err != nil || !ok {
		return false, err
	}
	switch op {
	case "<":
		return sign < 0, nil
	case "<=":
		return sign <= 0, nil
	case ">":
		return sign > 0, nil
	}
	return sign >= 0, nil
}

// contains is Python's item in of.
func (s *state) contains(of, item Value) (bool, error) {
	if text, ok := text1(of); ok {
		part, ok := text1(item)
		if !ok {
			return false, fmt.Errorf("%s in a string", typeName(item))
		}
		return strings.Contains(text, part), s.work(len(text))
	}
	if d, ok := of.(*Dict); ok {
		if _, ok := hashable(item); !ok {
			return false, fmt.Errorf("%s as a key is not supported", typeName(item))
		}
		_, ok := d.Get(item)
		text, _ := text1(item)
		return ok, s.work(len(text))
	}
	list, err := s.iterate(of)
	if err != nil {
		return false, err
	}
	for _, each := range list {
		if same, err := s.equal(each, item, 0); same || err != nil {
			return same, err
		}
	}
	return false, nil
}

// iterate returns what a for loop over v walks over. A generator is at its end then.
func (s *state) iterate(v Value) ([]Value, error) {
	switch v := v.(type) {
	case *List:
		if v.form != generator {
			return v.Items, s.work(len(v.Items))
		}
		if v.used {
			return nil, nil
		}
		v.used = true
		return v.Items, s.work(len(v.Items))
	case *Dict:
		return v.keys, s.work(len(v.keys))
	case undefined:
		return nil, nil
	case string, safe:
		text, _ := text1(v)
		if err := s.work(20 * len(text)); err != nil {
			return nil, err
		}
		out := make([]Value, 0, len(text))
		for _, r := range text {
			out = append(out, string(r))
		}
		return out, nil
	}
	return nil, fmt.Errorf("%s is not iterable", typeName(v))
}

type sign struct {
	pos
	minus bool
	of    expr
}

func (n *sign) eval(s *state, sc *scope) (Value, error) {
	v, err := s.eval(n.of, sc)
	if err != nil {
		return nil, err
	}
	if i, ok := asInt(v); ok && i != math.MinInt {
		if n.minus {
			i = -i
		}
		return i, nil
	}
	if f, ok := v.(float64); ok {
		if n.minus {
			f = -f
		}
		return f, nil
	}
	if u, ok := v.(undefined); ok {
		return nil, u.fail()
	}
	return nil, fmt.Errorf("a sign before %s", typeName(v))
}
