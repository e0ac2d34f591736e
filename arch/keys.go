package arch

import (
	"fmt"
	"math"
	"strconv"

	"apr/internal/strictjson"
)

// keys reads a configuration and remembers what it was asked for: a key that was never read is unknown. The first
// error stays. A member that is null counts as absent.
type keys struct {
	obj    strictjson.Value
	fields *strictjson.Fields
	seen   map[string]bool
	allow  []string
	family string // for messages
	qScale bool   // the family scales queries by their position
	err    error  // of what is consistent JSON and not supported

	within []unknownKey // keys inside members, that were never read
}

func newKeys(v strictjson.Value, allow []string) *keys {
	return &keys{obj: v, fields: strictjson.NewFields(v), seen: map[string]bool{}, allow: allow}
}

func (k *keys) Err() error {
	if err := k.fields.Err(); err != nil {
		return err
	}
	return k.err
}

// fail keeps an error at the value of key.
func (k *keys) fail(key, format string, args ...any) {
	if k.Err() == nil {
		v, ok := k.obj.Get(key)
		if !ok {
			v = k.obj
		}
		k.err = v.Errorf("key %q: %s", key, fmt.Sprintf(format, args...))
	}
}

func (k *keys) has(key string) bool { k.seen[key] = true; return k.fields.Has(key) }

// null reports whether key is there with the value null.
func (k *keys) null(key string) bool {
	k.seen[key] = true
	v, ok := k.obj.Get(key)
	return ok && v.Kind() == strictjson.Null
}

func (k *keys) value(key string) strictjson.Value { k.seen[key] = true; return k.fields.ValueOr(key) }

// size reads a required count.
func (k *keys) size(key string) int {
	k.seen[key] = true
	return k.width(key, k.fields.Uint(key))
}

// width refuses a count that no int32 holds, as every id and index does.
func (k *keys) width(key string, n uint64) int {
	if n > math.MaxInt32 {
		k.fail(key, "%d is over %d", n, math.MaxInt32)
		return 0
	}
	return int(n)
}

func (k *keys) sizeOr(key string, def int) int {
	k.seen[key] = true
	return k.width(key, k.fields.UintOr(key, uint64(def)))
}

// sizeOrNeed is sizeOr, or size where there is no default.
func (k *keys) sizeOrNeed(key string, def int) int {
	if def == 0 {
		return k.size(key)
	}
	return k.sizeOr(key, def)
}

func (k *keys) float(key string, def float64) float64 {
	k.seen[key] = true
	return k.fields.FloatOr(key, def)
}

func (k *keys) flag(key string, def bool) bool {
	k.seen[key] = true
	return k.fields.BoolOr(key, def)
}

func (k *keys) str(key, def string) string { k.seen[key] = true; return k.fields.StrOr(key, def) }

// ids reads one token id, a list of them, or none.
func (k *keys) ids(key string) []int {
	v := k.value(key)
	switch v.Kind() {
	case strictjson.Absent, strictjson.Null:
		return nil
	case strictjson.Array:
		list, err := v.Uints()
		if err != nil {
			k.keep(err)
			return nil
		}
		ids := make([]int, len(list))
		for i, id := range list {
			ids[i] = int(min(id, math.MaxInt32))
		}
		return ids
	}
	if id, err := v.Int64(); err != nil || id >= 0 {
		return []int{k.sizeOr(key, 0)} // reports what is no integer
	}
	return nil
}

// id reads one token id, or −1.
func (k *keys) id(key string) int {
	if ids := k.ids(key); len(ids) > 0 {
		return ids[0]
	}
	return -1
}

func (k *keys) keep(err error) {
	if k.Err() == nil {
		k.err = err
	}
}

// strings reads an array of strings, nil if it is absent.
func (k *keys) strings(key string) []string {
	v := k.value(key)
	if v.Kind() == strictjson.Absent {
		return nil
	}
	list, err := v.Strings()
	k.member(key, err)
	return list
}

// floats reads an array of numbers, nil if it is absent.
func (k *keys) floats(key string) (list []float64) {
	v := k.value(key)
	if v.Kind() == strictjson.Absent {
		return nil
	}
	k.member(key, v.Expect(strictjson.Array))
	for e := range v.Items() {
		x, err := e.Float64()
		k.member(key, err)
		list = append(list, x)
	}
	return list
}

// sizes reads an array of counts, nil if it is absent.
func (k *keys) sizes(key string) (list []int) {
	v := k.value(key)
	if v.Kind() == strictjson.Absent {
		return nil
	}
	ns, err := v.Uints()
	k.member(key, err)
	for _, n := range ns {
		list = append(list, int(min(n, math.MaxInt32)))
	}
	return list
}

// member keeps an error about a member, and names its key.
func (k *keys) member(key string, err error) {
	if e, ok := err.(*strictjson.Error); ok && e != nil {
		k.keep(&strictjson.Error{Code: e.Code, Offset: e.Offset, Msg: fmt.Sprintf("key %q: %s", key, e.Msg)})
	}
}

// repeats refuses a count under key that is not n, the count under the key of: both keys say one number. The key may be
// absent.
func (k *keys) repeats(key string, n int, of string) {
	if got := k.sizeOr(key, n); k.Err() == nil && got != n {
		k.fail(key, "%d is not %s, %d", got, of, n)
	}
}

// only refuses a value of key other than the one that is computed.
func (k *keys) only(key string, want any) {
	got := want
	switch w := want.(type) {
	case bool:
		got = k.flag(key, w)
	case float64:
		got = k.float(key, w)
	case int:
		got = k.sizeOr(key, w)
	case string:
		got = k.str(key, w)
	}
	if k.Err() == nil && got != want {
		k.fail(key, "%v is not supported; supported: %v", got, want)
	}
}

// shown is a value in a message: text and numbers as they stand, of others the kind.
func shown(v strictjson.Value) string {
	if s, err := v.Str(); err == nil {
		return strconv.Quote(s[:min(len(s), 40)])
	}
	if s, err := v.Literal(); err == nil {
		return s[:min(len(s), 40)]
	}
	if b, err := v.Bool(); err == nil {
		return strconv.FormatBool(b)
	}
	return v.Kind().String()
}
