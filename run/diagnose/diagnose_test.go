package diagnose

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runlog "apr/run/log"
)

// at is when the runs of the tests began.
var at = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// makeRun writes a run directory: a manifest, steps of these losses, divergences and rates, and what more does.
func makeRun(t *testing.T, losses []float64, kl, lr float64, more func(dir string, d *runlog.Dir) error) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	d, err := runlog.Open(dir, false, false)
	if err != nil {
		t.Fatal(err)
	}
	err = d.WriteManifest(runlog.Manifest{
		RunID: "r", Started: at, Config: map[string]runlog.Value{"learning_rate": {Value: lr, Origin: "flag"}},
		Inputs: map[string]runlog.Input{"teacher": {SHA256: "t0"}, "student_init": {SHA256: "s0"}},
	})
	for k, loss := range losses {
		err = errors.Join(err, d.Step(runlog.Step{Leg: "student", Step: k, Loss: runlog.Number(loss), KL: runlog.Number(kl), LR: lr, Finite: true}))
	}
	if err == nil && more != nil {
		err = more(dir, d)
	}
	if err = errors.Join(err, d.Close()); err != nil {
		t.Fatal(err)
	}
	return dir
}

var falling = []float64{7, 6, 5, 4, 3, 2}

func sound(string) error { return nil }

func death(name, reason string) func(string, *runlog.Dir) error {
	return func(dir string, _ *runlog.Dir) error { return runlog.AppendEvent(dir, "death", name, nil, reason) }
}

func failed(reason string) func(string, *runlog.Dir) error {
	return func(_ string, d *runlog.Dir) error {
		return d.WriteReceipt(runlog.Receipt{Status: runlog.Failed, Reason: reason})
	}
}

// scored completes a run whose student had 5.25 nats per token before training.
func scored(after float64) func(string, *runlog.Dir) error {
	return func(_ string, d *runlog.Dir) error {
		return errors.Join(d.Event("evaluation", "held-out", []map[string]any{{"name": "teacher", "nats_per_token": 3.0},
			{"name": "untrained student", "nats_per_token": 5.25}, {"name": "distilled student", "nats_per_token": after}}, ""),
			d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}))
	}
}

