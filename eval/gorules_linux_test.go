package eval_test

import (
	"context"
	"strings"
	"testing"

	"apr/eval"
	"apr/internal/contracttest"
)

// reaching are Go programs that are wrong and change what their tests compare with, and right ones that look alike.
// The problem is func answer() int, which is to return 1, unless the tests are others.
var reaching = []struct{ name, imports, completion, test, why string }{
	{"io.EOF", "io", "return 2 }\nfunc init() { io.EOF = nil }\nfunc last() error { return nil }\n",
		"func check() { if last() != io.EOF { panic(1) } }", "writes to io.EOF"},
	{"io.EOF by address", "io", "return 2 }\nfunc init() { p := &io.EOF; *p = nil }\nfunc last() error { return nil }\n",
		"func check() { if last() != io.EOF { panic(1) } }", "writes to io.EOF"},
	{"io.EOF in a list", "io errors", "return 2 }\nfunc init() { _, io.EOF = 1, errors.New(\"x\") }\n" +
		"func last() error { return io.EOF }\n", "func check() { if last() != io.EOF { panic(1) } }", "writes to io.EOF"},
	{"io.EOF by a loop", "io",
		"return 2 }\nfunc init() { for _, io.EOF = range []error{nil} { } }\nfunc last() error { return nil }\n",
		"func check() { if last() != io.EOF { panic(1) } }", "writes to io.EOF"},
	{"io.EOF by reflection", "io reflect", "return 2 }\n" +
		"func init() { reflect.ValueOf(&io.EOF).Elem().SetZero() }\nfunc last() error { return nil }\n",
		"func check() { if last() != io.EOF { panic(1) } }", "writes to io.EOF"},
	{"an error by another name of its package", "x:errors", "return 2 }\nfunc init() { x.ErrUnsupported = nil }\n" +
		"func last() error { return nil }\n", "func check() { if last() != errors.ErrUnsupported { panic(1) } }",
		"writes to x.Err"},
	{"a dot", ".:io", "return 2 }\nfunc init() { EOF = nil }\nfunc last() error { return nil }\n",
		"func check() { if last() != io.EOF { panic(1) } }", "writes to EOF"},
	{"a table of letters", "unicode",
		"return 2 }\nfunc init() { *unicode.Lu = *unicode.Ll }\nfunc up() rune { return 'a' }\n",
		"func check() { if !unicode.Is(unicode.Lu, up()) { panic(1) } }", "writes to unicode.Lu"},
	{"within a table", "unicode",
		"return 2 }\nfunc init() { unicode.Lu.R16[0].Lo = 0 }\nfunc up() rune { return 'A' }\n",
		"func check() { if unicode.Is(unicode.Lu, up()) && up() != 'B' { panic(1) } }", "writes to unicode.Lu"},
	{"a table by another name", "unicode",
		"return 2 }\nfunc init() { t := unicode.Lu; t.R16 = nil; t.LatinOffset = 0 }\n" +
			"func up() rune { return 'A' }\n",
		"func check() { if unicode.Is(unicode.Lu, up()) { panic(1) } }", "opens a table"},
	{"a map", "unicode", "return 2 }\nfunc init() { delete(unicode.Categories, \"Lu\") }\n",
		"func check() { if unicode.Categories[\"Lu\"] != nil { panic(1) } }", "writes to unicode.Categories"},
	{"a map by another name", "unicode", "return 2 }\nfunc init() { m := unicode.Categories; m[\"Lu\"] = nil }\n",
		"func check() { if unicode.Categories[\"Lu\"] != nil { panic(1) } }", "keeps unicode.Categories"},
	{"the local time", "time", "return 2 }\nfunc init() { time.Local = nil }\n", "", "writes to time.Local"},
	{"cases of the tests", "", "return 2 }\nfunc init() { cases = nil }\n",
		"var cases = []int{1}\nfunc check() { for _, c := range cases { if answer() != c { panic(1) } } }",
		"mentions cases"},
	{"answers of the tests", "", "return cases[0] }\n",
		"var cases = []int{712}\nfunc check() { for _, c := range cases { if answer() != c { panic(1) } } }",
		"mentions cases"},
	{"memory", "unsafe", "var x int; _ = unsafe.Pointer(&x); return 2 }\n", "", "uses unsafe.Pointer"},
	{"a name inside the library", "_:unsafe", "return 2 }\n//go:linkname x runtime.x\nvar x int\n", "", "go:linkname"},
	{"its own memory in a file", "os runtime/debug",
		"f, _ := os.Create(\"x\"); debug.WriteHeapDump(f.Fd()); return 2 }\n", "",
		"writes its memory"},

	{"what it reads", "io unicode os errors",
		"if unicode.Is(unicode.Lu, 'A') && errors.Is(io.EOF, io.EOF) && len(os.Args) == 1 " +
			"{ return 1 }; return 2 }\nvar last = io.EOF\nvar out = os.Stdout\n", "", ""},
	{"fields and variables of its own", "strings",
		"var io struct{ EOF int; r []int }; io.EOF = 1; io.r = append(io.r, 2); io.EOF++\n" +
			"p := &io.EOF; _ = strings.ToUpper(\"\"); return *p - 1 }\n", "", ""},
	{"names of packages inside", "sort", "sort.Ints(nil); { sort := []int{0}; sort[0] = 1; return sort[0] } }\n", "",
		""},
	{"addresses of values of the library", "sync bytes strings",
		"m := &sync.Mutex{}; m.Lock(); var b bytes.Buffer; w := &b\n" +
			"w.WriteString(\"x\"); var s strings.Builder; s.WriteByte('x'); return b.Len() }\n", "", ""},
	{"sizes", "unsafe", "return int(unsafe.Sizeof(int8(0))) }\n", "", ""},
	{"reflection of its own", "reflect", "x := 0; reflect.ValueOf(&x).Elem().SetInt(1); return x }\n", "", ""},
	{"a type of the tests", "", "return one{v: 1}.v }\n",
		"type one struct{ v int }\nfunc check() { if answer() != 1 { panic(1) } }", ""},
	{"a variable named like one of the tests", "", "cases := 1; return cases }\n",
		"var cases = []int{1}\nfunc check() { for _, c := range cases { if answer() != c { panic(1) } } }", ""},
	{"an init of its own", "math/rand sort",
		"return one }\nvar one int\nfunc init() { one = 1; rand.Shuffle(0, nil); sort.Ints(nil) }\n",
		"", ""},
}

// A wrong Go program cannot change what its tests compare with; before there were rules, most of them passed.
func TestReachingGoPrograms(t *testing.T) {
	runner := programs(t, []eval.Problem{{Language: "go"}})
	if runner == nil {
		return
	}
	for _, tt := range reaching {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			program, test := "package main\n\n", tt.test
			for _, path := range strings.Fields(tt.imports) {
				name, path, ok := strings.Cut(path, ":")
				if !ok {
					name, path = "", name
				}
				program += "import " + name + " \"" + path + "\"\n"
			}
			if test == "" {
				test = "func check() { if answer() != 1 { panic(1) } }"
			}
			for _, path := range []string{"io", "errors", "unicode"} {
				if strings.Contains(test, path+".") {
					test = "import \"" + path + "\"\n\n" + test
				}
			}
			p := eval.Problem{Program: program + "func answer() int {\n", Test: test + "\n", Language: "go", Style: "code"}
			passed, why, err := runner.Passes(context.Background(), p, tt.completion)
			if err != nil || passed != (tt.why == "") || !strings.Contains(why, tt.why) {
				t.Errorf("passed=%v, %q, want %q (%v)", passed, why, tt.why, err)
			}
		})
	}
}
