//go:build !windows

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

// A gate is passed by a model alone: a threshold that canaries meet too is void, whatever the model scores.
func TestGateVoid(t *testing.T) {
	for _, tt := range []struct {
		threshold string
		exit      int
		message   string
	}{
		{"25", 0, ""},
		{"5000", 5, "the gate is void: 5000 lets canaries pass: zeroed (4096)"},
		{"1.5", 5, "is above the threshold 1.5"},
	} {
		contracttest.Cases(t, 1)
		code, v := call(t, "eval", "../../testdata/models/gosrc", "--data", "../../examples/gosrc/data/gosrc-val.jsonl.zst", "--max-tokens", "256", "--seq-len", "128", "--threshold", tt.threshold)
		message := ""
		if e, ok := v["error"].(map[string]any); ok {
			message = fmt.Sprint(e["message"])
		}
		if code != tt.exit || v["passed"] != (tt.exit == 0) || !strings.Contains(message, tt.message) || (message == "") != (tt.message == "") {
			t.Errorf("threshold %s: exit %d, passed %v, %q; want exit %d and %q", tt.threshold, code, v["passed"], message, tt.exit, tt.message)
		}
		if n := len(v["canaries"].([]any)); n != 6 {
			t.Errorf("threshold %s: %d canaries", tt.threshold, n)
		}
	}
}

type lostDevice struct{ error }

func (lostDevice) DeviceLost() bool { return true }

// A device that is lost is no canary that failed: the error of a lost one is told from a model's own.
func TestDeviceLost(t *testing.T) {
	model := fault.New(fault.Inference, "the loss is not finite")
	lost := fault.New(fault.Inference, "the device was lost").Because(lostDevice{errors.New("CUDA_ERROR_ILLEGAL_ADDRESS")})
	if deviceLost(model) || !deviceLost(lost) || !deviceLost(fmt.Errorf("canary: %w", lost)) {
		t.Errorf("model %v, lost %v", deviceLost(model), deviceLost(lost))
	}
}

// A gate that a signal cut short has no verdict: canaries that were not scored may have passed.
func TestGateInterrupted(t *testing.T) {
	dir := t.TempDir()
	write := func(name, line string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(strings.Repeat(line+"\n", 60)), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	text := []string{"-d", "../../examples/gosrc/data/gosrc-val.jsonl.zst", "--max-tokens", "2048", "--threshold", "30"}
	choice := []string{"--task", "choice", "-d", write("choice.jsonl", `{"prompt":"package","choices":[" main"," 7"],"answer":0}`), "--threshold", "0"}
	match := []string{"--task", "match", "-d", write("match.jsonl", `{"prompt":"package","answer":" main"}`), "--threshold", "0"}
	for _, args := range [][]string{append(text, "--json"), append(choice, "--json"), append(match, "--json"), text} {
		contracttest.Cases(t, 1)
		code, stdout := interruptCanary(t, args...)
		name := strings.Join(args, " ")
		if code != 20 {
			t.Errorf("%s: exit %d, want 20", name, code)
		}
		if args[len(args)-1] != "--json" {
			if !strings.Contains(stdout, "The gate was not judged: 1 of 6 canaries scored.") || strings.Contains(stdout, "passes the gate") {
				t.Errorf("%s:\n%s", name, stdout)
			}
			continue
		}
		var v struct {
			Passed   *bool `json:"passed"`
			Due      int   `json:"canaries_due"`
			Canaries []any
		}
		if err := json.Unmarshal([]byte(stdout), &v); err != nil || v.Passed != nil || len(v.Canaries) != 1 || v.Due != 6 {
			t.Errorf("%s: %v, passed %v, %d of %d canaries", name, err, v.Passed != nil && *v.Passed, len(v.Canaries), v.Due)
		}
	}
}

// interruptCanary starts apr eval, interrupts it while it scores the second canary, and returns its exit code and its stdout.
func interruptCanary(t *testing.T, args ...string) (int, string) {
	t.Helper()
	c := exec.Command(program(t), append([]string{"eval", "../../testdata/models/gosrc", "--backend", "cpu", "--verbose", "--log-format", "json"}, args...)...)
	var stdout strings.Builder
	c.Stdout = &stdout
	stderr, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	canaries := 0
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		if strings.Contains(lines.Text(), `"msg":"canary"`) {
			if canaries++; canaries == 2 {
				_ = c.Process.Signal(syscall.SIGINT)
			}
		}
	}
	_ = c.Wait() // the exit code says it
	return c.ProcessState.ExitCode(), stdout.String()
}
