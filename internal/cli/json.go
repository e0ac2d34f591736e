package cli

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
)

// field is one member of a JSON object in writing order.
type field struct {
	name  string
	value any
}

// object is a JSON object that keeps the order of its members.
type object []field

// MarshalJSON writes the members in order.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, f := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		k, err := json.Marshal(f.name)
		if err != nil {
			return nil, err
		}
		v, err := encode(f.value)
		if err != nil {
			return nil, err
		}
		b.Write(k)
		b.WriteByte(':')
		b.Write(v)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// encode is json.Marshal without escapes for HTML.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// MarshalJSON renders v as encoding/json does, but non-finite numbers are null and nil slices are [].
func MarshalJSON(v any) ([]byte, error) { return encode(finite(reflect.ValueOf(v))) }

// finite rebuilds v so that encoding/json can write it.
func finite(v reflect.Value) any {
	if !v.IsValid() {
		return nil
	}
	if v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		if v.IsNil() {
			return nil
		}
	}
	switch v.Interface().(type) {
	case json.Marshaler, encoding.TextMarshaler:
		return v.Interface()
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return finite(v.Elem())
	case reflect.Float32, reflect.Float64:
		if f := v.Float(); math.IsNaN(f) || math.IsInf(f, 0) {
			return nil
		}
		return v.Interface()
	case reflect.Struct:
		return structFields(v, nil)
	case reflect.Map:
		m := make(map[string]any, v.Len())
		for it := v.MapRange(); it.Next(); {
			m[fmt.Sprint(it.Key())] = finite(it.Value())
		}
		return m
	case reflect.Slice, reflect.Array:
		if v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8 {
			return v.Interface()
		}
		s := make([]any, v.Len())
		for i := range s {
			s[i] = finite(v.Index(i))
		}
		return s
	}
	return v.Interface()
}

// structFields appends the exported members of struct v under their json tags. As in encoding/json, a member hides
// one of the same name in an embedded struct.
func structFields(v reflect.Value, o object) object {
	t := v.Type()
	own := map[string]bool{}
	for i := range t.NumField() {
		if f := t.Field(i); !embedded(f) {
			name, _ := tagOf(f)
			own[name] = true
		}
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, opts := tagOf(f)
		switch {
		case name == "":
			continue
		case embedded(f):
			if e := reflect.Indirect(v.Field(i)); e.IsValid() {
				for _, m := range structFields(e, nil) {
					if !own[m.name] {
						o = append(o, m)
					}
				}
			}
			continue
		case strings.Contains(opts, "omitempty") && isEmpty(v.Field(i)), strings.Contains(opts, "omitzero") && v.Field(i).IsZero():
			continue
		}
		o = append(o, field{name, finite(v.Field(i))})
	}
	return o
}

// embedded reports whether the members of f count as those of the struct around it.
func embedded(f reflect.StructField) bool {
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return f.Anonymous && name == "" && t.Kind() == reflect.Struct
}

// tagOf returns a field's name in JSON, "" for none, and the options of its tag.
func tagOf(f reflect.StructField) (name, opts string) {
	tag := f.Tag.Get("json")
	name, opts, _ = strings.Cut(tag, ",")
	switch {
	case tag == "-" || !f.IsExported() && !embedded(f):
		return "", ""
	case name == "":
		return f.Name, opts
	}
	return name, opts
}

// isEmpty is encoding/json's notion of empty.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}
