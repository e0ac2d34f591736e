package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"apr/internal/contracttest"
)

// rankOf returns the process that is a rank of the run of c, which rank 0 has started.
func rankOf(c *exec.Cmd, rank int) int {
	for _, pid := range children(c.Process.Pid) {
		environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)) // it may have ended
		if bytes.Contains(environ, fmt.Appendf(nil, "APR_DISTILL_RANK=%d\x00", rank)) {
			return pid
		}
	}
	return 0
}

// ranksCommand is a run of 4 ranks whose bits do not depend on their number.
func (l lab) ranksCommand(out string, more ...string) *exec.Cmd {
	return l.command(out, append([]string{"--backend", "cpu", "--world-size", "4", "--batch-size", "8",
		"--deterministic=world",
		"--checkpoint-every", "5", "--control", "none", "--samples", "0", "--steps", "24"}, more...)...)
}

// A rank that is killed or stopped in the middle of a run of processes is named, the run ends with exit 20 or 22,
// keeps its last checkpoint, and goes on with two ranks, or with one, to the bytes of the undisturbed run.
func TestRankIsLost(t *testing.T) {
	l := newLab(t)
	want := l.runRanks(t, "whole")
	for i, tt := range []struct {
		sig   syscall.Signal
		code  int
		says  string
		after string // number of ranks with which it goes on
	}{
		{syscall.SIGKILL, 20, "rank 2 of 4 is gone", "2"},
		{syscall.SIGSTOP, 22, "rank 2 of 4 is silent", "1"},
	} {
		contracttest.Cases(t, 1)
		out := fmt.Sprint("lost", i)
		c := l.ranksCommand(out, "--stall-timeout", "4s")
		victim := 0
		log, err := follow(t, c, func(line string) {
			if victim == 0 && strings.Contains(line, "step 7/") {
				victim = rankOf(c, 2)
				_ = syscall.Kill(victim, tt.sig)
			}
		})
		if victim == 0 || code(err) != tt.code || !strings.Contains(log, tt.says) {
			t.Fatalf("%v of process %d: exit %d, want %d and %q\n%s", tt.sig, victim, code(err), tt.code, tt.says, log)
		}
		if kept, _ := filepath.Glob(l.path(out, "checkpoints", "step-*")); len(kept) == 0 {
			t.Fatalf("%v: no checkpoint is kept", tt.sig)
		}
		if text, _ := l.runs("diagnose", l.path(out)); !strings.Contains(text, "cause: "+tt.says) {
			t.Errorf("%v: apr runs diagnose says\n%s", tt.sig, text)
		}
		if syscall.Kill(victim, 0) == nil {
			t.Errorf("%v: rank 2 still runs", tt.sig)
		}
		if got := l.runRanks(t, out, "--resume", "--world-size", tt.after); !bytes.Equal(got, want) {
			t.Errorf("%v, then %s ranks: the student differs from that of the undisturbed run", tt.sig, tt.after)
		}
	}
}

// Under --supervise a run that has lost a rank starts all of them again and goes on by itself, to the same bytes. A
// signal to rank 0 alone stops all ranks after one step.
func TestRanksSupervised(t *testing.T) {
	l := newLab(t)
	want := l.runRanks(t, "whole")
	c, killed := l.ranksCommand("again", "--supervise"), false
	log, err := follow(t, c, func(line string) {
		if !killed && strings.Contains(line, "step 7/") {
			for _, zero := range children(c.Process.Pid) {
				if pid := rankOf(&exec.Cmd{Process: &os.Process{Pid: zero}}, 3); pid != 0 {
					killed = true
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		}
	})
	contracttest.Cases(t, 2)
	if err != nil || !killed || !strings.Contains(log, "started again (1 of at most 3") || !strings.Contains(log,
		"rank 3 of 4 is gone") {
		t.Fatalf("%v; killed: %v\n%s", err, killed, log)
	}
	if !bytes.Equal(l.student(t, "again"), want) {
		t.Error("the student differs from that of the undisturbed run")
	}
	c = l.ranksCommand("stopped")
	log, err = follow(t, c, func(line string) {
		if strings.Contains(line, "step 7/") {
			_ = c.Process.Signal(syscall.SIGTERM)
		}
	})
	if code(err) != 20 || !strings.Contains(log, "stopped after step ") {
		t.Fatalf("exit %d\n%s", code(err), log)
	}
	if got := l.runRanks(t, "stopped", "--resume"); !bytes.Equal(got, want) {
		t.Error("the resumed student differs from that of the undisturbed run")
	}
}

func (l lab) runRanks(t *testing.T, out string, more ...string) []byte {
	t.Helper()
	if text, err := l.ranksCommand(out, more...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return l.student(t, out)
}

// Ranks that torchrun or srun has started, as far as their variables say, train one student: with the bytes of those
// that rank 0 has started.
func TestRanksOfALauncher(t *testing.T) {
	l := newLab(t)
	want := l.runRanks(t, "whole")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(free.Addr().String()) // of an address
	free.Close()
	for name, variables := range map[string]func(rank int) []string{
		"torchrun": func(r int) []string {
			return []string{fmt.Sprint("RANK=", r), "WORLD_SIZE=2", fmt.Sprint("LOCAL_RANK=", r), "MASTER_ADDR=127.0.0.1",
				"MASTER_PORT=" + port}
		},
		"srun": func(r int) []string {
			return []string{fmt.Sprint("SLURM_PROCID=", r), "SLURM_STEP_NUM_TASKS=2", fmt.Sprint("SLURM_LOCALID=", r),
				"SLURM_STEP_NODELIST=localhost,other", "SLURM_STEP_RESV_PORTS=" + port + "-60000"}
		},
	} {
		contracttest.Cases(t, 1)
		var both []*exec.Cmd
		var texts [2]bytes.Buffer
		for r := range 2 {
			c := l.command(name, "--backend", "cpu", "--batch-size", "8", "--deterministic=world", "--checkpoint-every", "5",
				"--control", "none", "--samples", "0", "--steps", "24")
			c.Env, c.Stderr = append(c.Env, variables(r)...), &texts[r]
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			both = append(both, c)
		}
		for r, c := range both {
			if err := c.Wait(); err != nil {
				t.Errorf("%s: rank %d: %v\n%s", name, r, err, texts[r].String())
			}
		}
		if !t.Failed() && !bytes.Equal(l.student(t, name), want) {
			t.Errorf("%s: the student differs", name)
		}
	}
}
