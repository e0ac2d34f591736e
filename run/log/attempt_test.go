package runlog_test

import (
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"apr/internal/fault"
	runlog "apr/run/log"
)

// A folder with a manifest.json of something else is no run: it is neither read nor resumed. A damaged manifest beside a run's
// steps is one.
func TestIsRun(t *testing.T) {
	const ours = `{"schema":"apr.manifest/1","run_id":"x"}`
	for name, c := range map[string]struct {
		manifest string
		steps    bool
		want     bool
	}{
		"a run":                          {ours, true, true},
		"a run without its steps":        {ours, false, true},
		"shards of tokens":               {`{"schema":"apr.tokens/1","shards":[]}`, false, false},
		"a manifest without a schema":    {`{"name":"app","start_url":"/"}`, false, false},
		"a list":                         {`[1]`, false, false},
		"no JSON":                        {`{`, false, false},
		"a damaged manifest":             {`{"schema`, true, true},
		"a manifest of a damaged schema": {`{"schema":"bpr.manifest/1"}`, true, true},
		"none":                           {"", true, false},
	} {
		path := t.TempDir()
		if c.manifest != "" {
			must(t, os.WriteFile(filepath.Join(path, "manifest.json"), []byte(c.manifest), 0o600))
		}
		if c.steps {
			must(t, os.WriteFile(filepath.Join(path, "steps.jsonl"), nil, 0o600))
		}
		if got := runlog.IsRun(path); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		if _, err := runlog.Read(path); (fault.KindOf(err) == fault.NotFound) == c.want {
			t.Errorf("%s: read: %v", name, err)
		}
		if err := runlog.Check(path, false, true); (err == nil) != (c.want || c.steps) {
			t.Errorf("%s: resumed: %v", name, err)
		}
	}
}

// The last attempt begins with its event, whatever the clocks say; of runs that did not write it, at the time of their manifest.
func TestLastAttempt(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	e := func(kind string, s int) runlog.Event { return runlog.Event{Kind: kind, Time: at(s)} }
	for name, c := range map[string]struct {
		events []runlog.Event
		began  int
		want   int
	}{
		"nothing":              {nil, 5, 0},
		"one attempt":          {[]runlog.Event{e(runlog.Attempt, 1), e("stop", 2)}, 1, 0},
		"two attempts":         {[]runlog.Event{e(runlog.Attempt, 1), e("stop", 2), e(runlog.Attempt, 9), e("decision", 9)}, 9, 2},
		"a clock that is slow": {[]runlog.Event{e(runlog.Attempt, 10), e("stop", 20), e(runlog.Attempt, 3)}, 3, 2},
		"an older version":     {[]runlog.Event{e("decision", 1), e("stop", 2), e("decision", 9)}, 9, 2},
		"older, killed early":  {[]runlog.Event{e("decision", 1), e("stop", 2)}, 9, 2},
	} {
		if got := runlog.LastAttempt(c.events, at(c.began)); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestSum(t *testing.T) {
	step := func(leg string, k int, loss float64, ms float64) runlog.Step {
		return runlog.Step{Leg: leg, Step: k, Loss: runlog.Number(loss), Finite: !math.IsNaN(loss), Tokens: 10, Targets: 9, MS: runlog.Milliseconds{Total: ms}}
	}
	got := runlog.Sum([]runlog.Step{step("student", 0, 1, 500), step("student", 1, 1, 500), step("control", 0, 1, 9000), step("student", 2, math.NaN(), 9000)}, "student")
	if want := (runlog.Totals{Steps: 2, Tokens: 20, Targets: 18, Seconds: 1}); got != want || got.TokensPerSecond() != 20 {
		t.Errorf("%+v, want %+v; %v tokens/s", got, want, got.TokensPerSecond())
	}
	if r := (runlog.Totals{}).TokensPerSecond(); !math.IsNaN(r) {
		t.Errorf("no step: %v tokens/s", r)
	}
}

// Whatever a run directory holds is its user's alone.
func TestModes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "runs", "a")
	d := open(t, path, false, false)
	must(t, d.WriteManifest(runlog.Manifest{RunID: "x"}))
	must(t, d.Step(runlog.Step{Leg: "student", Loss: 1, Finite: true}))
	must(t, d.WriteSamples(runlog.Samples{}))
	must(t, runlog.AppendEvent(path, "stall", "b", nil, "why"))
	must(t, os.MkdirAll(filepath.Join(path, "student", "parts"), 0o755))
	must(t, os.WriteFile(filepath.Join(path, "student", "parts", "a"), nil, 0o644))
	must(t, d.MakePrivate("student"))
	must(t, d.TruncateSteps("student", 0))
	must(t, d.WriteReceipt(runlog.Receipt{}))
	closed(t, d)
	if d.MakePrivate("nothing") == nil {
		t.Error("what is not there has a mode")
	}
	must(t, filepath.WalkDir(filepath.Dir(path), func(p string, e fs.DirEntry, err error) error {
		must(t, err)
		info, err := e.Info()
		must(t, err)
		if want := map[bool]fs.FileMode{true: 0o700, false: 0o600}[e.IsDir()]; info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", p, info.Mode().Perm(), want)
		}
		return nil
	}))
}