// Every rule finds its case and nothing else, and rests on lines that are there.
func TestRules(t *testing.T) {
	for _, tt := range []struct {
		name   string
		losses []float64
		kl, lr float64
		more   func(string, *runlog.Dir) error
		ids    string // of the findings
		cause  string // of the run's state
	}{
		{"completed", falling, 0.5, 1e-3, func(_ string, d *runlog.Dir) error { return d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}) }, "", ""},
		{"ruined", []float64{7, 7.2, 30, 31, 29, 30, 33}, 0.5, 1e-3, func(_ string, d *runlog.Dir) error {
			return d.WriteReceipt(runlog.Receipt{Status: runlog.Completed})
		}, "ruined", "training made the student worse: the steps were too large"},
		{"out of memory", falling, 0.5, 1e-3, death("out of memory", "oom_kill rose from 0 to 1"), "oom", "out of memory: the kernel killed the process"},
		{"killed", falling, 0.5, 1e-3, death("not out of memory", "oom_kill stayed 0"), "killed", "killed by somebody, not for want of memory"},
		{"killed, nobody knows why", falling, 0.5, 1e-3, death("unknown", "the counter cannot be read"), "killed-unknown", Unknown},
		{"crash", falling, 0.5, 1e-3, death("aborted", "killed by signal 6"), "crash", "a crash in code: aborted"},
		{"silent", falling, 0.5, 1e-3, death("hung", "no sign of life"), "hung", "hung: it gave no sign of life, and the supervisor ended it"},
		{"killed without a witness", falling, 0.5, 1e-3, nil, "ended", Unknown},
		{"hung", falling, 0.5, 1e-3, func(dir string, _ *runlog.Dir) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "stall.txt"), []byte("no progress\nlast operation: step 6\n"), 0o600),
				runlog.AppendEvent(dir, "stall", "no progress", map[string]any{"phase": "leg student",
					"last_operation": "step 6", "idle_seconds": 60, "stacks": "stall.txt"}, ""))
		}, "hung", "hung in leg student: step 6"},
		{"diverged", falling, 0.5, 1e-3, func(dir string, d *runlog.Dir) error {
			for k := range 3 {
				if err := d.Event("warning", "non-finite step", map[string]any{"step": 6 + k, "leg": "student", "tensor": "gradient of w", "rows": []int{1}}, ""); err != nil {
					return err
				}
			}
			return failed("3 steps in a row were refused, and left the weights alone")("", d)
		}, "diverged diverged", "diverged: 3 steps in a row were refused, and left the weights alone"},
		{"diverged, and finite", falling, 0.5, 1e-3, func(_ string, d *runlog.Dir) error {
			for k := range 3 {
				if err := d.Event("warning", "diverging step", map[string]any{"step": 6 + k, "leg": "student", "tensor": "w", "loss": 38.5, "limit": 21.75, "rows": []int{1}}, ""); err != nil {
					return err
				}
			}
			return d.WriteReceipt(runlog.Receipt{Status: runlog.Completed})
		}, "diverged", "diverged: the loss rose to 38.5, where at most 21.75 was expected"},
		{"one bad step", falling, 0.5, 1e-3, func(_ string, d *runlog.Dir) error {
			return errors.Join(d.Event("warning", "non-finite step", map[string]any{"step": 6, "leg": "student", "tensor": "the loss"}, ""),
				d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}))
		}, "diverged", ""},
		{"disk full", falling, 0.5, 1e-3, failed("x: no space left: 5 bytes needed [E-FILE-015]"), "disk-full", "the disk is full: x: no space left: 5 bytes needed [E-FILE-015]"},
		{"another failure", falling, 0.5, 1e-3, failed("the device is lost"), "failed", "the device is lost"},
		{"stopped", falling, 0.5, 1e-3, func(_ string, d *runlog.Dir) error { return d.Event("stop", "signal", nil, "") }, "stopped", "a signal"},
		{"aborted", falling, 0.5, 1e-3, func(_ string, d *runlog.Dir) error { return d.Event("abort", "second signal (interrupt)", nil, "") }, "aborted", "a second signal (interrupt)"},
		{"a rank was killed", falling, 0.5, 1e-3, func(_ string, d *runlog.Dir) error {
			return d.Event(runlog.LostRank, "gone", map[string]any{"rank": 2}, "rank 2 of 4 is gone: its connection was closed")
		}, "lost-rank", "rank 2 of 4 is gone: its connection was closed"},
		{"the teacher is the student", falling, 0, 1e-3, func(dir string, d *runlog.Dir) error {
			return errors.Join(os.Remove(filepath.Join(dir, "manifest.json")), d.WriteManifest(runlog.Manifest{Started: at,
				Inputs: map[string]runlog.Input{"teacher": {SHA256: "same"}, "student_init": {SHA256: "same"}}}), d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}))
		}, "degenerate", "teacher and student are the same model"},
		{"the teacher is the student, for three steps", []float64{3, 2, 1}, 0, 1e-3, func(dir string, d *runlog.Dir) error {
			return errors.Join(os.Remove(filepath.Join(dir, "manifest.json")), d.WriteManifest(runlog.Manifest{Started: at,
				Kinship: &runlog.Kinship{Relation: "same", Allowed: true}}), d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}))
		}, "degenerate", "teacher and student are the same model"},
		{"nothing to learn", falling, 1e-9, 1e-3, func(_ string, d *runlog.Dir) error { return d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}) },
			"degenerate", "the student gives the teacher's distribution from the start: there is nothing to learn"},
		{"constant loss", []float64{3, 3, 3, 3, 3}, 0.5, 1e-3, func(_ string, d *runlog.Dir) error { return d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}) },
			"constant-loss", Unknown},
		{"too few steps to say", []float64{3, 3}, 0, 0, func(_ string, d *runlog.Dir) error { return d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}) }, "", ""},
		{"learning rate zero", falling, 0.5, 0, func(_ string, d *runlog.Dir) error { return d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}) },
			"zero-learning-rate", "the learning rate is zero: learning_rate 0 (flag)"},
		{"scores that are equal to the last digit", falling, 0.5, 1e-30, scored(5.25), "nothing-changed",
			"training changed nothing measurable: learning rate 1e-30 (flag)"},
		{"scores that nearly are", falling, 0.5, 1e-30, scored(math.Nextafter(5.25, 0)), "", ""},
		{"killed, and done after that", falling, 0.5, 1e-3, func(dir string, d *runlog.Dir) error {
			return errors.Join(death("not out of memory", "x")(dir, d), d.WriteManifest(runlog.Manifest{}), d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}))
		}, "", ""},
		{"stopped, resumed, and killed without a witness", falling, 0.5, 1e-3, func(_ string, d *runlog.Dir) error {
			return errors.Join(d.Event("stop", "signal", nil, ""), d.WriteManifest(runlog.Manifest{}), d.Event("decision", "resume", nil, ""))
		}, "ended", Unknown},
		{"killed, resumed, and stopped", falling, 0.5, 1e-3, func(dir string, d *runlog.Dir) error {
			return errors.Join(death("out of memory", "x")(dir, d), d.WriteManifest(runlog.Manifest{}), d.Event("stop", "signal", nil, ""))
		}, "stopped", "a signal"},
		{"resumed, and killed before it began", falling, 0.5, 1e-3, func(dir string, d *runlog.Dir) error {
			return errors.Join(d.Event("stop", "signal", nil, ""), d.WriteManifest(runlog.Manifest{}), death("out of memory", "x")(dir, d))
		}, "oom", "out of memory: the kernel killed the process"},
		{"killed, started again by the supervisor, and done", falling, 0.5, 1e-3, func(dir string, d *runlog.Dir) error {
			killed := map[string]any{"started_again": true, "step": 6, "leg": "student"}
			return errors.Join(runlog.AppendEvent(dir, "death", "not out of memory", killed, "killed by SIGKILL"), d.WriteManifest(runlog.Manifest{}),
				d.Event("decision", "resume", map[string]any{"step": 4}, ""), d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}))
		}, "restarted", ""},
		{"killed, started again, and killed for good", falling, 0.5, 1e-3, func(dir string, d *runlog.Dir) error {
			killed := map[string]any{"started_again": true, "step": 6, "leg": "student"}
			return errors.Join(runlog.AppendEvent(dir, "death", "out of memory", killed, "killed by SIGKILL"), d.WriteManifest(runlog.Manifest{}), death("out of memory", "x")(dir, d))
		}, "restarted oom", "out of memory: the kernel killed the process"},
		{"ended by itself under a supervisor", falling, 0.5, 1e-3, func(dir string, d *runlog.Dir) error {
			return errors.Join(death("exit code 22", "exit code 22")(dir, d), d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}))
		}, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := makeRun(t, tt.losses, tt.kl, tt.lr, tt.more)
			f, err := Run(dir, sound)
			if err != nil {
				t.Fatal(err)
			}
			var ids []string
			for _, x := range f.Findings {
				ids = append(ids, x.ID)
				checkEvidence(t, dir, x)
			}
			checkIncident(t, dir, f)
			if got := strings.Join(ids, " "); got != tt.ids || f.Cause != tt.cause {
				t.Errorf("findings %q, cause %q; want %q, %q", got, f.Cause, tt.ids, tt.cause)
			}
		})
	}
}

