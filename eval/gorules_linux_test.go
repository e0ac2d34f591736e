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
		"func check() { if unicode.Is(unicode.Lu, up()) { panic(1) } }", "writes to unicode.Lu"},
	{"a table by a function", "unicode",
		"empty(unicode.Lu); return 1 }\nfunc empty(t *unicode.RangeTable) { t.R16 = nil }\n", "", "keeps unicode.Lu"},
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
	{"a type of the tests", "", "return one{v: 1}.v }\n",
		"type one struct{ v int }\nfunc check() { if answer() != 1 { panic(1) } }", "mentions one"},
	{"memory", "unsafe", "var x int; _ = unsafe.Pointer(&x); return 2 }\n", "", "uses unsafe.Pointer"},
	{"a name inside the library", "_:unsafe", "return 2 }\n//go:linkname x runtime.x\nvar x int\n", "", "go:linkname"},
	{"its own memory in a file", "os runtime/debug",
		"f, _ := os.Create(\"x\"); debug.WriteHeapDump(f.Fd()); return 2 }\n", "",
		"uses debug.WriteHeapDump"},
	{"a system call of the problem's", "syscall", "syscall.Syscall(39, 0, 0, 0); return 1 }\n", "",
		"uses syscall.Syscall"},
	{"memory by a dot of the problem's", ".:unsafe", "var x int; _ = Pointer(&x); return 1 }\n", "",
		"uses unsafe.Pointer"},
	{"a heap by a dot of the problem's", ".:runtime/debug", "WriteHeapDump(1); return 1 }\n", "",
		"uses debug.WriteHeapDump"},
	{"its own file", "os", "b, _ := os.ReadFile(\"/proc/self/exe\"); _ = b; return 1 }\n", "", "uses os.ReadFile"},
	{"its own file by its name", "os", "n := os.Args[0]; _ = n; return 1 }\n", "", "uses os.Args"},
	{"its own file, opened", "os", "f, _ := os.OpenFile(\"/proc/self/exe\", 0, 0); _ = f; return 1 }\n", "",
		"uses os.OpenFile"},
	{"its own file by a folder", "os", "f := os.DirFS(\"/proc/self\"); _ = f; return 1 }\n", "", "uses os.DirFS"},
	{"its own file by an older package", "io/ioutil", "b, _ := ioutil.ReadFile(\"/proc/self/exe\"); _ = b; return 1 }\n",
		"", "uses ioutil.ReadFile"},
	{"another encoding", "encoding/base64",
		"e := base64.StdEncoding; *e = *base64.URLEncoding; return 1 }\n", "", "writes to base64.StdEncoding"},
	{"another encoding by a third name", "encoding/base64",
		"e := second; *e = *base64.URLEncoding; return 1 }\nvar second = base64.StdEncoding\n", "",
		"writes to base64.StdEncoding"},
	{"another encoding by a function", "encoding/base64", "set(base64.StdEncoding, base64.URLEncoding); return 1 }\n" +
		"func set(a, b *base64.Encoding) { *a = *b }\n", "", "keeps base64.StdEncoding"},
	{"another encoding by a result", "encoding/base64", "*get() = *base64.URLEncoding; return 1 }\n" +
		"func get() *base64.Encoding { return base64.StdEncoding }\n", "", "keeps base64.StdEncoding"},
	{"a table of sums", "hash/crc32", "t := crc32.IEEETable; t[1] = 0; return 1 }\n", "", "writes to crc32.IEEETable"},
	{"a table of sums, assigned", "hash/crc32", "var t *crc32.Table; t = crc32.IEEETable; t[1]++; return 1 }\n", "",
		"writes to crc32.IEEETable"},
	{"a table of sums, as it is made", "hash/crc32", "t := crc32.MakeTable(crc32.IEEE); t[1] = 0; return 1 }\n", "",
		"writes to crc32.MakeTable"},
	{"a table of sums, as it is made and written", "hash/crc32",
		"crc32.MakeTable(crc32.IEEE)[1] = 0; return 1 }\n", "", "writes to crc32.MakeTable"},
	{"a table of sums, made for a function", "hash/crc32", "set(crc32.MakeTable(crc32.IEEE)); return 1 }\n" +
		"func set(t *crc32.Table) { t[1] = 0 }\n", "", "keeps crc32.MakeTable"},
	{"another encoding by two stars", "encoding/base64",
		"e := base64.StdEncoding; p := &e; **p = *base64.URLEncoding; return 1 }\n", "", "keeps base64.StdEncoding"},
	{"another encoding by any type", "encoding/base64",
		"var e any = base64.StdEncoding; set(e.(*base64.Encoding)); return 1 }\n" +
			"func set(e *base64.Encoding) { *e = *base64.URLEncoding }\n", "", "keeps base64.StdEncoding"},
	{"another encoding by a named result", "encoding/base64", "*get() = *base64.URLEncoding; return 1 }\n" +
		"func get() (e *base64.Encoding) { e = base64.StdEncoding; return }\n", "", "keeps base64.StdEncoding"},
	{"a table of sums, sliced", "hash/crc32 sort",
		"t := crc32.IEEETable[:]; sort.Slice(t, func(i, j int) bool { return i > j }); return 1 }\n", "",
		"keeps crc32.IEEETable"},
	{"a table of sums, decoded", "hash/crc32 encoding/json",
		"json.Unmarshal([]byte(\"[1]\"), crc32.IEEETable); return 1 }\n", "", "writes to crc32.IEEETable"},
	{"a place", "time", "u := time.UTC; *u = *time.FixedZone(\"x\", 1); return 1 }\n", "", "writes to time.UTC"},
	{"a table out of a map", "unicode",
		"for _, t := range unicode.Scripts { *t = unicode.RangeTable{} }; return 1 }\n", "", "writes to unicode.Scripts"},

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
	{"a variable named like one of the tests", "", "cases := 1; return cases }\n",
		"var cases = []int{1}\nfunc check() { for _, c := range cases { if answer() != c { panic(1) } } }", ""},
	{"the library's encodings and tables", "encoding/base64 hash/crc32 time",
		"e, t := base64.StdEncoding, crc32.IEEETable; _ = e.EncodeToString(nil); _ = crc32.Update(0, t, nil)\n" +
			"_ = time.Now().In(time.UTC); own := *crc32.MakeTable(3); _ = own; n := time.January; n++\n" +
			"return len(base64.URLEncoding.EncodeToString(nil)) + 1 }\n", "", ""},
	{"pointers and lists of its own", "math sort",
		"x := math.MaxInt8; p := &x; *p = 1; s := sort.IntSlice{2, 1}; s[0] = x; return s[0] }\n", "", ""},
	{"what the problem imports", "os io strings encoding/binary",
		"var x [1]byte; _ = binary.Read(os.Stdin, binary.LittleEndian, &x)\n" +
			"io.WriteString(os.Stdout, strings.TrimSpace(\" \"))\n" +
			"if os.Getenv(\"X\") != \"\" { os.Exit(1) }; return 1 }\n",
		"", ""},
	{"an init of its own", "math/rand sort",
		"return one }\nvar one int\nfunc init() { one = 1; rand.Shuffle(0, nil); sort.Ints(nil) }\n",
		"", ""},
}

