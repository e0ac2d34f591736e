//go:build !windows

package supervise

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"apr/internal/torture"
)

// The test binary is also the child: APR_TEST_CHILD says what it does.
func TestMain(m *testing.M) {
	if what := os.Getenv("APR_TEST_CHILD"); what != "" {
		os.Exit(child(what))
	}
	os.Exit(m.Run())
}

// child is what the supervised processes of the tests do: words, one after the other.
func child(what string) int {
	heart := Open(os.Getenv(Variable))
	dir := os.Getenv("APR_TEST_DIR")
	for _, word := range strings.Fields(what) {
		name, value, _ := strings.Cut(word, "=")
		n, _ := strconv.Atoi(value)
		switch name {
		case "beat":
			heart.Beat(Beat{RunDir: dir})
		case "checkpoint": // one more than there are
			if err := os.MkdirAll(filepath.Join(dir, "checkpoints", fmt.Sprintf("step-%06d", time.Now().UnixNano())), 0o700); err != nil {
				return 99
			}
		case "join": // a cgroup
			if err := os.WriteFile(filepath.Join(value, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
				return 98
			}
		case "eat": // MiB of memory, slowly enough to be seen
			var food [][]byte
			for range n {
				b := make([]byte, 1<<20)
				for i := range b {
					b[i] = byte(i)
				}
				food = append(food, b)
			}
			_ = food
		case "sleep":
			time.Sleep(time.Duration(n) * time.Millisecond)
		case "kill":
			_ = syscall.Kill(os.Getpid(), syscall.Signal(n))
			time.Sleep(time.Second)
		case "exit":
			return n
		}
	}
	return 0
}

// supervised runs the test binary as a child that does what it is told, at each attempt the next of the texts, the last
// one for ever.
func supervised(t *testing.T, o Options, dir string, what ...string) (Result, []Death) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var deaths []Death
	attempts := 0
	o.Program = self
	o.Command = func(string) []string {
		o.Env[0] = "APR_TEST_CHILD=" + what[min(attempts, len(what)-1)]
		attempts++
		return []string{self}
	}
	o.Env = append([]string{"", "APR_TEST_DIR=" + dir}, os.Environ()...)
	o.Out, o.Err, o.every = io.Discard, io.Discard, 5*time.Millisecond
	o.Told = t.Logf
	o.Death = func(_ string, d Death, _ bool) { deaths = append(deaths, d) }
	command := o.Command
	env := o.Env
	o.Command = func(r string) []string { args := command(r); copy(env, o.Env[:1]); return args }
	r, err := Run(o)
	if err != nil {
		t.Fatal(err)
	}
	return r, deaths
}

func TestRun(t *testing.T) {
	for _, tt := range []struct {
		name     string
		silence  time.Duration
		what     []string
		code     int
		restarts int
	}{
		{"done", 0, []string{"beat exit=0"}, 0, 0},
		{"refused", 0, []string{"beat exit=5"}, 5, 0},
		{"diverged", 0, []string{"beat exit=21"}, 21, 0},
		{"killed once", 0, []string{"beat kill=9", "beat exit=0"}, 0, 1},
		{"hung once by its own watchdog", 0, []string{"beat exit=22", "beat exit=0"}, 0, 1},
		{"killed again and again", 0, []string{"beat sleep=30 kill=9"}, 137, 3},
		{"killed again and again, but it comes further", 0, []string{"beat checkpoint kill=9", "beat checkpoint kill=9", "beat checkpoint kill=9",
			"beat checkpoint kill=9", "beat checkpoint kill=9", "beat checkpoint exit=0"}, 0, 5},
		{"asked to stop from elsewhere", 0, []string{"beat kill=15"}, 143, 0},
		{"a crash in code", 0, []string{"beat kill=11", "beat exit=0"}, 0, 1},
		{"silent", 200 * time.Millisecond, []string{"sleep=20000", "exit=0"}, 0, 1},
		{"slow, but alive", 200 * time.Millisecond, []string{"beat sleep=100 beat sleep=100 beat sleep=100 beat sleep=100 exit=0"}, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, deaths := supervised(t, Options{silence: tt.silence}, t.TempDir(), tt.what...)
			if r.ExitCode() != tt.code || r.Restarts != tt.restarts {
				t.Errorf("exit %d after %d restarts, want %d after %d: %s", r.ExitCode(), r.Restarts, tt.code, tt.restarts, r.Describe())
			}
			want := tt.restarts
			if r.Signal != 0 {
				want++
			}
			if len(deaths) != want {
				t.Errorf("%d deaths recorded, want %d: %v", len(deaths), want, deaths)
			}
		})
	}
}