// checkEvidence requires the lines that a finding quotes to stand where it says.
func checkEvidence(t *testing.T, dir string, f Finding) {
	t.Helper()
	if len(f.Evidence) == 0 || f.Symptom == "" || f.Cause == "" {
		t.Errorf("%+v: no evidence, symptom or cause", f)
	}
	for _, e := range f.Evidence {
		b, err := os.ReadFile(filepath.Join(dir, e.File))
		all := strings.Split(string(b), "\n")
		if err != nil || e.Line < 1 || e.Line > len(all) || !strings.Contains(all[e.Line-1], e.Text) {
			t.Errorf("%s: %s:%d is not %q (%v)", f.ID, e.File, e.Line, e.Text, err)
		}
	}
}

// checkIncident requires every field of an incident, none of them invented: each answer stands in a finding, with its evidence, and
// the root cause is the deepest of them.
func checkIncident(t *testing.T, dir string, f Findings) {
	t.Helper()
	proven := map[string]bool{}
	for _, x := range f.Findings {
		proven[x.Symptom], proven[x.Cause] = true, true
	}
	delete(proven, Unknown)
	for i, w := range f.FiveWhys {
		if !proven[w.Because] || !strings.HasPrefix(w.Why, "Why") || i > 0 && !strings.Contains(w.Why, f.FiveWhys[i-1].Because) {
			t.Errorf("why %d: %+v", i+1, w)
		}
		checkEvidence(t, dir, Finding{ID: "why", Symptom: w.Why, Cause: w.Because, Evidence: w.Evidence})
	}
	n := len(f.FiveWhys)
	switch {
	case f.Cause == "" && (n > 0 || f.Symptom != None || f.RootCause != None || f.Fix != None):
		t.Errorf("nothing to explain, and %+v", f.Incident)
	case f.Cause != "" && (n == 0 || n > maxWhys || !proven[f.Symptom] || f.Fix == ""):
		t.Errorf("%s: %+v", f.Cause, f.Incident)
	case f.Cause == Unknown && f.RootCause != Unknown, f.Cause != "" && f.Cause != Unknown && f.RootCause != f.FiveWhys[n-1].Because:
		t.Errorf("%s: root cause %q of %+v", f.Cause, f.RootCause, f.FiveWhys)
	}
	if f.Ticket != Unknown {
		t.Errorf("ticket %q of a run that was not dispatched", f.Ticket)
	}
}

