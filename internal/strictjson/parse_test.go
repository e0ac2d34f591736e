package strictjson

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"apr/internal/fault"
)

func TestRefused(t *testing.T) {
	for _, c := range []struct{ name, src, want string }{
		{"empty", "", "offset 0: expected a value, found end of text"},
		{"blank", " \n", "offset 2: expected a value, found end of text"},
		{"byte order mark", "\xef\xbb\xbf{}", "offset 0: byte order mark"},
		{"not UTF-8", "{\"a\xff\":1}", "offset 3: byte 0xff is not UTF-8"},
		{"overlong", "\"\xc0\x80\"", "offset 1: byte 0xc0 is not UTF-8"},
		{"UTF-8 surrogate", "\"\xed\xa0\x80\"", "offset 1: byte 0xed is not UTF-8"},
		{"UTF-16", "\xff\xfe{\x00", "offset 0: byte 0xff is not UTF-8"},
		{"trailing value", "{} {}", "offset 3: '{' after the value"},
		{"trailing NUL", "{}\x00", `offset 2: '\x00' after the value`},
		{"cut object", `{"a":1`, "offset 6: expected ',' or '}', found end of text"},
		{"cut array", `[1`, "offset 2: expected ',' or ']', found end of text"},
		{"cut after comma", `[1,`, "offset 3: expected a value, found end of text"},
		{"cut string", `"abc`, "offset 4: string is cut"},
		{"cut escape", `"abc\`, "offset 5: string is cut"},
		{"comma before bracket", `[1,]`, "offset 3: expected a value, found ']'"},
		{"comma before brace", `{"a":1,}`, "offset 7: expected a key, found '}'"},
		{"no comma", `[1 2]`, "offset 3: expected ',' or ']', found '2'"},
		{"no colon", `{"a" 1}`, "offset 5: expected ':', found '1'"},
		{"key not a string", `{a:1}`, "offset 1: expected a key, found 'a'"},
		{"single quotes", `{'a':1}`, `offset 1: expected a key, found '\''`},
		{"comment", "[1] // x", "offset 4: '/' after the value"},
		{"wrong word", "[nul]", "offset 1: expected null"},
		{"NaN", "NaN", "offset 0: expected a value, found 'N'"},
		{"word too long", "truex", "offset 4: 'x' after the value"},
		{"leading zero", "[01]", "offset 2: number with a leading zero"},
		{"lone minus", "[-]", "offset 2: expected a digit, found ']'"},
		{"no fraction", "[1.]", "offset 3: expected a digit, found ']'"},
		{"no whole part", "[.5]", "offset 1: expected a value, found '.'"},
		{"no exponent", "[1e]", "offset 3: expected a digit, found ']'"},
		{"plus sign", "[+1]", "offset 1: expected a value, found '+'"},
		{"control character", "\"a\tb\"", "offset 2: raw control character 0x09 in a string"},
		{"unknown escape", `"\x41"`, "offset 1: unknown escape"},
		{"short escape", `"\u12"`, `offset 1: \u without four hexadecimal digits`},
		{"high surrogate alone", `"\ud83d"`, "offset 1: unpaired surrogate"},
		{"low surrogate alone", `"\ude00"`, "offset 1: unpaired surrogate"},
		{"surrogates reversed", `"\ude00\ud83d"`, "offset 1: unpaired surrogate"},
		{"high surrogate and letter", `"\ud83dA"`, "offset 1: unpaired surrogate"},
		{"key twice", `{"a":1,"b":2,"a":3}`, `offset 13: key "a" occurs twice`},
		{"key twice by escape", `{"a":1,"\u0061":3}`, `offset 7: key "a" occurs twice`},
		{"both keys escaped", `{"\u0061":1,"\u0061":3}`, `offset 12: key "a" occurs twice`},
		{"key twice in a large object", large(40, `"k7"`), `offset 381: key "k7" occurs twice`},
		{"by escape in a large object", large(40, `"\u006b7"`), `offset 381: key "k7" occurs twice`},
		{"nested key twice", `[{"x":{"a":1,"a":2}}]`, `offset 13: key "a" occurs twice`},
		{"deep", strings.Repeat("[", 65) + strings.Repeat("]", 65), "offset 64: nested deeper than 64"},
		{"deep objects", strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65), "offset 320: nested deeper than 64"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse(c.src, Options{})
			if err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

// large returns an object of n members k0…, and one more with the key given.
func large(n int, key string) string {
	var b strings.Builder
	b.WriteString("{")
	for i := range n {
		fmt.Fprintf(&b, `"k%d": %d,`, i, i)
	}
	return b.String() + key + ":0}"
}

func TestLimits(t *testing.T) {
	if _, err := Parse("[1,2,3]", Options{MaxValues: 4}); err != nil {
		t.Error(err)
	}
	_, err := Parse("[1,2,3]", Options{MaxValues: 3})
	if err == nil || err.Error() != "offset 5: more than 3 values" {
		t.Error(err)
	}
	if _, err := Parse("[[1]]", Options{MaxDepth: 2}); err != nil {
		t.Error(err)
	}
	if _, err := Parse("[[[1]]]", Options{MaxDepth: 2}); err == nil {
		t.Error("depth 3 accepted")
	}
}

func TestRepeatedLastWins(t *testing.T) {
	for _, c := range []struct{ name, src, told, want string }{
		{"small", `{"a":1,"b":2,"a":3,"a":4}`, "[a@13 a@19]", `[b=2 a=4]`},
		{"large", large(20, `"k3"`), "[k3@181]", "[k0=0 k1=1 k2=2 k4=4 k5=5 k6=6 k7=7 k8=8 k9=9 k10=10 k11=11 " +
			"k12=12 k13=13 k14=14 k15=15 k16=16 k17=17 k18=18 k19=19 k3=0]"},
	} {
		var told, got []string
		v, err := Parse(c.src, Options{Repeated: func(k string, off int) { told = append(told, fmt.Sprintf("%s@%d", k, off)) }})
		if err != nil {
			t.Fatal(err)
		}
		for k, m := range v.Members() {
			n, _ := m.Literal()
			got = append(got, k+"="+n)
			if m2, ok := v.Get(k); !ok || m2 != m {
				t.Errorf("%s: Get(%q) differs from Members", c.name, k)
			}
		}
		if fmt.Sprint(told) != c.told || fmt.Sprint(got) != c.want {
			t.Errorf("%s: told %v, members %v", c.name, told, got)
		}
	}
}

func TestAccessors(t *testing.T) {
	const src = ` {"s":"a\"\u00e9\ud83d\ude00\n", "i":-7, "u":18446744073709551615, "f":1e-06, "big":1e999,
		"over":18446744073709551616, "t":true, "n":null, "a":[1,2,[3]], "strings":["x","y"], "e":{}, "two":2.0} `
	v, err := Parse(src, Options{})
	if err != nil {
		t.Fatal(err)
	}
	get := func(k string) Value {
		m, ok := v.Get(k)
		if !ok {
			t.Fatalf("no %q", k)
		}
		return m
	}
	for _, c := range []struct {
		name string
		f    func() (any, error)
		want any
		err  string
	}{
		{"string", func() (any, error) { return get("s").Str() }, "a\"é😀\n", ""},
		{"int", func() (any, error) { return get("i").Int64() }, int64(-7), ""},
		{"uint", func() (any, error) { return get("u").Uint64() }, uint64(1<<64 - 1), ""},
		{"float", func() (any, error) { return get("f").Float64() }, 1e-6, ""},
		{"literal", func() (any, error) { return get("f").Literal() }, "1e-06", ""},
		{"bool", func() (any, error) { return get("t").Bool() }, true, ""},
		{"strings", func() (any, error) { return get("strings").Strings() }, []string{"x", "y"}, ""},
		{"uints", func() (any, error) { return get("a").Uints() }, nil, "offset 151: expected a non-negative integer, found an array"},
		{"int as uint", func() (any, error) { return get("i").Uint64() }, nil, "offset 37: expected a non-negative integer, found -7"},
		{"float as uint", func() (any, error) { return get("two").Uint64() }, nil, "offset 192: expected a non-negative integer, found 2.0"},
		{"over u64", func() (any, error) { return get("over").Uint64() }, nil, "offset 100: integer 18446744073709551616 does not fit 64 bits"},
		{"over i64", func() (any, error) { return get("u").Int64() }, nil, "offset 45: integer 18446744073709551615 does not fit 64 bits"},
		{"over float", func() (any, error) { return get("big").Float64() }, nil, "offset 84: number 1e999 does not fit a float64"},
		{"string as number", func() (any, error) { return get("s").Float64() }, nil, "offset 6: expected a number, found the string \"a\\\"é😀\\n\""},
		{"bool as string", func() (any, error) { return get("t").Str() }, nil, "offset 126: expected a string, found true"},
		{"null as bool", func() (any, error) { return get("n").Bool() }, nil, "offset 136: expected a boolean, found null"},
		{"absent", func() (any, error) { return Value{}.Str() }, nil, "offset 0: expected a string, found nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.f()
			if c.err != "" {
				if err == nil || err.Error() != c.err {
					t.Errorf("got  %v\nwant %s", err, c.err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %#v, %v", got, err)
			}
		})
	}
	if get("a").Len() != 3 || get("e").Len() != 0 || v.Len() != 12 {
		t.Error("Len")
	}
	if _, ok := v.Get("S"); ok {
		t.Error("keys are compared without case")
	}
}

func TestFields(t *testing.T) {
	parse := func(src string) *Fields {
		v, err := Parse(src, Options{})
		if err != nil {
			t.Fatal(err)
		}
		return NewFields(v)
	}
	f := parse(`{"hidden_size":64,"eps":1e-6,"tied":true,"name":"x","gone":null,"delta":-1}`)
	got := fmt.Sprint(f.Uint("hidden_size"), f.Float("eps"), f.Bool("tied"), f.Str("name"), f.UintOr("gone", 5), f.Int("delta"),
		f.FloatOr("theta", 2), f.StrOr("x", "y"), f.BoolOr("b", true), f.IntOr("i", -3), f.Has("gone"), f.Has("name"), f.Value("name").Kind())
	if want := "64 1e-06 truex5 -1 2ytrue -3 false true a string"; got != want || f.Err() != nil {
		t.Errorf("%s, %v", got, f.Err())
	}
	for _, c := range []struct {
		name, src string
		read      func(*Fields)
		want      string
	}{
		{"missing", `{"a":1}`, func(f *Fields) { f.Uint("b") }, `offset 0: key "b" is missing`},
		{"misspelt", `{"hiden_sise":1,"hidden_act":2}`, func(f *Fields) { f.Uint("hidden_size") },
			`offset 0: key "hidden_size" is missing; is "hiden_sise" misspelt?`},
		{"nothing like it", `{"moe_intermediate_size":1,"hidden_size":2}`, func(f *Fields) { f.Uint("intermediate_size") },
			`offset 0: key "intermediate_size" is missing`},
		{"null is missing", `{"b":null}`, func(f *Fields) { f.Uint("b") }, `offset 0: key "b" is missing`},
		{"wrong type", `{"a":"1"}`, func(f *Fields) { f.Uint("a"); f.Str("a") }, `offset 5: key "a": expected a non-negative integer, found the string "1"`},
		{"first error stays", `{"a":"1"}`, func(f *Fields) { f.Uint("b"); f.Uint("a") }, `offset 0: key "b" is missing`},
		{"not an object", `[]`, func(f *Fields) { f.Uint("b") }, `offset 0: expected an object, found an array`},
		{"unknown key", `{"hiden_size":1}`, func(f *Fields) { f.Only("hidden_size", "n") }, `offset 14: unknown key "hiden_size"; did you mean "hidden_size"?`},
	} {
		f := parse(c.src)
		c.read(f)
		if f.Err() == nil || f.Err().Error() != c.want {
			t.Errorf("%s: got %v, want %s", c.name, f.Err(), c.want)
		}
	}
}

func TestParseFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte("{\n  \"é\": 1,\n  \"b\": x\n}"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := ParseFile(path, 1000, Options{})
	if want := path + ": line 3, column 8: expected a value, found 'x' [E-JSON-001]"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if _, err := ParseFile(path, 10, Options{}); fault.KindOf(err) != fault.Format {
		t.Errorf("limit: %v", err)
	}
}

func TestPosition(t *testing.T) {
	const src = "ab\néx\n"
	for off, want := range map[int][2]int{0: {1, 1}, 2: {1, 3}, 3: {2, 1}, 5: {2, 2}, 7: {3, 1}, 99: {3, 1}, -1: {1, 1}} {
		if l, c := Position(src, off); [2]int{l, c} != want {
			t.Errorf("offset %d: line %d, column %d, want %v", off, l, c, want)
		}
	}
}

// tokenizerJSON returns a text of the shape and size of a big tokenizer.json.
func tokenizerJSON(vocab int) string {
	var b strings.Builder
	b.WriteString(`{"model":{"type":"BPE","vocab":{`)
	for i := range vocab {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "\n      \"\u0120token%d\": %d", i, i)
	}
	b.WriteString(`},"merges":[`)
	for i := range vocab {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "\n      [\"\u0120to\", \"ken%d\"]", i)
	}
	b.WriteString("]}}")
	return b.String()
}

func TestLargeTokenizer(t *testing.T) {
	src := tokenizerJSON(150_000)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	v, err := Parse(src, Options{})
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	model, _ := v.Get("model")
	vocab, _ := model.Get("vocab")
	id, ok := vocab.Get("Ġtoken149999")
	if n, _ := id.Uint64(); !ok || n != 149999 {
		t.Errorf("last token has id %d", n)
	}
	allocated := after.TotalAlloc - before.TotalAlloc
	t.Logf("%d bytes in %v, %d bytes allocated", len(src), took, allocated)
	if allocated > 2*uint64(len(src)) {
		t.Errorf("%d bytes allocated for %d bytes of text", allocated, len(src))
	}
}

// TestHostileMemory holds the promise of 64 MiB plus four times the file for the densest texts.
func TestHostileMemory(t *testing.T) {
	const size = 16 << 20
	for _, c := range []struct{ name, src string }{
		{"numbers", "[" + strings.Repeat("1,", size/2) + "1]"},
		{"commas in a string", `"` + strings.Repeat(",", size) + `"`},
		{"empty arrays", "[" + strings.Repeat("[],", size/3) + "1]"},
		{"equal escaped keys", "{" + strings.Repeat(`"\u0061":1,`, size/11) + `"b":1}`},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		_, err := Parse(c.src, Options{})
		runtime.ReadMemStats(&after)
		allocated := after.TotalAlloc - before.TotalAlloc
		t.Logf("%s: %v, %d MiB, %v", c.name, time.Since(start), allocated>>20, err != nil)
		if allocated > 64<<20+4*size {
			t.Errorf("%s: %d MiB allocated for 16 MiB", c.name, allocated>>20)
		}
	}
}

func BenchmarkTokenizer(b *testing.B) {
	src := tokenizerJSON(150_000)
	b.SetBytes(int64(len(src)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(src, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzParse compares with encoding/json: whatever is accepted here must mean the same there, and what only this
// package refuses must be one of the known stricter rules.
func FuzzParse(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5e3,true,null,"x\u00e9\ud83d\ude00"]}`, `{"a":1,"\u0061":2}`, `"\ud800"`, `[[[[]]]]`, `-0`, ` {} x`,
		large(20, `"k3"`), "\"\u007f\"", `{"":{"":{}}}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, src string) {
		v, err := Parse(src, Options{})
		if err != nil {
			e := err.(*Error)
			if e.Offset < 0 || e.Offset > len(src) {
				t.Fatalf("offset %d outside the text", e.Offset)
			}
			if json.Valid([]byte(src)) && utf8.ValidString(src) && (e.Code == Syntax || e.Code == Trailing) {
				t.Fatalf("refused valid JSON: %v", err)
			}
			return
		}
		var want any
		d := json.NewDecoder(strings.NewReader(src))
		d.UseNumber()
		if err := d.Decode(&want); err != nil {
			t.Fatalf("accepted, but encoding/json says %v", err)
		}
		if got := generic(t, v); !reflect.DeepEqual(got, want) {
			t.Fatalf("got %#v, want %#v", got, want)
		}
		text, err := AppendCanonical(nil, v)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(string(text), Options{})
		if err != nil {
			t.Fatalf("canonical text %q: %v", text, err)
		}
		if text2, _ := AppendCanonical(nil, again); string(text2) != string(text) {
			t.Fatalf("canonical text is not stable: %q, %q", text, text2)
		}
	})
}

// generic converts v as encoding/json would.
func generic(t *testing.T, v Value) any {
	switch v.Kind() {
	case Bool:
		b, _ := v.Bool()
		return b
	case Number:
		s, _ := v.Literal()
		return json.Number(s)
	case String:
		s, _ := v.Str()
		return s
	case Array:
		out := []any{}
		for e := range v.Items() {
			out = append(out, generic(t, e))
		}
		return out
	case Object:
		out := map[string]any{}
		for k, m := range v.Members() {
			out[k] = generic(t, m)
			if got, ok := v.Get(k); !ok || got != m {
				t.Fatalf("Get(%q) differs from Members", k)
			}
		}
		return out
	}
	return nil
}
