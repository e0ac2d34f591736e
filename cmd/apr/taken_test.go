//go:build !windows

package main

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"apr/internal/contracttest"
	runlog "apr/run/log"
)

// A run whose directory is moved away, and whose path another run takes, ends with exit 7, and its
// report is not put there.
func TestRunDirectoryTaken(t *testing.T) {
	contracttest.Cases(t, 1)
	smallRun(t)
	other := make(chan error, 1)
	go func() {
		for { // until the run has begun
			if text, err := os.ReadFile("part/events.jsonl"); err == nil && bytes.Contains(text, []byte(`"checkpoint"`)) {
				break
			}
			time.Sleep(time.Millisecond)
		}
		text, err := os.ReadFile("part/manifest.json")
		if err == nil {
			var d *runlog.Dir
			if d, err = runlog.Open("other", false, false); err == nil {
				defer d.Close()
				err = errors.Join(os.WriteFile("other/manifest.json", text, 0o600),
					os.Rename("part", "moved"), os.Rename("other", "part"))
			}
		}
		other <- err
	}()
	code, v := call(t, "distill", "teacher", "--student-config", "student.json", "-d", "train.jsonl",
		"--val-fraction", "0",
		"--steps", "2000", "--batch-size", "2", "--seq-len", "16", "--checkpoint-every", "1",
		"--control", "none", "--backend", "cpu", "-o", "part")
	if err := <-other; err != nil {
		t.Fatal(err)
	}
	if code != 7 || !strings.Contains(errorText(v), "E-RUN-011") {
		t.Errorf("exit %d: %s", code, errorText(v))
	}
	for _, name := range []string{"part/report.html", "part/receipt.json", "part/checkpoints", "moved/receipt.json"} {
		if _, err := os.Lstat(name); err == nil {
			t.Errorf("%s was written", name)
		}
	}
}
