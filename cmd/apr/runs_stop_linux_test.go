package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	runlog "apr/run/log"
)

// runs calls apr runs in the root folder, and returns what it printed and its exit code.
func (l lab) runs(args ...string) (string, int) {
	c := exec.Command(l.apr, append([]string{"runs"}, args...)...)
	c.Dir, c.Env = "/", append(os.Environ(), "XDG_CACHE_HOME="+l.dir, "CUDA_VISIBLE_DEVICES=-1", "APR_RUNS_DIR="+l.dir)
	out, err := c.CombinedOutput()
	return string(out), code(err)
}

// Ctrl-C says what to call, and that call, from any folder and with nothing else, comes to the student of the run
// that nothing stopped. So it does after kill -9, with a checkpoint and without one.
func TestRunsResume(t *testing.T) {
	l := newLab(t)
	want := l.run(t, "whole", "-q")
	resume := func(name, says string) {
		t.Helper()
		if out, code := l.runs("resume", name, "--log-format", "text"); code != 0 || !strings.Contains(out, says) || !bytes.Equal(l.student(t, name), want) {
			t.Errorf("%s: exit %d, the student of the unbroken run: %v\n%s", name, code, bytes.Equal(l.student(t, name), want), out)
		}
		if out, code := l.runs("resume", name); code != 5 || !strings.Contains(out, "is complete") {
			t.Errorf("%s, complete: exit %d\n%s", name, code, out)
		}
	}
	sent := false
	c := l.command("mine")
	c.Env = append(c.Env, "APR_RUNS_DIR="+l.dir)
	log, err := follow(t, c, func(line string) {
		if !sent && strings.Contains(line, "step 3/") {
			sent = true
			_ = c.Process.Signal(os.Interrupt)
		}
	})
	if code(err) != 20 || !strings.Contains(log, "\napr: stopped after step ") || !strings.HasSuffix(log, "; go on with `apr runs resume mine`\n") || strings.Contains(log, "error") {
		t.Errorf("Ctrl-C: exit %d\n%s", code(err), log)
	}
	resume("mine", "the student continues after step ")
	for name, every := range map[string]string{"killed": "10", "early": "0"} {
		kill(t, l.command(name, "--checkpoint-every", every), "step 21/")
		resume(name, map[string]string{"10": "the student continues after step 20 ", "0": "the student has no checkpoint: it starts again at step 0"}[every])
	}
}

