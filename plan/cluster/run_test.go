package cluster

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

func near(t *testing.T, what string, got, want, off float64) {
	t.Helper()
	if !(math.Abs(got-want) <= off*math.Abs(want)) {
		t.Errorf("%s is %g, want %g", what, got, want)
	}
}

// TestTimesAddUp: every second of a run is useful, lost, paused or down; the shares are those that theory expects where
// interruptions are rare.
//
//	lost + down ≈ interruptions · (interval/2 + durable + detect + restart), paused = checkpoints · pause
func TestTimesAddUp(t *testing.T) {
	f := read(t, "../../examples/cluster.yaml")
	cases := 0
	for _, pool := range []*feed{nil, {teachers: 64, hosts: 8, alive: 8, rate: 0.3, room: 8, level: 8}} {
		for seed := range uint64(4) {
			got, ok := f.train(newClock(seed), 2048, 0.5, 2e6, pool)
			if !ok || got.Interruptions < 10 {
				t.Fatalf("seed %d: finished %v, %+v", seed, ok, got)
			}
			near(t, "the sum", got.Useful+got.Lost+got.Paused+got.Down, got.Elapsed, 1e-9)
			if pool == nil {
				near(t, "useful time", got.Useful, 1e6, 1e-9)
			}
			cases++
		}
	}
	var all Times
	for seed := range uint64(32) {
		got, _ := f.train(newClock(seed), 2048, 0.5, 2e6, nil)
		all.add(got)
	}
	c, x := f.Checkpoints, f.Failures
	near(t, "interruptions", all.Interruptions, all.Elapsed/f.between(2048), 0.1)
	near(t, "lost time", all.Lost, all.Interruptions*(c.Every/2+c.Durable), 0.1)
	near(t, "down time", all.Down, all.Interruptions*(x.Detect+x.Restart), 0.05)
	contracttest.Cases(t, cases+3)
}

// TestPoolFeeds: students go at their own speed as long as teachers keep up, and at the teachers' when they do not.
func TestPoolFeeds(t *testing.T) {
	f := &File{Links: Links{PerHost: 8}}
	for _, tt := range []struct{ rate, want float64 }{{2.5, 50}, {2, 50}, {1, 92}, {0.5, 184}} {
		// a step of 0.5 s, 100 steps, 8 steps in the buffer at the start
		got, ok := f.train(newClock(1), 8, 0.5, 100, &feed{teachers: 8, hosts: 1, alive: 1, rate: tt.rate, room: 8, level: 8})
		if !ok {
			t.Fatal("not finished")
		}
		near(t, "time", got.Elapsed, tt.want, 1e-6)
	}
}

// TestNoProgress: a run whose interruptions come faster than its checkpoints ends as one that does not finish.
func TestNoProgress(t *testing.T) {
	f := read(t, "../../examples/cluster.yaml")
	f.Failures.GPUHours = 10
	for _, r := range f.Simulate([]int{4096}, 1<<22).Rows {
		if r.Finishes || r.TokensPerSecond != 0 {
			t.Errorf("%+v", r)
		}
	}
}

// TestLimits: beyond max-step-tokens more GPUs train no faster, but as teachers of a pool.
func TestLimits(t *testing.T) {
	f := read(t, "../../examples/cluster.yaml")
	f.Failures.GPUHours = 0
	p := f.Simulate([]int{256, 512, 1024, 4096}, 512*8192)
	speed := map[string]map[int]float64{}
	for _, r := range p.Rows {
		if speed[r.Way] == nil {
			speed[r.Way] = map[int]float64{}
		}
		speed[r.Way][r.GPUs] = r.TokensPerSecond
		if r.TokensPerStep > 512*8192 || r.Used > r.GPUs {
			t.Errorf("%+v", r)
		}
		t.Logf("%+v", r)
	}
	near(t, "online, 512 over 256", speed[wayOnline][512]/speed[wayOnline][256], 2, 0.03)
	near(t, "online, 4096 over 512", speed[wayOnline][4096]/speed[wayOnline][512], 1, 1e-6)
	if got := speed[wayPool][4096] / speed[wayOnline][4096]; !(got > 2) {
		t.Errorf("a pool of 4096 has %.2f times the speed of 512 that are used online", got)
	}
	limits := map[string]Limit{}
	for _, l := range p.Limits {
		limits[l.Way] = l
		t.Logf("%+v", l)
	}
	if l := limits[wayOnline]; l.GPUs < 500 || l.GPUs > 512 || !strings.Contains(l.Reason, "steps have") {
		t.Errorf("%+v", l)
	}
	if l := limits[wayPool]; l.GPUs <= 512 || !strings.Contains(l.Reason, "fed by") {
		t.Errorf("%+v", l)
	}
	contracttest.Cases(t, len(p.Rows)+2)
}

