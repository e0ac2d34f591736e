//go:build !windows

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"apr/internal/contracttest"
)

// TestTextsGoOnAfterAKill: a job that was interrupted, or killed in the middle of a line, ends in the file of one that was not, with
// another number of slots too, and makes nothing again that it had finished.
func TestTextsGoOnAfterAKill(t *testing.T) {
	dir := t.TempDir()
	var prompts bytes.Buffer
	for i := range 40 {
		fmt.Fprintf(&prompts, `{"prompt": "package main\n\nfunc f%d(", "source": "s%d"}`+"\n", i%30, i%3)
	}
	data := filepath.Join(dir, "prompts.jsonl")
	if err := os.WriteFile(data, prompts.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	job := func(out string, slots int) *exec.Cmd {
		return exec.Command(program(t), "distill", "../../testdata/models/gosrc", "-d", data, "--stage", "generate", "-o", out, "--max-tokens", "60",
			"--slots", fmt.Sprint(slots), "--backend", "cpu", "--json")
	}
	whole := filepath.Join(dir, "whole.jsonl")
	if out, err := job(whole, 8).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out.jsonl")
	for i, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		contracttest.Cases(t, 1)
		stop(t, job(out, 1+i), signal, out+".part", 4+4*i)
		if _, err := os.Stat(out); err == nil {
			t.Fatalf("after %v there is an output", signal)
		}
	}
	part, err := os.OpenFile(out+".part", os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := part.WriteString(`{"key":"00","tokens":3,"rec`); err != nil {
		t.Fatal(err)
	}
	if err := part.Close(); err != nil {
		t.Fatal(err)
	}
	printed, err := job(out, 5).Output()
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(printed, []byte(`"resumed":0`)) {
		t.Errorf("everything was made again: %s", printed)
	}
	if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, want) {
		t.Errorf("another file than without interruption: %v", err)
	}
}

// stop runs c until path has so many lines, and sends the signal.
func stop(t *testing.T, c *exec.Cmd, signal syscall.Signal, path string, lines int) {
	t.Helper()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	for {
		if raw, err := os.ReadFile(path); err == nil && bytes.Count(raw, []byte("\n")) >= lines {
			break
		}
		time.Sleep(time.Millisecond)
		if err := c.Process.Signal(syscall.Signal(0)); err != nil {
			t.Fatal("it ended before it was stopped")
		}
	}
	if err := c.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
}
