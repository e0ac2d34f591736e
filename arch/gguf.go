package arch

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"apr/internal/fault"
)

// GGUF is what FromGGUF asks of a file.
type GGUF interface {
	// Value returns the value of a key: a string, a bool, an integer or float of any width, or a slice of one of these.
	Value(key string) (any, bool)
	// Shape returns the shape of a tensor, outermost first.
	Shape(name string) ([]int, bool)
	// Floats reads a small tensor of float32: a table of rotary divisors.
	Floats(name string) ([]float32, error)
}

// KV is one key of a GGUF file: its value is a string, bool, uint32, float32, []int32, []float32 or []bool.
type KV struct {
	Key   string
	Value any
}

// ownKey holds Config.JSON in files of ours whose other keys, which llama.cpp defines, cannot say everything.
const ownKey = "apr.config"

// FromGGUF reads the description that a GGUF file carries under the keys of llama.cpp, some of it in which tensors there
// are; path names it in errors. Faults: Format (a value of the wrong type, an unknown architecture), Load (a key or
// tensor that is missing), Invalid (contradictions).
func FromGGUF(path string, g GGUF) (Config, error) {
	r := &ggufReader{g: g, path: path, read: map[string]bool{}}
	name := r.str("general.architecture")
	if r.err != nil {
		return Config{}, r.err
	}
	f := r.family(name)
	if f == nil {
		return Config{}, (&unknownFamily{what: "general.architecture", name: name}).fault(path).At(`key "general.architecture"`)
	}
	r.arch = name + "."
	keys := r.config(f)
	r.unread()
	r.layout(f)
	if r.err != nil {
		return Config{}, r.err
	}
	c, err := FromKeys(path, keys)
	if err != nil {
		return c, err
	}
	r.divisors(f, &c)
	c.EOS = r.ends()
	if r.err != nil {
		return c, r.err
	}
	if own, ok := g.Value(ownKey); ok {
		return r.own(own, c)
	}
	return c, c.check(path)
}

// FromKeys is Parse of keys that were read elsewhere; errors name no line.
func FromKeys(path string, keys map[string]any) (Config, error) {
	text, err := json.Marshal(keys)
	if err != nil {
		return Config{}, fault.In(fault.Format, path, "%v", err).WithID("E-CONFIG-015") // a number that is not finite
	}
	c, err := Parse(path, string(text), Options{})
	var f *fault.Error
	if errors.As(err, &f) && strings.HasPrefix(f.Place, "line ") {
		f.Place = ""
	}
	return c, err
}

// family returns the family of an architecture; where several share one, what the file holds decides.
func (r *ggufReader) family(name string) *family {
	for _, f := range families {
		if f.gguf == name && f.fits != nil && f.fits(r) {
			return f
		}
	}
	var first *family
	for _, f := range families {
		if f.gguf == name && f.windowed == r.has(name+".attention.sliding_window") {
			return f
		}
		if f.gguf == name && first == nil {
			first = f
		}
	}
	return first
}

// own reads a description of ours, which has to agree with the file's other keys about sizes.
func (r *ggufReader) own(value any, c Config) (Config, error) {
	text, ok := value.(string)
	if !ok {
		return c, r.typeError(ownKey, "a string", value)
	}
	o, err := FromJSON(r.path, text)
	if err != nil {
		return o, err
	}
	if o.family().gguf != c.family().gguf || o.Hidden != c.Hidden || len(o.Layers) != len(c.Layers) || o.Vocab != c.Vocab || o.Tied != c.Tied {
		return o, fault.In(fault.Invalid, r.path, "describes another model than the other keys and the tensors").At("key %q", ownKey).WithID("E-CONFIG-010")
	}
	return o, r.edited(o, c)
}

