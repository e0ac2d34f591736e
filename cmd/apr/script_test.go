package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"apr/internal/cli"
	"apr/internal/contracttest"
)

// programs are what the test program is when it is called by one of these names.
var programs = map[string]func(){"apr": main}

func TestMain(m *testing.M) { testscript.Main(m, programs) }

// TestScripts runs the scripts of testdata/script. Beyond testscript's own commands they have
//
//	exits CODE PROGRAM ARG…  runs a program and requires its exit code
//	json KEY VALUE           requires stdout to be one JSON object with that member (dots descend, VALUE is JSON or text)
//	rising LESS MORE         requires one number of that object to be below another
//	flip FILE OFFSET         inverts a byte
//	cut FILE SIZE            truncates a file; a negative size is from its end
//	foreign FILE FILE        copies an .apr file as a writer leaves it that is not ours, and writes no checksum at the end
//	same FILE FILE           requires equal bytes, as cmp does, without printing them
//	samejson KEY FILE FILE   requires two files of one JSON object each to have an equal member
//	hub VERB …               see hubCommand
//	bucket VERB …            see bucketCommand
//
// $MODEL is the Hugging Face folder of the shared test model, $GGUF a file that llama.cpp made of it, $CORPUS its held-out
// text, $EVAL the folder of its questions.
// A GPU that the machine may have is hidden from them. What they build is cached where everything is.
func TestScripts(t *testing.T) { runScripts(t, "script", scriptVariables(t)) }

// scriptVariables are the variables of scripts that run the same everywhere.
func scriptVariables(t *testing.T) map[string]string {
	t.Helper()
	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"CUDA_VISIBLE_DEVICES": "-1", "GOCACHE": strings.TrimSpace(string(cache))}
}

// runScripts runs the scripts of a folder of testdata, with variables beyond those that all scripts have.
func runScripts(t *testing.T, folder string, variables map[string]string) {
	model, err := filepath.Abs("../../testdata/models/gosrc")
	if err != nil {
		t.Fatal(err)
	}
	corpus, err := filepath.Abs("../../examples/gosrc/data/gosrc-val.jsonl.zst")
	if err != nil {
		t.Fatal(err)
	}
	deadline, _ := t.Deadline()
	testscript.RunT(counting{t}, testscript.Params{
		Dir:      filepath.Join("testdata", folder),
		Deadline: deadline,
		Setup: func(e *testscript.Env) error {
			e.Setenv("MODEL", model)
			e.Setenv("GGUF", model+"-q4_k_m.gguf")
			e.Setenv("GOLDEN", filepath.Join(filepath.Dir(filepath.Dir(model)), "golden"))
			e.Setenv("TOKENIZERS", filepath.Join(filepath.Dir(filepath.Dir(model)), "tokenizers"))
			e.Setenv("CORPUS", corpus)
			e.Setenv("EVAL", filepath.Join(filepath.Dir(filepath.Dir(corpus)), "eval"))
			e.Setenv("XDG_CACHE_HOME", filepath.Join(e.WorkDir, "cache"))
			e.Values[hubKey{}] = &scriptHub{}
			e.Values[bucketKey{}] = &scriptBucket{}
			for name, value := range variables {
				e.Setenv(name, value)
			}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "json": jsonMember, "rising": rising, "flip": flip, "cut": cut, "same": same, "foreign": foreign, "samejson": sameJSON, "hub": hubCommand, "held": held, "bucket": bucketCommand,
		},
	})
}

// counting runs each script as a test, and counts it as a case once it has passed: a script that fails, or skips the
// rest, ends its test before.
type counting struct{ *testing.T }

func (c counting) Verbose() bool { return testing.Verbose() }

func (c counting) Run(name string, script func(testscript.T)) {
	c.T.Run(name, func(t *testing.T) {
		script(counting{t})
		contracttest.Cases(t, 1)
	})
}

// exits runs a program and requires an exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := err.(*exec.ExitError)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit %d, want %d", got, want)
	}
	if args[1] == "apr" && !documented(args[2:], got) {
		ts.Fatalf("exit %d is not among the exit codes of the command's help", got)
	}
}

