package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const passing = `=== RUN   TestA
=== RUN   TestA/one
    a_test.go:3: row "loss: largest deviation" measured 1.5e-07 tolerance 0.0003
=== RUN   TestA/two
=== RUN   TestA/name/with/slashes
    --- PASS: TestA/name/with/slashes (0.05s)
--- PASS: TestA (0.10s)
    --- PASS: TestA/one (0.05s)
    --- PASS: TestA/two (0.05s)
=== RUN   TestB
--- PASS: TestB (0.01s)
PASS
`

// oneCard is what tests of several GPUs print on a machine with one.
const oneCard = `=== RUN   TestC
=== RUN   TestC/1
=== RUN   TestC/2
    group_test.go:104: UNAVAILABLE: needs 2 GPUs, this machine has 1
--- PASS: TestC (0.10s)
    --- PASS: TestC/1 (0.05s)
    --- SKIP: TestC/2 (0.05s)
=== RUN   TestD
    group_test.go:182: UNAVAILABLE: needs 2 GPUs, this machine has 1
--- SKIP: TestD (0.01s)
=== RUN   TestE
=== RUN   TestE/2
    group_test.go:262: UNAVAILABLE: needs 2 GPUs, this machine has 1
--- PASS: TestE (0.10s)
    --- SKIP: TestE/2 (0.05s)
PASS
`

// TestUnavailable: tests that the machine lacks GPUs for are counted by themselves; they alone show nothing, and a skip
// for another reason, or a failure beside that text, is a failure.
func TestUnavailable(t *testing.T) {
	for _, c := range []struct {
		name, text  string
		ok          bool
		unavailable string   // names
		says        []string // of the table
	}{
		{"one card", oneCard, true, "p TestC/2|p TestD|p TestE/2", []string{"4 rows, 0 failed, 3 unavailable", "1 tests",
			"needs 2 GPUs, this machine has 1             UNAVAILABLE"}},
		{"another skip", strings.Replace(oneCard, "182: UNAVAILABLE: needs", "182: needs", 1), false,
			"p TestC/2|p TestE/2", []string{"4 rows, 1 failed, 2 unavailable"}},
		{"a failure", strings.Replace(oneCard, "SKIP: TestD", "FAIL: TestD", 1), false,
			"p TestC/2|p TestE/2", []string{"4 rows, 1 failed, 2 unavailable"}},
		{"nothing else", oneCard[strings.Index(oneCard, "=== RUN   TestD"):], false,
			"p TestD|p TestE/2", []string{"2 rows, 0 failed, 2 unavailable"}},
		{"all there", passing, true, "", []string{"3 rows, 0 failed\n"}},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "p.txt"), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		if ok, err := report(&b, dir, false); ok != c.ok || err != nil {
			t.Errorf("%s: ok %v, %v", c.name, ok, err)
		}
		for _, want := range c.says {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s: no %q in\n%s", c.name, want, b.String())
			}
		}
		var unavailable []string
		for _, r := range parse("p", c.text) {
			if r.unavailable {
				unavailable = append(unavailable, r.name)
			}
		}
		if got := strings.Join(unavailable, "|"); got != c.unavailable {
			t.Errorf("%s: unavailable %s, want %s", c.name, got, c.unavailable)
		}
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, text string
		rows       int
		failed     []string // names of the failing rows
	}{
		{"all pass", passing, 3, nil},
		{"a row fails", strings.ReplaceAll(strings.ReplaceAll(passing, "PASS: TestA", "FAIL: TestA"), "\nPASS\n", "\nFAIL\n"), 5,
			[]string{"p TestA", "p TestA/one: loss: largest deviation", "p TestA/two", "p TestA/name/with/slashes"}},
		{"cut short", passing[:strings.Index(passing, "=== RUN   TestB")] + "=== RUN   TestB\nfatal error\n", 4, []string{"p TestB", "p (the program)"}},
		{"skipped", strings.Replace(passing, "PASS: TestB", "SKIP: TestB", 1), 3, []string{"p TestB"}},
		{"nothing", "", 1, []string{"p (the program)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := parse("p", c.text)
			var failed []string
			for _, r := range all {
				if r.failed {
					failed = append(failed, r.name)
				}
			}
			if len(all) != c.rows || strings.Join(failed, "|") != strings.Join(c.failed, "|") {
				t.Errorf("%d rows, failed %q; want %d and %q\n%+v", len(all), failed, c.rows, c.failed, all)
			}
		})
	}
}

