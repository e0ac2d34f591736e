package cli

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"apr/internal/fault"
)

// Value is a typed option value: it parses, checks and prints. The constructors below store into the pointer given,
// which holds the default from then on.
type Value interface {
	set(text string) error // parses, checks and stores; the error says what is wrong, not where
	text() string          // the present value, in the form that set reads
	get() any              // the present value, for JSON
	meta() string          // placeholder in --help, such as INT
	schema() map[string]any
	accepts(tag string) bool // whether a YAML scalar with this tag may hold it
}

// expected says what a value is, in an error message.
func expected(v Value) string {
	switch v := v.(type) {
	case *boolValue:
		return "true or false"
	case *EnumValue:
		return "one of " + strings.Join(v.words, ", ")
	case *listValue:
		return "a text or a list of texts"
	case *sizeValue:
		return "a number of GiB, or a size with its unit such as 512MiB"
	case *durationValue:
		return "a duration such as 90s, 10m or 1h30m"
	case *stringValue:
		return "a text"
	}
	if v.meta() == "INT" {
		return "an integer"
	}
	return "a number"
}

// list is a Value of several elements; set appends one.
type list interface {
	Value
	clear()
}

// number is the set of numeric value types.
type number interface{ ~int | ~int64 | ~float64 }

// NumberValue is an integer or floating-point option.
type NumberValue[T number] struct {
	p      *T
	parse  func(string) (T, error)
	name   string // INT or FLOAT
	lo, hi float64
	open   bool // lo itself is outside
	extra  *T   // one more allowed value
}

var decimal = regexp.MustCompile(`^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$`)

// parseFloat reads a finite decimal number.
func parseFloat(s string) (float64, error) {
	if !decimal.MatchString(s) {
		return 0, fmt.Errorf("%q is not a decimal number", s)
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is out of range", s)
	}
	return f, nil
}

// parseInt reads a decimal integer: no other base, no separators, no exponent.
func parseInt(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("%q is out of range", s)
	case err != nil:
		return 0, fmt.Errorf("%q is not an integer", s)
	}
	return n, nil
}

// Int is an integer option.
func Int(p *int, def int) *NumberValue[int] {
	*p = def
	return &NumberValue[int]{p: p, name: "INT", lo: math.Inf(-1), hi: math.Inf(1),
		parse: func(s string) (int, error) { n, err := parseInt(s); return int(n), err }}
}

// Int64 is an integer option of 64 bits, such as a seed.
func Int64(p *int64, def int64) *NumberValue[int64] {
	*p = def
	return &NumberValue[int64]{p: p, name: "INT", lo: math.Inf(-1), hi: math.Inf(1), parse: parseInt}
}

// Float is a finite floating-point option.
func Float(p *float64, def float64) *NumberValue[float64] {
	*p = def
	return &NumberValue[float64]{p: p, name: "FLOAT", lo: math.Inf(-1), hi: math.Inf(1), parse: parseFloat}
}

// In restricts the value to lo…hi, both included.
func (v *NumberValue[T]) In(lo, hi T) *NumberValue[T] {
	v.lo, v.hi = float64(lo), float64(hi)
	return v
}

// AtLeast restricts the value to lo and above.
func (v *NumberValue[T]) AtLeast(lo T) *NumberValue[T] { v.lo = float64(lo); return v }

// Above restricts the value to more than lo.
func (v *NumberValue[T]) Above(lo T) *NumberValue[T] { v.lo, v.open = float64(lo), true; return v }

// Or allows one value outside the bounds, such as 0 for automatic.
func (v *NumberValue[T]) Or(n T) *NumberValue[T] { v.extra = &n; return v }

func (v *NumberValue[T]) set(s string) error {
	n, err := v.parse(s)
	if err != nil {
		return err
	}
	if f := float64(n); (v.extra == nil || n != *v.extra) && (f < v.lo || f > v.hi || v.open && f == v.lo) {
		return fmt.Errorf("%s is %s", s, v.rangeText())
	}
	*v.p = n
	return nil
}

// rangeText says what is wrong with a number out of bounds, and what would be right.
func (v *NumberValue[T]) rangeText() (text string) {
	switch {
	case v.open:
		text = fmt.Sprintf("too small: above %v", v.lo)
	case math.IsInf(v.hi, 1):
		text = fmt.Sprintf("too small: at least %v", v.lo)
	default:
		text = fmt.Sprintf("outside %v to %v", v.lo, v.hi)
	}
	if v.extra != nil {
		text += fmt.Sprintf(", or %v", *v.extra)
	}
	return text
}

