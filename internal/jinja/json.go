package jinja

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// jsonWriter is Python's json.dumps.
type jsonWriter struct {
	s         *state
	b         strings.Builder
	ascii     bool
	sortKeys  bool
	indent    *string
	item, key string // separators
}

func tojson(s *state, v Value, a args) (Value, error) {
	in, err := a.bind("tojson", "ensure_ascii", "indent", "separators", "sort_keys")
	if err != nil {
		return nil, err
	}
	w := &jsonWriter{s: s, ascii: isTrue(in[0]), sortKeys: isTrue(in[3]), item: ", ", key: ": "}
	if in[1] != Value(missing{}) && in[1] != nil {
		pad, ok := text1(in[1])
		if n, isInt := asInt(in[1]); isInt && n <= 1000 {
			pad, ok = strings.Repeat(" ", max(n, 0)), true
		}
		if !ok {
			return nil, errors.New("the indent is not supported")
		}
		w.indent, w.item = &pad, ","
	}
	if in[2] != Value(missing{}) && in[2] != nil {
		l, ok := in[2].(*List)
		if !ok || len(l.Items) != 2 {
			return nil, errors.New("separators are two strings")
		}
		item, ok := text1(l.Items[0])
		key, ok2 := text1(l.Items[1])
		if !ok || !ok2 {
			return nil, errors.New("separators are two strings")
		}
		w.item, w.key = item, key
	}
	if err := w.value(v, 0); err != nil {
		return nil, err
	}
	return w.b.String(), nil
}

func (w *jsonWriter) value(v Value, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("values are nested more than %d deep", maxDepth)
	}
	if err := w.s.work(16); err != nil {
		return err
	}
	if w.b.Len() > maxOutput {
		return errOutput
	}
	switch v := v.(type) {
	case nil:
		w.b.WriteString("null")
	case bool:
		w.b.WriteString(strconv.FormatBool(v))
	case int:
		w.b.WriteString(strconv.Itoa(v))
	case float64:
		w.b.WriteString(jsonFloat(v))
	case string:
		return w.text(v)
	case safe:
		return w.text(string(v))
	case *List:
		if v.form > tuple {
			return fmt.Errorf("%s has no JSON", typeName(v))
		}
		return w.nested("[", "]", len(v.Items), depth, func(i int) error { return w.value(v.Items[i], depth+1) })
	case *Dict:
		return w.dict(v, depth)
	default:
		return fmt.Errorf("%s has no JSON", typeName(v))
	}
	return nil
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return floatText(f)
}

// nested writes n items between brackets.
func (w *jsonWriter) nested(opening, closing string, n, depth int, one func(i int) error) error {
	w.b.WriteString(opening)
	for i := range n {
		if i > 0 {
			w.b.WriteString(w.item)
		}
		if err := w.newline(depth + 1); err != nil {
			return err
		}
		if err := one(i); err != nil {
			return err
		}
	}
	if n > 0 {
		if err := w.newline(depth); err != nil {
			return err
		}
	}
	w.b.WriteString(closing)
	return nil
}

func (w *jsonWriter) newline(depth int) error {
	if w.indent == nil {
		return nil
	}
	if err := w.s.grow(w.b.Len(), depth*len(*w.indent)+1); err != nil {
		return err
	}
	w.b.WriteString("\n" + strings.Repeat(*w.indent, depth))
	return nil
}

func (w *jsonWriter) dict(d *Dict, depth int) error {
	pairs := d.pairs()
	if w.sortKeys {
		err := w.s.sort(pairs, false, func(v Value) (Value, error) { return v.(*List).Items[0], nil })
		if err != nil {
			return err
		}
	}
	return w.nested("{", "}", len(pairs), depth, func(i int) error {
		pair := pairs[i].(*List).Items
		var err error
		switch key := pair[0].(type) {
		case string:
			err = w.text(key)
		case safe:
			err = w.text(string(key))
		case nil:
			w.b.WriteString(`"null"`)
		case bool:
			w.b.WriteString(`"` + strconv.FormatBool(key) + `"`)
		case int:
			w.b.WriteString(`"` + strconv.Itoa(key) + `"`)
		case float64:
			w.b.WriteString(`"` + jsonFloat(key) + `"`)
		}
		if err != nil {
			return err
		}
		w.b.WriteString(w.key)
		return w.value(pair[1], depth+1)
	})
}

func (w *jsonWriter) text(s string) error {
	if err := w.s.grow(w.b.Len(), len(s)); err != nil {
		return err
	}
	w.b.WriteByte('"')
	for _, r := range s {
		at := strings.IndexRune("\"\\\n\r\t\b\f", r)
		switch {
		case at >= 0:
			w.b.WriteString(`\` + string(`"\nrtbf`[at]))
		case r < ' ' || w.ascii && r >= 0x7f && r < 0x10000 && r != 0x7f:
			fmt.Fprintf(&w.b, `\u%04x`, r)
		case w.ascii && r >= utf8.RuneSelf:
			r -= 0x10000
			fmt.Fprintf(&w.b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			w.b.WriteRune(r)
		}
	}
	w.b.WriteByte('"')
	return nil
}
