//go:build gpu || emulate

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"apr/arch"
	"apr/bench"
	"apr/convert"
	"apr/device/cuda"
	"apr/internal/contracttest"
	"apr/internal/near"
	"apr/modelfile"
	runlog "apr/run/log"
	"apr/tensor"
)

// twoModels is a teacher of random Q4_K_M weights and a new student, with the text that they are tried on.
type twoModels struct {
	teacher, student arch.Config
	text             string // of one epoch
	long             string // of 500 steps; empty: nothing is timed
	batch, seq       string
}

// taught is what a run of the pair left behind.
type taught struct {
	exit    int
	seconds float64
	output  string // of the program
	dir     string
	steps   []runlog.Step
	events  map[string]json.RawMessage // details by name; the last of each
	reasons map[string]string
	busy    []float64 // percent of the GPU's time in the first second of steps and a bit, as NVML saw it
}

// TestCUDAPair distils a Q4_K teacher into a student with fewer vocabulary rows, on a GPU the shapes of Qwen2.5 7B and
// 0.5B. Its subtests judge two runs: an epoch with the teacher in blocks, and on a GPU 500 steps with the backend that the
// rule names.
func TestCUDAPair(t *testing.T) {
	openEmulator(t)
	p, dir := pairOf(t), t.TempDir()
	files := sync.OnceValue(func() error { return p.write(dir) })
	once := func(name, backend string, flags ...string) func(t *testing.T) *taught {
		var run *taught
		return func(t *testing.T) *taught {
			t.Helper()
			if run == nil {
				if err := files(); err != nil {
					t.Fatal(err)
				}
				run = p.run(t, dir, name, backend, flags...)
			}
			if run.exit != 0 {
				t.Fatalf("exit %d: %s", run.exit, run.output)
			}
			return run
		}
	}
	epoch := once("epoch", "q4k", "-d", p.text, "--epochs", "1", "--teacher-backend", "q4k")
	t.Run("epoch", func(t *testing.T) { p.wroteStudent(t, epoch(t)) })
	t.Run("first step", func(t *testing.T) { p.aligned(t, epoch(t)) })
	if p.long == "" {
		return
	}
	long := once("long", "cublas", "-d", p.long, "--steps", "500", "--probe", "off")
	t.Run("unasked", func(t *testing.T) { unasked(t, long(t)) })
	t.Run("500 steps", func(t *testing.T) { fiveHundred(t, long(t)) })
	t.Run("step time", func(t *testing.T) { stepTime(t, long(t)) })
}