func (v *NumberValue[T]) text() string { return fmt.Sprint(*v.p) }
func (v *NumberValue[T]) get() any     { return *v.p }
func (v *NumberValue[T]) meta() string { return v.name }
func (v *NumberValue[T]) accepts(tag string) bool {
	return tag == "!!int" || tag == "!!float" && v.name == "FLOAT"
}

func (v *NumberValue[T]) schema() map[string]any {
	s := map[string]any{"type": "integer"}
	if v.name == "FLOAT" {
		s["type"] = "number"
	}
	if !math.IsInf(v.lo, -1) {
		key := "minimum"
		if v.open {
			key = "exclusiveMinimum"
		}
		s[key] = v.lo
	}
	if !math.IsInf(v.hi, 1) {
		s["maximum"] = v.hi
	}
	if v.extra != nil {
		return map[string]any{"anyOf": []any{s, map[string]any{"const": *v.extra}}}
	}
	return s
}

// boolValue is on or off.
type boolValue struct {
	p     *bool
	onOff bool
}

// Bool is a switch: --name, or --name=false.
func Bool(p *bool, def bool) Value { *p = def; return &boolValue{p: p} }

// OnOff is a switch that takes its value: --name on, --name off.
func OnOff(p *bool, def bool) Value { *p = def; return &boolValue{p: p, onOff: true} }

func (v *boolValue) set(s string) error {
	switch s {
	case "1", "true", "on":
		*v.p = true
	case "0", "false", "off":
		*v.p = false
	default:
		return fmt.Errorf("%q is neither true (1, on) nor false (0, off)", s)
	}
	return nil
}

func (v *boolValue) text() string {
	switch {
	case !v.onOff:
		return strconv.FormatBool(*v.p)
	case *v.p:
		return "on"
	}
	return "off"
}
func (v *boolValue) get() any { return *v.p }
func (v *boolValue) meta() string {
	if v.onOff {
		return "on|off"
	}
	return ""
}
func (v *boolValue) accepts(tag string) bool { return tag == "!!bool" || tag == "!!str" }
func (v *boolValue) schema() map[string]any {
	if v.onOff {
		return map[string]any{"enum": []any{"on", "off", true, false}}
	}
	return map[string]any{"type": "boolean"}
}

// stringValue is any text, with an optional check.
type stringValue struct {
	p     *string
	check func(string) error
}

// String is a text option.
func String(p *string, def string) Value { *p = def; return &stringValue{p: p} }

// Checked is a text option that must pass check, whose error says what is wrong with the text.
func Checked(p *string, def string, check func(string) error) Value {
	*p = def
	return &stringValue{p: p, check: check}
}

func (v *stringValue) set(s string) error {
	if v.check != nil {
		if err := v.check(s); err != nil {
			return err
		}
	}
	*v.p = s
	return nil
}
func (v *stringValue) text() string            { return *v.p }
func (v *stringValue) get() any                { return *v.p }
func (v *stringValue) meta() string            { return "TEXT" }
func (v *stringValue) accepts(tag string) bool { return tag != "!!null" }
func (v *stringValue) schema() map[string]any {
	return map[string]any{"type": []any{"string", "number"}}
}

// EnumValue is one of a few words.
type EnumValue struct {
	p       *string
	words   []string
	alias   map[string]string
	unbuilt []string
	refused map[string]string
	anyCase bool
	named   string // of the words, the one that a name may follow after a colon
}

// Enum is an option that takes one of words.
func Enum(p *string, def string, words ...string) *EnumValue {
	*p = def
	return &EnumValue{p: p, words: words, alias: map[string]string{}, refused: map[string]string{}}
}

// Alias lets another spelling stand for word.
func (v *EnumValue) Alias(spelling, word string) *EnumValue { v.alias[spelling] = word; return v }

// AnyCase takes words, which are in small letters, in any letter case.
func (v *EnumValue) AnyCase() *EnumValue { v.anyCase = true; return v }

// Unbuilt names words that are known but not built yet: exit 9.
func (v *EnumValue) Unbuilt(words ...string) *EnumValue { v.unbuilt = words; return v }

// Named lets a name follow a word, as in word:NAME, and the word's other spellings.
func (v *EnumValue) Named(word string) *EnumValue { v.named = word; return v }

// Refuse makes word a usage error with a hint.
func (v *EnumValue) Refuse(word, hint string) *EnumValue { v.refused[word] = hint; return v }

