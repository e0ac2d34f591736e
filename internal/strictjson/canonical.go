package strictjson

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"
)

// AppendCanonical appends v as JSON in one form only, so that equal content gives equal bytes: keys sorted by their
// UTF-8 bytes, no blanks, no members that are null, the shortest escapes. v may be nil, a bool, string, int, int64,
// uint64, float64, []string, []int, []uint64, []float64, []any, map[string]any or a Value, whose numbers keep their
// literal. Errors: a string that is not UTF-8, a number that is not finite, another type.
func AppendCanonical(dst []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	case string:
		return appendString(dst, v)
	case int:
		return strconv.AppendInt(dst, int64(v), 10), nil
	case int64:
		return strconv.AppendInt(dst, v, 10), nil
	case uint64:
		return strconv.AppendUint(dst, v, 10), nil
	case float64:
		return appendFloat(dst, v)
	case []string:
		return appendArray(dst, v)
	case []int:
		return appendArray(dst, v)
	case []uint64:
		return appendArray(dst, v)
	case []float64:
		return appendArray(dst, v)
	case []any:
		return appendArray(dst, v)
	case map[string]any:
		return appendObject(dst, v)
	case Value:
		return appendValue(dst, v)
	}
	return nil, fmt.Errorf("strictjson: cannot write a %T", v)
}

func appendArray[T any](dst []byte, list []T) ([]byte, error) {
	dst = append(dst, '[')
	for i, e := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		var err error
		if dst, err = AppendCanonical(dst, e); err != nil {
			return nil, err
		}
	}
	return append(dst, ']'), nil
}

func appendObject(dst []byte, m map[string]any) ([]byte, error) {
	keys := make([]string, 0, len(m))
	for k, v := range m {
		if value, ok := v.(Value); v != nil && !(ok && value.Kind() <= Null) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	dst = append(dst, '{')
	for i, k := range keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		var err error
		if dst, err = appendString(dst, k); err != nil {
			return nil, err
		}
		if dst, err = AppendCanonical(append(dst, ':'), m[k]); err != nil {
			return nil, fmt.Errorf("%q: %w", k, err)
		}
	}
	return append(dst, '}'), nil
}

func appendValue(dst []byte, v Value) ([]byte, error) {
	switch v.Kind() {
	case Absent, Null:
		return append(dst, "null"...), nil
	case String:
		s, err := v.Str()
		if err != nil {
			return nil, err
		}
		return appendString(dst, s)
	case Array:
		list := make([]Value, 0, v.Len())
		for e := range v.Items() {
			list = append(list, e)
		}
		return appendArray(dst, list)
	case Object:
		m := make(map[string]any, v.Len())
		for k, e := range v.Members() {
			m[k] = e
		}
		return appendObject(dst, m)
	}
	return append(dst, v.literal()...), nil
}

// appendFloat writes the shortest text that reads back as f.
func appendFloat(dst []byte, f float64) ([]byte, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, fmt.Errorf("strictjson: %v is not a JSON number", f)
	}
	format := byte('f')
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		format = 'e'
	}
	return strconv.AppendFloat(dst, f, format, -1, 64), nil
}

func appendString(dst []byte, s string) ([]byte, error) {
	if !utf8.ValidString(s) {
		return nil, fmt.Errorf("strictjson: string %q is not UTF-8", s)
	}
	dst = append(dst, '"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, `\n`...)
		case '\r':
			dst = append(dst, `\r`...)
		case '\t':
			dst = append(dst, `\t`...)
		default:
			dst = append(dst, fmt.Sprintf(`\u%04x`, c)...)
		}
	}
	return append(append(dst, s[start:]...), '"'), nil
}
