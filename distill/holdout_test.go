package distill

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
	runlog "apr/run/log"
)

// oneText makes a file of the package's own sources: a single document.
func oneText(t *testing.T, files int) string {
	t.Helper()
	names, err := filepath.Glob("[a-l]*.go")
	if err != nil || len(names) < files {
		t.Fatal(names, err)
	}
	var text []byte
	for _, name := range names[:files] {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, b...)
	}
	path := filepath.Join(t.TempDir(), "text.txt")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// One long document gives a held-out text, which no step sees, without being asked; a resumed run has the same.
func TestHeldOutOfOneDocument(t *testing.T) {
	c := tinyConfig(t)
	c.Data, c.ValFraction, c.EvalEvery, c.Control = []string{oneText(t, 12)}, HoldEnough, EvalByCost, true
	c.BatchSize = 16
	out, want := mustRun(t, c, 0)
	if n := out.Evaluation(nameDistilled).Targets; n != 32*32 {
		t.Errorf("scored on %d targets, want 32 windows of 32", n)
	}
	record, err := runlog.Read(c.Output)
	if err != nil {
		t.Fatal(err)
	}
	var at []float64
	for _, e := range record.Events {
		d, _ := e.Detail.(map[string]any)
		switch {
		case e.Name == runlog.HeldOutText && (d["tokens"] != 1025.0 || d["cut_tokens"] != 1025.0 || d["documents"] != 1.0):
			t.Errorf("held out: %v", d)
		case e.Name == "held-out during training" && d["leg"] == LegStudent:
			at = append(at, d["step"].(float64))
		}
	}
	if !slices.Equal(at, []float64{2, 4, 6}) { // three times, for each takes two thirds of one of the eight steps
		t.Errorf("scored on the way after steps %v", at)
	}
	c = in(t, c)
	if _, _, err := runOnce(t, c, 0, 4); fault.KindOf(err) != fault.Stopped {
		t.Fatalf("%v, want to be stopped", err)
	}
	c.Resume = ResumeAuto
	if _, got := mustRun(t, c, 0); !bytes.Equal(got, want) {
		t.Error("the resumed student differs")
	}
	c = in(t, c)
	c.Resume = ""
	if _, _, err := runOnce(t, c, 0, 4); fault.KindOf(err) != fault.Stopped {
		t.Fatalf("%v, want to be stopped", err)
	}
	c.Resume, c.ValFraction = ResumeAuto, 0.1
	if _, _, err := runOnce(t, c, 0, 0); err == nil || !strings.Contains(err.Error(), "held_ids") {
		t.Errorf("another held-out text: %v", err)
	}
}

// What a fifth of a text does not give is not held out, and is trained on.
func TestTooLittleToHoldOut(t *testing.T) {
	few := filepath.Join(t.TempDir(), "few.txt")
	if err := os.WriteFile(few, []byte(strings.Repeat("x := 1\n", 30)), 0o600); err != nil {
		t.Fatal(err)
	}
	c := tinyConfig(t)
	c.Data, c.ValFraction, c.ControlAuto, c.BatchSize = []string{few}, HoldEnough, true, 1
	out, q, err := runOnce(t, c, 0, 0)
	if err != nil || len(out.Evaluations) != 0 {
		t.Fatalf("%v, evaluated %v", err, out)
	}
	if all := strings.Join(q.messages, "\n"); !strings.Contains(all, "a fifth of which is less than one window of 32: nothing is held out") {
		t.Errorf("told: %s", all)
	}
}

// Runs of any length are scored on the way a few times, unless that costs as much as half of the training.
func TestEvalEvery(t *testing.T) {
	const tokens = 16 * 512 // of a step
	small := 32*512 + 1     // two thirds of a step
	for _, tt := range []struct{ steps, held, tokens, want int }{
		{5, small, tokens, 2}, {10, small, tokens, 3}, {100, small, tokens, 10}, {150, small, tokens, 15}, {1000, small, tokens, 100}, {2000, small, tokens, 200}, {2560, small, tokens, 200},
		{100, small, 2 * 512, 25}, {1000, small, 2 * 512, 100}, {10, small, 2 * 512, 200},
		{100, 1_000_000, tokens, 200}, {1000, 1_000_000, tokens, 200}, {20_000, 1_000_000, tokens, 200},
		{4, small, tokens, 200}, {1, small, tokens, 200}, {2, small, tokens, 200},
	} {
		contracttest.Cases(t, 1)
		got := evalEvery(tt.steps, tt.held, tt.tokens)
		if got != tt.want {
			t.Errorf("%d steps of %d tokens, %d held out: every %d, want %d", tt.steps, tt.tokens, tt.held, got, tt.want)
		}
	}
}

// What several passes over the held-out text tell never goes back: their windows are counted together.
func TestPassesGoOn(t *testing.T) {
	var said []int
	p := passes{tell: func(done, total int) { said = append(said, 100*done/total) }, models: 3, all: 5}
	for _, pass := range [][]int{{1, 2, 4}, {2, 4}, {4}} {
		for _, done := range pass {
			p.advance(done, 4)
		}
	}
	if want := []int{15, 30, 60, 70, 80, 100}; !slices.Equal(said, want) {
		t.Errorf("%d %%, want %d %%", said, want)
	}
}
