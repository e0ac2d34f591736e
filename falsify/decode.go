package falsify

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"apr/internal/fault"
)

// key is what the tags of one field say.
type key struct {
	name, alias string
	index       int // of the field
	since       Rules
	required    bool
	result      bool
	free        bool
	enum        []string
}

// keysOf returns the keys of a struct type, in the order of its fields.
func keysOf(t reflect.Type) (keys []key) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		k := key{name: name, alias: f.Tag.Get("alias"), index: i, since: Earlier, enum: enums[f.Tag.Get("enum")]}
		for word := range strings.FieldsSeq(f.Tag.Get("contract")) {
			switch word {
			case "required":
				k.required = true
			case "later":
				k.since = Later
			case "ours":
				k.since = Ours
			case "result":
				k.result = true
			case "free":
				k.free = true
			default:
				panic("contract: unknown word " + word + " in the tag of " + f.Name)
			}
		}
		keys = append(keys, k)
	}
	return keys
}

// path leads to a value of a contract: keys and indices.
type path []any

// with returns p and one more step; p itself never changes.
func (p path) with(step any) path { return append(slices.Clip(p), step) }

// String renders p as proof_obligations[0].property.
func (p path) String() string {
	var b strings.Builder
	for _, step := range p {
		switch s := step.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", s)
		case string:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(plain(s))
		}
	}
	return b.String()
}

// plain returns s as it is when it is a plain name, else quoted: a key may hold anything.
func plain(s string) string {
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-') {
			return strconv.Quote(s)
		}
	}
	if s == "" {
		return `""`
	}
	return s
}

// finding is a place where the file says something that a rule looks at.
type finding struct {
	at   path
	node *yaml.Node
	key  key    // of declared results
	near string // of unknown keys: the nearest known one, "" if none
}

// decoder turns nodes into Go values by the tags of their types.
type decoder struct {
	file    string
	rules   Rules
	visited int
	unknown []finding // keys of no field
	results []finding // declared outcomes
}

// fail is a parse error at a node.
func (d *decoder) fail(n *yaml.Node, at path, format string, args ...any) error {
	msg := fmt.Sprintf(format, args...)
	if len(at) > 0 {
		msg = at.String() + ": " + msg
	}
	return parseError(d.file, n.Line, n.Column, msg)
}

// parseError is a fault about a file that is no contract.
func parseError(file string, line, column int, msg string) *fault.Error {
	err := fault.In(fault.Vacuous, file, "%s", msg).WithID("E-CONTRACT-001")
	if line > 0 {
		err = err.At("line %d, column %d", line, column)
	}
	return err
}

// resolve follows aliases and counts what is visited: aliases of aliases can stand for more than any memory holds.
func (d *decoder) resolve(n *yaml.Node, at path) (*yaml.Node, error) {
	if d.visited++; d.visited > maxNodes {
		return nil, d.fail(n, at, "more than %d values after its aliases are expanded", maxNodes)
	}
	if len(at) > maxDepth {
		return nil, d.fail(n, nil, "nested deeper than %d levels", maxDepth)
	}
	for range maxDepth {
		if n.Kind != yaml.AliasNode {
			return n, nil
		}
		n = n.Alias
	}
	return nil, d.fail(n, at, "aliases of aliases without end")
}

// value decodes n into v, whose tags are k.
func (d *decoder) value(n *yaml.Node, at path, k key, v reflect.Value) error {
	n, err := d.resolve(n, at)
	if err != nil {
		return err
	}
	switch v.Kind() {
	case reflect.Pointer:
		if isNull(n) {
			return nil
		}
		v.Set(reflect.New(v.Type().Elem()))
		return d.value(n, at, k, v.Elem())
	case reflect.Struct:
		return d.object(n, at, v)
	case reflect.Map:
		return d.dictionary(n, at, k, v)
	case reflect.Slice:
		return d.list(n, at, v)
	case reflect.Interface:
		return d.any(n, at, v)
	}
	if !k.required && isNull(n) && v.Kind() == reflect.String {
		return nil
	}
	return d.scalar(n, at, k, v)
}

// isNull reports a value that stands for none.
func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// isEmpty reports a key with nothing after it, which stands for an empty list or mapping; a written null does not.
func isEmpty(n *yaml.Node) bool { return isNull(n) && n.Value == "" }

// wrong is the error for a value of another type.
func (d *decoder) wrong(n *yaml.Node, at path, want string) error {
	return d.fail(n, at, "expected %s, found %s", want, describe(n))
}

// describe names what a node is.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.Tag {
	case "!!null":
		return "nothing (null)"
	case "!!int":
		return "the integer " + clip(n.Value)
	case "!!float":
		return "the number " + clip(n.Value)
	case "!!bool":
		return "the boolean " + clip(n.Value)
	case "!!str", "!!timestamp":
		return "the text " + clip(strconv.Quote(n.Value))
	}
	return "a value tagged " + clip(strconv.Quote(n.Tag))
}

// clip shortens what an error repeats from a file.
func clip(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:57]) + "..."
	}
	return s
}

