package falsify

import (
	"strings"
	"testing"

	"apr/internal/contracttest"
)

// pass is a stream of a test that shows what it should.
const pass = `{"Action":"run","Package":"p","Test":"TestX"}
{"Action":"output","Package":"p","Test":"TestX","Output":"    APR-CASES TestX 3\n"}
{"Action":"run","Package":"p","Test":"TestX/y"}
{"Action":"output","Package":"p","Test":"TestX/y","Output":"        APR-CASES TestX/y 4\n"}
{"Action":"pass","Package":"p","Test":"TestX/y","Elapsed":0.5}
{"Action":"pass","Package":"p","Test":"TestX","Elapsed":1.5}
{"Action":"output","Package":"p","Output":"ok  \tp\t1.5s\n"}
{"Action":"pass","Package":"p"}
`

// TestJudge: what a stream shows, and each way to show nothing.
func TestJudge(t *testing.T) {
	swap := func(old, new string) string {
		if !strings.Contains(pass, old) {
			t.Fatalf("no %q", old)
		}
		return strings.Replace(pass, old, new, 1)
	}
	packageFails := strings.NewReplacer(`"Output":"ok  `, `"Output":"FAIL`, `{"Action":"pass","Package":"p"}`, `{"Action":"fail","Package":"p"}`)
	failing := func(old, new string) string { return packageFails.Replace(swap(old, new)) }
	const subPass = `"pass","Package":"p","Test":"TestX/y"`
	for _, tt := range []struct {
		name, stream, test string
		quota              quota
		want               result
		observed           string
		cases              uint64
	}{
		{"passed", pass, "TestX", quota{least: 1}, passed, "passed, 7 cases", 7},
		{"a subtest", pass, "TestX/y", quota{least: 4}, passed, "passed, 4 cases", 4},
		{"exact", pass, "TestX", quota{7, true}, passed, "passed, 7 cases", 7},
		{"too few", pass, "TestX", quota{least: 8}, vacuous, "visited 7 cases, at least 8 are due", 7},
		{"fewer than claimed", pass, "TestX", quota{8, true}, vacuous, "visited 7 cases, claimed are 8", 7},
		{"more than claimed", pass, "TestX", quota{6, true}, vacuous, "visited 7 cases, claimed are 6", 7},
		{"no match", pass, "TestZ", quota{least: 1}, vacuous, "no test matched", 0},
		{"the beginning of a name", pass, "Test", quota{least: 1}, vacuous, "no test matched", 0},
		{"no subtest matched", pass, "TestX/z", quota{least: 1}, vacuous, "no test matched", 0},
		{"nothing at all", "", "TestX", quota{least: 1}, broken, "the package failed before the test", 0},
		{"an empty package", `{"Action":"pass","Package":"p"}`, "TestX", quota{least: 1}, vacuous, "no test matched", 0},
		{"a skip below", swap(subPass, strings.Replace(subPass, "pass", "skip", 1)), "TestX", quota{least: 1}, vacuous, "1 skipped", 7},
		{"itself skipped", swap(`"pass","Package":"p","Test":"TestX","`, `"skip","Package":"p","Test":"TestX","`), "TestX", quota{least: 1}, vacuous, "1 skipped", 7},
		{"a skip elsewhere", swap(`{"Action":"output","Package":"p","Output":"ok`, `{"Action":"skip","Package":"p","Test":"TestX2"}`+"\n"+`{"Action":"output","Package":"p","Output":"ok`), "TestX", quota{least: 1}, passed, "passed, 7 cases", 7},
		{"a failure below", failing(subPass, strings.Replace(subPass, "pass", "fail", 1)), "TestX", quota{least: 1}, failed, "TestX/y failed", 7},
		{"its end is missing", failing(`{"Action":"pass","Package":"p","Test":"TestX","Elapsed":1.5}`+"\n", ""), "TestX", quota{least: 1}, failed, "the test program ended in TestX", 7},
		{"the package failed", packageFails.Replace(pass), "TestX", quota{least: 1}, broken, "the test passed, and its package failed", 7},
		{"no package result", swap(`{"Action":"pass","Package":"p"}`, ""), "TestX", quota{least: 1}, broken, "the test passed, and its package failed", 7},
		{"cached", swap(`p\t1.5s`, `p\t(cached)`), "TestX", quota{least: 1}, vacuous, "the result is a cached one", 7},
		{"no cases", strings.ReplaceAll(pass, "APR-CASES", "APR-CAKES"), "TestX", quota{least: 1}, vacuous, "0 cases", 0},
		{"cases of another test", strings.NewReplacer("APR-CASES TestX 3", "APR-CASES TestZ 3", "APR-CASES TestX/y", "APR-CASES TestX").Replace(pass), "TestX", quota{least: 1}, vacuous, "0 cases", 0},
		{"cases that are no number", strings.NewReplacer("TestX 3", "TestX -3", "TestX/y 4", "TestX/y 4.5").Replace(pass), "TestX", quota{least: 1}, vacuous, "0 cases", 0},
		{"timed out", failing(`"    APR-CASES TestX 3\n"`, `"panic: test timed out after 1s\n"`), "TestX", quota{least: 1}, broken, "timed out", 4},
		{"does not build", `{"ImportPath":"p","Action":"build-output","Output":"undefined: x\n"}` + "\n" + `{"ImportPath":"p","Action":"build-fail"}` + "\n" + `{"Action":"fail","Package":"p","FailedBuild":"p"}`, "TestX", quota{least: 1}, broken, "does not build", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			s, err := readStream(strings.NewReader(tt.stream))
			if err != nil {
				t.Fatal(err)
			}
			if v := s.judge(tt.test, tt.quota); v.result != tt.want || v.observed != tt.observed || v.cases != tt.cases {
				t.Errorf("got %d, %q, %d cases; want %d, %q, %d", v.result, v.observed, v.cases, tt.want, tt.observed, tt.cases)
			}
		})
	}
}

