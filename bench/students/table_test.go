package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestReach(t *testing.T) {
	curve := []point{{0, 8}, {100, 4}, {200, 3}}
	for score, want := range map[float64]float64{9: 0, 8: 0, 6: 50, 4: 100, 3.5: 150, 3: 200} {
		if got, ok := reach(curve, score); !ok || math.Abs(got-want) > 1e-9 {
			t.Errorf("%g is reached after %g, %v; want %g", score, got, ok, want)
		}
	}
	if _, ok := reach(curve, 2.9); ok {
		t.Error("a score that is never reached is")
	}
	if _, ok := reach([]point{{0, math.NaN()}}, 9); ok {
		t.Error("NaN reaches a score")
	}
}

// run is a record of a finished run, whose score falls from 8 on a line.
func run(name string, seed int, factor, nats float64) record {
	return record{Variant: name, Seed: seed, Factor: factor, Rate: factor / 1e3, Status: done, Nats: nats, KL: nats - 2, Top1: .5, TeacherNats: 2.25,
		Tokens: 1000, Seconds: 10, Curve: []point{{0, 8}, {1000, nats}}}
}

func TestTableInWords(t *testing.T) {
	all := []record{
		run("full", 1, 1, 4), run("full", 1, 2, 5), run("full", 2, 1, 4), run("full", 2, 2, 3), // 2 is not the best of the first seed
		run("pruned", 1, 1, 1), run("pruned", 2, 1, 2),
		run("progressive", 1, 1, 4.5), run("progressive", 2, 1, 4.25),
		run("ensemble", 1, 1, 3.5), run("ensemble", 2, 1, 4.5),
		{Variant: "attention", Seed: 1, Factor: 1, Status: refused, Why: "not built yet"},
		{Variant: specialist + "tools", Status: done, Nats: 2.125},
		{Variant: specialist + "tools", Status: done, Nats: 2.125},
	}
	text := table(settings{Name: "x", Machine: "m", Backend: "cpu", Tokens: 1e6, Rows: 1, Length: 1, Jobs: 1}, all)
	for _, want := range []string{
		"The teacher scores 2.2500 nats/token on the held-out text. Its specialist of the tools scores 2.1250.\n",
		"| full | random | all weights, the teacher's logits | 0.001 | 2 | 8.000 ± 0.000 | 4.0000 ± 0.0000 | 2.0000 ± 0.0000 | 50.0 ± 0.0 % | 0.00M | 100 ± 0 | 0.17 ± 0.00 | 100 ± 0 % |",
		"| attention | random | logits and attention maps | | | | | | | | | | refused: not built yet |",
		"**pruned** reaches the final score of *full* after 62 ± 5 % of its tokens; the goal is at most 60 %: not reached in every seed.",
		"**pruned** against *full*: held-out text **better** by 2.5000 nats, in every seed;",
		"**progressive** against *full*: held-out text **worse** by 0.3750 nats, in every seed: it does not help;",
		"**ensemble** against *full*: held-out text no difference that the seeds agree on (+0.0000 nats in the mean): it does not help;",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestFinishedRunsAreKnown(t *testing.T) {
	all := []record{run("full", 1, 1, 4), {Variant: "ce", Seed: 1, Factor: 1, Status: refused}, {Variant: "ce", Seed: 1, Factor: 2, Status: diverged}}
	for _, c := range []struct {
		name   string
		seed   int
		factor float64
		want   bool
	}{{"full", 1, 1, true}, {"full", 2, 1, false}, {"full", 1, 2, false}, {"ce", 1, 1, false}, {"ce", 1, 2, true}} {
		if finished(all, c.name, c.seed, c.factor) != c.want {
			t.Errorf("%+v", c)
		}
	}
	if got := best(all, "ce", 1); got != nil {
		t.Errorf("the best of runs that diverged is %v", got)
	}
}

func TestSchedule(t *testing.T) {
	for _, c := range []struct {
		from, to int
		want     []int
	}{{6, 3, []int{5, 4, 3}}, {8, 4, []int{7, 6, 4}}, {6, 5, []int{5}}, {24, 12, []int{20, 16, 12}}} {
		if got := schedule(c.from, c.to); !slices.Equal(got, c.want) {
			t.Errorf("from %d to %d: %v", c.from, c.to, got)
		}
	}
}

func TestCutConfig(t *testing.T) {
	text := []byte(`{"hidden_size":256,"num_attention_heads":4,"num_hidden_layers":3,"layer_types":["a","b","c"],"initializer_range":0.02}`)
	out, err := cutConfig(text, shape{3, 256, 4}, 2, 128)
	if err != nil {
		t.Fatal(err)
	}
	var c map[string]any
	if err := json.Unmarshal(out, &c); err != nil {
		t.Fatal(err)
	}
	if c["num_hidden_layers"] != 2. || c["hidden_size"] != 128. || c["head_dim"] != 64. || len(c["layer_types"].([]any)) != 2 || c["initializer_range"] != .053 {
		t.Errorf("%s", out)
	}
	if _, err := cutConfig(text, shape{3, 256, 4}, 4, 0); err == nil {
		t.Error("more layers than there are")
	}
}

func TestSplit(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "a.jsonl"), filepath.Join(dir, "b.jsonl")
	if err := os.WriteFile(from, []byte(`{"path":"cmd/go/x.go","text":"x"}`+"\n"+`{"path":"fmt/y.go","text":"y<"}`+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := split(from, to, librarySource); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(to); string(got) != `{"path":"fmt/y.go","text":"y\u003c","source":"library"}`+"\n" {
		t.Errorf("%s", got)
	}
	if err := os.WriteFile(from, []byte(`{"text":"x"}`+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := split(from, to, ""); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("a document without a path: %v", err)
	}
}

// The documents hold a place for each table.
func TestDocsHaveMarks(t *testing.T) {
	text, err := os.ReadFile("../../docs/students.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"students gosrc", "students gosrc-30m", "quantaware gosrc"} {
		for _, mark := range []string{"<!-- " + name + " begin -->", "<!-- " + name + " end -->"} {
			if strings.Count(string(text), mark) != 1 {
				t.Errorf("docs/students.md has no %s, or more than one", mark)
			}
		}
	}
	for _, v := range variants {
		if !strings.Contains(string(text), "`"+v.name+"`") {
			t.Errorf("docs/students.md does not say how %s is made", v.name)
		}
	}
}
