package jinja

import (
	"strings"

	"apr/internal/strictjson"
)

// FromJSON returns the value of JSON text as Python's json.loads does: objects keep their order, numbers with a point
// or an exponent are floats. Integers beyond 64 bits are an error.
func FromJSON(v strictjson.Value) (Value, error) {
	switch v.Kind() {
	case strictjson.Bool:
		return v.Bool()
	case strictjson.String:
		return v.Str()
	case strictjson.Number:
		text, err := v.Literal()
		if err != nil {
			return nil, err
		}
		if strings.ContainsAny(text, ".eE") {
			return v.Float64()
		}
		i, err := v.Int64()
		return int(i), err
	case strictjson.Array:
		l := &List{Items: make([]Value, 0, v.Len())}
		for item := range v.Items() {
			x, err := FromJSON(item)
			if err != nil {
				return nil, err
			}
			l.Items = append(l.Items, x)
		}
		return l, nil
	case strictjson.Object:
		d := NewDict()
		for key, item := range v.Members() {
			x, err := FromJSON(item)
			if err != nil {
				return nil, err
			}
			d.Set(key, x)
		}
		return d, nil
	}
	return nil, nil
}

// Changed returns v with every string in it, keys as well, as change makes it.
func Changed(v Value, change func(string) string) Value {
	switch v := v.(type) {
	case string:
		return change(v)
	case *List:
		out := &List{form: v.form}
		for _, item := range v.Items {
			out.Items = append(out.Items, Changed(item, change))
		}
		return out
	case *Dict:
		out := NewDict()
		for i, key := range v.keys {
			out.Set(Changed(key, change), Changed(v.values[i], change))
		}
		return out
	}
	return v
}
