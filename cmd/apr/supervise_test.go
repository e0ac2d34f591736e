//go:build !windows

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"apr/internal/torture"
)

// lab starts runs of a tiny student in a folder.
type lab struct {
	apr, dir string
}

func newLab(t *testing.T) lab {
	l := lab{program(t), t.TempDir()}
	text := bytes.Repeat([]byte("func add(a, b int) int {\n\treturn a + b\n}\n"), 300)
	if err := errors.Join(os.WriteFile(l.path("config.json"), []byte(signalConfig), 0o600), os.WriteFile(l.path("data.txt"), text, 0o600)); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l lab) path(names ...string) string {
	return filepath.Join(append([]string{l.dir}, names...)...)
}

// command is a run into the folder out.
func (l lab) command(out string, more ...string) *exec.Cmd {
	args := slices.Concat([]string{"distill", "../../testdata/models/gosrc", "--student-config", l.path("config.json"), "-d", l.path("data.txt"),
		"--val-fraction", "0", "--log-every", "1", "-o", l.path(out), "--steps", "60", "--batch-size", "1", "--seq-len", "16"}, more)
	c := exec.Command(l.apr, args...)
	c.Env = append(os.Environ(), "XDG_CACHE_HOME="+l.dir, "CUDA_VISIBLE_DEVICES=-1")
	return c
}

// student returns the student that a run came to.
func (l lab) student(t *testing.T, out string) []byte {
	t.Helper()
	b, err := os.ReadFile(l.path(out, "student", "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (l lab) run(t *testing.T, out string, more ...string) []byte {
	t.Helper()
	if b, err := l.command(out, more...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	return l.student(t, out)
}

// code returns the exit code of an ended command, −1 for one that a signal ended.
func code(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -2
}

func contains(t *testing.T, path string, want ...string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	for _, w := range want {
		if !strings.Contains(string(b), w) {
			t.Errorf("%s lacks %q:\n%.3000s", path, w, b)
		}
	}
}

// A run that hangs, here because nobody reads what it logs, ends with exit 22 within its limit and ten seconds, leaves
// its stacks and an event, and goes on from its last checkpoint to the bits of the unbroken run.
func TestStall(t *testing.T) {
	l := newLab(t)
	want := l.run(t, "whole", "-q")
	c := l.command("hung", "--checkpoint-every", "5", "--stall-timeout", "2s")
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	const setPipeSize = 1031 // F_SETPIPE_SZ of Linux: a page holds some twenty lines
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, write.Fd(), setPipeSize, 4096); errno != 0 {
		t.Fatal(errno)
	}
	c.Stderr = write
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	limit := time.AfterFunc(60*time.Second, func() { _ = c.Process.Kill() })
	if err := c.Wait(); code(err) != 22 {
		t.Errorf("exit %d, want 22", code(err))
	}
	limit.Stop()
	contains(t, l.path("hung", "stall.txt"), "no progress for 2",
		"phase: leg student\n", "last operation: ", "device: cpu (", "stacks of all goroutines",
		"goroutine ", "distillDisplay")
	contains(t, l.path("hung", "events.jsonl"), `"kind":"stall"`, `"phase":"leg student"`, `"device":"cpu (`)
	if got := l.run(t, "hung", "--checkpoint-every", "5", "--resume", "-q"); !bytes.Equal(got, want) {
		t.Error("the resumed student differs from that of the unbroken run")
	}
}

// children returns the processes whose parent is pid.
func children(pid int) (out []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is well formed
	for _, path := range all {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			if id, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
				out = append(out, id)
			}
		}
	}
	return out
}

// follow starts a command and calls at with each line of its stderr.
func follow(t *testing.T, c *exec.Cmd, at func(line string)) (log string, err error) {
	t.Helper()
	stderr, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		text.WriteString(lines.Text() + "\n")
		at(lines.Text())
	}
	return text.String(), c.Wait()
}

