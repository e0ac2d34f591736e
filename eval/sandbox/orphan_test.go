//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"apr/internal/contracttest"
)

// orphanName is the first argument of the test program when it is to run a program that ignores what can be ignored, until it is killed.
const orphanName = "-orphan"

func init() {
	if len(os.Args) == 2 && os.Args[1] == orphanName {
		l := DefaultLimits
		l.Time = time.Minute
		b, err := Open(context.Background(), l, false)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		dir, err := b.MakeDir()
		fmt.Println(dir)
		if err == nil {
			_, err = b.Run(context.Background(), Program{Argv: []string{"/bin/sh", "-c", `trap "" ALRM TERM HUP INT; echo $$ > pid; while :; do :; done`}, Dir: dir, Read: system})
		}
		fmt.Println(err)
		os.Exit(1)
	}
}

// A program that ignores every signal ends with the process that started it, although that was killed; its directory is removed by the
// next process that opens a box, and the directory of a process that lives is not.
func TestProgramEndsWithItsParent(t *testing.T) {
	b := open(t, DefaultLimits)
	if b == nil {
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, orphanName)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	dir := strings.TrimSpace(line)
	if err != nil || !strings.Contains(dir, dirPrefix) {
		t.Fatalf("%q: %v", line, err)
	}
	var pid int
	for start := time.Now(); pid == 0 && time.Since(start) < 30*time.Second; time.Sleep(10 * time.Millisecond) {
		text, _ := os.ReadFile(filepath.Join(dir, "pid"))
		if strings.HasSuffix(string(text), "\n") {
			_, _ = fmt.Sscan(string(text), &pid)
		}
	}
	if pid == 0 || !runs(pid) {
		t.Fatalf("process %d does not run", pid)
	}
	old := time.Now().Add(-2 * youngest)
	if err := os.Chtimes(dir, old, old); err != nil {
		t.Fatal(err)
	}
	open(t, DefaultLimits)
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the directory of a running program is gone: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for start := time.Now(); runs(pid) && time.Since(start) < 10*time.Second; time.Sleep(10 * time.Millisecond) {
	}
	if runs(pid) {
		t.Errorf("process %d outlives the one that started it", pid)
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	open(t, DefaultLimits)
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", dir, err)
		_ = Remove(dir)
	}
	contracttest.Cases(t, 1)

	// Whose parent has ended before it can ask to be told does not run.
	text, err := json.Marshal(order{Limits: DefaultLimits, Dir: t.TempDir(), Argv: []string{"/bin/echo", "ran"}, Read: system, Parent: os.Getpid() + 1, Confined: true})
	if err != nil {
		t.Fatal(err)
	}
	late := exec.Command(self)
	late.Args = []string{childName, string(text)}
	if said, err := late.CombinedOutput(); err == nil || len(said) > 0 {
		t.Errorf("a program without its parent: %v, %q", err, said)
	}
	contracttest.Cases(t, 1)
}

// runs reports whether a process is there and is no zombie.
func runs(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return !strings.HasPrefix(rest, "Z")
}