func TestTail(t *testing.T) {
	long := strings.Repeat("x", 1000) + "\n"
	for _, tt := range []struct{ name, text, want string }{
		{"what every test prints", "=== RUN   TestX\n    --- PASS: TestX/y (0.00s)\n\n    x_test.go:1: no \n", "    x_test.go:1: no"},
		{"the last lines", strings.Repeat("a\n", 30), strings.Repeat("a\n", 19) + "a"},
		{"the last bytes", strings.Repeat(long, 3), strings.Repeat("x", 999-1) + "\n" + long + strings.Repeat("x", 1000)},
		{"no half letter", strings.Repeat("ü", 1000) + "\nx", strings.Repeat("ü", 999) + "\nx"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := tail([]byte(tt.text))
			if len(got) > 2000 || !strings.HasSuffix(got, tt.want[max(0, len(tt.want)-1000):]) {
				t.Errorf("%d bytes: %q", len(got), got)
			}
		})
	}
}

func TestCompareJSON(t *testing.T) {
	const text = `{"a": 1, "b": {"c": [true, "x", null, 2.5]}, "e": []}`
	for _, tt := range []struct {
		name, text string
		want       map[string]any
		wrong      string
	}{
		{"equal", text, map[string]any{"a": 1, "b.c.0": true, "b.c.1": "x", "b.c.2": nil, "b.c.3": 2.5, "e": []any{}}, ""},
		{"a whole member", text, map[string]any{"b": map[string]any{"c": []any{true, "x", nil, 2.5}}}, ""},
		{"another number", text, map[string]any{"a": 2}, "a is 1"},
		{"a text is no number", text, map[string]any{"a": "1"}, "a is 1"},
		{"not there", text, map[string]any{"b.d": nil}, "no member b.d"},
		{"beyond the end", text, map[string]any{"b.c.4": nil}, "no member b.c.4"},
		{"below a number", text, map[string]any{"a.b": 1}, "no member a.b"},
		{"two objects", text + "{}", map[string]any{"a": 1}, "stdout holds more than one JSON object"},
		{"no object", "[1]", map[string]any{"0": 1}, "stdout is not one JSON object"},
		{"null", "null", map[string]any{"a": 1}, "stdout is not one JSON object"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			n, wrong := compareJSON([]byte(tt.text), tt.want)
			if got := strings.Join(wrong, "; "); got != tt.wrong || n != uint64(len(tt.want)) {
				t.Errorf("%d looked for, %q; want %d, %q", n, got, len(tt.want), tt.wrong)
			}
		})
	}
}
