package eval_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"apr/eval"
	"apr/eval/sandbox"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/near"
)

// passByDefinition is 1 − C(n−c,k)/C(n,k) with exact binomials.
func passByDefinition(n, c, k int) float64 {
	miss := new(big.Rat).SetFrac(new(big.Int).Binomial(int64(n-c), int64(k)), new(big.Int).Binomial(int64(n), int64(k)))
	f, _ := new(big.Rat).Sub(big.NewRat(1, 1), miss).Float64()
	return f
}

// For all n, k from 1 to 32: zero passed give exactly 0 and all passed exactly 1, every count has the value of the
// definition, and k above n is refused.
func TestPassAtK(t *testing.T) {
	zeros, refusals := 0, 0
	for n := 1; n <= 32; n++ {
		for k := 1; k <= 32; k++ {
			if k > n {
				if _, err := eval.PassAtK(n, n, k); fault.KindOf(err) != fault.Usage {
					t.Fatalf("pass@%d of %d: %v", k, n, err)
				}
				refusals++
				contracttest.Cases(t, 1)
				continue
			}
			contracttest.Cases(t, 1)
			for c := 0; c <= n; c++ {
				got, err := eval.PassAtK(n, c, k)
				want := passByDefinition(n, c, k)
				if err != nil || !(math.Abs(got-want) <= 1e-12) {
					t.Fatalf("pass@%d, %d of %d: %g (%v), want %g", k, c, n, got, err, want)
				}
				if c == 0 && got == 0 {
					zeros++
				}
			}
		}
	}
	if zeros != 528 || refusals != 496 {
		t.Errorf("%d zeros and %d refusals, want 528 and 496", zeros, refusals)
	}
	if _, err := eval.PassAtK(2, 3, 1); err == nil {
		t.Error("three of two passed")
	}
}

func TestWilson(t *testing.T) {
	for _, tt := range []struct {
		p         float64
		n         int
		low, high float64
	}{ // by the formula, in arbitrary precision
		{0, 10, 0, 0.27753279}, {1, 10, 0.72246721, 1}, {0.5, 10, 0.23659309, 0.76340691}, {0.3, 164, 0.23510, 0.37410},
	} {
		low, high := eval.Wilson(tt.p, tt.n)
		near.Check(t, fmt.Sprintf("%g of %d", tt.p, tt.n), []float64{low, high}, []float64{tt.low, tt.high}, 5e-4)
	}
}

// script is a model that says what it was told to.
type script map[string]string

func (s script) Continue(_ context.Context, prompt string, sample int, done func(string) bool) (string, error) {
	for key, text := range s {
		if strings.Contains(prompt, key) {
			if text == "fail" {
				return "", fault.New(fault.Inference, "logits are NaN")
			}
			return text, nil
		}
	}
	return "", nil
}

// openBox returns a box, or nil where a machine cannot confine programs, which is then what the sandbox must say.
func openBox(t *testing.T) *sandbox.Box {
	t.Helper()
	box, err := sandbox.Open(context.Background(), sandbox.DefaultLimits, false)
	if !able() {
		if box != nil || fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "E-SANDBOX-001") {
			t.Errorf("a machine that cannot confine programs runs them: %v", err)
		}
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return box
}