// scalar decodes a text, a number or a boolean.
func (d *decoder) scalar(n *yaml.Node, at path, k key, v reflect.Value) error {
	is := func(tags ...string) bool { return n.Kind == yaml.ScalarNode && slices.Contains(tags, n.Tag) }
	switch v.Kind() {
	case reflect.String:
		if !is("!!str", "!!timestamp") {
			return d.wrong(n, at, "a text")
		}
		if k.enum != nil && !slices.Contains(k.enum, n.Value) {
			return d.unknownWord(n, at, k.enum)
		}
		v.SetString(n.Value)
	case reflect.Bool:
		if !is("!!bool") || n.Value != "true" && n.Value != "false" {
			return d.wrong(n, at, "true or false")
		}
		v.SetBool(n.Value == "true")
	case reflect.Float64:
		var f float64
		if !is("!!int", "!!float") || n.Decode(&f) != nil {
			return d.wrong(n, at, "a number")
		}
		v.SetFloat(f)
	case reflect.Uint32, reflect.Uint64:
		var u uint64
		if !is("!!int") || n.Decode(&u) != nil || v.OverflowUint(u) {
			return d.wrong(n, at, fmt.Sprintf("an integer from 0 to %d", uint64(1)<<v.Type().Bits()-1))
		}
		v.SetUint(u)
	default:
		panic("contract: no YAML for " + v.Type().String())
	}
	return nil
}

// unknownWord is the error for a word outside its list.
func (d *decoder) unknownWord(n *yaml.Node, at path, words []string) error {
	msg := fmt.Sprintf("unknown value %s (known: %s)", clip(strconv.Quote(n.Value)), strings.Join(words, ", "))
	if near := nearest(n.Value, words); near != "" {
		msg += fmt.Sprintf("; did you mean %q?", near)
	}
	return d.fail(n, at, "%s", msg)
}

// nearest is fault.Nearest for words that are not absurdly long.
func nearest(word string, words []string) string {
	if len(word) > 64 {
		return ""
	}
	return fault.Nearest(word, words)
}

// list decodes a sequence.
func (d *decoder) list(n *yaml.Node, at path, v reflect.Value) error {
	if isEmpty(n) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		return d.wrong(n, at, "a list")
	}
	for i, e := range n.Content {
		item := reflect.New(v.Type().Elem()).Elem()
		if err := d.value(e, at.with(i), key{required: true}, item); err != nil {
			return err
		}
		v.Set(reflect.Append(v, item))
	}
	return nil
}

// dictionary decodes a mapping with names of the file's own choosing. Of a name given twice the last counts.
func (d *decoder) dictionary(n *yaml.Node, at path, k key, v reflect.Value) error {
	if isEmpty(n) {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		return d.wrong(n, at, "a mapping")
	}
	v.Set(reflect.MakeMap(v.Type()))
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, err := d.name(n.Content[i], at)
		if err != nil {
			return err
		}
		item := reflect.New(v.Type().Elem()).Elem()
		if err := d.value(n.Content[i+1], at.with(name), key{required: true, free: k.free}, item); err != nil {
			return err
		}
		v.SetMapIndex(reflect.ValueOf(name), item)
	}
	return nil
}

// name returns the key of a mapping.
func (d *decoder) name(n *yaml.Node, at path) (string, error) {
	n, err := d.resolve(n, at)
	if err != nil {
		return "", err
	}
	if n.Kind != yaml.ScalarNode {
		return "", d.fail(n, at, "a key must be a text, found %s", describe(n))
	}
	return n.Value, nil
}

// object decodes a mapping into the fields of a struct.
func (d *decoder) object(n *yaml.Node, at path, v reflect.Value) error {
	if n.Kind != yaml.MappingNode && !isEmpty(n) {
		return d.wrong(n, at, "a mapping")
	}
	keys := keysOf(v.Type())
	given := map[int]string{} // field to the name it was given under
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, err := d.name(n.Content[i], at)
		if err != nil {
			return err
		}
		j := slices.IndexFunc(keys, func(k key) bool { return k.since <= d.rules && (k.name == name || k.alias == name && name != "") })
		if j < 0 {
			d.unknown = append(d.unknown, finding{at: at.with(name), node: n.Content[i], near: nearest(name, d.names(keys))})
			continue
		}
		k := keys[j]
		switch before, twice := given[k.index]; {
		case twice && before != name:
			return d.fail(n.Content[i], at, "%s and %s are the same key", before, name)
		case twice && d.rules == Earlier: // later rule sets report every repeated key of the file, SCHEMA-020
			return d.fail(n.Content[i], at, "key %s given twice", name)
		}
		given[k.index] = name
		if k.result {
			d.results = append(d.results, finding{at: at.with(name), node: n.Content[i], key: k})
		}
		field := v.Field(k.index)
		field.SetZero()
		if err := d.value(n.Content[i+1], at.with(name), k, field); err != nil {
			return err
		}
	}
	for _, k := range keys {
		if _, ok := given[k.index]; !ok && k.required && k.since <= d.rules {
			return d.fail(n, at, "key %s is missing", k.name)
		}
	}
	return nil
}

// names returns the names of the keys that the rule set knows.
func (d *decoder) names(keys []key) (names []string) {
	for _, k := range keys {
		if k.since <= d.rules {
			names = append(names, k.name)
		}
	}
	return names
}

// any decodes a value of any type into what JSON would hold.
func (d *decoder) any(n *yaml.Node, at path, v reflect.Value) error {
	switch n.Kind {
	case yaml.SequenceNode:
		list := []any{}
		if err := d.list(n, at, reflect.ValueOf(&list).Elem()); err != nil {
			return err
		}
		v.Set(reflect.ValueOf(list))
	case yaml.MappingNode:
		m := map[string]any{}
		if err := d.dictionary(n, at, key{free: true}, reflect.ValueOf(&m).Elem()); err != nil {
			return err
		}
		v.Set(reflect.ValueOf(m))
	default:
		var x any
		switch n.Tag {
		case "!!null":
			return nil
		case "!!int", "!!float", "!!bool":
			if err := n.Decode(&x); err != nil {
				return d.wrong(n, at, "a value")
			}
		default:
			x = n.Value
		}
		v.Set(reflect.ValueOf(x))
	}
	return nil
}
