package jinja

import (
	"fmt"
)

type macro struct {
	line     int
	name     string
	params   []string
	defaults []expr // nil where there is none
	body     []stmt
	reads    map[string]bool // names in the body
}

// macroValue is a macro with the variables that it sees.
type macroValue struct {
	*macro
	outside *scope
}

func (m *macro) run(_ *state, sc *scope) (signal, error) {
	sc.set(m.name, &macroValue{m, sc})
	return none, nil
}

// attribute returns an attribute of a macro as Jinja has it.
func (m *macroValue) attribute(name string) (Value, bool) {
	catches := func(name string) bool { return m.reads[name] && !has(m.params, name) }
	switch name {
	case "name":
		return m.name, true
	case "arguments":
		params := &List{form: tuple}
		for _, p := range m.params {
			params.Items = append(params.Items, p)
		}
		return params, true
	case "catch_kwargs":
		return catches("kwargs"), true
	case "catch_varargs":
		return catches("varargs"), true
	case "caller":
		return m.reads["caller"], true
	case "explicit_caller":
		return has(m.params, "caller"), true
	}
	return nil, false
}

// call runs a macro and returns what it writes.
func (m *macroValue) call(s *state, a args) (Value, error) {
	sc := &scope{parent: m.outside}
	if err := m.bind(s, sc, a); err != nil {
		return nil, err
	}
	text, _, err := s.capture(m.body, sc)
	return text, err
}

// bind sets the parameters of a macro: arguments by place, by name, defaults, undefined. Further ones are in varargs
// and kwargs, for macros that name these.
func (m *macroValue) bind(s *state, sc *scope, a args) error {
	extra := NewDict()
	var caller Value
	for i, key := range a.keys {
		switch {
		case has(m.params, key):
			if place(m.params, key) < len(a.list) {
				return fmt.Errorf("macro %q got parameter %q twice", m.name, key)
			}
			sc.set(key, a.named[i])
		case key == "caller":
			caller = a.named[i]
		default:
			extra.Set(key, a.named[i])
		}
	}
	for i, param := range m.params {
		if i < len(a.list) {
			sc.set(param, a.list[i])
		}
		if _, given := sc.vars[param]; given {
			continue
		}
		sc.set(param, undefined(fmt.Sprintf("parameter %q was not provided", param)))
		if m.defaults[i] != nil {
			v, err := s.eval(m.defaults[i], sc)
			if err != nil {
				return err
			}
			sc.set(param, v)
		}
	}
	uses := m.reads
	var rest []Value
	if len(a.list) > len(m.params) {
		rest = a.list[len(m.params):]
	}
	switch {
	case len(rest) > 0 && !uses["varargs"]:
		return fmt.Errorf("macro %q takes not more than %d arguments", m.name, len(m.params))
	case extra.Len() > 0 && !uses["kwargs"]:
		return fmt.Errorf("macro %q takes no argument %v", m.name, extra.keys[0])
	case caller != nil && !uses["caller"]:
		return fmt.Errorf("macro %q takes no caller", m.name)
	}
	for name, v := range map[string]Value{"varargs": &List{form: tuple, Items: rest}, "kwargs": extra} {
		if uses[name] && !has(m.params, name) {
			sc.set(name, v)
		}
	}
	if uses["caller"] && !has(m.params, "caller") {
		if caller == nil {
			caller = undefined("no caller defined")
		}
		sc.set("caller", caller)
	}
	return nil
}

func has(list []string, s string) bool { return place(list, s) < len(list) }

func place(list []string, s string) int {
	for i, each := range list {
		if each == s {
			return i
		}
	}
	return len(list)
}

type callBlock struct {
	line  int
	call  *call
	macro *macro
}

func (c *callBlock) run(s *state, sc *scope) (signal, error) {
	of, err := s.eval(c.call.of, sc)
	if err != nil {
		return none, err
	}
	a, err := c.call.args.eval(s, sc)
	if err != nil {
		return none, err
	}
	a.keys, a.named = append(a.keys, "caller"), append(a.named, &macroValue{c.macro, sc})
	v, err := s.invoke(of, a)
	if err != nil {
		return none, at(c.line, err)
	}
	text, err := s.str(v)
	if err == nil {
		err = s.write(text)
	}
	return none, at(c.line, err)
}
