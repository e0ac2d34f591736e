package jinja

import (
	"errors"
)

type loop struct {
	line            int
	target          target
	list, test      expr
	recursive       bool
	body, otherwise []stmt
}

// loopValue is the variable loop.
type loopValue struct {
	items   []Value
	at      int
	depth   int
	changed []Value
	again   *loop // of a recursive loop
	outside *scope
}

func (l *loop) run(s *state, sc *scope) (signal, error) {
	v, err := s.eval(l.list, sc)
	if err != nil {
		return none, err
	}
	return none, at(l.line, l.each(s, sc, v, 0))
}

// each runs the loop over v.
func (l *loop) each(s *state, sc *scope, v Value, depth int) error {
	list, err := s.iterate(v)
	if err != nil {
		return err
	}
	if l.test != nil {
		if list, err = l.selected(s, sc, list); err != nil {
			return err
		}
	}
	if len(list) == 0 {
		_, err := s.run(l.otherwise, &scope{parent: sc})
		return err
	}
	state := &loopValue{items: list, depth: depth, outside: sc}
	if l.recursive {
		state.again = l
	}
	for i, item := range list {
		if err := s.step(); err != nil {
			return err
		}
		state.at = i
		inner := &scope{parent: sc}
		if err := l.target.assign(s, inner, item); err != nil {
			return err
		}
		inner.set("loop", state)
		sig, err := s.run(l.body, inner)
		if err != nil {
			return err
		}
		if sig == breaks {
			break
		}
	}
	return nil
}

// selected returns the items that the loop's test takes.
func (l *loop) selected(s *state, sc *scope, list []Value) ([]Value, error) {
	var taken []Value
	for _, item := range list {
		inner := &scope{parent: sc}
		if err := l.target.assign(s, inner, item); err != nil {
			return nil, err
		}
		v, err := s.eval(l.test, inner)
		if err != nil {
			return nil, err
		}
		if truth(v) {
			taken = append(taken, item)
		}
	}
	return taken, nil
}

// attribute returns an attribute of the variable loop.
func (l *loopValue) attribute(name string) (Value, bool) {
	n := len(l.items)
	neighbour := func(i int, which string) Value {
		if i < 0 || i >= n {
			return undefined("there is no " + which + " item")
		}
		return l.items[i]
	}
	switch name {
	case "index":
		return l.at + 1, true
	case "index0":
		return l.at, true
	case "revindex":
		return n - l.at, true
	case "revindex0":
		return n - l.at - 1, true
	case "first":
		return l.at == 0, true
	case "last":
		return l.at == n-1, true
	case "length":
		return n, true
	case "depth":
		return l.depth + 1, true
	case "depth0":
		return l.depth, true
	case "previtem":
		return neighbour(l.at-1, "previous"), true
	case "nextitem":
		return neighbour(l.at+1, "next"), true
	case "cycle":
		return &Func{"cycle", func(s *state, a args) (Value, error) {
			if len(a.list) == 0 || len(a.keys) > 0 {
				return nil, errors.New("loop.cycle takes the values to cycle through")
			}
			return a.list[l.at%len(a.list)], nil
		}}, true
	case "changed":
		return &Func{"changed", func(s *state, a args) (Value, error) {
			same, err := s.equalLists(l.changed, a.list, 0)
			same = same && l.changed != nil
			l.changed = append([]Value{}, a.list...)
			return !same, err
		}}, true
	}
	return nil, false
}
