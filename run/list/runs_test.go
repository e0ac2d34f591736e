package runs_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"apr/internal/fault"
	runs "apr/run/list"
	runlog "apr/run/log"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write makes a finished run with some steps.
func write(t *testing.T, path, id string, started time.Time, lr float64, losses ...float64) {
	t.Helper()
	d, err := runlog.Open(path, false, false)
	must(t, err)
	must(t, d.WriteManifest(runlog.Manifest{RunID: id, Started: started, Config: map[string]runlog.Value{"lr": {Value: lr}, "seed": {Value: 42}, "output": {Value: path}},
		Inputs: map[string]runlog.Input{"data": {Path: path, SHA256: "ab"}}}))
	for k, loss := range losses {
		must(t, d.Step(runlog.Step{Leg: "student", Step: k, Loss: runlog.Number(loss), KL: 1, CE: 2, Finite: true, Tokens: 10, MS: runlog.Milliseconds{Total: 100}}))
		must(t, d.Step(runlog.Step{Leg: "control", Step: k, Loss: runlog.Number(loss + 1), KL: runlog.Number(math.NaN()), Finite: true, Tokens: 10, MS: runlog.Milliseconds{Total: 50}}))
	}
	must(t, d.Event("evaluation", "held-out", []map[string]any{{"name": "distilled student", "nats_per_token": 3.5, "kl": 1, "top1_agreement": 0.5},
		{"name": "control student", "nats_per_token": 4, "kl": 1, "top1_agreement": 0.5}}, ""))
	must(t, d.WriteReceipt(runlog.Receipt{RunID: id, Status: runlog.Completed}))
	must(t, d.Close())
}

// folder holds three runs, one of which cannot be read, and things that are no runs, among them a folder of token shards.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "alpha"), "alpha-1", time.Unix(100, 0), 0.1, 5, 4)
	write(t, filepath.Join(dir, "alto"), "alto-2", time.Unix(300, 0), 0.2, 6)
	write(t, filepath.Join(dir, "alto.bak-20260101"), "alto-1", time.Unix(50, 0), 0.2)
	must(t, os.MkdirAll(filepath.Join(dir, "broken"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "broken", "manifest.json"), []byte("{"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "broken", "steps.jsonl"), nil, 0o600))
	must(t, os.MkdirAll(filepath.Join(dir, "shards"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "shards", "manifest.json"), []byte(`{"schema":"apr.tokens/1"}`), 0o600))
	must(t, os.MkdirAll(filepath.Join(dir, "other"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	return dir
}

func TestList(t *testing.T) {
	dir := folder(t)
	all, err := runs.List(dir)
	must(t, err)
	var got []string
	for _, s := range all {
		loss, val := "–", "–"
		if s.Loss != nil {
			loss = fmt.Sprint(*s.Loss)
		}
		if s.Val != nil {
			val = fmt.Sprint(*s.Val)
		}
		got = append(got, fmt.Sprint(s.RunID, " ", s.Status, " ", s.Steps, " ", loss, " ", val, " ", s.Problem != ""))
	}
	want := "alto-2 completed 1 6 3.5 false, alpha-1 completed 2 4 3.5 false, broken failed 0 – – true"
	if strings.Join(got, ", ") != want {
		t.Errorf("%s\nwant %s", strings.Join(got, ", "), want)
	}
	if all, err := runs.List(filepath.Join(dir, "nowhere")); err != nil || len(all) != 0 {
		t.Errorf("a folder that is not there: %v, %v", all, err)
	}
	_, err = runs.List(filepath.Join(dir, "file"))
	if fault.KindOf(err) != fault.IO {
		t.Errorf("a file: %v", err)
	}
}

func TestFind(t *testing.T) {
	dir := folder(t)
	for id, want := range map[string]string{
		"alpha": "alpha", "alp": "alpha", "alpha-1": "alpha", "alto": "alto", "alto-": "alto", "b": "broken", filepath.Join(dir, "alto.bak-20260101"): "alto.bak-20260101",
	} {
		got, err := runs.Find(dir, id)
		if err != nil || filepath.Base(got) != want {
			t.Errorf("%s: %s, %v; want %s", id, got, err, want)
		}
	}
	for id, hint := range map[string]string{
		"al": "say more: alpha, alto", "alphq": "did you mean alpha?", "completely else": "apr runs list", "": "apr runs list", "../" + filepath.Base(dir) + "/other": "apr runs list",
	} {
		_, err := runs.Find(dir, id)
		var f *fault.Error
		if fault.KindOf(err) != fault.NotFound {
			t.Errorf("%q: %v", id, err)
			continue
		}
		if f, _ = err.(*fault.Error); f == nil || !strings.Contains(f.Hint, hint) {
			t.Errorf("%q: hint %q, want %q", id, f.Hint, hint)
		}
	}
	if _, err := runs.Find(t.TempDir(), "x"); !strings.Contains(err.(*fault.Error).Hint, "--dir") {
		t.Errorf("an empty folder: %v", err)
	}
}

func TestCompare(t *testing.T) {
	dir := folder(t)
	var records []*runlog.Record
	for _, name := range []string{"alpha", "alto"} {
		r, err := runlog.Read(filepath.Join(dir, name))
		must(t, err)
		records = append(records, r)
	}
	c := runs.Compare(records)
	if len(c.Differences) != 1 || c.Differences[0].Key != "config.lr" || fmt.Sprint(c.Differences[0].Values) != "[0.1 0.2]" {
		t.Errorf("differences %+v, want the learning rate alone", c.Differences)
	}
	for name, want := range map[string][2]float64{
		"loss": {4, 6}, "control.loss": {5, 7}, "steps": {2, 1}, "tokens": {20, 10}, "tokens_per_second": {100, 100}, "control.tokens_per_second": {200, 200},
		"margin_over_control": {0.5, 0.5}, "val_nats.control_student": {4, 4},
	} {
		got := c.Metrics[name]
		if len(got) != 2 || got[0] == nil || got[1] == nil || float64(*got[0]) != want[0] || float64(*got[1]) != want[1] {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if got := c.Metrics["control.kl"]; len(got) != 2 || got[0] != nil {
		t.Errorf("the control's divergence is %v, want null", got)
	}
}

// A setting that only a variable of the environment gives is one difference, not two.
func TestCompareVariable(t *testing.T) {
	record := func(steps float64, environment map[string]string) *runlog.Record {
		config := map[string]runlog.Value{"max_steps": {Value: steps}}
		return &runlog.Record{Manifest: &runlog.Manifest{Config: config, Environment: environment}}
	}
	c := runs.Compare([]*runlog.Record{
		record(0, nil), record(2, map[string]string{"APR_DISTILL_MAX_STEPS": "2", "OMP_NUM_THREADS": "1"}),
	})
	var names []string
	for _, d := range c.Differences {
		names = append(names, d.Name())
	}
	if want := []string{"$APR_DISTILL_MAX_STEPS", "$OMP_NUM_THREADS"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}

// A setting that nobody gave, and that the run has chosen by a rule, is called so.
func TestTypedByRule(t *testing.T) {
	d := runs.Difference{Key: "config.eval_every", Values: []any{-1.0, 1.0}}
	if a, b := d.Typed(0), d.Typed(1); a != "by rule" || b != "1" {
		t.Errorf("%s, %s", a, b)
	}
}
