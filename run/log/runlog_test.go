package runlog_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/fault"
	runlog "apr/run/log"
)

func open(t *testing.T, path string, force, resume bool) *runlog.Dir {
	t.Helper()
	d, err := runlog.Open(path, force, resume)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func closed(t *testing.T, d *runlog.Dir) {
	t.Helper()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return string(b)
}

// refused checks kind and identifier of an error of Open.
func refused(t *testing.T, err error, kind fault.Kind, id string) {
	t.Helper()
	if fault.KindOf(err) != kind || !strings.Contains(fmt.Sprint(err), id) {
		t.Errorf("error %v, want one of kind %v with %s", err, kind, id)
	}
}

func TestOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "run")
	_, err := runlog.Open(path, false, true)
	refused(t, err, fault.NotFound, "E-RUN-003")
	if _, err := os.Stat(path); err == nil {
		t.Error("a refused resume made the directory")
	}

	d := open(t, path, false, false)
	must(t, d.Step(runlog.Step{Leg: "student"}))
	_, err = runlog.Open(path, false, true)
	refused(t, err, fault.Invalid, "E-RUN-002")
	refused(t, runlog.Check(path, false, false), fault.Invalid, "E-RUN-002")
	_, err = runlog.Open(path, true, false) // force must not pull the directory from under a running process
	refused(t, err, fault.Invalid, "E-RUN-002")
	closed(t, d)

	_, err = runlog.Open(path, false, false)
	refused(t, err, fault.Invalid, "E-RUN-001")
	d = open(t, path, false, true)
	closed(t, d)
	if got := strings.Count(read(t, filepath.Join(path, "steps.jsonl")), "\n"); got != 1 {
		t.Errorf("%d steps after resuming, want the 1 of before", got)
	}

	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	_, err = runlog.Open(file, false, false)
	refused(t, err, fault.IO, "not a directory")
}

func TestForceKeepsTheOldRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run")
	d := open(t, path, false, false)
	must(t, d.Step(runlog.Step{Leg: "student"}))
	closed(t, d)
	d = open(t, path, true, false)
	closed(t, d)
	if got := read(t, filepath.Join(path, "steps.jsonl")); got != "" {
		t.Errorf("the new run begins with steps %q", got)
	}
	old, err := filepath.Glob(path + ".bak-*")
	if err != nil || len(old) != 1 || read(t, filepath.Join(old[0], "steps.jsonl")) == "" {
		t.Errorf("old runs kept: %v (%v)", old, err)
	}
	d = open(t, t.TempDir(), true, false) // an empty directory is no run to keep
	if old, _ := filepath.Glob(d.Path + ".bak-*"); len(old) != 0 {
		t.Errorf("an empty directory was kept: %v", old)
	}
}