// importing are Go programs that are generated as a whole; the problem is that of reaching.
var importing = []struct{ name, text, why string }{
	{"syscall", "import \"syscall\"\n\nfunc answer() int { syscall.Getpid(); return 1 }\n", "imports syscall"},
	{"a dot", "import . \"unsafe\"\n\nfunc answer() int { x := 1; return *(*int)(Pointer(&x)) }\n", "imports unsafe"},
	{"a dot in a group", "import (\n\t. \"runtime/debug\"\n)\n\nfunc answer() int { FreeOSMemory(); return 1 }\n",
		"imports runtime/debug"},
	{"a dot of a pure package", "import . \"strings\"\n\nfunc answer() int { return len(TrimSpace(\"1\")) }\n",
		"with a dot"},
	{"another name", "import s \"os\"\n\nfunc answer() int { s.Getpid(); return 1 }\n", "imports os"},
	{"no name", "import _ \"net/http/pprof\"\n\nfunc answer() int { return 1 }\n", "imports net/http/pprof"},
	{"a nest that only the compiler reads",
		"import \"syscall\"\n\nvar x = " + strings.Repeat("(", 100001) + "1" + strings.Repeat(")", 100001) +
			"\n\nfunc answer() int { syscall.Getpid(); return 1 }\n", "does not compile"},

	{"pure packages", "import (\n\t\"bufio\"\n\t\"container/heap\"\n\t\"crypto/sha256\"\n\t\"encoding/json\"\n" +
		"\tr \"math/rand/v2\"\n\t\"strings\"\n\t\"sync/atomic\"\n)\n\nvar _ heap.Interface\nvar n atomic.Int64\n\n" +
		"func answer() int {\n\tb, _ := json.Marshal(sha256.Sum256(nil))\n" +
		"\t_ = bufio.NewReader(strings.NewReader(string(b)))\n" +
		"\treturn r.IntN(1) + 1\n}\n", ""},
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
	for _, tt := range importing {
		t.Run("imports: "+tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			p := eval.Problem{Test: "func check() { if answer() != 1 { panic(1) } }\n", Language: "go", Style: "code"}
			passed, why, err := runner.Passes(context.Background(), p, tt.text)
			if err != nil || passed != (tt.why == "") || !strings.Contains(why, tt.why) {
				t.Errorf("passed=%v, %q, want %q (%v)", passed, why, tt.why, err)
			}
		})
	}
}
