package main

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"apr/internal/fault"
)

// A run that a full disk has stopped goes on once there is room; one that never began has nothing to go on with.
func TestFullDiskSaysHowToGoOn(t *testing.T) {
	t.Chdir(t.TempDir())
	o := &distillOptions{RunsDir: "runs"}
	full := func() *fault.Error {
		return fault.In(fault.IO, "runs/mine/steps.jsonl", "cannot be written").Because(&os.PathError{Op: "write", Path: "steps.jsonl", Err: syscall.ENOSPC})
	}
	hint := func(err error) string {
		f := (*fault.Error)(nil)
		if !errors.As(o.howToGoOn("runs/mine", false, err), &f) {
			t.Fatalf("%v is no fault", err)
		}
		return f.Hint
	}
	if got := hint(full()); got != "" {
		t.Errorf("before there is a run: %q", got)
	}
	if err := os.MkdirAll("runs/mine", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join("runs/mine", "manifest.json"), []byte(`{"schema": "apr.manifest/1", "run_id": "mine"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	const want = "make room, then go on with `apr runs resume mine`"
	if got := hint(errors.Join(full(), full())); got != want {
		t.Errorf("hint %q, want %q", got, want)
	}
	f := fault.New(fault.Stopped, "rank 1 of 2 is gone")
	const ranks = "start all ranks as before, each with --resume: they go on from the last checkpoint"
	if o.howToGoOn("runs/mine", true, f); f.Hint != ranks {
		t.Errorf("hint of a rank that a launcher started: %q", f.Hint)
	}
	if got := hint(full().WithHint("another")); got != "another" {
		t.Errorf("a hint of its own became %q", got)
	}
	if got := hint(fault.In(fault.IO, "runs/mine/steps.jsonl", "cannot be written")); got != "" {
		t.Errorf("another reason: %q", got)
	}
}
