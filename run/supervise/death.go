package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Verdict says whether a killed process was killed for want of memory.
type Verdict string

// The verdicts. SIGKILL alone proves none of them.
const (
	OutOfMemory    Verdict = "out of memory"
	NotOutOfMemory Verdict = "not out of memory"
	Unknown        Verdict = "unknown"
)

// Death is how a process ended, with the evidence.
type Death struct {
	Code     int            `json:"exit_code,omitempty"` // if it ended by itself
	Signal   syscall.Signal `json:"signal,omitempty"`    // if a signal ended it
	Verdict  Verdict        `json:"verdict,omitempty"`   // of SIGKILL
	Evidence []string       `json:"evidence,omitempty"`
	Hung     bool           `json:"hung,omitempty"` // the supervisor ended it: no sign of life
}

// String is the death in one line.
func (d Death) String() string {
	switch {
	case d.Hung:
		return "no sign of life: ended by the supervisor"
	case d.Signal == syscall.SIGKILL:
		return fmt.Sprintf("killed by SIGKILL, %s (%s)", d.Verdict, strings.Join(d.Evidence, "; "))
	case d.Signal != 0:
		return fmt.Sprintf("killed by signal %d (%v)", int(d.Signal), d.Signal)
	}
	return fmt.Sprintf("exit code %d", d.Code)
}

// Cause is the death in a word or two.
func (d Death) Cause() string {
	switch {
	case d.Hung:
		return "hung"
	case d.Verdict != "":
		return string(d.Verdict)
	case d.Signal != 0:
		return d.Signal.String()
	}
	return fmt.Sprintf("exit code %d", d.Code)
}

// Witness watches the memory of a process and its cgroup, to say afterwards why it was killed.
type Witness struct {
	root    string
	pid     int
	seen    sight
	next    *sight // seen once
	lowest  int64  // least MemAvailable seen, bytes; −1: none
	largest int64  // largest resident set seen
	kernel  *kernelLog
}

// NewWitness begins to watch the cgroup of this process, in which a child begins. root is "/", or a copy of the files for
// tests.
func NewWitness(root string) *Witness {
	w := &Witness{root: root, pid: os.Getpid(), lowest: -1, kernel: openKernelLog(root)}
	w.seen = w.sight()
	w.Look()
	return w
}

// Follow watches the child pid from now on.
func (w *Witness) Follow(pid int) {
	w.pid, w.largest, w.next = pid, 0, nil
	w.Look()
}

// sight is what is seen of the counter of a process at one look.
type sight struct {
	count  counter
	before int64
	blind  error // why there is none
}

func (s sight) same(o sight) bool {
	return s.count == o.count && (s.blind == nil) == (o.blind == nil)
}

// locate finds the counter of the process's cgroup. Another one than before counts when it is seen twice, of a
// living process: one that is ending gives up its memory and then its cgroup, and was killed in the one before.
func (w *Witness) locate() {
	s := w.sight()
	switch {
	case s.same(w.seen):
		w.next = nil
	case !w.alive():
	case w.next != nil && s.same(*w.next):
		w.seen, w.next = *w.next, nil
	default:
		w.next = &s
	}
}

func (w *Witness) sight() (s sight) {
	if s.count, s.blind = findCounter(w.root, w.pid); s.blind == nil {
		s.before, s.blind = s.count.read()
	}
	return s
}

// alive reports whether the process still had memory of its own.
func (w *Witness) alive() bool {
	_, ok := kilobytes(filepath.Join(w.root, "proc", strconv.Itoa(w.pid), "status"), "VmRSS:")
	return ok
}

// Look samples memory, and where the process is; it is called now and then while the process lives.
func (w *Witness) Look() {
	w.locate()
	if free, ok := kilobytes(filepath.Join(w.root, "proc/meminfo"), "MemAvailable:"); ok && (w.lowest < 0 || free < w.lowest) {
		w.lowest = free
	}
	if rss, ok := kilobytes(filepath.Join(w.root, "proc", strconv.Itoa(w.pid), "status"), "VmRSS:"); ok {
		w.largest = max(w.largest, rss)
	}
}

// kilobytes reads a line "NAME N kB" as bytes.
func kilobytes(path, name string) (int64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == name {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n << 10, err == nil
		}
	}
	return 0, false
}

// Verdict says why the process was killed: its cgroup's count of processes killed for want of memory rose, or it did
// not, or that cannot be known.
func (w *Witness) Verdict() (v Verdict, evidence []string) {
	after, before, path, err := int64(0), w.seen.before, w.seen.count.path, w.seen.blind
	if err == nil {
		after, err = w.seen.count.read()
	}
	switch {
	case err != nil:
		v, evidence = Unknown, []string{"the counter oom_kill cannot be read: " + err.Error()}
	case after > before:
		v, evidence = OutOfMemory, []string{fmt.Sprintf("oom_kill of %s rose from %d to %d", path, before, after)}
	case after < before:
		v, evidence = Unknown, []string{fmt.Sprintf("oom_kill of %s fell from %d to %d: it was reset", path, before, after)}
	default:
		v, evidence = NotOutOfMemory, []string{fmt.Sprintf("oom_kill of %s stayed %d", path, after)}
	}
	if w.lowest >= 0 {
		evidence = append(evidence, fmt.Sprintf("lowest free memory seen: %d MiB", w.lowest>>20))
	}
	if w.largest > 0 {
		evidence = append(evidence, fmt.Sprintf("largest resident set seen: %d MiB", w.largest>>20))
	}
	return v, append(evidence, w.kernel.about(w.pid)...)
}

// Close ends the watching.
func (w *Witness) Close() { w.kernel.close() }