// wroteStudent: an epoch ended with exit 0, and the student that was written opens and is whole.
func (p twoModels) wroteStudent(t *testing.T, r *taught) {
	var receipt runlog.Receipt
	text, err := os.ReadFile(filepath.Join(r.dir, "receipt.json"))
	if err == nil {
		err = json.Unmarshal(text, &receipt)
	}
	if err != nil || receipt.Status != runlog.Completed {
		t.Errorf("receipt %q, %v", receipt.Status, err)
	}
	if len(r.steps) < 2 {
		t.Errorf("an epoch of %d steps", len(r.steps))
	}
	for _, name := range []string{"student.apr", "student"} {
		f, err := modelfile.Open(filepath.Join(r.dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if err := f.CheckTensors(); err != nil || f.Config.Vocab != p.student.Vocab || len(f.Config.Layers) != len(p.student.Layers) {
			t.Errorf("%s: %v, %v", name, f.Config, err)
		}
		f.Close()
	}
	var held struct {
		Stored int64 `json:"file_bytes"`
		Held   int64 `json:"device_bytes"`
	}
	if err := json.Unmarshal(r.events["teacher weights"], &held); err != nil || held.Held == 0 || held.Held > 2*held.Stored {
		t.Errorf("the teacher's %d bytes are %d on the device, %v", held.Stored, held.Held, err)
	}
	var memory struct{ Peak map[string]int64 }
	if err := json.Unmarshal(r.events["device memory"], &memory); err != nil || len(memory.Peak) == 0 {
		t.Fatalf("no record of memory: %v", err)
	}
	var peak int64
	for _, n := range memory.Peak {
		peak += n
	}
	t.Logf("%d steps; the device held %.2f GB at most, the teacher %.2f GB", len(r.steps), float64(peak)/1e9, float64(held.Held)/1e9)
	contracttest.Cases(t, len(r.steps))
}

// aligned: the first step ended, and the loss ran over the student's rows, which are fewer than the teacher's.
func (p twoModels) aligned(t *testing.T, r *taught) {
	if len(r.steps) == 0 || !r.steps[0].Finite {
		t.Fatalf("%d steps", len(r.steps))
	}
	var v map[string]int
	want := map[string]int{"effective_vocab": p.student.Vocab, "teacher_rows": p.teacher.Vocab, "student_rows": p.student.Vocab}
	if err := json.Unmarshal(r.events["vocabulary"], &v); err != nil || fmt.Sprint(v) != fmt.Sprint(want) || p.teacher.Vocab <= p.student.Vocab {
		t.Errorf("vocabulary %v (%v), want %v", v, err, want)
	}
	contracttest.Cases(t, 1)
}

// unasked: without an override the teacher is expanded, and the GPU is at work from the first step on.
func unasked(t *testing.T, r *taught) {
	var choice struct{ Asked, Backend string }
	if err := json.Unmarshal(r.events["teacher backend"], &choice); err != nil || choice.Asked != "auto" || choice.Backend != "cublas" {
		t.Errorf("asked for %q, got %q (%s), %v", choice.Asked, choice.Backend, r.reasons["teacher backend"], err)
	}
	if len(r.busy) == 0 {
		t.Fatal("NVML never said how busy the GPU is")
	}
	mean := 0.0
	for _, b := range r.busy {
		mean += b / float64(len(r.busy))
	}
	near.Row(t, "first second of steps: percent of the time in which the GPU idles", 100-mean, 50)
	contracttest.Cases(t, len(r.busy))
}

// fiveHundred: 500 steps take less than half an hour, and none as long as 4 s.
func fiveHundred(t *testing.T, r *taught) {
	if len(r.steps) != 500 {
		t.Fatalf("%d steps, want 500", len(r.steps))
	}
	near.Row(t, "500 steps with a 7B teacher: seconds from start to end", r.seconds, 30*60)
	near.Row(t, "500 steps with a 7B teacher: seconds of the longest", r.longest(0), 4)
	contracttest.Cases(t, len(r.steps))
}

// stepTime: from the second step on (the first plans nothing any more, but is the first) a step takes less than 1 s.
func stepTime(t *testing.T, r *taught) {
	near.Row(t, "7B teacher, 32 rows of 256: seconds of the longest step from step 1 on", r.longest(1), 1)
	contracttest.Cases(t, len(r.steps)-1)
}

// longest returns the seconds of the longest step from some step on.
func (r *taught) longest(from int) (s float64) {
	for _, step := range r.steps[from:] {
		s = max(s, step.MS.Total/1e3)
	}
	return s
}

// write makes the teacher, teacher.apr, and the configuration of the student. The tokenizer has as many ids as the student
// has rows, so that every row of it is trained.
func (p twoModels) write(dir string) error {
	tok, err := filledTokenizer(p.student.Vocab)
	if err != nil {
		return err
	}
	p.student.EOS, p.teacher.EOS = []int{int(tok.EOS())}, []int{int(tok.EOS())}
	f, err := bench.RandomQuantised(p.teacher, 1, convert.Q4_K_M)
	if err != nil {
		return err
	}
	if err := writeModel(filepath.Join(dir, "teacher.apr"), f, tok); err != nil {
		return err
	}
	config, err := arch.HFConfig(p.student, tensor.BF16)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600)
}

// run distils, as a process of its own, and reads what it left. A run whose teacher is computed otherwise than by backend is
// ended: nothing else of it is wanted.
func (p twoModels) run(t *testing.T, dir, name, backend string, flags ...string) *taught {
	t.Helper()
	r := &taught{dir: filepath.Join(dir, name), events: map[string]json.RawMessage{}, reasons: map[string]string{}}
	// Random weights repeat themselves.
	args := slices.Concat([]string{"distill", filepath.Join(dir, "teacher.apr"), "--student-config", filepath.Join(dir, "config.json"), "--backend", "cuda", "--allow-odd-weights",
		"--batch-size", p.batch, "--seq-len", p.seq, "--val-fraction", "0", "--checkpoint-every", "0", "-o", r.dir}, flags)
	c := exec.Command(program(t), args...)
	c.Env = append(os.Environ(), "XDG_CACHE_HOME="+dir)
	ended := make(chan struct{})
	var wait sync.WaitGroup
	if p.long != "" {
		wait.Go(func() { r.busy = busyInFirstSteps(filepath.Join(r.dir, "events.jsonl"), ended) })
	}
	wait.Go(func() { r.endUnless(c, backend, ended) })
	start := time.Now()
	out, err := c.CombinedOutput()
	r.seconds, r.exit, r.output = time.Since(start).Seconds(), code(err), string(out[max(0, len(out)-3000):])
	close(ended)
	wait.Wait()
	eachLine(filepath.Join(r.dir, "steps.jsonl"), func(line []byte) {
		var s runlog.Step
		if json.Unmarshal(line, &s) == nil {
			r.steps = append(r.steps, s)
		}
	})
	eachLine(filepath.Join(r.dir, "events.jsonl"), func(line []byte) {
		var e struct {
			Name, Reason string
			Detail       json.RawMessage
		}
		if json.Unmarshal(line, &e) == nil {
			r.events[e.Name], r.reasons[e.Name] = e.Detail, e.Reason
		}
	})
	return r
}

// endUnless kills a run as soon as it has chosen another backend.
func (r *taught) endUnless(c *exec.Cmd, backend string, ended <-chan struct{}) {
	for chosen := ""; chosen == ""; {
		select {
		case <-ended:
			return
		case <-time.After(50 * time.Millisecond):
		}
		eachLine(filepath.Join(r.dir, "events.jsonl"), func(line []byte) {
			var e struct {
				Name   string
				Detail struct{ Backend string }
			}
			if json.Unmarshal(line, &e) == nil && e.Name == "teacher backend" {
				chosen = e.Detail.Backend
			}
		})
		if chosen != "" && chosen != backend {
			_ = c.Process.Kill() // one that has ended is as good
		}
	}
}

// eachLine calls f with the lines of a file, none if it does not exist.
func eachLine(path string, f func(line []byte)) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		f(lines.Bytes())
	}
}