// A supervised run whose process is killed goes on by itself, to the bits of the unbroken run, and the death is recorded
// with its evidence. A signal to the supervisor reaches the run, which is then resumable as any other.
func TestSupervise(t *testing.T) {
	l := newLab(t)
	want := l.run(t, "whole", "-q")
	c := l.command("killed", "--supervise", "--checkpoint-every", "5", "--steps", "60")
	done := false
	log, err := follow(t, c, func(line string) {
		if !done && strings.Contains(line, "step 20/") {
			done = true
			for _, pid := range children(c.Process.Pid) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	if err != nil || !done {
		t.Fatalf("%v; killed: %v\n%s", err, done, log)
	}
	if !bytes.Equal(l.student(t, "killed"), want) {
		t.Error("the student differs from that of the unbroken run")
	}
	if !strings.Contains(log, "started again (1 of at most 3") || !strings.Contains(log, "killed by SIGKILL, ") {
		t.Errorf("the death is not told:\n%s", log)
	}
	contains(t, l.path("killed", "events.jsonl"), `"kind":"death"`, `oom_kill`, `"started_again":true`)
	// The run needs no help, and what happened to it is found all the same.
	found, err := exec.Command(l.apr, "runs", "diagnose", l.path("killed")).CombinedOutput()
	chain := regexp.MustCompile(`(?s): completed\n\n.*?restarted: after step 2\d of the student: killed by SIGKILL, ` +
		`.*started again by itself and went on after step \d+; nothing is to be done`)
	if text := string(found); err != nil || !chain.MatchString(text) {
		t.Errorf("%v\n%s", err, text)
	}

	c = l.command("stopped", "--supervise", "--checkpoint-every", "5")
	log, err = follow(t, c, func(line string) {
		if strings.Contains(line, "step 20/") {
			_ = c.Process.Signal(syscall.SIGTERM)
		}
	})
	if code(err) != 20 {
		t.Errorf("exit %d, want 20\n%s", code(err), log)
	}
	if got := l.run(t, "stopped", "--checkpoint-every", "5", "--resume", "-q"); !bytes.Equal(got, want) {
		t.Error("the resumed student differs from that of the unbroken run")
	}
	// The exit code and the JSON are the child's own, once.
	b, err := l.command("refused", "--supervise", "--json", "--seq-len", "9999", "-q").Output()
	if code(err) != 2 || bytes.Count(b, []byte("\n")) != 1 || !bytes.Contains(b, []byte("positions")) {
		t.Errorf("exit %d, stdout %q", code(err), b)
	}
}

// Signals at random moments: exit 20, and the resumed run comes to the bits of the unbroken one. A second signal aborts
// at once, with 130 or 143.
func TestTortureSignals(t *testing.T) {
	l := newLab(t)
	want := l.run(t, "whole", "-q")
	trials, bad, late := torture.Trials(4, 50), 0, 0
	random := rand.New(rand.NewPCG(2, 3))
	kinds := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1}
	for i := 0; i < trials; i++ {
		out, sig := fmt.Sprint("run", i, "-", late), kinds[i%len(kinds)]
		err := signalAt(t, l.command(out), sig, l.path(out, "manifest.json"), time.Duration(random.Int64N(int64(150*time.Millisecond))))
		if code(err) == 0 && late < 3*trials { // it was done before
			late++
			i--
			continue
		}
		if code(err) != 20 {
			bad++
			t.Errorf("trial %d: exit %d after %v, want 20", i, code(err), sig)
			continue
		}
		if b, err := l.command(out, "--resume").CombinedOutput(); err != nil || !bytes.Equal(l.student(t, out), want) {
			bad++
			t.Errorf("trial %d: the resumed run differs: %v\n%s", i, err, b)
		}
	}
	aborts := map[string]bool{}
	for sig, exit := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		aborts[sig.String()] = abort(t, l, sig) == exit
		out, err := exec.Command(l.apr, "runs", "diagnose", l.path("abort-"+sig.String()[:4])).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "cause: a second signal ("+sig.String()+")") {
			t.Errorf("%v: %v\n%s", sig, err, out)
		}
	}
	torture.Row(t, "signals INT, TERM, USR1 at random moments: exit 20, the resumed student the same to the bit", trials, bad,
		"a second one aborts (130, 143): "+torture.Caught(t, aborts))
}

// signalAt sends a signal a while after a file has appeared.
func signalAt(t *testing.T, c *exec.Cmd, sig syscall.Signal, file string, after time.Duration) error {
	t.Helper()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	for {
		if _, err := os.Stat(file); err == nil {
			break
		}
		select {
		case err := <-ended:
			return fmt.Errorf("it ended before it began: %w", err)
		case <-time.After(2 * time.Millisecond):
		}
	}
	time.Sleep(after)
	_ = c.Process.Signal(sig) // it may be done
	return <-ended
}

// abort sends a signal twice, as far apart as a person would, to a run whose steps take long, and returns its exit code.
func abort(t *testing.T, l lab, sig syscall.Signal) int {
	t.Helper()
	c := l.command("abort-"+sig.String()[:4], "--batch-size", "512", "--seq-len", "96")
	sent := false
	_, err := follow(t, c, func(line string) {
		if !sent && strings.Contains(line, "step 1/") {
			sent = true
			for range 2 {
				time.Sleep(time.Second / 5) // at first until the next step is under way
				_ = c.Process.Signal(sig)
			}
		}
	})
	return code(err)
}

// Checkpoints cost at most 2 % of the time of the README's example; the program says what they cost. In short, a few
// steps show that what it says is what its events say.
func TestTortureOverhead(t *testing.T) {
	l := newLab(t)
	c := l.command("run", "--json", "-q", "--checkpoint-every", "20")
	if torture.Whole() {
		c = exec.Command(l.apr, "distill", "../../examples/gosrc/distill.yaml", "-o", l.path("run"), "--json", "-q")
		c.Env = append(os.Environ(), "XDG_CACHE_HOME="+l.dir, "CUDA_VISIBLE_DEVICES=-1")
	}
	b, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	var out struct {
		Checkpoints int
		Waited      float64 `json:"checkpoint_seconds"`
		Seconds     float64 `json:"duration_seconds"`
	}
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	events, err := os.ReadFile(l.path("run", "events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	n, sum := 0, 0.0
	for line := range strings.Lines(string(events)) {
		var e struct {
			Kind   string
			Detail json.RawMessage
		}
		var d struct{ Seconds float64 }
		if json.Unmarshal([]byte(line), &e) == nil && e.Kind == "checkpoint" && json.Unmarshal(e.Detail, &d) == nil {
			n, sum = n+1, sum+d.Seconds
		}
	}
	if n == 0 || n != out.Checkpoints || !(sum > 0 && math.Abs(out.Waited-sum) <= 1e-9*sum) {
		t.Errorf("%d checkpoints in %g s by the events, %d in %g s by the result", n, sum, out.Checkpoints, out.Waited)
	}
	bad, share, of := 0, 100*out.Waited/out.Seconds, "a run of a moment"
	if torture.Whole() {
		of = "the README's example, at most 2 %"
		if !(share <= 2) {
			bad = 1
		}
	}
	torture.Row(t, fmt.Sprintf("time of checkpoints in %s: %.2f s of %.1f s, %.2f %%", of, out.Waited, out.Seconds, share), out.Checkpoints, bad, "–")
}
