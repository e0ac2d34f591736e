package jinja

import (
	"errors"
	"fmt"
	"strings"
)

type attribute struct {
	pos
	of   expr
	name string
}

func (a *attribute) eval(s *state, sc *scope) (Value, error) {
	of, err := s.eval(a.of, sc)
	if err != nil {
		return nil, err
	}
	return s.attribute(of, a.name)
}

// attribute is of.name: a method or an attribute, else an item.
func (s *state) attribute(of Value, name string) (Value, error) {
	if u, ok := of.(undefined); ok {
		return nil, u.fail()
	}
	if v, ok := member(of, name); ok {
		return v, nil
	}
	if v, ok := itemOf(of, name); ok {
		return v, nil
	}
	if _, isFunc := of.(*Func); isFunc || has(strings.Fields(unknownAttributes[typeName(of)]), name) {
		return nil, fmt.Errorf("attribute %s of %s is not supported", clip(name), typeName(of))
	}
	return undefined(fmt.Sprintf("%s has no attribute %q", typeName(of), clip(name))), nil
}

// itemOf is the item of a dict, or the attribute of a namespace.
func itemOf(of Value, key Value) (Value, bool) {
	switch of := of.(type) {
	case *Dict:
		return of.Get(key)
	case *namespace:
		return of.Get(key)
	}
	return nil, false
}

type subscript struct {
	pos
	of, key expr
}

func (n *subscript) eval(s *state, sc *scope) (Value, error) {
	of, err := s.eval(n.of, sc)
	if err != nil {
		return nil, err
	}
	key, err := s.eval(n.key, sc)
	if err != nil {
		return nil, err
	}
	return s.item(of, key)
}

// item is of[key]: an item, else an attribute.
func (s *state) item(of, key Value) (Value, error) {
	if u, ok := of.(undefined); ok {
		return nil, u.fail()
	}
	if text, ok := text1(key); ok {
		if err := s.work(len(text)); err != nil {
			return nil, err
		}
	}
	if d, ok := of.(*Dict); ok {
		if v, ok := d.Get(key); ok {
			return v, nil
		}
	}
	if i, ok := asInt(key); ok {
		if v, ok, err := s.element(of, i); ok || err != nil {
			return v, err
		}
		return undefined(fmt.Sprintf("%s has no element %d", typeName(of), i)), nil
	}
	if name, ok := text1(key); ok {
		return s.attribute(of, name)
	}
	return undefined(fmt.Sprintf("%s has no element of type %s", typeName(of), typeName(key))), nil
}

// element is the element i of a list or string, from its end if i is negative.
func (s *state) element(of Value, i int) (Value, bool, error) {
	if text, ok := text1(of); ok {
		if err := s.work(len(text)); err != nil {
			return nil, false, err
		}
		runes := []rune(text)
		if i < 0 {
			i += len(runes)
		}
		if i < 0 || i >= len(runes) {
			return nil, false, nil
		}
		return like(of, string(runes[i])), true, nil
	}
	l, ok := of.(*List)
	if !ok || !l.indexed() {
		return nil, false, nil
	}
	if i < 0 {
		i += len(l.Items)
	}
	if i < 0 || i >= len(l.Items) {
		return nil, false, nil
	}
	return l.Items[i], true, nil
}

// like returns text, declared safe if of is.
func like(of Value, text string) Value {
	if _, ok := of.(safe); ok {
		return safe(text)
	}
	return text
}

type slice struct {
	pos
	of, from, to, step expr
}

func (n *slice) eval(s *state, sc *scope) (Value, error) {
	of, err := s.eval(n.of, sc)
	if err != nil {
		return nil, err
	}
	var at [3]*int
	for i, e := range []expr{n.from, n.to, n.step} {
		if e == nil {
			continue
		}
		v, err := s.eval(e, sc)
		if err != nil {
			return nil, err
		}
		if v == nil {
			continue
		}
		k, ok := asInt(v)
		if !ok {
			return nil, fmt.Errorf("%s in a slice", typeName(v))
		}
		at[i] = &k
	}
	if text, ok := text1(of); ok {
		if err := s.work(5 * len(text)); err != nil {
			return nil, err
		}
		runes := []rune(text)
		picked, err := sliced(runes, at)
		return like(of, string(picked)), err
	}
	switch of := of.(type) {
	case undefined:
		return nil, of.fail()
	case *List:
		if !of.indexed() {
			break
		}
		picked, err := sliced(of.Items, at)
		if err == nil {
			err = s.work(16 * len(picked))
		}
		return &List{Items: picked, form: of.form}, err
	}
	return undefined(typeName(of) + " has no slices"), nil
}

// sliced is Python's list[from:to:step].
func sliced[T any](list []T, at [3]*int) ([]T, error) {
	step := 1
	if at[2] != nil {
		step = *at[2]
	}
	if step == 0 {
		return nil, errors.New("a slice with step 0")
	}
	n := len(list)
	low, high := 0, n
	if step < 0 {
		low, high = -1, n-1
	}
	bound := func(p *int, otherwise int) int {
		if p == nil {
			return otherwise
		}
		i := *p
		if i < 0 {
			i += n
		}
		return min(max(i, low), high)
	}
	from, to := bound(at[0], low), bound(at[1], high)
	if step < 0 {
		from, to = bound(at[0], high), bound(at[1], low)
	}
	var out []T
	for i := from; step > 0 && i < to || step < 0 && i > to; {
		out = append(out, list[i])
		if step > n || step < -n {
			break
		}
		i += step
	}
	return out, nil
}