// edited refuses a GGUF file of ours whose standard keys contradict its key apr.config: apr reads the model from apr.config, so that
// an edit of a standard key would have no effect. c is the configuration that the standard keys give, o the one in apr.config.
func (r *ggufReader) edited(o, c Config) error {
	bad := func(key, format string, args ...any) error {
		return fault.In(fault.Invalid, r.path, format, args...).At("key %q", key).WithID("E-CONFIG-010").
			WithHint("remove %q, or give the key its value", ownKey)
	}
	extra := 0 // ids that end a text by the standard keys alone: the tokenizer's eos_token_id may be one that apr.config does not list
	for _, id := range c.EOS {
		if !slices.Contains(o.EOS, id) {
			extra++
		}
	}
	missing := slices.ContainsFunc(o.EOS, func(id int) bool { return !slices.Contains(c.EOS, id) })
	if extra > 1 || missing && len(c.EOS) < len(ends) {
		return bad("tokenizer.ggml.eos_token_id", "with those of eot and eom it says that %v end a text, and %q says %v", c.EOS, ownKey, o.EOS)
	}
	keys := o.ggufKeys()
	said, err := FromGGUF(r.path, virtual(o, keys))
	said.BOS, said.EOS, said.Pad = c.BOS, c.EOS, c.Pad
	if err == nil && same(said, c) {
		return nil
	}
	for _, kv := range keys {
		if v, ok := r.g.Value(kv.Key); !ok {
			return bad(kv.Key, "is missing, and %q says %v", ownKey, kv.Value)
		} else if fmt.Sprint(v) != fmt.Sprint(kv.Value) {
			return bad(kv.Key, "is %v, and %q says %v", v, ownKey, kv.Value)
		}
	}
	if err != nil {
		return nil // the keys are those that were written, and say less than the description
	}
	d := Compare(said.forGGUF(), c.forGGUF())[0]
	for _, x := range []*any{&d.A, &d.B} {
		if *x == nil {
			*x = "none"
		}
	}
	return bad(ownKey, "%s is %v, and by the other keys and the tensors %v", d.Path, d.A, d.B)
}

// ends are the keys of ids that end a text, or a turn.
var ends = []string{"eos", "eot", "eom"}

// ends returns their ids.
func (r *ggufReader) ends() (ids []int) {
	for _, key := range ends {
		if id := r.sizeOr("tokenizer.ggml."+key+"_token_id", -1); id >= 0 {
			ids = append(ids, id)
		}
	}
	return ids
}

// ggufReader reads keys and keeps the first error.
type ggufReader struct {
	g    GGUF
	path string
	arch string // "llama."
	err  error
	read map[string]bool // keys that were asked for

	linear float64 // by what rotary divisors are multiplied: a linear scaling beside them
}

func (r *ggufReader) value(key string) (any, bool) { r.read[key] = true; return r.g.Value(key) }

func (r *ggufReader) keep(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *ggufReader) has(key string) bool { _, ok := r.value(key); return ok }

func (r *ggufReader) typeError(key, want string, got any) error {
	return fault.In(fault.Format, r.path, "expected %s, found %v of type %T", want, got, got).At("key %q", key).WithID("E-GGUF-020")
}

func (r *ggufReader) missing(key string) error {
	return fault.In(fault.Load, r.path, "is missing; a model without it can be inspected, not used").At("key %q", key).WithID("E-GGUF-022")
}

func (r *ggufReader) str(key string) string {
	v, ok := r.value(key)
	if !ok {
		r.keep(r.missing(key))
		return ""
	}
	s, ok := v.(string)
	if !ok {
		r.keep(r.typeError(key, "a string", v))
	}
	return s
}

// changing are keys that change what a model computes, with the values that change nothing, for families that do not read
// them. Other keys of an architecture that nobody reads are harmless: GGUF files have many.
var changing = map[string][]any{
	"attention.causal": {true}, "attention.clamp_kqv": {0.}, "attention.max_alibi_bias": {0.}, "attention.scale": {0.},
	"attention.output_scale": {0., 1.}, "attention.temperature_scale": {0.}, "attn_logit_softcapping": {0.}, "embedding_scale": {0., 1.},
	"expert_count": {0.}, "expert_gating_func": {0., 1.}, "expert_group_count": {0., 1.}, "expert_shared_count": {0.},
	"expert_weights_norm":  {true},
	"expert_weights_scale": {0., 1.}, "final_logit_softcapping": {0.}, "logit_scale": {0., 1.}, "residual_scale": {0., 1.},
	"rope.scaling.alpha": {0., 1.}, "router_logit_softcapping": {0.}, "swiglu_clamp_exp": {0.}, "swin_norm": {false}, "use_parallel_residual": {false},
}

// unread refuses a key of changing that the family did not read and that changes something.
func (r *ggufReader) unread() {
	for _, name := range slices.Sorted(maps.Keys(changing)) {
		key := r.arch + name
		v, ok := r.g.Value(key)
		if !ok || r.read[key] {
			continue
		}
		if _, isBool := v.(bool); !isBool {
			v = r.float(key, 0)
		}
		if !slices.Contains(changing[name], v) {
			r.refuse(key, "%v is not supported for this architecture", v)
		}
	}
}

