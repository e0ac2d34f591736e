//go:build !windows

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"apr/run/diagnose"
	runs "apr/run/list"
	runlog "apr/run/log"
	"apr/run/report"
)

// findings diagnoses a run and reads what was written.
func findings(t *testing.T, dir string) (f diagnose.Findings) {
	t.Helper()
	if code, v := call(t, "runs", "diagnose", dir); code != 0 {
		t.Fatalf("diagnose: exit %d, %v", code, v)
	}
	b, err := os.ReadFile(filepath.Join(dir, diagnose.File))
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// A run is stopped by Ctrl-C, resumed, killed, resumed again, and completes. Why it is in its state is what the last attempt shows,
// and its times are those of all attempts: one number each, wherever they stand.
func TestAttempts(t *testing.T) {
	l := newLab(t)
	dir := l.path("run")
	flags := []string{"--checkpoint-every", "2", "--control", "ce", "--eval-data", l.path("held.txt")}
	if err := os.WriteFile(l.path("held.txt"), []byte(strings.Repeat("func sub(a, b int) int {\n\treturn a - b\n}\n", 20)), 0o600); err != nil {
		t.Fatal(err)
	}
	again := append(flags, "--resume")
	drop := func(args []string) []string { // the lab's --val-fraction excludes --eval-data
		for i, a := range args {
			if a == "--val-fraction" {
				return append(args[:i:i], args[i+2:]...)
			}
		}
		return args
	}
	first := l.command("run", flags...)
	first.Args = drop(first.Args)
	if code := interrupt(t, first, syscall.SIGINT); code != 20 {
		t.Fatalf("interrupted: exit %d, want 20", code)
	}
	if f := findings(t, dir); f.Cause != "a signal" || f.Status != runlog.Stopped || !strings.HasPrefix(f.Fix, "--resume continues from checkpoints/step-") {
		t.Errorf("after the signal: %+v", f)
	}
	second := l.command("run", again...)
	second.Args = drop(second.Args)
	kill(t, second, "step 21/")
	f := findings(t, dir)
	if f.Status != runlog.Failed || f.Cause != diagnose.Unknown || f.RootCause != diagnose.Unknown || len(f.Findings) != 1 || f.Findings[0].ID != "ended" {
		t.Errorf("killed after the signal: %+v", f)
	}
	third := l.command("run", append(again, "--json")...)
	third.Args = drop(third.Args)
	out, err := third.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if f := findings(t, dir); f.Cause != "" || len(f.Findings) > 0 {
		t.Errorf("when it is over: %+v", f)
	}
	var said struct {
		Speed   float64 `json:"tokens_per_second"`
		Seconds float64 `json:"duration_seconds"`
		InSteps float64 `json:"seconds_in_steps"`
	}
	if err := json.Unmarshal(out, &said); err != nil {
		t.Fatal(err)
	}
	sameTimes(t, dir, said.Speed, said.InSteps, said.Seconds)
	if code, v := call(t, "verify", dir); code != 0 {
		t.Errorf("verify: exit %d: %v", code, v["error"])
	}
}

// kill starts c and ends it with SIGKILL when its log holds a text.
func kill(t *testing.T, c *exec.Cmd, when string) {
	t.Helper()
	stderr, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		if strings.Contains(lines.Text(), when) && !killed {
			killed = true
			if err := c.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Wait(); err == nil || !killed {
		t.Fatalf("ended with %v, killed %v", err, killed)
	}
}

// sameTimes requires speed and times to be the same in receipt, report, list of metrics and steps.
func sameTimes(t *testing.T, dir string, speed, inSteps, seconds float64) {
	t.Helper()
	r, err := runlog.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	receipt, ok := r.Receipt.Result.(map[string]any)
	if !ok || receipt["tokens_per_second"] != speed || receipt["duration_seconds"] != seconds || receipt["seconds_in_steps"] != inSteps {
		t.Errorf("the receipt says %v tokens/s, %v s, %v s in steps; the command %v, %v, %v",
			receipt["tokens_per_second"], receipt["duration_seconds"], receipt["seconds_in_steps"], speed, seconds, inSteps)
	}
	all := 0.0
	for _, s := range r.Steps {
		all += s.MS.Total / 1e3
	}
	if !(seconds >= all) {
		t.Errorf("%v s in all, %v s in steps", seconds, all)
	}
	sum := runlog.Sum(r.Steps, "student")
	for name, got := range map[string]float64{"steps.jsonl": sum.TokensPerSecond(), "runs compare": float64(runs.Metrics(r)["tokens_per_second"])} {
		if !(math.Abs(got-speed) <= 1e-9*speed) {
			t.Errorf("%s: %v tokens/s, want %v", name, got, speed)
		}
	}
	facts := map[string]string{}
	for _, f := range report.New(r).Facts {
		facts[f.Name] = f.Value
	}
	want := fmt.Sprintf("%.0f tokens/s", math.Round(speed))
	if strings.ReplaceAll(facts["speed"], ",", "") != want || facts["time"] == "" || facts["time in steps"] != "" {
		t.Errorf("the report says %v, want %s", facts, want)
	}
}

// Whatever a finished run holds, after all that may write into it, is its user's alone.
func TestRunIsPrivate(t *testing.T) {
	dir := smallRun(t)
	for _, args := range [][]string{{"runs", "diagnose", "run"}, {"runs", "list", "--dir", "."}, {"distill", "teacher", "--student-config", "student.json", "-d", "train.jsonl",
		"--eval-data", "held.jsonl", "--steps", "5", "--batch-size", "2", "--grad-accum", "2", "--seq-len", "16", "--checkpoint-every", "2", "--control", "ce", "--backend", "cpu",
		"-o", "run", "--resume"}} {
		if code, v := call(t, args...); code != 0 {
			t.Fatalf("%v: exit %d: %v", args, code, v)
		}
	}
	n := 0
	err := filepath.WalkDir(filepath.Join(dir, "run"), func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		n++
		if want := map[bool]fs.FileMode{true: 0o700, false: 0o600}[e.IsDir()]; info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode().Perm(), want)
		}
		return nil
	})
	if err != nil || n < 20 {
		t.Errorf("%d files and folders, %v", n, err)
	}
	if info, err := os.Stat(filepath.Join(dir, ".index.jsonl")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the index: %v, %v", info, err)
	}
}

