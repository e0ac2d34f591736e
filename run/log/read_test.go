package runlog_test

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"apr/internal/fault"
	runlog "apr/run/log"
)

func readRun(t *testing.T, path string) *runlog.Record {
	t.Helper()
	r, err := runlog.Read(path)
	must(t, err)
	return r
}

// The status follows from receipt, lock and last event, through the whole life of a run.
func TestStatus(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run")
	expect := func(when, want string) {
		t.Helper()
		if r := readRun(t, path); r.Status != want {
			t.Errorf("%s: %s (%s), want %s", when, r.Status, r.Reason, want)
		}
	}
	d := open(t, path, false, false)
	must(t, d.WriteManifest(runlog.Manifest{RunID: "x"}))
	expect("at work", runlog.Running)
	must(t, d.Event("stop", "signal", nil, ""))
	expect("told to stop", runlog.Stopped)
	closed(t, d)
	expect("after that", runlog.Stopped)
	d = open(t, path, false, true)
	must(t, d.Event("decision", "resume", nil, ""))
	expect("resumed", runlog.Running)
	closed(t, d)
	expect("killed", runlog.Failed)
	d = open(t, path, false, true)
	must(t, d.Event("decision", "resume", nil, ""))
	must(t, d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}))
	expect("with its receipt", runlog.Completed)
	closed(t, d)
	expect("over", runlog.Completed)
	time.Sleep(2 * time.Millisecond)
	d = open(t, path, false, true)
	must(t, d.Event("decision", "resume", nil, ""))
	expect("resumed when it was over", runlog.Running)
	closed(t, d)
	if r := readRun(t, path); r.Status != runlog.Failed || r.Receipt != nil {
		t.Errorf("killed after that: %s, receipt %v", r.Status, r.Receipt)
	}
}

func TestReadRefusals(t *testing.T) {
	empty := t.TempDir()
	_, err := runlog.Read(empty)
	refused(t, err, fault.NotFound, "E-RUN-004")
	const manifest = `{"schema":"apr.manifest/1","run_id":"x"}`
	for _, name := range []string{"manifest.json", "receipt.json", "samples.json"} {
		path := t.TempDir()
		must(t, os.WriteFile(filepath.Join(path, "manifest.json"), []byte(manifest), 0o600))
		must(t, os.WriteFile(filepath.Join(path, "steps.jsonl"), nil, 0o600))
		must(t, os.WriteFile(filepath.Join(path, name), []byte("{"), 0o600))
		_, err := runlog.Read(path)
		refused(t, err, fault.Format, "E-RUN-005")
	}
	path := t.TempDir()
	must(t, os.WriteFile(filepath.Join(path, "manifest.json"), []byte(manifest), 0o600))
	must(t, os.Mkdir(filepath.Join(path, "steps.jsonl"), 0o700))
	_, err = runlog.Read(path)
	refused(t, err, fault.NotFound, "E-FILE-002")
}

// Damaged lines are counted and left out; a line that is being written is neither.
func TestReadDamagedLines(t *testing.T) {
	path := t.TempDir()
	must(t, os.WriteFile(filepath.Join(path, "manifest.json"), []byte(`{"schema":"apr.manifest/1","run_id":"x"}`), 0o600))
	long := `{"leg":"` + strings.Repeat("y", 17<<20) + "\"}\n"
	text := `{"leg":"student","step":0,"loss":1.5,"finite":true}` + "\n{\n" + long + "\n" + `{"leg":"student","step":1,"loss":null}` + "\n" + `{"leg":"student","st`
	must(t, os.WriteFile(filepath.Join(path, "steps.jsonl"), []byte(text), 0o600))
	r := readRun(t, path)
	if len(r.Steps) != 2 || r.Damaged != 2 || r.Steps[0].Loss != 1.5 || r.Steps[1].Loss.Finite() || r.ID() != "x" || r.Last().Step != 0 { // step 1 was refused
		t.Errorf("%d steps, %d damaged lines: %+v", len(r.Steps), r.Damaged, r.Steps)
	}
	if !math.IsNaN(float64(r.Steps[1].Loss)) {
		t.Errorf("null is read as %v", r.Steps[1].Loss)
	}
}

// A follower sees each step once, also one that was written in two parts, and begins again when the file was replaced.
func TestFollow(t *testing.T) {
	path := t.TempDir()
	file := filepath.Join(path, "steps.jsonl")
	f := runlog.Follow(path)
	var seen []int
	next := func(wantAgain bool, want ...int) {
		t.Helper()
		steps, again, err := f.Next()
		must(t, err)
		seen = seen[:0]
		for _, s := range steps {
			seen = append(seen, s.Step)
		}
		if again != wantAgain || len(seen) != len(want) {
			t.Fatalf("steps %v, again %v; want %v, %v", seen, again, want, wantAgain)
		}
		for i := range want {
			if seen[i] != want[i] {
				t.Fatalf("steps %v, want %v", seen, want)
			}
		}
	}
	add := func(text string) {
		t.Helper()
		w, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		must(t, err)
		_, err = w.WriteString(text)
		must(t, err)
		must(t, w.Close())
	}
	next(false)
	add("{\"step\":0}\n{\"step\":1}\n{\"st")
	next(false, 0, 1)
	next(false)
	add("ep\":2}\n{\n")
	next(false, 2)
	if f.Damage != 1 {
		t.Errorf("%d damaged lines, want 1", f.Damage)
	}
	must(t, os.WriteFile(file+".new", []byte("{\"step\":0}\n"), 0o600))
	must(t, os.Rename(file+".new", file))
	next(true, 0)
	add("{\"step\":1}\n")
	next(false, 1)
}
