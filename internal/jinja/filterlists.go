package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

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
	paths := []Value{nil}
	if text, ok := text1(in[2]); ok {
		paths = nil
		for part := range strings.SplitSeq(text, ",") {
			paths = append(paths, part)
		}
	} else if in[2] != Value(missing{}) {
		paths[0] = in[2]
	}
	err = s.sort(list, isTrue(in[0]), func(v Value) (Value, error) { return s.sortKey(v, paths, isTrue(in[1])) })
	return &List{Items: list}, err
}

// sortKey is what the filter sort compares of v: a list, as Jinja has it even of one value, so that values that are equal
// need no order.
func (s *state) sortKey(v Value, paths []Value, caseSensitive bool) (Value, error) {
	key := &List{}
	for _, path := range paths {
		of, err := v, error(nil)
		if path != nil {
			of, err = s.path(v, path, missing{})
		}
		if err == nil {
			of, err = s.folded(of, caseSensitive)
		}
		if err != nil {
			return nil, err
		}
		key.Items = append(key.Items, of)
	}
	return key, s.work(16 * len(paths))
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