// TestSmallerSteps: times lie between those of the sizes that were measured, and never below the smallest's.
func TestSmallerSteps(t *testing.T) {
	f := &File{Steps: []Phases{{Tokens: 8000, Teacher: 8, Opt: 1}, {Tokens: 4000, Teacher: 5, Opt: 1}}}
	for _, tt := range []struct{ tokens, want float64 }{{8000, 9}, {6000, 7.5}, {4000, 6}, {1000, 6}} {
		near(t, "time", f.phases(tt.tokens).total(), tt.want, 1e-12)
	}
}

// TestStep: what a step exposes, by hand: gather 2 s, forward 1 s, buckets of 1 s each at 2, 4 and the last at 4.
func TestStep(t *testing.T) {
	f := &File{Steps: []Phases{{Tokens: 1, Teacher: 3, StudentForward: 1, StudentBackward: 3, Opt: 2}},
		Gradients: Gradients{Bytes: 6, Last: 2, Buckets: 2, Weights: 4, Zero1: true},
		Links:     Links{PerHost: 2, Host: 1, Network: 1}}
	// With the teacher: 3 hides the gather. Buckets of 2 bytes take 1 s, are ready at 5, 6 and 7; the norm takes 8 s.
	seconds, exposed := f.stepTime(2, 1, withTeacher)
	near(t, "step", seconds, 3+1+3+1+8+1, 1e-12)
	near(t, "exposed", exposed, 1+8, 1e-12)
	seconds, exposed = f.stepTime(2, 1, studentOnly) // the gather is not hidden
	near(t, "step", seconds, 2+1+3+1+8+1, 1e-12)
	near(t, "exposed", exposed, 2+1+8, 1e-12)
	seconds, exposed = f.stepTime(1, 1, withTeacher)
	near(t, "step of one", seconds, 9, 1e-12)
	near(t, "exposed of one", exposed, 0, 0)
}

func TestReadRefuses(t *testing.T) {
	good, err := os.ReadFile("../../examples/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, old, new, want string }{
		{"unknown section", "links:", "link:", `unknown key "link"; did you mean links?`},
		{"unknown key", "detect_s", "detekt_s", "did you mean detect_s?"},
		{"unknown phase", "loss_ms", "los_ms", "did you mean loss_ms?"},
		{"missing", "  restart_s: 300", "  #", "failures has no restart_s"},
		{"twice", "  keep: 2", "  keep: 2\n  keep: 3", "keep given twice"},
		{"no number", "keep: 2", "keep: two", "is not a whole number from 1 to"},
		{"fraction", "gpus_per_host: 8", "gpus_per_host: 8.5", "not a whole number"},
		{"negative", "tokens: 1e12", "tokens: -1", "is not a number from 1"},
		{"not finite", "tokens: 1e12", "tokens: .inf", "is not a number"},
		{"flag", "zero1: true", "zero1: yes", "neither true nor false"},
		{"last over all", "last_bytes: 0.545e9", "last_bytes: 5e9", "more than bytes"},
		{"rows", "row_tokens: 1024", "row_tokens: 1000", "not whole rows"},
		{"no teacher", "teacher_ms: 182", "teacher_ms: 0", "need a teacher"},
		{"no list", "steps:\n  - tokens", "steps:\n    tokens", "steps is missing: a list"},
		{"no student", "student_forward_ms: 14.2", "student_forward_ms: -2", "not a number from 0"},
	} {
		text := strings.Replace(string(good), tt.old, tt.new, 1)
		path := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Read(path)
		f, ok := err.(*fault.Error)
		if !ok || f.Kind != fault.Usage || !strings.Contains(f.Error()+"; "+f.Hint, strings.Split(tt.want, "; ")[0]) ||
			!strings.Contains(f.Msg+"; "+f.Hint, tt.want) || !strings.Contains(f.Place, "line ") {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
