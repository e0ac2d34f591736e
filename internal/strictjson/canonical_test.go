package strictjson

import (
	"fmt"
	"math"
	"testing"
)

func TestCanonical(t *testing.T) {
	parsed, err := Parse(`{ "z": 1e-06, "a": [null, {"y": null, "x": "\u00e9\u2028"}], "n": null }`, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		in   any
		want string
	}{
		{"sorted without nulls", map[string]any{"b": 1, "a": "x", "c": nil}, `{"a":"x","b":1}`},
		{"parsed", parsed, "{\"a\":[null,{\"x\":\"é\u2028\"}],\"z\":1e-06}"},
		{"parsed null member", map[string]any{"a": Value{}, "b": parsed}, "{\"b\":{\"a\":[null,{\"x\":\"é\u2028\"}],\"z\":1e-06}}"},
		{"escapes", "\"\\\b\n\r\t\x00/<é>", `"\"\\\u0008\n\r\t\u0000/<é>"`},
		{"floats", []float64{0, 1, 1e6, 1e-6, 0.5, -2.25, 1e300}, `[0,1,1000000,1e-06,0.5,-2.25,1e+300]`},
		{"integers", []any{-1, int64(-1 << 63), uint64(1<<64 - 1), true}, `[-1,-9223372036854775808,18446744073709551615,true]`},
		{"lists", []any{[]string{"a"}, []int{1}, []uint64{2}, map[string]any{}}, `[["a"],[1],[2],{}]`},
	} {
		got, err := AppendCanonical(nil, c.in)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v, want %s", c.name, got, err, c.want)
		}
	}
	for name, in := range map[string]any{"NaN": math.NaN(), "infinite": []float64{math.Inf(1)}, "not UTF-8": "\xff", "type": struct{}{},
		"key": map[string]any{"\xff": 1}} {
		if got, err := AppendCanonical(nil, in); err == nil {
			t.Errorf("%s: written as %s", name, got)
		}
	}
}

func ExampleParse() {
	v, err := Parse(`{"hidden_size": 896, "rope_theta": 1000000.0}`, Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	f := NewFields(v)
	fmt.Println(f.Uint("hidden_size"), f.Float("rope_theta"), f.FloatOr("rms_norm_eps", 1e-6), f.Err())
	_, err = Parse(`{"a": 1, "\u0061": 2}`, Options{})
	fmt.Println(err)
	// Output:
	// 896 1e+06 1e-06 <nil>
	// offset 9: key "a" occurs twice
}