// A run that was dispatched has its ticket in the incident, and the chain goes through what a failure rests on.
func TestIncident(t *testing.T) {
	dir := makeRun(t, falling, 0.5, 1e-3, func(dir string, d *runlog.Dir) error {
		for k := range 3 {
			if err := d.Event("warning", "diverging step", map[string]any{"step": 6 + k, "leg": "student", "tensor": "w", "loss": 38.5, "limit": 21.75, "rows": []int{1}}, ""); err != nil {
				return err
			}
		}
		return errors.Join(os.WriteFile(filepath.Join(dir, runlog.DispatchFile), []byte(`{"ticket":"apr-1"}`), 0o600),
			failed("3 steps in a row were refused, and left the weights alone")("", d))
	})
	f, err := Run(dir, sound)
	if err != nil {
		t.Fatal(err)
	}
	var chain []string
	for _, w := range f.FiveWhys {
		chain = append(chain, w.Because)
	}
	const deepest = "diverged: the loss rose to 38.5, where at most 21.75 was expected"
	if len(chain) != 4 || chain[3] != deepest || f.RootCause != deepest || f.Ticket != "apr-1" || !strings.Contains(f.Fix, "lower --learning-rate") {
		t.Errorf("%+v", f.Incident)
	}
}

// A disk that fills up before the first checkpoint leaves nothing to resume, and the advice says so.
func TestDiskFull(t *testing.T) {
	for _, checkpoints := range []int{0, 2} {
		dir := makeRun(t, falling, 0.5, 1e-3, func(dir string, d *runlog.Dir) error {
			err := failed("x: no space left: 5 bytes needed [E-FILE-015]")(dir, d)
			for i := range checkpoints {
				err = errors.Join(err, os.MkdirAll(filepath.Join(dir, "checkpoints", fmt.Sprintf("step-%06d", i)), 0o700))
			}
			return err
		})
		f, err := Run(dir, sound)
		if err != nil || len(f.Findings) != 1 {
			t.Fatalf("%+v, %v", f, err)
		}
		want := map[int]string{0: "make room; no checkpoint was written: start again", 2: "make room; --resume continues from checkpoints/step-000001"}[checkpoints]
		if f.Findings[0].Advice != want || f.Fix != want {
			t.Errorf("%d checkpoints: %q, want %q", checkpoints, f.Findings[0].Advice, want)
		}
	}
}

