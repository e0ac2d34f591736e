package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// watched starts a watchdog whose reports come through a channel.
func watched(t *testing.T, o Options) (*Watchdog, <-chan Report) {
	t.Helper()
	stalls := make(chan Report, 1)
	o.Stalled = func(r Report) { stalls <- r }
	w := Start(o)
	t.Cleanup(w.Close)
	return w, stalls
}

// A hang is reported within moments, with what went on, where every goroutine is, and what the device did.
func TestHang(t *testing.T) {
	w, stalls := watched(t, Options{Timeout: 50 * time.Millisecond, State: func() string { return "GPU at 0 %" }})
	w.Phase("evaluating")
	w.Doing("step 7")
	release := make(chan int)
	defer close(release)
	go hangsHere(release)
	select {
	case r := <-stalls:
		text := r.String()
		for _, want := range []string{"phase: evaluating\nlast operation: step 7",
			"device: GPU at 0 %", "hangsHere", "the limit is 50ms", "steps done in this process: 0"} {
			if !strings.Contains(text, want) {
				t.Errorf("the report lacks %q:\n%s", want, text)
			}
		}
	case <-time.After(5 * time.Second):
		t.Fatal("nothing was reported")
	}
}

//go:noinline
func hangsHere(c chan int) { <-c }

// The control: a run that is slow, but goes on, is left alone; so is one that was closed.
func TestSlowIsNotHung(t *testing.T) {
	w, stalls := watched(t, Options{Timeout: 200 * time.Millisecond})
	for i := range 25 { // three times the limit
		time.Sleep(25 * time.Millisecond)
		w.Doing(fmt.Sprint("row ", i))
	}
	w.Close()
	select {
	case r := <-stalls:
		t.Errorf("stopped: %s", r)
	case <-time.After(300 * time.Millisecond):
	}
}

// A device that goes on ending work within one long operation is left alone; when it ends no more, that is noticed.
func TestFollow(t *testing.T) {
	const limit = 200 * time.Millisecond
	w, stalls := watched(t, Options{Timeout: limit})
	var ended atomic.Int64
	w.Follow(ended.Load)
	w.Phase("evaluating")
	for range 25 { // three times the limit
		time.Sleep(limit / 8)
		ended.Add(1)
	}
	select {
	case r := <-stalls:
		t.Fatalf("stopped while the device worked: %s", r)
	default:
	}
	select {
	case r := <-stalls:
		if r.Idle < limit || r.Where() != "evaluating" {
			t.Errorf("%+v", r.Beat)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("a device that ends no more work is not noticed")
	}
}

// The limit is 300 s before the first step, then max(60 s, 20 × median), or what was asked for.
func TestLimit(t *testing.T) {
	for _, tt := range []struct {
		name    string
		timeout time.Duration
		steps   []time.Duration
		want    time.Duration
	}{
		{"before the first step", 0, nil, 300 * time.Second},
		{"fast steps", 0, []time.Duration{time.Second, time.Second}, 60 * time.Second},
		{"slow steps", 0, []time.Duration{4 * time.Second, 5 * time.Second, 100 * time.Second}, 100 * time.Second},
		{"a first step that took long does not count for ever", 0, append([]time.Duration{time.Hour}, make([]time.Duration, recent)...), 60 * time.Second},
		{"asked for", 7 * time.Second, []time.Duration{time.Hour}, 7 * time.Second},
		{"asked for, before the first step", 7 * time.Second, nil, 7 * time.Second},
	} {
		w, _ := watched(t, Options{Timeout: tt.timeout})
		for _, d := range tt.steps {
			w.Stepped(d)
		}
		if got, steps := w.limit(); got != tt.want || steps != len(tt.steps) {
			t.Errorf("%s: limit %v after %d steps, want %v after %d", tt.name, got, steps, tt.want, len(tt.steps))
		}
	}
}

// The phases before the first step are watched too, by the longer limit.
func TestBeforeTheFirstStep(t *testing.T) {
	w, stalls := watched(t, Options{first: 40 * time.Millisecond, least: time.Hour, tick: 4 * time.Millisecond})
	w.Doing("loading the teacher")
	select {
	case r := <-stalls:
		if r.Doing != "loading the teacher" || r.Limit != 40*time.Millisecond {
			t.Errorf("%+v", r.Beat)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("nothing was reported")
	}
}

// If even the stacks or the state cannot be had, the rest is reported, in time.
func TestWithoutStacks(t *testing.T) {
	never := make(chan string)
	w, stalls := watched(t, Options{Timeout: 20 * time.Millisecond, patience: 60 * time.Millisecond, stack: func() []byte { <-never; return nil }, State: func() string { return <-never }})
	w.Doing("step 1")
	start := time.Now()
	r := <-stalls
	if took := time.Since(start); took > 5*time.Second || !strings.Contains(r.String(), "could not be stopped") || r.State != "did not answer" {
		t.Errorf("after %v: %s", took, r)
	}
}

// Reading and writing large files is progress that nobody need tell. The test waits for what it wants to see instead of
// hoping that a loaded disk writes within some limit.
func TestTransferIsProgress(t *testing.T) {
	path, idle := filepath.Join(t.TempDir(), "a"), make(chan time.Duration, 1<<10)
	w := Start(Options{Timeout: time.Hour, tick: 5 * time.Millisecond, Tick: func(b Beat) { idle <- b.Idle }})
	defer w.Close()
	await := func(what string, ok func(time.Duration) bool) {
		t.Helper()
		for late := time.After(time.Minute); ; {
			select {
			case d := <-idle:
				if ok(d) {
					return
				}
			case <-late:
				t.Fatalf("idle time was never %s", what)
			}
		}
	}
	for range 3 {
		await("10 ms", func(d time.Duration) bool { return d >= 10*time.Millisecond })
		if err := os.WriteFile(path, make([]byte, transfer), 0o600); err != nil {
			t.Fatal(err)
		}
		await("under 10 ms after a transfer", func(d time.Duration) bool { return d < 10*time.Millisecond })
	}
}

func TestTick(t *testing.T) {
	beats := make(chan Beat, 100)
	w := Start(Options{Timeout: time.Hour, Tick: func(b Beat) { beats <- b }, tick: time.Millisecond})
	defer w.Close()
	w.Doing("a")
	w.Stepped(time.Second)
	for b := range beats {
		if b.Doing == "a" && b.Steps == 1 && b.Limit == time.Hour {
			return
		}
	}
}

func TestNil(t *testing.T) {
	var w *Watchdog
	w.Doing("x")
	w.Phase("x")
	w.Follow(func() int64 { return 0 })
	w.Stepped(1)
	w.Close()
}

// A run of two steps that hangs in the third.
func Example() {
	stalled := make(chan Report)
	w := Start(Options{Timeout: 20 * time.Millisecond, Stalled: func(r Report) { stalled <- r }})
	defer w.Close()
	for k := range 2 {
		w.Doing(fmt.Sprint("step ", k))
		w.Stepped(time.Millisecond)
	}
	w.Doing("step 2")
	r := <-stalled
	fmt.Println(r.Steps, "steps, then no progress in", r.Doing)
	// Output: 2 steps, then no progress in step 2
}