// No page that apr runs serve shows of a real run holds what fmt prints for an argument that does not fit its verb.
func TestServedPages(t *testing.T) {
	dir := smallRun(t)
	c := exec.Command(program(t), "runs", "serve", "--dir", dir)
	c.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES=-1")
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(c.Process.Signal(syscall.SIGINT), c.Wait()); err != nil {
			t.Error(err)
		}
	}()
	link, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := http.Client{Jar: jar}
	get := func(target string) string {
		t.Helper()
		res, err := browser.Get(target)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v:\n%s", target, res.Status, err, body)
		}
		return string(body)
	}
	base, _, _ := strings.Cut(strings.TrimSpace(link), "/login")
	pages := map[string]string{"the link": get(strings.TrimSpace(link))}
	for _, path := range []string{"/", "/runs/run/", "/runs/run/data.json", "/metrics"} {
		pages[path] = get(base + path)
	}
	for path, want := range map[string]string{"the link": "<h1>Runs</h1>", "/": `<td class="n" data-label="steps">5( of \d+)?</td><td class="n" data-label="loss">\d+\.\d{4}</td><td class="n" data-label="held-out nats">\d+\.\d{4}`,
		"/runs/run/": "<h1>", "/runs/run/data.json": `"charts"`, "/metrics": "apr_loss"} {
		body := pages[path]
		if !regexp.MustCompile(want).MatchString(body) {
			t.Errorf("%s lacks %q:\n%.2000s", path, want, body)
		}
		if i := strings.Index(body, "%!"); i >= 0 {
			t.Errorf("%s: %q", path, body[max(0, i-80):min(len(body), i+80)])
		}
	}
}