// layout refuses what a file says of its rows if that is not how files of the architecture have them: rotated rows
// side by side in pairs, as Meta's first files had, or as the model was published.
func (r *ggufReader) layout(f *family) {
	key, want := r.arch+"tensor_data_layout", "reference"
	if f.stored.pairs {
		want = "Meta AI original pth"
	}
	if r.has(key) {
		if got := r.str(key); got != want {
			r.refuse(key, "%q contradicts the architecture, whose files have %q", got, want)
		}
	}
}

// integer returns v as a count, and false if it is none.
func integer(v any) (int, bool) {
	var i int64
	switch v := v.(type) {
	case uint64:
		i = int64(min(v, math.MaxInt32))
	case uint32:
		i = int64(v)
	case int64:
		i = v
	case int32:
		i = int64(v)
	case uint16, int16, uint8, int8:
		i, _ = strconv.ParseInt(fmt.Sprint(v), 10, 64)
	default:
		return 0, false
	}
	return int(min(i, math.MaxInt32)), i >= 0
}

func (r *ggufReader) sizeOr(key string, def int) int {
	v, ok := r.value(key)
	if !ok {
		return def
	}
	n, ok := integer(v)
	if !ok {
		r.keep(r.typeError(key, "a non-negative integer", v))
	}
	return n
}

func (r *ggufReader) size(key string) int {
	if !r.has(key) {
		r.keep(r.missing(key))
	}
	return r.sizeOr(key, 0)
}

// float returns a number; a float32 becomes the shortest decimal that rounds to it, so that 1e-6 comes back as 1e-6.
func (r *ggufReader) float(key string, def float64) float64 {
	v, ok := r.value(key)
	if !ok {
		return def
	}
	switch x := v.(type) {
	case float64:
		return x
	case float32:
		wide, err := strconv.ParseFloat(strconv.FormatFloat(float64(x), 'g', -1, 32), 64)
		if err != nil {
			return float64(x)
		}
		return wide
	}
	n, ok := integer(v)
	if !ok {
		r.keep(r.typeError(key, "a number", v))
	}
	return float64(n)
}

// sizes returns a count for each of n layers, from one number or a list.
func (r *ggufReader) sizes(key string, n int) []int {
	v, ok := r.value(key)
	if !ok {
		r.keep(r.missing(key))
		return make([]int, n)
	}
	out := make([]int, n)
	if one, ok := integer(v); ok {
		for i := range out {
			out[i] = one
		}
		return out
	}
	list := items(v)
	if len(list) < n {
		r.keep(r.typeError(key, fmt.Sprintf("a number or a list of %d", n), v))
		return out
	}
	for i := range out {
		if out[i], ok = integer(list[i]); !ok {
			r.keep(r.typeError(key, "non-negative integers", v))
		}
	}
	return out
}

// items returns the elements of a list, nil of what is none.
func items(v any) (out []any) {
	switch v := v.(type) {
	case []any:
		return v
	case []int32:
		return boxed(v)
	case []uint32:
		return boxed(v)
	case []int64:
		return boxed(v)
	case []uint64:
		return boxed(v)
	case []bool:
		return boxed(v)
	}
	return nil
}

func boxed[T any](v []T) []any {
	out := make([]any, len(v))
	for i, x := range v {
		out[i] = x
	}
	return out
}

// flags returns a list of booleans for n layers, nil if there is none.
func (r *ggufReader) flags(key string, n int) []bool {
	v, ok := r.value(key)
	if !ok {
		return nil
	}
	list := items(v)
	if list == nil { // a period: every n-th layer is full
		period, ok := integer(v)
		if !ok || period == 0 {
			r.keep(r.typeError(key, "a list of booleans", v))
			return nil
		}
		for i := range n {
			list = append(list, (i+1)%period != 0)
		}
	}
	out := make([]bool, 0, n)
	for i, x := range list {
		b, ok := x.(bool)
		if whole, isInt := integer(x); isInt {
			b, ok = whole != 0, true
		}
		if !ok {
			r.keep(r.typeError(key, "a list of booleans", v))
			return nil
		}
		if i < n {
			out = append(out, b)
		}
	}
	if len(out) < n {
		r.keep(r.typeError(key, fmt.Sprintf("a list of %d booleans", n), v))
		return nil
	}
	return out
}

// tensor reports whether blk.LAYER.NAME is in the file.
func (r *ggufReader) tensor(layer int, name string) bool {
	_, ok := r.g.Shape(fmt.Sprintf("blk.%d.%s", layer, name))
	return ok
}

// rows returns the rows of a matrix, 0 if there is none.
func (r *ggufReader) rows(name string) int {
	shape, ok := r.g.Shape(name)
	if !ok || len(shape) != 2 {
		return 0
	}
	return shape[0]
}
