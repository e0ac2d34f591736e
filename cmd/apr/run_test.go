//go:build !windows

package main

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestBatchIsPrintedAtOnce: what was made of prompts is on stdout when a signal comes amid later ones.
func TestBatchIsPrintedAtOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prompts.jsonl")
	if err := os.WriteFile(file, []byte(strings.Repeat(`{"prompt": "package main"}`+"\n", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(program(t), "run", "../../testdata/models/gosrc", "--batch-jsonl", file, "-n", "64", "--no-gpu")
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for lines := bufio.NewScanner(stdout); lines.Scan(); n++ {
		if !strings.HasPrefix(lines.Text(), `{"prompt":"package main","text":`) || !strings.HasSuffix(lines.Text(), "}") {
			t.Errorf("line %d is %q", n+1, lines.Text())
		}
		if n == 2 {
			if err := c.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
		}
	}
	var exit *exec.ExitError
	if err := c.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 20 {
		t.Errorf("ended with %v, want exit 20", err)
	}
	if n < 3 || n > 900 {
		t.Errorf("%d lines, want those until the signal", n)
	}
}