// Numbers that JSON cannot hold are null, and every line is a whole object.
func TestLines(t *testing.T) {
	d := open(t, t.TempDir(), false, false)
	must(t, d.Step(runlog.Step{Leg: "student", Step: 3, Loss: runlog.Number(math.NaN()), CE: 1.5,
		KL: runlog.Number(math.Inf(1)), GradNorm: runlog.Number(math.Inf(-1)), LR: 0.25}))
	if got := read(t, d.File("steps.jsonl")); got != "" {
		t.Errorf("steps are written one by one: %q", got)
	}
	must(t, d.Event("warning", "non-finite", nil, "why")) // an event brings the steps before it along
	var step map[string]any
	must(t, json.Unmarshal([]byte(read(t, d.File("steps.jsonl"))), &step))
	for key, want := range map[string]any{"loss": nil, "kl": nil, "grad_norm": nil, "ce": 1.5, "lr": 0.25, "step": 3.0, "finite": false} {
		if got, ok := step[key]; !ok || got != want {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	var event runlog.Event
	must(t, json.Unmarshal([]byte(read(t, d.File("events.jsonl"))), &event))
	if event.Kind != "warning" || event.Name != "non-finite" || event.Reason != "why" || event.Time.IsZero() {
		t.Errorf("event %+v", event)
	}
}

func TestTruncateSteps(t *testing.T) {
	path := t.TempDir()
	d := open(t, path, false, false)
	for k := range 4 {
		must(t, d.Step(runlog.Step{Leg: "student", Step: k}))
	}
	for k := range 3 {
		must(t, d.Step(runlog.Step{Leg: "control", Step: k}))
	}
	must(t, d.TruncateSteps("student", 2))
	must(t, d.Step(runlog.Step{Leg: "student", Step: 2}))
	must(t, d.TruncateSteps("control", 1))
	closed(t, d)
	if got, want := steps(t, path), "student 0, student 1, control 0, student 2"; got != want {
		t.Errorf("steps %s; want %s", got, want)
	}
}

// steps lists the legs and numbers of steps.jsonl.
func steps(t *testing.T, path string) string {
	t.Helper()
	var all []string
	for line := range strings.Lines(read(t, filepath.Join(path, "steps.jsonl"))) {
		var s runlog.Step
		must(t, json.Unmarshal([]byte(line), &s))
		all = append(all, fmt.Sprint(s.Leg, " ", s.Step))
	}
	return strings.Join(all, ", ")
}

// A crash may cut the last line of either file; the next line must not be joined to it.
func TestCutLinesAreDropped(t *testing.T) {
	long := `{"leg":"student","step":1,"x":"` + strings.Repeat("y", 10000)
	for name, cut := range map[string]string{"short": `{"leg":"stu`, "longer than a block": long, "nothing cut": ""} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			d := open(t, path, false, false)
			must(t, d.Step(runlog.Step{Leg: "student"}))
			must(t, d.Event("decision", "first", nil, ""))
			closed(t, d)
			for _, file := range []string{"steps.jsonl", "events.jsonl"} {
				whole := read(t, filepath.Join(path, file))
				must(t, os.WriteFile(filepath.Join(path, file), []byte(whole+cut), 0o600))
			}
			d = open(t, path, false, true)
			must(t, d.Step(runlog.Step{Leg: "student", Step: 1}))
			must(t, d.Event("decision", "second", nil, ""))
			closed(t, d)
			if got := steps(t, path); got != "student 0, student 1" {
				t.Errorf("steps %s", got)
			}
			for line := range strings.Lines(read(t, filepath.Join(path, "events.jsonl"))) {
				var e runlog.Event
				must(t, json.Unmarshal([]byte(line), &e))
			}
		})
	}
	path := t.TempDir()
	must(t, os.WriteFile(filepath.Join(path, "steps.jsonl"), []byte(long), 0o600))
	closed(t, open(t, path, false, true))
	if got := read(t, filepath.Join(path, "steps.jsonl")); got != "" {
		t.Errorf("a file of one cut line keeps %d bytes", len(got))
	}
}

func TestManifestAndReceipt(t *testing.T) {
	d := open(t, t.TempDir(), false, false)
	for _, id := range []string{"first", "second", "third"} {
		must(t, d.WriteManifest(runlog.Manifest{RunID: id, Config: map[string]runlog.Value{"lr": {Value: 0.5, Origin: "flag"}}}))
	}
	for file, id := range map[string]string{"manifest.json": "first", "manifest.resume-1.json": "second", "manifest.resume-2.json": "third"} {
		var m runlog.Manifest
		must(t, json.Unmarshal([]byte(read(t, d.File(file))), &m))
		if m.RunID != id || m.Schema != "apr.manifest/1" || m.Config["lr"].Origin != "flag" {
			t.Errorf("%s: %+v", file, m)
		}
	}
	rec, err := runlog.Read(d.Path)
	must(t, err)
	if rec.Manifest.RunID != "first" || rec.InForce.RunID != "third" {
		t.Errorf("the manifest is that of %q, in force is that of %q", rec.Manifest.RunID, rec.InForce.RunID)
	}
	must(t, d.Step(runlog.Step{Leg: "student"}))
	must(t, d.WriteReceipt(runlog.Receipt{RunID: "first", Status: "completed", Outputs: map[string]string{"student.apr": "00"}}))
	if read(t, d.File("steps.jsonl")) == "" {
		t.Error("the receipt stands before the last steps do")
	}
	var r runlog.Receipt
	must(t, json.Unmarshal([]byte(read(t, d.File("receipt.json"))), &r))
	if r.Schema != "apr.receipt/1" || r.Status != "completed" || r.Finished.IsZero() || r.Outputs["student.apr"] != "00" {
		t.Errorf("receipt %+v", r)
	}
}