// programs returns a runner, or nil where openBox does.
func programs(t *testing.T, problems []eval.Problem) *eval.Programs {
	t.Helper()
	box := openBox(t)
	if box == nil {
		return nil
	}
	r, err := eval.NewPrograms(context.Background(), box, problems)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func read(t *testing.T, style, text string) []eval.Problem {
	t.Helper()
	path := filepath.Join(t.TempDir(), "problems.jsonl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	problems, _, err := eval.ReadProblems(path, style)
	if err != nil {
		t.Fatal(err)
	}
	return problems
}

const goProblem = `{"prompt":"package main\n\nfunc add(a, b int) int {\n","entry_point":"add","language":"go",` +
	`"test":"func check() {\n\tif add(2, 3) != 5 {\n\t\tpanic(\"not 5\")\n\t}\n}\n"}` + "\n"

// Go programs: only one that compiles and whose tests run to the end passes; the rest fail as what they are.
func TestGoPrograms(t *testing.T) {
	problems := read(t, "code", goProblem)
	r := programs(t, problems)
	if r == nil {
		return
	}
	for _, tt := range []struct {
		name, text           string
		generated, passed    int
		mode, failure, wrong string
	}{
		{"right", "\treturn a + b\n}\n", 1, 1, "inference", "", ""},
		{"right, then more", "\treturn a + b\n}\n\nfunc main() {}\n", 1, 1, "inference", "", ""},
		{"wrong", "\treturn a - b\n}\n", 1, 0, "inference", "not 5", ""},
		{"leaves before the tests", "\tos.Exit(0)\n\treturn 0\n}\n", 1, 0, "inference", "does not compile", ""},
		{"exits in an init of its own", "\treturn 5\n}\nfunc init() { println(\"done\") }", 1, 1, "inference", "", ""},
		{"gibberish", "}}}} ((", 0, 0, "inference_failed", "does not parse", "does not parse"},
		{"silence", " \n", 0, 0, "inference_failed", "no text", "no text"},
		{"inference fails", "fail", 0, 0, "inference_failed", "NaN", "NaN"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			ticks := 0
			got, err := eval.RunCode(context.Background(), problems, 1, script{"func add": tt.text}, r, func() { ticks++ })
			if err != nil {
				t.Fatal(err)
			}
			p := got.Problems[0]
			if p.Samples != 1 || p.Generated != tt.generated || p.Passed != tt.passed || got.Mode() != tt.mode || ticks != 1 {
				t.Errorf("%+v, mode %s", p, got.Mode())
			}
			if !strings.Contains(p.Failure, tt.failure) || (tt.failure == "") != (p.Failure == "") || !strings.Contains(got.InferenceError, tt.wrong) || (tt.wrong == "") != (got.InferenceError == "") {
				t.Errorf("failure %q, inference error %q", p.Failure, got.InferenceError)
			}
			want := map[string]fault.Kind{"right": 0, "right, then more": 0, "exits in an init of its own": 0, "wrong": fault.Invalid, "leaves before the tests": fault.Invalid}
			kind, ok := want[tt.name]
			if !ok {
				kind = fault.Inference
			}
			if k := fault.KindOf(got.Err()); k != kind {
				t.Errorf("error %v, want kind %v", got.Err(), kind)
			}
		})
	}
}

// A file of Go may have comments before it says its package, and so may tests.
func TestGoFileBegins(t *testing.T) {
	for _, begin := range []string{
		"// Package main adds.\npackage main\n", "/* two\nlines */ package main\n", "//go:build linux\n\npackage main\n",
		"\ufeffpackage main\n", "", "// add adds.\n", "\n\tpackage main\n",
	} {
		t.Run(begin, func(t *testing.T) {
			contracttest.Cases(t, 1)
			line, err := json.Marshal(map[string]string{
				"prompt": begin + "func add(a, b int) int {\n", "entry_point": "add", "language": "go",
				"test": begin + "func check() {\n\tif add(2, 3) != 5 {\n\t\tpanic(\"not 5\")\n\t}\n}\n",
			})
			if err != nil {
				t.Fatal(err)
			}
			problems := read(t, "code", string(line)+"\n")
			r := programs(t, problems)
			if r == nil {
				return
			}
			ask := script{"func add": "\treturn a + b\n}\n"}
			got, err := eval.RunCode(context.Background(), problems, 1, ask, r, func() {})
			if err != nil {
				t.Fatal(err)
			}
			if p := got.Problems[0]; p.Passed != 1 {
				t.Errorf("%+v", p)
			}
		})
	}
}

const pythonProblems = `{"task_id":"t/0","prompt":"def add(a, b):\n    \"\"\"sum\"\"\"\n","entry_point":"add","test":"def check(f):\n    assert f(2, 3) == 5\n","canonical_solution":"    return a + b\n"}
{"task_id":"t/1","prompt":"def neg(a):\n    \"\"\"minus a\"\"\"\n","entry_point":"neg","test":"def check(f):\n    assert f(2) == -2\n","canonical_solution":"    return -a\n"}
`

// Python programs. Where python3 is missing, that is what is said.
func TestPythonPrograms(t *testing.T) {
	problems := read(t, "humaneval", pythonProblems)
	box := openBox(t)
	if box == nil {
		return
	}
	r, err := eval.NewPrograms(context.Background(), box, problems)
	if _, missing := exec.LookPath("python3"); missing != nil {
		if fault.KindOf(err) != fault.Unavailable {
			t.Errorf("without python3: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, add string
		passed    bool
		failure   string
	}{
		{"right", "    return a + b\n", true, ""},
		{"right, then more", "    return a + b\n\ndef other():\n    syntax error here", true, ""},
		{"wrong", "    return a - b\n", false, "AssertionError"},
		{"exit 0 before the tests", "    import os; os._exit(0)\n", false, "before its tests"},
		{"exit 0 by the system", "    import sys; sys.exit(0)\n", false, "before its tests"},
		{"network", "    import socket; socket.socket(); return 5\n", false, "PermissionError"},
		{"a child", "    import os; os.fork(); return 5\n", false, "PermissionError"},
		{"a file outside", "    open('/tmp/apr-outside', 'w'); return 5\n", false, "PermissionError"},
		{"a file inside", "    open('inside', 'w').write('x'); return 5\n", true, ""},
		{"memory", "    x = b'x' * (2 << 30); return 5\n", false, "MemoryError"},
		{"only a docstring", "    pass\n", false, "AssertionError"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := eval.RunCode(context.Background(), problems[:1], 1, script{"add": tt.add}, r, func() {})
			if err != nil {
				t.Fatal(err)
			}
			p := got.Problems[0]
			if p.Generated != 1 || (p.Passed == 1) != tt.passed || !strings.Contains(p.Failure, tt.failure) {
				t.Errorf("%+v", p)
			}
		})
	}
	// One of two problems: the rate is what was executed, and a mode without failure.
	got, err := eval.RunCode(context.Background(), problems, 2, script{"add": "    return a + b\n", "neg": "    return a\n"}, r, func() {})
	if err != nil {
		t.Fatal(err)
	}
	rate, each, err := got.PassAtK(1)
	if err != nil || rate != 0.5 || each[0] != 1 || each[1] != 0 || got.Err() != nil || got.Mode() != "inference" {
		t.Errorf("rate %g %v, %v, %v", rate, each, err, got.Err())
	}
	if _, _, err := got.PassAtK(3); fault.KindOf(err) != fault.Usage {
		t.Errorf("pass@3 of 2: %v", err)
	}
	// A program that passes in place of every reference solution changes nothing: it is not read.
	swapped := read(t, "humaneval", strings.NewReplacer("return a + b", "return 5", "return -a", "return -2").Replace(pythonProblems))
	if fmt.Sprint(swapped) != fmt.Sprint(problems) {
		t.Error("problems depend on their reference solutions")
	}
}

// MBPP's prompts and tests.
func TestMBPP(t *testing.T) {
	problems := read(t, "mbpp", `{"task_id":11,"text":"Write a function to add.","code":"def add(a,b): return a+b","test_list":["assert add(1, 2) == 3","assert add(0, 0) == 0"],"test_setup_code":""}`)
	p := problems[0]
	if p.ID != "11" || p.Prompt != "\"\"\"\nWrite a function to add.\nassert add(1, 2) == 3\n\"\"\"\n" || p.Program != "" || !strings.Contains(p.Test, "add(0, 0)") {
		t.Errorf("%+v", p)
	}
	if _, err := exec.LookPath("python3"); err != nil {
		return // TestPythonPrograms says what happens then
	}
	r := programs(t, problems)
	if r == nil {
		return
	}
	for text, want := range map[string]int{
		"def add(a, b):\n    return a + b\n\nassert add(1, 1) == 3\n": 1, "def add(a, b):\n    return 3\n": 0,
	} {
		got, err := eval.RunCode(context.Background(), problems, 1, script{"Write": text}, r, func() {})
		if err != nil || got.Problems[0].Passed != want {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

// Bad files of items are refused by line.
func TestItemRefusals(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		name, style, text, want string
		kind                    fault.Kind
	}{
		{"empty", "choice", "\n", "holds no item", fault.Invalid},
		{"no JSON", "choice", "{", "line 1: offset", fault.Format},
		{"answer outside", "choice", `{"prompt":"a","choices":["b","c"],"answer":2}`, "line 1: answer 2 of 2", fault.Format},
		{"one choice", "choice", `{"prompt":"a","choices":["b"],"answer":0}`, "answer 0 of 1", fault.Format},
		{"choice twice", "choice", `{"prompt":"a","choices":["b","b"],"answer":0}`, `"b" is empty or given twice`, fault.Format},
		{"typo", "choice", `{"prompt":"a","choices":["b","c"],"anwser":0}`, `did you mean "answer"`, fault.Format},
		{"second line", "match", "{\"prompt\":\"a\",\"answer\":\"b\"}\n{\"prompt\":\"a\"}", `line 2: offset`, fault.Format},
		{"answer of two lines", "match", `{"prompt":"a","answer":"b\nc"}`, "not one line", fault.Format},
		{"language", "code", `{"prompt":"a","test":"b","entry_point":"c","language":"cobol"}`, `"cobol"`, fault.Format},
		{"entry point", "code", `{"prompt":"a","test":"b","entry_point":"c()"}`, `"c()" is no name`, fault.Format},
		{"no test", "humaneval", `{"prompt":"a","entry_point":"c"}`, `"test" is missing`, fault.Format},
		{"no test list", "mbpp", `{"text":"a","test_list":[]}`, `prompt or test is empty`, fault.Format},
	} {
		path := filepath.Join(dir, "items.jsonl")
		if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		var err error
		switch tt.style {
		case "choice":
			_, _, err = eval.ReadChoices(path)
		case "match":
			_, _, err = eval.ReadMatches(path)
		default:
			_, _, err = eval.ReadProblems(path, tt.style)
		}
		if fault.KindOf(err) != tt.kind || !strings.Contains(fmt.Sprint(err), tt.want) {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.want)
		}
	}
}

// Without the interpreter there is no evaluation, rather than one without passes.
func TestMissingInterpreter(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for style, text := range map[string]string{"code": goProblem, "humaneval": pythonProblems} {
		if _, err := eval.NewPrograms(context.Background(), nil, read(t, style, text)); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("%s: %v", style, err)
		}
	}
}

// TestModeAndExit is harness verify_mode_exit_code_coupling: up to two problems of up to two samples, each generated or not
// and passed or not. The mode is inference if and only if a sample was generated, and the exit code follows from the
// counts: 8 when none was generated, 5 when none passed, else 0.
func TestModeAndExit(t *testing.T) {
	var scores []eval.ProblemScore
	for samples := range 3 {
		for generated := range samples + 1 {
			for passed := range generated + 1 {
				scores = append(scores, eval.ProblemScore{Samples: samples, Generated: generated, Passed: passed})
			}
		}
	}
	reports := []eval.CodeReport{{}}
	for _, a := range scores {
		reports = append(reports, eval.CodeReport{Problems: []eval.ProblemScore{a}})
		for _, b := range scores {
			reports = append(reports, eval.CodeReport{Problems: []eval.ProblemScore{a, b}})
		}
	}
	for _, r := range reports {
		var samples, generated, passed int
		for _, p := range r.Problems {
			samples, generated, passed = samples+p.Samples, generated+p.Generated, passed+p.Passed
		}
		mode, exit := "inference_failed", 0
		if generated > 0 {
			mode = "inference"
		}
		switch {
		case samples == 0:
			exit = 5
		case generated == 0:
			exit = 8
		case passed == 0:
			exit = 5
		}
		if got := fault.ExitCode(r.Err()); r.Mode() != mode || got != exit {
			t.Errorf("%+v: mode %s, exit %d; want %s, %d", r.Problems, r.Mode(), got, mode, exit)
		}
	}
	contracttest.Cases(t, len(reports))
}