// A signal that reaches the supervisor is passed on.
func TestSignalsArePassedOn(t *testing.T) {
	go func() {
		time.Sleep(300 * time.Millisecond)
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
	}()
	r, _ := supervised(t, Options{}, t.TempDir(), "beat sleep=10000")
	if r.Signal != syscall.SIGTERM || r.Restarts != 0 {
		t.Errorf("%s", r.Describe())
	}
}

// fixture lays out /proc and a cgroup file system of either version.
type fixture struct {
	root, dir string // dir holds the counter of the process
	version   int
}

func newFixture(t *testing.T, version int, pid int) fixture {
	f := fixture{root: t.TempDir(), version: version}
	f.dir = filepath.Join(f.root, "sys/fs/cgroup/memory/job/7")
	cgroup, mounts := "9:cpu,cpuacct:/\n4:memory:/job/7\n", "30 25 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
	if version == 2 {
		f.dir = filepath.Join(f.root, "sys/fs/cgroup/job/7")
		cgroup, mounts = "0::/job/7\n", "30 25 0:26 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
	}
	f.write(t, filepath.Join(f.root, "proc", strconv.Itoa(pid), "cgroup"), cgroup)
	f.write(t, filepath.Join(f.root, "proc", strconv.Itoa(pid), "status"), "VmRSS: 2048 kB\n")
	f.write(t, filepath.Join(f.root, "proc/self/mountinfo"), "21 1 8:1 / / rw - ext4 /dev/vda rw\n"+mounts)
	f.write(t, filepath.Join(f.root, "proc/meminfo"), "MemTotal: 8000 kB\nMemAvailable:    5120 kB\n")
	f.count(t, 3)
	return f
}

func (f fixture) write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (f fixture) count(t *testing.T, n int) {
	t.Helper()
	if f.version == 2 {
		f.write(t, filepath.Join(f.dir, "memory.events"), fmt.Sprintf("low 0\nhigh 0\nmax 12\noom 9\noom_kill %d\n", n))
		return
	}
	f.write(t, filepath.Join(f.dir, "memory.oom_control"), fmt.Sprintf("oom_kill_disable 0\nunder_oom 0\noom_kill %d\n", n))
}

// The verdict follows the counter of the child's own cgroup, in both versions, and is unknown without one.
func TestVerdict(t *testing.T) {
	for version := 1; version <= 2; version++ {
		for _, tt := range []struct {
			name string
			do   func(t *testing.T, f fixture, cgroup string)
			want Verdict
			says string
		}{
			{"the counter rose", func(t *testing.T, f fixture, _ string) { f.count(t, 4) }, OutOfMemory, "rose from 3 to 4"},
			{"the counter stayed", func(*testing.T, fixture, string) {}, NotOutOfMemory, "stayed 3"},
			{"the counter is gone", func(t *testing.T, f fixture, _ string) { os.RemoveAll(f.dir) }, Unknown, "cannot be read"},
			{"the counter fell", func(t *testing.T, f fixture, _ string) { f.count(t, 1) }, Unknown, "fell"},
		} {
			t.Run(fmt.Sprintf("v%d %s", version, tt.name), func(t *testing.T) {
				f := newFixture(t, version, os.Getpid())
				w := NewWitness(f.root)
				defer w.Close()
				tt.do(t, f, "")
				v, evidence := w.Verdict()
				if text := strings.Join(evidence, "; "); v != tt.want || !strings.Contains(text, tt.says) || !strings.Contains(text, "lowest free memory seen: 5 MiB") && v != Unknown {
					t.Errorf("%s: %s, want %s with %q", v, text, tt.want, tt.says)
				}
			})
		}
	}
}

