package falsify

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

const fixtures = "testdata/falsify/contracts"

// runFixtures falsifies contracts of the fixture module.
func runFixtures(t *testing.T, o FalsifyOptions, names ...string) *Falsification {
	t.Helper()
	var files []string
	for _, name := range names {
		files = append(files, filepath.Join(fixtures, name+"-v1.yaml"))
	}
	f, err := Falsify(t.Context(), files, o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestFalsifyFixture: each status comes about as it should, for contracts, checks and mutants.
func TestFalsifyFixture(t *testing.T) {
	steps := 0
	f := runFixtures(t, FalsifyOptions{Progress: func(done, of int, _ string) {
		if steps++; done != steps || done > of {
			t.Errorf("progress %d of %d after %d", done, of, steps)
		}
	}}, "broken", "falsified", "survived", "unavailable", "upheld", "vacuous")
	want := map[string]string{ // status: what was observed; then the mutants that died, and those that did not
		"broken-v1": "BROKEN", "FT-BUILD": "BROKEN: does not build;", "FT-TIMEOUT": "BROKEN: timed out;", "FT-MUTANT": "BROKEN: M-1: does not build; not M-1",
		"falsified-v1": "FALSIFIED", "FT-FALSE": "FALSIFIED: TestDouble failed;", "falsified-v1/FT-CMD": "FALSIFIED: exit code 4, not 0; no member none; six is 6;",
		"FT-BESIDE":   "UPHELD: passed, 1 cases; M-1",
		"survived-v1": "SURVIVED", "FT-BLIND": "SURVIVED: passes under M-ALIVE; M-DEAD not M-ALIVE",
		"unavailable-v1": "UNAVAILABLE", "FT-GPU": "UNAVAILABLE: needs cuda;", "FT-PROGRAM": "UNAVAILABLE: needs program:no-such-program;", "FT-HERE": "UPHELD: passed, 3 cases; M-1",
		"upheld-v1": "UPHELD", "FT-GO": "UPHELD: passed, 3 cases; M-THRICE", "FT-SUB": "UPHELD: passed, 1 cases; M-THRICE", "FT-PANIC": "UPHELD: passed, 1 cases; M-THRICE",
		"FT-EXIT": "UPHELD: passed, 1 cases; M-MORE", "FT-CMD": "UPHELD: passed, 3 assertions; M-THRICE", "FT-COMPILE": "UPHELD: does not compile, as it should; M-TRIPLE",
		"KANI-1":     "UPHELD: passed, 100 cases; M-THRICE",
		"vacuous-v1": "VACUOUS", "FT-SKIP": "VACUOUS: 1 skipped;", "FT-NO-MATCH": "VACUOUS: no test matched;", "FT-NO-CASES": "VACUOUS: 0 cases;",
		"FT-OTHER-CASES": "VACUOUS: 0 cases;", "FT-FEW": "VACUOUS: visited 3 cases, at least 4 are due;", "KANI-MORE": "VACUOUS: visited 100 cases, claimed are 99;",
	}
	seen := 0
	for _, c := range f.Contracts {
		if string(c.Status) != want[c.ID] || len(c.SHA256) != 64 {
			t.Errorf("%s is %s (hash %q), want %s", c.ID, c.Status, c.SHA256, want[c.ID])
		}
		for _, run := range c.Checks {
			got := fmt.Sprintf("%s: %s;", run.Status, run.Observed)
			for _, m := range run.Mutants {
				got += map[bool]string{true: " ", false: " not "}[m.Killed] + m.ID
			}
			due, own := want[c.ID+"/"+run.ID]
			if !own {
				due = want[run.ID]
			}
			if got != due {
				t.Errorf("%s: got %q, want %q", run.ID, got, due)
			}
			seen++
		}
	}
	if (f.MutantTally != MutantTally{6, 4, 3}) || fault.KindOf(f.Err()) != fault.Vacuous || f.Devices == nil {
		t.Errorf("%v, %v", f.MutantTally, f.Err())
	}
	if want := map[Status]int{Broken: 3, Falsified: 2, Vacuous: 6, Survived: 1, Unavailable: 2, Upheld: 9}; !maps.Equal(f.Counts, want) {
		t.Errorf("counts %v, want %v", f.Counts, want)
	}
	contracttest.Cases(t, seen)
}

// TestNothingIsCached: the second run of a test is a run.
func TestNothingIsCached(t *testing.T) {
	root, err := filepath.Abs("testdata/falsify")
	if err != nil {
		t.Fatal(err)
	}
	g, err := newGotool(root)
	if err != nil {
		t.Fatal(err)
	}
	defer g.close()
	for i := range 2 {
		s, err := g.test(t.Context(), "./good", nil, []string{"TestDouble"}, "", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if v := s.judge("TestDouble", quota{least: 3}); v.result != passed {
			t.Errorf("run %d: %s\n%s", i, v.observed, v.tail)
		}
		contracttest.Cases(t, 1)
	}
}

// TestExitCodes: the worst status decides, vacuous before false before unavailable.
func TestExitCodes(t *testing.T) {
	for _, tt := range []struct {
		name     string
		statuses []Status
		allow    bool
		want     fault.Kind
	}{
		{"all upheld", []Status{Upheld, Upheld}, false, 0},
		{"nothing", nil, true, fault.Vacuous},
		{"vacuous", []Status{Upheld, Vacuous}, true, fault.Vacuous},
		{"survived", []Status{Survived, Upheld}, true, fault.Vacuous},
		{"broken", []Status{Upheld, Broken}, true, fault.Vacuous},
		{"false", []Status{Falsified, Upheld}, true, fault.Invalid},
		{"vacuous before false", []Status{Falsified, Vacuous}, true, fault.Vacuous},
		{"broken before false", []Status{Broken, Falsified}, true, fault.Vacuous},
		{"false before unavailable", []Status{Unavailable, Falsified}, false, fault.Invalid},
		{"unavailable", []Status{Upheld, Unavailable}, false, fault.Vacuous},
		{"unavailable, allowed", []Status{Upheld, Unavailable}, true, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			together := ContractRun{ID: "all"}
			each := &Falsification{Counts: map[Status]int{}, allowUnavailable: tt.allow}
			for i, s := range tt.statuses {
				run := CheckRun{ID: fmt.Sprint(i), Status: s}
				together.Checks = append(together.Checks, run)
				each.Contracts = append(each.Contracts, ContractRun{ID: fmt.Sprint(i), Checks: []CheckRun{run}})
			}
			one := &Falsification{Contracts: []ContractRun{together}, Counts: map[Status]int{}, allowUnavailable: tt.allow}
			for what, f := range map[string]*Falsification{"one contract": one, "a contract each": each} {
				f.sum(nil)
				if err := f.Err(); fault.KindOf(err) != tt.want && (err != nil || tt.want != 0) {
					t.Errorf("%s: %v, want kind %v", what, err, tt.want)
				}
			}
		})
	}
}

// copyTree makes a source tree of one contract: itself, the packages of its checks and the files of its mutants.
// change may change the text of any of them.
func copyTree(t *testing.T, name string, change func(path, text string) string) string {
	t.Helper()
	doc, err := Read(filepath.Join("../contracts", name+".yaml"), Ours)
	if err != nil {
		t.Fatal(err)
	}
	files := []string{"go.mod", "contracts/" + name + ".yaml"}
	for _, m := range doc.Contract.Mutants {
		files = append(files, m.File)
	}
	for _, test := range doc.Contract.FalsificationTests {
		if test.Check.Go != nil {
			all, err := filepath.Glob(filepath.Join("..", test.Check.Go.Package, "*.go"))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range all {
				files = append(files, strings.TrimPrefix(filepath.ToSlash(file), "../"))
			}
		}
	}
	slices.Sort(files)
	root := t.TempDir()
	changed := 0
	for _, file := range slices.Compact(files) {
		text, err := os.ReadFile(filepath.Join("..", file))
		if err != nil {
			t.Fatal(err)
		}
		is := change(file, string(text))
		if is != string(text) {
			changed++
		}
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(file)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, file), []byte(is), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if changed != 1 {
		t.Fatalf("%d files were changed, want 1", changed)
	}
	return filepath.Join(root, "contracts", name+".yaml")
}

// TestDeletedOrRenamedIsVacuous: a contract of this project whose check is deleted, in the contract or in the source,
// or whose test is renamed, shows nothing.
func TestDeletedOrRenamedIsVacuous(t *testing.T) {
	swap := func(file, old, new string) func(path, text string) string {
		return func(path, text string) string {
			if path != file {
				return text
			}
			return strings.Replace(text, old, new, 1)
		}
	}
	for _, tt := range []struct {
		name, contract string
		change         func(path, text string) string
	}{
		{"test renamed", "plan-accuracy-v1", swap("plan/plan_test.go", "func TestMemoryAddsUp(", "func TestMemoryAdds(")},
		{"test that go test does not take for one", "kernel-prewarm-v1", swap("device/cuda/cache_test.go", "func TestLoadAfterSeal(", "func TestloadAfterSeal(")},
		{"test deleted", "apr-distill-teacher-vocab-alignment-v1", func(path, text string) string {
			if path != "tokenizer/data_test.go" {
				return text
			}
			before, rest, _ := strings.Cut(text, "func TestCompare(")
			_, after, _ := strings.Cut(rest, "\n}\n")
			return before + after
		}},
		{"check deleted", "teacher-is-not-student-v1", swap("contracts/teacher-is-not-student-v1.yaml", "  check: {go: {package: ./modelfile, test: TestIdentityOfCopies}}\n", "")},
		{"falsification test deleted", "plan-accuracy-v1", func(path, text string) string {
			if path != "contracts/plan-accuracy-v1.yaml" {
				return text
			}
			before, rest, _ := strings.Cut(text, "- id: FT-PLAN-003\n")
			_, after, _ := strings.Cut(rest, "- id: FT-PLAN-004\n")
			return before + "- id: FT-PLAN-004\n" + after
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			f, err := Falsify(t.Context(), []string{copyTree(t, tt.contract, tt.change)}, FalsifyOptions{AllowUnavailable: true})
			if err != nil {
				t.Fatal(err)
			}
			if c := f.Contracts[0]; c.Status != Vacuous || fault.ExitCode(f.Err()) != 25 {
				t.Errorf("%s, %v: %v", c.Status, f.Err(), c.Violations)
			}
		})
	}
}

func TestFalsifyRefusals(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "one-v1.yaml")
	text, err := os.ReadFile(filepath.Join(fixtures, "upheld-v1.yaml"))
	if err == nil {
		err = os.WriteFile(outside, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	for _, tt := range []struct {
		name  string
		ctx   context.Context
		path  string // of programs
		files []string
		want  fault.Kind
	}{
		{"no contract", t.Context(), os.Getenv("PATH"), nil, fault.Vacuous},
		{"no file", t.Context(), os.Getenv("PATH"), []string{"none.yaml"}, fault.NotFound},
		{"no source tree", t.Context(), os.Getenv("PATH"), []string{outside}, fault.Unavailable},
		{"two source trees", t.Context(), os.Getenv("PATH"), []string{fixtures + "/upheld-v1.yaml", "../contracts/plan-accuracy-v1.yaml"}, fault.Usage},
		{"no go command", t.Context(), "", []string{fixtures + "/upheld-v1.yaml"}, fault.Unavailable},
		{"stopped", stopped, os.Getenv("PATH"), []string{fixtures + "/upheld-v1.yaml"}, fault.Other},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("PATH", tt.path)
			if _, err := Falsify(tt.ctx, tt.files, FalsifyOptions{}); err == nil || fault.KindOf(err) != tt.want {
				t.Errorf("%v, want kind %v", err, tt.want)
			}
		})
	}
}

func TestMachine(t *testing.T) {
	models := t.TempDir()
	if err := os.Mkdir(filepath.Join(models, "qwen"), 0o700); err != nil {
		t.Fatal(err)
	}
	m := Machine{Devices: []string{"GB10"}, MemAvailable: 48 << 30, Models: models}
	for _, tt := range []struct {
		m     Machine
		needs []string
		want  string // with blanks between
	}{
		{m, nil, ""},
		{m, []string{"cuda", "mem>=48GiB", "model:qwen", "program:go"}, ""},
		{m, []string{"cuda", "cuda-integrated"}, "cuda-integrated"},
		{Machine{Devices: m.Devices, Integrated: true}, []string{"cuda-integrated"}, ""},
		{m, []string{"mem>=49GiB"}, "mem>=49GiB"},
		{m, []string{"model:llama"}, "model:llama"},
		{m, []string{"program:no-such-program"}, "program:no-such-program"},
		{m, []string{"program:no-such-c++"}, "program:no-such-c++"},
		{m, []string{"program:++"}, "program:++"}, // no need at all: the rules refuse it
		{Machine{}, []string{"cuda"}, "cuda"},
		{m, []string{"model:llama", "cuda", "mem>=49GiB"}, "model:llama mem>=49GiB"},
		{Machine{}, []string{"model:qwen"}, "model:qwen"},
		{m, []string{"luck"}, "luck"},
	} {
		if got := strings.Join(tt.m.lacks(tt.needs), " "); got != tt.want {
			t.Errorf("%v lacks %q, want %q", tt.needs, got, tt.want)
		}
	}
}