// documented reports whether the help of the command that args call lists an exit code. Of words that call none it is true.
func documented(args []string, code int) bool {
	all := []*cli.Command{}
	for _, c := range commands {
		all = append(all, c())
	}
	for _, word := range args {
		i := slices.IndexFunc(all, func(c *cli.Command) bool { return c.Name == word })
		switch {
		case strings.HasPrefix(word, "-"):
			continue
		case i < 0:
			return true
		case len(all[i].Sub) > 0:
			all = all[i].Sub
		default:
			return slices.Contains(all[i].ExitCodes(), code)
		}
	}
	return true
}

// jsonMember looks into the JSON object on stdout.
func jsonMember(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: json KEY VALUE")
	}
	v := member(ts, args[0])
	got, ok := v.(string)
	if !ok {
		data, err := json.Marshal(v)
		ts.Check(err)
		got = string(data)
	}
	if (got == args[1]) == neg {
		ts.Fatalf("%s is %s, want %s%s", args[0], got, map[bool]string{true: "anything but "}[neg], args[1])
	}
}

// sameJSON compares a member of two objects, which may have another name in the second.
func sameJSON(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 3 && len(args) != 4 {
		ts.Fatalf("usage: samejson KEY FILE FILE [KEY of the second]")
	}
	other := args[len(args)-1]
	if len(args) == 3 {
		other = args[0]
	}
	a, b := memberOf(ts, args[1], args[0]), memberOf(ts, args[2], other)
	if reflect.DeepEqual(a, b) == neg {
		ts.Fatalf("%s is %v in %s and %s %v in %s", args[0], a, args[1], other, b, args[2])
	}
}

// member returns a member of the JSON object on stdout; dots descend.
func member(ts *testscript.TestScript, path string) any { return memberOf(ts, "stdout", path) }

// memberOf returns a member of the JSON object in a file.
func memberOf(ts *testscript.TestScript, file, path string) any {
	d := json.NewDecoder(strings.NewReader(ts.ReadFile(file)))
	var v any
	if err := d.Decode(&v); err != nil {
		ts.Fatalf("%s is not JSON: %v", file, err)
	}
	if d.More() {
		ts.Fatalf("%s holds more than one value", file)
	}
	if _, ok := v.(map[string]any); !ok {
		ts.Fatalf("%s is not an object", file)
	}
	for _, key := range strings.Split(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			member, ok := x[key]
			if !ok {
				ts.Fatalf("no member %s", path)
			}
			v = member
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i >= len(x) {
				ts.Fatalf("no element %s", path)
			}
			v = x[i]
		default:
			ts.Fatalf("no member %s", path)
		}
	}
	return v
}

// flip inverts a byte of a file.
func flip(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: flip FILE OFFSET")
	}
	name := ts.MkAbs(args[0])
	data, err := os.ReadFile(name)
	ts.Check(err)
	i, err := strconv.Atoi(args[1])
	ts.Check(err)
	if i < 0 {
		i += len(data)
	}
	data[i] ^= 0xff
	ts.Check(os.WriteFile(name, data, 0o600))
}

// cut shortens a file.
func cut(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: cut FILE SIZE")
	}
	n, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	if n < 0 {
		st, err := os.Stat(ts.MkAbs(args[0]))
		ts.Check(err)
		n += st.Size()
	}
	ts.Check(os.Truncate(ts.MkAbs(args[0]), n))
}

// foreign copies a file without its footer and the key that names our writer.
func foreign(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: foreign FILE FILE")
	}
	data, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	theirs := bytes.Replace(data[:len(data)-4], []byte(`"writer":`), []byte(`"wrote_":`), 1)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), theirs, 0o600))
}

// rising requires one number of the JSON object on stdout to be below another.
func rising(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: rising LESS MORE")
	}
	var v [2]float64
	for i, key := range args {
		text, err := json.Marshal(member(ts, key))
		ts.Check(err)
		v[i], err = strconv.ParseFloat(string(text), 64)
		ts.Check(err)
	}
	if !(v[0] < v[1]) {
		ts.Fatalf("%s is %g, not below %s, which is %g", args[0], v[0], args[1], v[1])
	}
}

// same compares two files.
func same(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: same FILE FILE")
	}
	a, err := os.ReadFile(ts.MkAbs(args[0]))
	ts.Check(err)
	b, err := os.ReadFile(ts.MkAbs(args[1]))
	ts.Check(err)
	if bytes.Equal(a, b) == neg {
		ts.Fatalf("%s and %s: equal is %v", args[0], args[1], neg)
	}
}