// Which file counts for a process is found in its memberships and the mounts; the root's counter speaks for nobody.
func TestFindCounter(t *testing.T) {
	for _, tt := range []struct {
		name, cgroup, mounts, file string
		want                       string // path below the root, or a part of the error
	}{
		{"v2", "0::/a/b\n", "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "sys/fs/cgroup/a/b/memory.events", "sys/fs/cgroup/a/b/memory.events"},
		{"v1", "4:memory:/a\n0::/\n", "30 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", "sys/fs/cgroup/memory/a/memory.oom_control", "sys/fs/cgroup/memory/a/memory.oom_control"},
		{"both: memory is counted in v1", "4:memory:/a\n0::/b\n", "29 25 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n30 25 0:26 / /m rw - cgroup cgroup rw,memory\n", "m/a/memory.oom_control", "m/a/memory.oom_control"},
		{"a container's mount of a part", "4:memory:/docker/x/y\n", "30 25 0:26 /docker/x /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n", "sys/fs/cgroup/memory/y/memory.oom_control", "sys/fs/cgroup/memory/y/memory.oom_control"},
		{"the root of a container that is a cgroup of its own", "0::/\n", "30 25 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n", "sys/fs/cgroup/memory.events", "sys/fs/cgroup/memory.events"},
		{"the root of v2", "0::/\n", "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "sys/fs/cgroup/cgroup.procs", "root cgroup, which has no counter"},
		{"the root of v1", "4:memory:/\n", "30 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", "sys/fs/cgroup/memory/memory.oom_control", "whole machine"},
		{"not mounted", "0::/a\n", "21 1 8:1 / / rw - ext4 /dev/vda rw\n", "x", "not mounted"},
		{"no membership", "9:cpu:/\n", "", "x", "no cgroup that counts memory"},
		{"a counter without kills", "0::/a\n", "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "sys/fs/cgroup/a/memory.events", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := fixture{root: t.TempDir()}
			f.write(t, filepath.Join(f.root, "proc/11/cgroup"), tt.cgroup)
			f.write(t, filepath.Join(f.root, "proc/self/mountinfo"), tt.mounts)
			text := "oom_kill 0\n"
			if tt.want == "" {
				text, tt.want = "oom 0\n", "no line oom_kill"
			}
			f.write(t, filepath.Join(f.root, tt.file), text)
			c, err := findCounter(f.root, 11)
			if err != nil {
				if !strings.Contains(err.Error(), tt.want) {
					t.Errorf("error %v, want %q", err, tt.want)
				}
			} else if got, _ := filepath.Rel(f.root, c.path); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

// memoryCgroupHere makes a cgroup with a limit of 64 MiB below this process's own, if this process may; else it says why
// not.
func memoryCgroupHere(t *testing.T) (dir, why string) {
	t.Helper()
	c, err := findCounter("/", os.Getpid())
	base := filepath.Dir(c.path)
	if err != nil {
		base = "/sys/fs/cgroup/memory" // the root of version 1 has children of its own
	}
	dir = filepath.Join(base, fmt.Sprintf("apr-test-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err.Error()
	}
	t.Cleanup(func() {
		for range 50 { // it is busy until its last process is gone
			if os.Remove(dir) == nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	for _, name := range []string{"memory.limit_in_bytes", "memory.max"} {
		if os.WriteFile(filepath.Join(dir, name), []byte("67108864"), 0) == nil {
			return dir, ""
		}
	}
	return "", "no limit of memory can be set in " + dir
}

// Who sent SIGKILL: children that run out of memory in a cgroup of their own, children that are killed while memory is
// short, and either with the counter hidden. Where this process may make no cgroup, the counter of a copy of the files
// stands in for the kernel's.
func TestTortureAttribution(t *testing.T) {
	trials, bad, right := torture.Trials(6, 60), 0, map[Verdict]int{}
	dir, why := memoryCgroupHere(t)
	source := "the kernel's own counter"
	if why != "" {
		source = "a simulated counter (" + why + ")"
	}
	for i := range trials {
		want := []Verdict{OutOfMemory, NotOutOfMemory, Unknown}[i%3]
		got, evidence := attribution(t, i, dir, want)
		if got == want {
			right[want]++
		} else {
			bad++
			t.Errorf("trial %d: %s %q, want %s", i, got, evidence, want)
		}
	}
	torture.Row(t, "who sent SIGKILL: out of memory, plain kill, counter hidden; verdicts", trials, bad,
		fmt.Sprintf("%d, %d, %d right by %s; status 137 alone would be wrong in %d", right[OutOfMemory], right[NotOutOfMemory], right[Unknown], source,
			right[NotOutOfMemory]))
}

// attribution runs one child to its death by SIGKILL and returns the verdict.
func attribution(t *testing.T, i int, dir string, want Verdict) (Verdict, []string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	root, what := "/", "join="+dir+" sleep=60 "
	oom := want == OutOfMemory || want == Unknown && i%2 == 0
	var f fixture
	if dir == "" {
		f = newFixture(t, 1+i%2, os.Getpid())
		root, what = f.root, ""
	} else if want == Unknown {
		root = t.TempDir() // nothing to be seen
	}
	if oom && dir != "" {
		what += "eat=200 "
	} else {
		what += fmt.Sprintf("eat=%d kill=9", 5+i%20)
	}
	c := exec.Command(self)
	c.Env = append(os.Environ(), "APR_TEST_CHILD="+what)
	w := NewWitness(root)
	defer w.Close()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if dir == "" {
		f.write(t, filepath.Join(root, "proc", strconv.Itoa(c.Process.Pid), "cgroup"), map[int]string{1: "4:memory:/job/7\n", 2: "0::/job/7\n"}[f.version])
	}
	w.Follow(c.Process.Pid)
	if dir == "" {
		f.write(t, filepath.Join(root, "proc", strconv.Itoa(c.Process.Pid), "status"), "VmRSS: 2048 kB\n")
	}
	done := make(chan error, 1)
	go func() { done <- c.Wait() }()
	tick := time.NewTicker(4 * time.Millisecond)
	defer tick.Stop()
	for alive := true; alive; {
		select {
		case <-done:
			alive = false
		case <-tick.C:
			w.Look()
		}
	}
	if dir == "" && oom {
		f.count(t, 4)
	}
	if dir == "" && want == Unknown {
		os.RemoveAll(f.dir)
	}
	d := judge(c.ProcessState, w, false)
	if d.Signal != syscall.SIGKILL {
		t.Errorf("trial %d: %v, not killed", i, d)
	}
	return d.Verdict, d.Evidence
}

// The deaths as they stand in messages.
func Example() {
	for _, d := range []Death{
		{Code: 5}, {Signal: syscall.SIGSEGV}, {Hung: true},
		{Signal: syscall.SIGKILL, Verdict: NotOutOfMemory, Evidence: []string{"oom_kill of memory.events stayed 0"}},
	} {
		fmt.Println(d)
	}
	// Output:
	// exit code 5
	// killed by signal 11 (segmentation fault)
	// no sign of life: ended by the supervisor
	// killed by SIGKILL, not out of memory (oom_kill of memory.events stayed 0)
}
