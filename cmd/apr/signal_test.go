//go:build !windows

package main

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	runlog "apr/run/log"
)

// program returns the path of this test binary under the name apr, which runs the program.
func program(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "apr")
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	return path
}

const signalConfig = `{"model_type":"qwen2","hidden_size":32,"intermediate_size":48,"num_hidden_layers":1,"num_attention_heads":2,
"num_key_value_heads":1,"vocab_size":4096,"max_position_embeddings":2048,"tie_word_embeddings":true,"eos_token_id":4093}`

// A signal finishes the step, writes a checkpoint and exits 20; --resume then gives the student of the unbroken run.
func TestSignalThenResume(t *testing.T) {
	defaultHangup(t)
	stopAndResume(t, []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGHUP},
		"--steps", "60", "--batch-size", "2", "--seq-len", "64")
}

// defaultHangup lets children of this test die of HUP, even where nohup started the test: a signal that is caught
// here has its default effect there.
func defaultHangup(t *testing.T) {
	t.Helper()
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(ch) })
}

// A run that nohup started goes on when the terminal is closed, supervised or not.
func TestNohup(t *testing.T) {
	apr, dir := program(t), t.TempDir()
	config := filepath.Join(dir, "config.json")
	if err := os.WriteFile(config, []byte(signalConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, more := range map[string][]string{"alone": nil, "supervised": {"--supervise"}} {
		args := append([]string{apr, "distill", "../../testdata/models/gosrc", "--student-config", config,
			"-d", "../../examples/gosrc/data/gosrc-val.jsonl.zst", "--val-fraction", "0", "--samples", "0", "--log-every", "1",
			"--steps", "20", "--batch-size", "2", "--seq-len", "64", "-o", filepath.Join(dir, name)}, more...)
		c := exec.Command("nohup", args...)
		if code, log := signalled(t, c, syscall.SIGHUP); code != 0 {
			t.Errorf("%s: exit %d, want 0\n%s", name, code, log)
		}
	}
}

// stopAndResume sends signals to runs with the given flags after their third step, and compares the resumed runs with an
// unbroken one.
func stopAndResume(t *testing.T, signals []syscall.Signal, flags ...string) {
	apr, dir := program(t), t.TempDir()
	config := filepath.Join(dir, "config.json")
	if err := os.WriteFile(config, []byte(signalConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	command := func(out string, more ...string) *exec.Cmd {
		args := slices.Concat([]string{"distill", "../../testdata/models/gosrc", "--student-config", config, "-d", "../../examples/gosrc/data/gosrc-val.jsonl.zst",
			"--val-fraction", "0", "--log-every", "1", "-o", filepath.Join(dir, out)}, flags, more)
		c := exec.Command(apr, args...)
		c.Env = append(os.Environ(), "XDG_CACHE_HOME="+dir)
		return c
	}
	if out, err := command("whole").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, sig := range signals {
		t.Run(sig.String(), func(t *testing.T) {
			name := "stopped-" + strings.ReplaceAll(sig.String(), " ", "-")
			if code := interrupt(t, command(name), sig); code != 20 {
				t.Fatalf("exit %d, want 20", code)
			}
			if r, err := runlog.ReadStatus(filepath.Join(dir, name)); err != nil || r.Status != runlog.Stopped {
				t.Errorf("the run is %q (%s), %v; want stopped", r.Status, r.Reason, err)
			}
			if out, err := command(name, "--resume").CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			want, err := os.ReadFile(filepath.Join(dir, "whole", "student", "model.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(dir, name, "student", "model.safetensors"))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Error("the resumed student differs from that of the unbroken run")
			}
		})
	}
}

// interrupt starts c, sends sig after its third step, twice at once as timeout(1) does to a process and its group, and
// returns the exit code.
func interrupt(t *testing.T, c *exec.Cmd, sig syscall.Signal) int {
	t.Helper()
	code, log := signalled(t, c, sig)
	if code <= 0 {
		t.Fatalf("ended with %d\n%s", code, log)
	}
	return code
}

// signalled is interrupt that also returns what c wrote on stderr; the exit code is -1 if the signal ended it.
func signalled(t *testing.T, c *exec.Cmd, sig syscall.Signal) (int, string) {
	t.Helper()
	stderr, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		log.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), "step 3/") {
			for range 2 {
				if err := c.Process.Signal(sig); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	var exit *exec.ExitError
	if err := c.Wait(); err != nil && !errors.As(err, &exit) {
		t.Fatalf("ended with %v\n%s", err, log.String())
	}
	return c.ProcessState.ExitCode(), log.String()
}