// A run that was supervised is supervised again: killed after its resumption, it goes on by itself.
func TestRunsResumeSupervised(t *testing.T) {
	l := newLab(t)
	want := l.run(t, "whole", "-q")
	if exit := interrupt(t, l.command("watched", "--supervise", "--checkpoint-every", "5"), syscall.SIGTERM); exit != 20 {
		t.Fatalf("exit %d, want 20", exit)
	}
	c := exec.Command(l.apr, "runs", "resume", "watched", "--log-format", "text")
	c.Dir, c.Env = "/", append(os.Environ(), "XDG_CACHE_HOME="+l.dir, "CUDA_VISIBLE_DEVICES=-1", "APR_RUNS_DIR="+l.dir)
	killed := false
	log, err := follow(t, c, func(line string) {
		if !killed && strings.Contains(line, "step 20/") {
			killed = true
			for _, pid := range children(c.Process.Pid) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	if err != nil || !killed || !strings.Contains(log, "started again (1 of at most 3") || !bytes.Equal(l.student(t, "watched"), want) {
		t.Errorf("%v, killed: %v\n%s", err, killed, log)
	}
}

// working starts a run of many steps and waits for its third.
func (l lab) working(t *testing.T, name string, more ...string) *exec.Cmd {
	t.Helper()
	c := l.command(name, append([]string{"--steps", "1000000"}, more...)...)
	stderr, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill() }) // it may have ended
	lines, steps := bufio.NewScanner(stderr), make(chan bool, 1)
	go func() {
		for lines.Scan() {
			if strings.Contains(lines.Text(), "step 3/") || strings.Contains(lines.Text(), "step 1/") && len(more) > 2 {
				steps <- true
			}
		}
	}()
	select {
	case <-steps:
	case <-time.After(time.Minute):
		t.Fatal("no step in a minute")
	}
	return c
}

// apr runs stop ends the process that holds the run's lock and began when it says: no other one, whatever the records
// name.
func TestRunsStop(t *testing.T) {
	l := newLab(t)
	c := l.working(t, "long")
	bystander := exec.Command("sleep", "1000")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	gone := make(chan error, 1)
	go func() { gone <- bystander.Wait() }()
	name := l.path("long", ".writer")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var own runlog.Process
	if err := json.Unmarshal(text, &own); err != nil || own.PID != c.Process.Pid {
		t.Fatalf("%s: %v", text, err)
	}
	pid := bystander.Process.Pid
	for what, wrong := range map[string]struct {
		process runlog.Process
		id      string
	}{
		"a number that another process has by now": {runlog.Process{PID: pid, Started: own.Started, Host: own.Host}, "E-RUN-032"},
		"a process without the lock":               {runlog.Process{PID: pid, Started: runlog.ProcessStart(pid), Host: own.Host}, "E-RUN-034"},
		"the holder, at another time":              {runlog.Process{PID: own.PID, Started: own.Started + "0", Host: own.Host}, "E-RUN-032"},
		"the first process":                        {runlog.Process{PID: 1, Started: own.Started, Host: own.Host}, "E-RUN-032"},
		"a process group":                          {runlog.Process{PID: -pid, Started: own.Started, Host: own.Host}, "E-RUN-030"},
		"every process":                            {runlog.Process{PID: -1, Started: "", Host: own.Host}, "E-RUN-030"},
		"another machine's":                        {runlog.Process{PID: pid, Started: own.Started, Host: "x"}, "E-RUN-033"},
		"nothing":                                  {runlog.Process{}, "E-RUN-030"},
	} {
		b, err := json.Marshal(wrong.process)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, code := l.runs("stop", "long"); code != 5 || !strings.Contains(out, wrong.id) || !strings.Contains(out, "nothing was signalled") {
			t.Errorf("%s: exit %d, want 5 and %s\n%s", what, code, wrong.id, out)
		}
	}
	select {
	case <-gone:
		t.Error("a bystander was signalled")
	case <-time.After(100 * time.Millisecond):
	}
	_ = bystander.Process.Kill()
	if _, held := runlog.LockedBy(l.path("long")); !held {
		t.Error("the run was signalled")
	}
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := l.runs("rm", "long", "--yes"); code != 5 || !strings.Contains(out, "is running") {
		t.Errorf("rm of a running run: exit %d\n%s", code, out)
	}
	if out, code := l.runs("resume", "long"); code != 5 || !strings.Contains(out, "is running") {
		t.Errorf("resume of a running run: exit %d\n%s", code, out)
	}
	stops(t, l, c, "long")
	stops(t, l, l.working(t, "watched", "--supervise"), "watched")
	if out, code := l.runs("rm", "long", "--yes"); code != 0 || !strings.Contains(out, "removed ") {
		t.Errorf("rm: exit %d\n%s", code, out)
	}
	if _, err := os.Lstat(l.path("long")); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
}

// stops stops a run, and then again.
func stops(t *testing.T, l lab, c *exec.Cmd, name string) {
	t.Helper()
	for range 2 {
		out, exit := l.runs("stop", name)
		if exit != 0 || !strings.HasPrefix(out, "stopped after step ") || !strings.HasSuffix(out, "; go on with `apr runs resume "+name+"`\n") {
			t.Errorf("%s: exit %d\n%s", name, exit, out)
		}
	}
	if err := c.Wait(); code(err) != 20 {
		t.Errorf("%s: the run's exit %d, want 20", name, code(err))
	}
}

// A run that was told to stop is not told again by the next call, which would end it without a checkpoint; --now does.
func TestRunsStopTwice(t *testing.T) {
	l := newLab(t)
	slow := []string{"--batch-size", "512", "--seq-len", "96"}
	patient := l.working(t, "patient", slow...)
	for i := range 3 {
		if out, code := l.runs("stop", "patient", "--wait", "0s", "--json"); code != 0 || strings.Contains(out, `"signalled":true`) != (i == 0) {
			t.Errorf("call %d: exit %d\n%s", i, code, out)
		}
		time.Sleep(300 * time.Millisecond)
	}
	if err := patient.Wait(); code(err) != 20 {
		t.Errorf("told three times: exit %d, want 20", code(err))
	}
	hurried := l.working(t, "hurried", slow...)
	out, exit := l.runs("stop", "hurried", "--now")
	if err := hurried.Wait(); code(err) != 128+int(syscall.SIGTERM) || exit != 0 {
		t.Errorf("--now: exit %d, want 143; stop itself %d\n%s", code(err), exit, out)
	}
}

// The folder of a run is removed with all that is in it, and nothing that links in it lead to.
func TestRunsRemoveStaysInside(t *testing.T) {
	dir := t.TempDir()
	path := func(names ...string) string { return filepath.Join(append([]string{dir}, names...)...) }
	manifest := []byte(fmt.Sprintf(`{"schema":%q,"run_id":"x"}`, runlog.ManifestSchema))
	for _, folder := range []string{"runs/mine/checkpoints", "runs/outer/inner", "runs/other", "treasure"} {
		if err := os.MkdirAll(path(folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, run := range []string{"runs/mine", "runs/outer", "runs/outer/inner"} {
		if err := os.WriteFile(path(run, "manifest.json"), manifest, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"treasure/gold", "runs/other/manifest.json"} {
		if err := os.WriteFile(path(file), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{"runs/mine/link", "runs/mine/checkpoints/step-000001", "runs/mine/student"} {
		if err := os.Symlink(path("treasure"), path(link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(path("runs/mine"), path("runs/alias")); err != nil {
		t.Fatal(err)
	}
	t.Chdir(path("runs/mine/checkpoints"))
	for run, want := range map[string]int{"runs/other": 3, "treasure": 3, "runs/alias": 24, "runs/outer": 5, "runs/mine": 5, "nothing": 3} {
		if code, v := call(t, "runs", "rm", path(run), "--yes"); code != want {
			t.Errorf("%s: exit %d, want %d: %v", run, code, want, v["error"])
		}
	}
	t.Chdir(dir)
	if code, v := call(t, "runs", "rm", path("runs/mine")); code != 2 {
		t.Errorf("with nobody to ask: exit %d: %v", code, v["error"])
	}
	if err := os.Symlink(path("treasure/gold"), path("runs/mine/.lock")); err != nil {
		t.Fatal(err)
	}
	if code, v := call(t, "runs", "rm", path("runs/mine"), "--yes"); code != 24 {
		t.Errorf("a lock elsewhere: exit %d: %v", code, v["error"])
	}
	if err := os.Remove(path("runs/mine/.lock")); err != nil {
		t.Fatal(err)
	}
	if code, v := call(t, "runs", "rm", path("runs/mine"), "--yes"); code != 0 || v["removed"] != true {
		t.Errorf("exit %d: %v", code, v)
	}
	left, err := os.ReadDir(path("runs"))
	if err != nil || len(left) != 3 {
		t.Errorf("left: %v, %v", left, err)
	}
	if gold, err := os.ReadFile(path("treasure/gold")); err != nil || string(gold) != "{}" {
		t.Errorf("what links lead to was touched: %q, %v", gold, err)
	}
}
