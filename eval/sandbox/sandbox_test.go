//go:build linux && (amd64 || arm64)

package sandbox

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

// system is what the programs of these tests are made of.
var system = []string{"/usr/bin", "/usr/lib"}

// able reports whether the kernel has what confines programs: it asks the kernel itself, not the code under test.
func able() bool {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	_, err := unix.PrctlRetInt(unix.PR_GET_SECCOMP, 0, 0, 0, 0)
	return errno == 0 && version >= 3 && err == nil
}

// open returns a box, or nil where a machine cannot confine programs, which is then what Open must say.
func open(t *testing.T, l Limits) *Box {
	t.Helper()
	b, err := Open(context.Background(), l, false)
	if !able() {
		if b != nil || fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "E-SANDBOX-001") {
			t.Errorf("a machine that cannot confine programs runs them: %v", err)
		}
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func run(t *testing.T, b *Box, input string, argv ...string) Result {
	t.Helper()
	r, err := b.Run(context.Background(), Program{Argv: argv, Input: input, Read: system})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Programs talk, end, and are cut off; what they leave behind is removed.
func TestRun(t *testing.T) {
	b := open(t, DefaultLimits)
	if b == nil {
		return
	}
	r := run(t, b, "question", "/bin/cat")
	if r.Exit != 0 || r.Stdout != "question" || r.TimedOut {
		t.Errorf("cat: %+v", r)
	}
	if r = run(t, b, "", "/bin/sh", "-c", "echo out; echo err >&2; exit 7"); r.Exit != 7 || r.Stdout != "out\n" || r.Stderr != "err\n" {
		t.Errorf("sh: %+v", r)
	}
	r = run(t, b, "", "/bin/sh", "-c", "pwd; echo *; echo x > made; echo *")
	lines := strings.Fields(r.Stdout)
	if len(lines) != 3 || lines[1] != "*" || lines[2] != "made" {
		t.Fatalf("the directory is not empty: %+v", r)
	}
	if _, err := os.Stat(lines[0]); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", lines[0], err)
	}
	if _, err := b.Run(context.Background(), Program{Argv: []string{"/no/such/program"}}); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("a program that is not there: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := b.Run(ctx, Program{Argv: []string{"/bin/cat"}, Read: system}); err != context.Canceled {
		t.Errorf("a context that is over: %v", err)
	}
}

// Every limit cuts a program off that goes beyond it, and the same program passes without the limit's cause.
func TestLimits(t *testing.T) {
	l := Limits{Time: time.Second, Memory: 64 << 20, FileBytes: 1 << 20, Files: 16}
	b := open(t, l)
	if b == nil {
		return
	}
	start := time.Now()
	if r := run(t, b, "", "/bin/sh", "-c", "while :; do :; done"); !r.TimedOut || r.Exit == 0 || time.Since(start) > 5*time.Second {
		t.Errorf("endless: %+v after %v", r, time.Since(start))
	}
	big := `x=$(head -c 4000000 /dev/urandom | tr '\0' x)` // needs a child: refused before it needs memory
	if r := run(t, b, "", "/bin/sh", "-c", big); r.Exit == 0 {
		t.Errorf("a child process: %+v", r)
	}
	if r := run(t, b, "", "/usr/bin/seq", "500000"); r.Exit != 0 || len(r.Stdout) != tailBytes {
		t.Errorf("long output: exit %d, %d bytes kept", r.Exit, len(r.Stdout))
	}
	dd := func(n string) Result {
		return run(t, b, "", "/bin/dd", "if=/dev/urandom", "of=file", "bs=1000", "count="+n)
	}
	if r := dd("500"); r.Exit != 0 {
		t.Errorf("a file within the limit: %+v", r)
	}
	if r := dd("5000"); r.Exit == 0 {
		t.Errorf("a file beyond the limit: %+v", r)
	}
	memory := func(n string) Result {
		return run(t, b, "", "/bin/dd", "if=/dev/urandom", "of=/dev/null", "count=1", "bs="+n)
	}
	if r := memory("10000000"); r.Exit != 0 {
		t.Errorf("memory within the limit: %+v", r)
	}
	if r := memory("200000000"); r.Exit == 0 {
		t.Errorf("memory beyond the limit: %+v", r)
	}
}

// A program opens as many files at a time as its limit says: paste has all of its files open at once.
func TestOpenFiles(t *testing.T) {
	l := DefaultLimits
	l.Files = 16
	b := open(t, l)
	if b == nil {
		return
	}
	for n, within := range map[int]bool{4: true, 20: false} {
		argv := append([]string{"/usr/bin/paste"}, slices.Repeat([]string{"/usr/lib/os-release"}, n)...)
		if r := run(t, b, "", argv...); (r.Exit == 0) != within {
			t.Errorf("%d files of a limit of %d: %+v", n, l.Files, r)
		}
		contracttest.Cases(t, 1)
	}
}

// What a program must not reach, it does not; a program outside the box does, so that the tests can fail.
func TestConfinement(t *testing.T) {
	b := open(t, DefaultLimits)
	if b == nil {
		return
	}
	outside := filepath.Join(t.TempDir(), "file")
	r := run(t, b, "", "/bin/sh", "-c", "echo > "+outside)
	if _, err := os.Stat(outside); err == nil {
		t.Errorf("wrote %s: %+v", outside, r)
	}
	if err := exec.Command("/bin/sh", "-c", "echo > "+outside).Run(); err != nil {
		t.Errorf("outside the box: %v", err)
	}
	if r := run(t, b, "", "/bin/sh", "-c", "kill -0 1 || exit 9"); r.Exit != 9 {
		t.Errorf("a signal: %+v", r)
	}
	if allowed, err := b.probe(context.Background()); err != nil || len(allowed) > 0 {
		t.Errorf("the probe could use %q (%v)", allowed, err)
	}
	// Without the filter the probe finds what it is to find: it is no formality.
	open := &Box{limits: DefaultLimits}
	allowed, err := open.probe(context.Background())
	if err != nil || !strings.Contains(strings.Join(allowed, " "), "network processes signals") {
		t.Errorf("without a filter the probe could use %q (%v)", allowed, err)
	}
	if text := strings.Join(b.Limits(), "; "); !strings.Contains(text, "no network; no child processes") || !strings.Contains(text, "time 10s; memory 1024 MiB") {
		t.Errorf("limits %q", text)
	}
	if text := strings.Join(open.Limits(), "; "); !strings.Contains(text, "NOT confined") {
		t.Errorf("limits %q", text)
	}
}

// A program's user is not an administrator, has no capability and no groups, and gains none by what it executes.
func TestIdentity(t *testing.T) {
	b := open(t, DefaultLimits)
	if b == nil {
		return
	}
	own := os.Geteuid()
	for user, want := range map[int]int{0: 3, 1000: 1} {
		ids := userIDs(user)
		if len(ids) != want || user == 0 && (ids[0] < 61184 || ids[0] > 65519 || ids[1] != 65534) || ids[len(ids)-1] != 0 {
			t.Errorf("programs of user %d run as one of %v", user, ids)
		}
		contracttest.Cases(t, 1)
	}
	if own == 0 && b.id == 0 && canBecome(t) {
		t.Error("an administrator's programs keep his id")
	}
	// Its status cannot be read where the other walls stand.
	bare := &Box{limits: DefaultLimits, id: b.id}
	r := run(t, bare, "", "/bin/cat", "/proc/self/status")
	if b.id != 0 {
		own = b.id
	}
	for key, want := range map[string]string{
		"Uid": fmt.Sprintf("%d %[1]d %[1]d %[1]d", own), "CapInh": zeroCaps, "CapPrm": zeroCaps, "CapEff": zeroCaps, "CapAmb": zeroCaps, "NoNewPrivs": "1",
	} {
		contracttest.Cases(t, 1)
		if got := statusField(r.Stdout, key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if groups, bound := statusField(r.Stdout, "Groups"), statusField(r.Stdout, "CapBnd"); b.id != 0 && (groups != "" || bound != zeroCaps) {
		t.Errorf("groups %q, bounding set %q", groups, bound)
	}
	// With all walls up it reads what an administrator hides, if it is told to, and writes it not.
	hidden := filepath.Join(t.TempDir(), "hidden")
	if err := os.Mkdir(hidden, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hidden+"/file", []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := Program{Argv: []string{"/bin/cat", hidden + "/file"}, Read: append(system, hidden)}
	if r, err := b.Run(t.Context(), p); err != nil || r.Stdout != "text" {
		t.Errorf("a hidden file that it may read: %+v, %v", r, err)
	}
	p.Argv = []string{"/bin/dd", "if=/dev/urandom", "of=" + hidden + "/file", "count=1", "conv=notrunc"}
	if r, err := b.Run(t.Context(), p); err != nil || r.Exit == 0 || !strings.Contains(r.Stderr, "ermission denied") {
		t.Errorf("writing it: %+v, %v", r, err)
	}
	p = Program{Argv: []string{"/bin/cat", hidden + "/file"}, Read: system}
	if r, err := b.Run(t.Context(), p); err != nil || r.Exit == 0 || !strings.Contains(r.Stderr, "ermission denied") {
		t.Errorf("a hidden file: %+v, %v", r, err)
	}
}

const zeroCaps = "0000000000000000"

// statusField returns a field of /proc/PID/status, its words with a space between.
func statusField(status, key string) string {
	for line := range strings.Lines(status) {
		if name, value, ok := strings.Cut(line, ":"); ok && name == key {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	return ""
}

// canBecome reports whether this administrator may change his user id at all: one in a container may not.
func canBecome(t *testing.T) bool {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	caps, err := strconv.ParseUint(statusField(string(status), "CapEff"), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	count, err := strconv.ParseUint(strings.Fields(string(ids))[2], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	want := uint64(1)<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_CHOWN
	return caps&want == want && count > 65534
}
