package strictjson

import (
	"fmt"
	"slices"

	"apr/internal/fault"
)

// Fields reads the members of an object one by one and keeps the first error, so that a long configuration is read
// without a check per line. A member that is null counts as absent.
//
//	f := strictjson.NewFields(v)
//	hidden := f.Uint("hidden_size")
//	eps := f.FloatOr("rms_norm_eps", 1e-6)
//	if err := f.Err(); err != nil { ... }
type Fields struct {
	obj Value
	err error
}

// NewFields starts reading v; if v is no object, Err says so.
func NewFields(v Value) *Fields { return &Fields{obj: v, err: v.Expect(Object)} }

// Err returns the first error, an *Error.
func (f *Fields) Err() error { return f.err }

// Has reports whether key is present and not null.
func (f *Fields) Has(key string) bool {
	v, ok := f.obj.Get(key)
	return ok && v.Kind() != Null
}

// Value returns the member of that key; absent is an error.
func (f *Fields) Value(key string) Value { return field(f, key, true, Value{}, same) }

// ValueOr returns the member of that key, or the absent Value.
func (f *Fields) ValueOr(key string) Value { return field(f, key, false, Value{}, same) }

// Uint returns a required non-negative integer.
func (f *Fields) Uint(key string) uint64 { return field(f, key, true, 0, Value.Uint64) }

// UintOr returns a non-negative integer, or def when it is absent.
func (f *Fields) UintOr(key string, def uint64) uint64 {
	return field(f, key, false, def, Value.Uint64)
}

// Int returns a required integer.
func (f *Fields) Int(key string) int64 { return field(f, key, true, 0, Value.Int64) }

// IntOr returns an integer, or def when it is absent.
func (f *Fields) IntOr(key string, def int64) int64 { return field(f, key, false, def, Value.Int64) }

// Float returns a required number.
func (f *Fields) Float(key string) float64 { return field(f, key, true, 0, Value.Float64) }

// FloatOr returns a number, or def when it is absent.
func (f *Fields) FloatOr(key string, def float64) float64 {
	return field(f, key, false, def, Value.Float64)
}

// Str returns a required string.
func (f *Fields) Str(key string) string { return field(f, key, true, "", Value.Str) }

// StrOr returns a string, or def when it is absent.
func (f *Fields) StrOr(key, def string) string { return field(f, key, false, def, Value.Str) }

// Bool returns a required boolean.
func (f *Fields) Bool(key string) bool { return field(f, key, true, false, Value.Bool) }

// BoolOr returns a boolean, or def when it is absent.
func (f *Fields) BoolOr(key string, def bool) bool { return field(f, key, false, def, Value.Bool) }

// Field returns a required member converted by convert, such as Value.Uints.
func Field[T any](f *Fields, key string, convert func(Value) (T, error)) T {
	var zero T
	return field(f, key, true, zero, convert)
}

// Only records an error when the object has a key outside known; the message gives the nearest known one.
func (f *Fields) Only(known ...string) {
	if f.err != nil {
		return
	}
	for key, v := range f.obj.Members() {
		if slices.Contains(known, key) {
			continue
		}
		msg := fmt.Sprintf("unknown key %q", key)
		if near := fault.Nearest(key, known); near != "" {
			msg += fmt.Sprintf("; did you mean %q?", near)
		}
		f.err = &Error{Unknown, v.Offset(), msg}
		return
	}
}

// misspelt names the member that may be meant for a key that is missing: one of nearly its length, for the names of
// some keys are parts of others'.
func (f *Fields) misspelt(key string) string {
	const most = 2 // more or fewer letters
	if len(key) < 3 {
		return ""
	}
	var others []string
	for other := range f.obj.Members() {
		if n := len(other) - len(key); other != key && -most <= n && n <= most {
			others = append(others, other)
		}
	}
	if near := fault.Nearest(key, others); near != "" {
		return fmt.Sprintf("; is %q misspelt?", near)
	}
	return ""
}

func same(v Value) (Value, error) { return v, nil }

// field converts one member, or returns def; an error keeps its offset and gains the key.
func field[T any](f *Fields, key string, need bool, def T, convert func(Value) (T, error)) T {
	if f.err != nil {
		return def
	}
	v, ok := f.obj.Get(key)
	if !ok || v.Kind() == Null {
		if need {
			f.err = &Error{Missing, f.obj.Offset(), fmt.Sprintf("key %q is missing", key) + f.misspelt(key)}
		}
		return def
	}
	out, err := convert(v)
	if err != nil {
		e := err.(*Error)
		f.err = &Error{e.Code, e.Offset, fmt.Sprintf("key %q: %s", key, e.Msg)}
		return def
	}
	return out
}