func TestDamagedCheckpoint(t *testing.T) {
	dir := makeRun(t, falling, 0.5, 1e-3, func(dir string, d *runlog.Dir) error {
		return errors.Join(os.MkdirAll(filepath.Join(dir, "checkpoints", "step-000003"), 0o700), os.MkdirAll(filepath.Join(dir, "checkpoints", "step-000006"), 0o700),
			os.MkdirAll(filepath.Join(dir, "checkpoints", "step-000009.apr-tmp"), 0o700), d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}))
	})
	f, err := Run(dir, func(path string) error {
		if strings.HasSuffix(path, "6") {
			return errors.New("state.safetensors: is damaged")
		}
		return nil
	})
	if err != nil || len(f.Findings) != 1 || f.Findings[0].ID != "checkpoint" || !strings.Contains(f.Findings[0].Advice, "--resume continues from checkpoints/step-000003") || f.Cause != "" {
		t.Errorf("%+v, %v", f, err)
	}
	if err := f.Write(); err != nil {
		t.Fatal(err)
	}
	var again Findings
	b, err := os.ReadFile(filepath.Join(dir, File))
	if err != nil || json.Unmarshal(b, &again) != nil || again.Schema != "apr.findings/1" || len(again.Findings) != 1 {
		t.Errorf("%s, %v", b, err)
	}
	if _, err := Run(t.TempDir(), sound); err == nil {
		t.Error("a folder without a run is accepted")
	}
}

// A run whose process was killed for want of memory.
func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	d, err := runlog.Open(filepath.Join(dir, "run"), false, false)
	if err != nil {
		panic(err)
	}
	err = errors.Join(d.WriteManifest(runlog.Manifest{RunID: "r"}), d.Event("death", "out of memory", nil, "oom_kill rose from 0 to 1"), d.Close())
	if err != nil {
		panic(err)
	}
	f, err := Run(d.Path, func(string) error { return nil })
	fmt.Println(f.Cause, err)
	for _, x := range f.Findings {
		fmt.Println(x.ID, x.Symptom, x.Evidence[0].File, x.Evidence[0].Line)
	}
	// Output:
	// out of memory: the kernel killed the process <nil>
	// oom oom_kill rose from 0 to 1 events.jsonl 2
}

// TestRefusedStepsJudgeNothing: what was not applied neither ruined the weights nor is the last step that moved them.
func TestRefusedStepsJudgeNothing(t *testing.T) {
	dir := makeRun(t, falling, 0.5, 1e-3, func(_ string, d *runlog.Dir) error {
		var all []error
		for k := range 6 {
			s := runlog.Step{Leg: "student", Step: len(falling) + k, LR: 1, Loss: 99, CE: 99, KL: 99, Finite: true, Diverged: true}
			all = append(all, d.Step(s), d.Event("warning", "diverging step",
				map[string]any{"step": s.Step, "leg": "student", "tensor": "w", "loss": 99.0, "limit": 10.0}, "refused"))
		}
		return errors.Join(append(all, d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}))...)
	})
	f, err := Run(dir, sound)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Findings) != 1 || f.Findings[0].ID != "diverged" {
		t.Fatalf("findings %+v", f.Findings)
	}
	if want := fmt.Sprintf("the last that was applied is step %d, at a learning rate of 0.001", len(falling)-1); !strings.Contains(f.Findings[0].Symptom, want) {
		t.Errorf("%q lacks %q", f.Findings[0].Symptom, want)
	}
}