func (v *EnumValue) set(s string) error {
	if v.anyCase {
		s = strings.ToLower(s)
	}
	if hint, ok := v.refused[s]; ok {
		return fault.New(fault.Usage, "%q is not a choice here", s).WithHint("%s", hint)
	}
	if w, ok := v.alias[s]; ok {
		s = w
	}
	word, name, _ := strings.Cut(s, ":")
	if v.named != "" && name != "" && (word == v.named || v.alias[word] == v.named) {
		*v.p = v.named + ":" + name
		return nil
	}
	if slices.Contains(v.unbuilt, s) {
		return fault.New(fault.Unavailable, "%q is not built yet", s).WithHint("available: %s", strings.Join(v.words, ", "))
	}
	if slices.Contains(v.words, s) {
		*v.p = s
		return nil
	}
	all := slices.Clone(v.words) // not what is unbuilt: it would be refused too
	for a := range v.alias {
		all = append(all, a)
	}
	slices.Sort(all)
	err := fault.New(fault.Usage, "unknown value %q (known: %s)", s, strings.Join(v.words, ", "))
	// In a word of three letters one wrong letter makes another word: gpu is nearer to cpu than to cuda.
	if n := fault.Nearest(s, all); n != "" && len(s) > 3 {
		return err.WithHint("did you mean %q?", n)
	}
	return err
}
func (v *EnumValue) text() string            { return *v.p }
func (v *EnumValue) get() any                { return *v.p }
func (v *EnumValue) meta() string            { return strings.Join(v.words, "|") }
func (v *EnumValue) accepts(tag string) bool { return tag != "!!null" }
func (v *EnumValue) schema() map[string]any {
	var words []any
	for _, w := range v.words {
		words = append(words, w)
	}
	for _, a := range sortedKeys(v.alias) {
		words = append(words, a)
	}
	if v.named == "" {
		return map[string]any{"enum": words}
	}
	spellings := []string{v.named}
	for _, a := range sortedKeys(v.alias) {
		if v.alias[a] == v.named {
			spellings = append(spellings, a)
		}
	}
	return map[string]any{"anyOf": []any{
		map[string]any{"enum": words},
		map[string]any{"type": "string", "pattern": "^(" + strings.Join(spellings, "|") + "):.+$"},
	}}
}

// listValue is a repeatable option, or a comma-separated one.
type listValue struct {
	p     *[]string
	comma bool
	words []string // allowed elements, nil for any
}

// Strings is a repeatable text option: each use adds one element; in a file a text or a list of texts.
func Strings(p *[]string, def ...string) Value { *p = def; return &listValue{p: p} }

// Words is a comma-separated option whose elements are among words (nil allows any); a use replaces the default.
func Words(p *[]string, def []string, words ...string) Value {
	*p = def
	return &listValue{p: p, comma: true, words: words}
}

func (v *listValue) clear() { *v.p = nil }
func (v *listValue) set(s string) error {
	parts := []string{s}
	if v.comma {
		parts = strings.Split(s, ",")
	}
	for _, w := range parts {
		if v.words != nil && !slices.Contains(v.words, w) {
			err := fault.New(fault.Usage, "unknown value %q (known: %s)", w, strings.Join(v.words, ", "))
			if n := fault.Nearest(w, v.words); n != "" {
				return err.WithHint("did you mean %q?", n)
			}
			return err
		}
		*v.p = append(*v.p, w)
	}
	return nil
}
func (v *listValue) text() string            { return strings.Join(*v.p, ",") }
func (v *listValue) get() any                { return slices.Clone(*v.p) }
func (v *listValue) accepts(tag string) bool { return tag != "!!null" }
func (v *listValue) meta() string {
	if v.comma {
		return "LIST"
	}
	return "TEXT"
}
func (v *listValue) schema() map[string]any {
	item := map[string]any{"type": "string"}
	if v.words != nil && !v.comma {
		item = map[string]any{"enum": v.words}
	}
	return map[string]any{"anyOf": []any{map[string]any{"type": "string"}, map[string]any{"type": "array", "items": item}}}
}

// durationValue is a time span such as 90s or 10m.
type durationValue struct{ p *time.Duration }

// Duration is a non-negative time span: 90s, 10m, 1h30m.
func Duration(p *time.Duration, def time.Duration) Value { *p = def; return &durationValue{p} }

func (v *durationValue) set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return fmt.Errorf("%q is not a duration such as 90s, 10m or 1h30m", s)
	}
	*v.p = d
	return nil
}
func (v *durationValue) text() string            { return shortDuration(*v.p) }
func (v *durationValue) get() any                { return v.text() }
func (v *durationValue) meta() string            { return "DURATION" }
func (v *durationValue) accepts(tag string) bool { return tag == "!!str" || tag == "!!int" }
func (v *durationValue) schema() map[string]any {
	return map[string]any{"type": "string", "pattern": `^([0-9.]+(ns|us|µs|ms|s|m|h))+$`}
}

// shortDuration prints 10m instead of 10m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}
