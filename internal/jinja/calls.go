package jinja

import (
	"errors"
	"fmt"
	"strings"
)

// arguments of a call as they are written.
type arguments struct {
	list  []expr
	keys  []string
	named []expr

	star, stars expr // *list and **dict; nil where there is none
}

// args are the arguments of a call.
type args struct {
	list  []Value
	keys  []string
	named []Value
}

func (a *arguments) eval(s *state, sc *scope) (args, error) {
	list, err := s.evalAll(a.list, sc)
	if err != nil {
		return args{}, err
	}
	named, err := s.evalAll(a.named, sc)
	if err != nil {
		return args{}, err
	}
	out := args{list, a.keys[:len(a.keys):len(a.keys)], named[:len(named):len(named)]}
	return out, a.spread(s, sc, &out)
}

// spread adds what *list and **dict hold.
func (a *arguments) spread(s *state, sc *scope, to *args) error {
	if a.star != nil {
		v, err := s.eval(a.star, sc)
		if err != nil {
			return err
		}
		more, err := s.iterate(v)
		if err == nil {
			err = s.work(16 * len(more))
		}
		if err != nil {
			return err
		}
		to.list = append(to.list, more...)
	}
	if a.stars == nil {
		return nil
	}
	v, err := s.eval(a.stars, sc)
	if err != nil {
		return err
	}
	d, ok := v.(*Dict)
	if !ok || d.Len() > maxArgs {
		return fmt.Errorf("%s behind **, with more than %d values or none", typeName(v), maxArgs)
	}
	for i, key := range d.keys {
		name, ok := text1(key)
		if !ok || has(to.keys, name) {
			return fmt.Errorf("argument %q is not a name or is given twice", fmt.Sprint(key))
		}
		to.keys, to.named = append(to.keys, name), append(to.named, d.values[i])
	}
	return s.work(32 * d.Len())
}

// missing is an argument that is not given.
type missing struct{}

// bind returns the arguments in the order of names; what is not given is missing.
func (a args) bind(of string, names ...string) ([]Value, error) {
	if len(a.list) > len(names) {
		return nil, fmt.Errorf("%s takes at most %d arguments", of, len(names))
	}
	out := make([]Value, len(names))
	for i := range out {
		out[i] = missing{}
		if i < len(a.list) {
			out[i] = a.list[i]
		}
	}
	for i, key := range a.keys {
		k := place(names, key)
		if k == len(names) {
			return nil, fmt.Errorf("%s has no argument %q", of, clip(key))
		}
		if out[k] != Value(missing{}) {
			return nil, fmt.Errorf("%s got argument %q twice", of, key)
		}
		out[k] = a.named[i]
	}
	return out, nil
}

type call struct {
	pos
	of   expr
	args arguments
}

func (c *call) eval(s *state, sc *scope) (Value, error) {
	of, err := s.eval(c.of, sc)
	if err != nil {
		return nil, err
	}
	a, err := c.args.eval(s, sc)
	if err != nil {
		return nil, err
	}
	v, err := s.invoke(of, a)
	var raised *Error
	if errors.As(err, &raised) && raised.Line == 0 {
		raised.Line = c.line()
	}
	return v, err
}

// invoke calls a value.
func (s *state) invoke(of Value, a args) (Value, error) {
	if s.depth++; s.depth > maxDepth {
		return nil, errDepth
	}
	defer func() { s.depth-- }()
	switch f := of.(type) {
	case *Func:
		return f.call(s, a)
	case *macroValue:
		return f.call(s, a)
	case *loopValue:
		if f.again == nil || len(a.list) != 1 || len(a.keys) > 0 {
			return nil, errors.New("loop(…) is for the items below, in a recursive loop")
		}
		outer := s.out
		s.out = new(strings.Builder)
		err := f.again.each(s, f.outside, a.list[0], f.depth+1)
		text := s.out.String()
		s.out = outer
		return text, err
	case undefined:
		return nil, f.fail()
	}
	return nil, fmt.Errorf("%s cannot be called", typeName(of))
}

type filter struct {
	pos
	of   expr // nil: the body of a block
	name string
	args arguments
}

func (f *filter) eval(s *state, sc *scope) (Value, error) {
	var v Value
	var err error
	if f.of == nil {
		v, _ = sc.get(bodyName)
	} else if v, err = s.eval(f.of, sc); err != nil {
		return nil, err
	}
	a, err := f.args.eval(s, sc)
	if err != nil {
		return nil, err
	}
	return s.filter(f.name, v, a)
}

// filter applies a filter to v.
func (s *state) filter(name string, v Value, a args) (Value, error) {
	f, ok := filters[name]
	if !ok {
		return nil, fmt.Errorf("filter %q is not supported", clip(name))
	}
	out, err := f(s, v, a)
	var known *Error
	if err != nil && !errors.As(err, &known) {
		err = fmt.Errorf("filter %q: %w", name, err)
	}
	return out, err
}

type test struct {
	pos
	of   expr
	name string
	args arguments
}

func (t *test) eval(s *state, sc *scope) (Value, error) {
	v, err := s.eval(t.of, sc)
	if err != nil {
		return nil, err
	}
	a, err := t.args.eval(s, sc)
	if err != nil {
		return nil, err
	}
	return s.test(t.name, v, a)
}