func TestReport(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("p.txt", passing)
	const result = `{"tokens_per_second": 30000, "p95_over_p50": 1.01, "mfu": 0.8, "peak_memory": {"device": 10737418240}, "host_waits_per_step": 1,
		"loads_after_first_step": 0, "gpu_busy_percent": {"median": 99}, "start_ms": {"all": 2500}, "plan": {"memory": {"total": 10737418240}}}`
	write("apr-7b:0.5b-1.json", result)
	write("apr-7b:0.5b-2.json", strings.Replace(result, "30000", "31000", 1))
	write("torch-7b:0.5b-1.txt", "RESULT torch 2 7b->0.5b bf16 B=8 T=1024: 277.1 ms/step 25000 tok/s peak 28.0 GiB | teacher fwd 1")
	var b strings.Builder
	ok, err := report(&b, dir, false)
	if !ok || err != nil {
		t.Errorf("ok %v, %v", ok, err)
	}
	for _, want := range []string{"loss: largest deviation", "1.5e-07     0.0003    pass", "31000    25000  1.240", "10.0 (+0.0 %)", "2.50"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if ok, err := report(&b, dir, true); ok || err != nil { // no floor was measured
		t.Errorf("with goals: ok %v, %v", ok, err)
	}
	write("p.txt", strings.Replace(passing, "PASS: TestB", "FAIL: TestB", 1))
	if ok, err := report(&b, dir, false); ok || err != nil {
		t.Errorf("a failed row: ok %v, %v", ok, err)
	}
	write("apr-7b:0.5b-2.json", "{}")
	if _, err := report(&b, dir, false); err == nil {
		t.Error("an empty result was taken")
	}
	if ok, err := report(&b, t.TempDir(), false); ok || err != nil {
		t.Errorf("nothing at all: ok %v, %v", ok, err)
	}
}

// TestJudged: each limit of a measured step fails just beyond it, and alone.
func TestJudged(t *testing.T) {
	pair := func(name string, change func(*step)) *race {
		s := step{TokensPerSecond: 30000, PeakMemory: map[string]int64{"device": 1000}}
		s.Plan.Memory.Total, s.Busy.Median = 1000, 99
		change(&s)
		return &race{pair: name, ours: s, late: s.Late}
	}
	for _, c := range []struct {
		name   string
		change func(*step)
		fails  bool
	}{
		{"as it should be", func(*step) {}, false},
		{"at the limits", func(s *step) {
			s.PeakMemory["device"], s.Busy.Median, s.TokensPerSecond = 951, leastBusy, 30000/blocksCost+1
		}, false},
		{"more memory", func(s *step) { s.PeakMemory["device"] = 1051 }, true},
		{"less memory", func(s *step) { s.PeakMemory["device"] = 949 }, true},
		{"a late load", func(s *step) { s.Late = 1 }, true},
		{"idle", func(s *step) { s.Busy.Median = leastBusy - 1 }, true},
		{"blocks cost", func(s *step) { s.TokensPerSecond = 30000/blocksCost - 10 }, true},
	} {
		failed := 0
		rows := judged([]*race{pair("7b:0.5b@cublas", func(*step) {}), pair("7b:0.5b@q4k", c.change)})
		for _, r := range rows {
			if r.failed {
				failed++
			}
		}
		if len(rows) != 7 || (failed == 1) != c.fails || failed > 1 {
			t.Errorf("%s: %d of %d rows fail", c.name, failed, len(rows))
		}
	}
}

// TestGoals: a goal is met at its limit, missed just beyond it, and missed where nothing was measured.
func TestGoals(t *testing.T) {
	const pair = "qwen3-8b:qwen3-0.6b"
	measured := func(change func(cublas, fp8, small *race)) []*race {
		of := func(way string, tokens, gibs float64) *race {
			r := &race{pair: pair + "@" + way, theirs: 1000, theirGiB: 100, waits: 1}
			r.ours = step{TokensPerSecond: tokens, FloorShare: 0.89, PeakMemory: map[string]int64{"device": int64(gibs * gib)}}
			r.ours.Plan.Memory.Total = r.ours.PeakMemory["device"]
			return r
		}
		all := []*race{of("cublas", 1120, 90), of("fp8", 1550, 80), of("q4k-small", 1000, 65)}
		change(all[0], all[1], all[2])
		return all
	}
	for _, c := range []struct {
		name   string
		change func(cublas, fp8, small *race)
		missed []string
	}{
		{"at the limits", func(_, _, _ *race) {}, nil},
		{"slow", func(a, b, _ *race) { a.ours.TokensPerSecond, b.ours.TokensPerSecond = 1119, 1549 },
			[]string{"cublas: speed, of PyTorch's", "fp8: speed, of PyTorch's"}},
		{"large", func(_, _, c *race) { c.ours.PeakMemory["device"]++; c.ours.Plan.Memory.Total++ }, []string{"q4k-small: memory, of PyTorch's"}},
		{"beside the floor", func(a, _, _ *race) { a.ours.FloorShare = 0.889 }, []string{"cublas: products alone, of the step"}},
		{"beyond the plan", func(_, b, _ *race) { b.ours.PeakMemory["device"]++ }, []string{"fp8: bytes of device memory beyond the plan"}},
		{"two waits", func(_, b, _ *race) { b.waits = 2 }, []string{"fp8: host waits of a step"}},
		{"no floor", func(a, _, _ *race) { a.ours.FloorShare = 0 }, []string{"cublas: products alone, of the step"}},
		{"no PyTorch", func(a, b, c *race) { a.theirs, b.theirs, c.theirGiB = 0, 0, 0 },
			[]string{"cublas: speed, of PyTorch's", "fp8: speed, of PyTorch's", "q4k-small: memory, of PyTorch's"}},
	} {
		var missed []string
		all := goalsOf(measured(c.change))
		for _, r := range all {
			if r.failed {
				missed = append(missed, strings.TrimPrefix(r.name, pair+" "))
			}
		}
		if len(all) != 10 || strings.Join(missed, "|") != strings.Join(c.missed, "|") {
			t.Errorf("%s: of %d goals %q are missed, want %q", c.name, len(all), missed, c.missed)
		}
	}
	if all := goalsOf(measured(func(_, _, _ *race) {})[:1]); len(all) != 6 || !all[2].failed || all[2].measured != notMeasured {
		t.Errorf("one way alone: %+v", all)
	}
	tf32 := &race{pair: "1.5b:0.5b@tf32", waits: 1, ours: step{TokensPerSecond: 27483}}
	if all := goalsOf([]*race{tf32}); len(all) != 3 || !all[0].failed || all[0].measured != "27483" {
		t.Errorf("TF32: %+v", all)
	}
}
