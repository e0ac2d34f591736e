package main

import (
	"context"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"apr/bench/trial"
	"apr/device"
)

// The control gives the k-th largest probability to the id that the student holds for the k-th likeliest.
func TestReorder(t *testing.T) {
	got := reorder([]float32{0, 3, 1, 2}, []float32{5, 7, 6})
	sum := math.Exp(-2) + math.Exp(-1) + 1
	want := []float64{device.ProjectFloor, -math.Log(sum), -2 - math.Log(sum), -1 - math.Log(sum)}
	for i, w := range want {
		if math.Abs(float64(got[i])-w) > 1e-5 {
			t.Errorf("id %d has %g, want %g", i, got[i], w)
		}
	}
}

// A table says what is lost, how far the teachers are apart, and the control.
func TestMarkdown(t *testing.T) {
	text := markdown(settings{IDs: 512}, []record{
		{How: teachers[0], Bits: 2.02}, {How: teachers[1], Bits: 2}, {How: plain, Bits: 3.1}, {How: plain, Bits: 2.9},
		{How: moved, Bits: 2.95, Taught: .8}, {How: withText, Bits: 2.925, Taught: .8}, {How: ownTokens, Bits: 2.9},
		{How: sorted, Bits: 3.1},
	})
	for _, want := range []string{"| cross-entropy | 3.0000 ± 0.1000 | 2 |", "| 80 % |", "loses 25 % of it",
		"differ by 1.0 %", "gain -0.1000"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// A table of two steps, and its log, which is not written twice.
func TestSmoke(t *testing.T) {
	data := "../../examples/gosrc/data/gosrc-val.jsonl.zst"
	o := options{seeds: "1", text: data, held: data, log: filepath.Join(t.TempDir(), "rows.jsonl"), docs: ""}
	o.settings = settings{Machine: "test", IDs: 300, Length: 32, Rows: 2, Steps: 2, TeacherSteps: "1,1", Rate: 1e-3,
		Alpha:      .5,
		HeldTokens: 200}
	for range 2 {
		if err := o.run(context.Background()); err != nil {
			t.Fatal(err)
		}
		l, err := trial.ReadLog[settings, record](o.log)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(l.All()); n != len(teachers)+len(ways) {
			t.Errorf("%d records", n)
		}
	}
}

// With a level the second teacher stops where the first was, and its rate does not fall.
func TestTeachersStopAtALevel(t *testing.T) {
	j := job{steps: 40, level: true, until: 3}
	s, steps := j.schedule(.01)
	if steps != 40*mostSteps || s.At(steps-1) != .01 {
		t.Errorf("%d steps, the last at %g", steps, s.At(steps-1))
	}
	if s, steps = (job{steps: 40}).schedule(.01); steps != 40 || s.At(39) > .002 {
		t.Errorf("%d steps, the last at %g", steps, s.At(39))
	}
	data := "../../examples/gosrc/data/gosrc-val.jsonl.zst"
	o := options{seeds: "1", text: data, held: data, log: filepath.Join(t.TempDir(), "rows.jsonl")}
	o.settings = settings{Machine: "test", IDs: 300, Length: 32, Rows: 2, Steps: 1, TeacherSteps: "20,20", TeacherBits: -1,
		Rate: 3e-3, Alpha: .5, HeldTokens: 200}
	if err := o.run(context.Background()); err != nil {
		t.Fatal(err)
	}
	l, err := trial.ReadLog[settings, record](o.log)
	if err != nil {
		t.Fatal(err)
	}
	first, second := l.All()[0], l.All()[1]
	if first.Steps != 20 || second.Steps%scoredEvery != 0 || second.Steps < 80 && second.Bits > first.Bits {
		t.Errorf("%+v, then %+v", first, second)
	}
}