// busyInFirstSteps asks NVML how busy the GPU is from the first step of a run on, for 1.2 s. NVML tells of a period that is
// over, so the first answers are of the time before and are left out.
func busyInFirstSteps(events string, ended <-chan struct{}) (busy []float64) {
	d, err := cuda.Open(cuda.Options{})
	if err != nil {
		return nil
	}
	defer d.Close()
	m := d.Watch(50 * time.Millisecond)
	defer m.Close()
	var began time.Time
	for {
		select {
		case <-ended:
			return busy
		case <-time.After(20 * time.Millisecond):
		}
		if began.IsZero() {
			eachLine(events, func(line []byte) {
				if strings.Contains(string(line), `"name":"leg"`) {
					began = time.Now()
				}
			})
			continue
		}
		since := time.Since(began)
		if u := m.Last().Utilisation; u != nil && since > 250*time.Millisecond {
			busy = append(busy, float64(*u))
		}
		if since > 1200*time.Millisecond {
			return busy
		}
	}
}

// TestCUDAOverride: APR_DISTILL_TEACHER_BACKEND with aprender's name reaches the path that keeps blocks: so the run says,
// and so many bytes the device holds.
func TestCUDAOverride(t *testing.T) {
	openEmulator(t)
	p, dir := twoModels{batch: "1", seq: "16"}, t.TempDir()
	config := filepath.Join(dir, "config.json")
	if err := os.WriteFile(config, []byte(signalConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(gosrc+"-q4_k_m.gguf", filepath.Join(dir, "teacher.apr")); err != nil {
		text, err := os.ReadFile(gosrc + "-q4_k_m.gguf")
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "teacher.apr"), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	held := map[string]int64{}
	for _, name := range []string{"realizar-q4k", "cudatrainer"} {
		t.Setenv("APR_DISTILL_TEACHER_BACKEND", name)
		want := map[string]string{"realizar-q4k": "q4k", "cudatrainer": "cublas"}[name]
		r := p.run(t, dir, name, want, "-d", "../../examples/gosrc/data/gosrc-val.jsonl.zst", "--steps", "1")
		if r.exit != 0 {
			t.Fatalf("%s: exit %d: %s", name, r.exit, r.output)
		}
		var choice struct{ Asked, Backend string }
		if err := json.Unmarshal(r.events["teacher backend"], &choice); err != nil || choice.Backend != want || choice.Asked != want {
			t.Errorf("%s: asked for %q, got %q, %v", name, choice.Asked, choice.Backend, err)
		}
		var bytes struct {
			Held int64 `json:"device_bytes"`
		}
		if err := json.Unmarshal(r.events["teacher weights"], &bytes); err != nil {
			t.Error(err)
		}
		held[name] = bytes.Held
		contracttest.Cases(t, 1)
	}
	if q, c := held["realizar-q4k"], held["cudatrainer"]; q == 0 || !(float64(q) < 0.5*float64(c)) {
		t.Errorf("%d bytes in blocks, %d expanded", q, c)
	}
}
