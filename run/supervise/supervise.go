// Package supervise runs a training as a child process: it hears its heart, says why it died, and starts it again from
// its last checkpoint.
//
// A child that was killed is judged by the kernel's own count of processes killed for want of memory in the child's
// cgroup, read before and after (memory.events in version 2, memory.oom_control in version 1). There are three verdicts,
// each with its evidence: out of memory, not out of memory, unknown. Status 137 alone proves nothing.
//
// A child that was killed, that hung, or whose device was lost is started again with the command that resumes it, at
// most Restarts times without a new checkpoint between. What it refuses (bad input, divergence) and what a signal asked
// for (exit 20) is not tried again.
//
// Caveats. Signals INT, TERM, USR1 and HUP are passed on to the child; the child takes one that comes twice within
// a second for one, since terminals and schedulers signal all processes of a job. If the supervisor dies, the child
// is told to stop (Linux). Windows cannot give a child a pipe by number, nor signal it: Supported refuses there.
package supervise

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Restarts is how often a child is started again without a new checkpoint between.
const Restarts = 3

// Silence is how long a child may give no sign of life, progress or not, before it is ended: its own watchdog, which
// would have ended it, hangs as well.
const Silence = 2 * time.Minute

// Options of Run.
type Options struct {
	Program  string                       // file of the program
	Command  func(resume string) []string // its name and arguments; resume is the run directory to continue, empty at first
	Env      []string                     // of the child
	Out, Err io.Writer                    // *os.File: of the child, as they are
	Told     func(format string, args ...any)
	Death    func(runDir string, d Death, restart bool) // recorded; nil: nowhere

	root    string        // "/"; for tests
	silence time.Duration // Silence
	every   time.Duration // between looks at the child's memory
}

// Result is how it ended.
type Result struct {
	Death
	RunDir   string // as the child told
	Restarts int
}

// ExitCode is the code that the supervisor should exit with: the child's own, 23 for one that was out of memory, 22 for
// one that hung, else 128 + signal.
func (r Result) ExitCode() int {
	switch {
	case r.Hung:
		return 22
	case r.Verdict == OutOfMemory:
		return 23
	case r.Signal != 0:
		return 128 + int(r.Signal)
	}
	return r.Code
}

// Told reports whether the child has ended by itself, so that it has printed what there is to say.
func (r Result) Told() bool { return r.Signal == 0 && !r.Hung }

// again reports whether another attempt may help: after a kill, a hang (22), or the loss of a device (8).
func (d Death) again() bool {
	asked := []syscall.Signal{0, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}
	return d.Hung || d.Code == 8 || d.Code == 22 || !slices.Contains(asked, d.Signal)
}

// Run runs the child until it is done or starting it again does not help. An error means that it could not be started.
func Run(o Options) (Result, error) {
	if err := Supported(); err != nil {
		return Result{}, err
	}
	o.root, o.silence, o.every = cmp.Or(o.root, "/"), cmp.Or(o.silence, Silence), cmp.Or(o.every, 250*time.Millisecond)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, passedOn()...)
	defer signal.Stop(signals)
	var r Result
	asked := false // to stop
	fruitless, reached := 0, ""
	for resume := ""; ; {
		a := attempt{o: o, signals: signals, runDir: resume}
		death, err := a.run(o.Command(resume))
		if err != nil {
			return r, err
		}
		asked = asked || a.asked
		r.Death, r.RunDir = death, cmp.Or(a.told(), r.RunDir)
		now := progress(r.RunDir)
		if now != reached {
			reached, fruitless = now, 0
		}
		again := (death.again() || a.wantsAgain()) && !asked && fruitless < Restarts
		if o.Death != nil && (again || !r.Told()) {
			o.Death(r.RunDir, death, again)
		}
		if !again {
			return r, nil
		}
		fruitless++
		r.Restarts++
		if resume = ""; resumable(r.RunDir) {
			resume = r.RunDir
		}
		o.Told("the training process ended: %v. It is started again (%d of at most %d times without a new checkpoint)", death, fruitless, Restarts)
	}
}

// progress names the checkpoints of a run.
func progress(runDir string) string {
	if runDir == "" {
		return ""
	}
	names, _ := filepath.Glob(filepath.Join(runDir, "checkpoints*", "step-*")) // the pattern is well formed
	var whole []string
	for _, n := range names {
		if !strings.Contains(filepath.Base(n), ".") {
			whole = append(whole, n)
		}
	}
	return strings.Join(whole, "\n")
}

func resumable(runDir string) bool {
	_, err := os.Stat(filepath.Join(runDir, "manifest.json"))
	return runDir != "" && err == nil
}

// attempt is one life of the child.
type attempt struct {
	o       Options
	signals <-chan os.Signal
	asked   bool // by a signal that was passed on

	mu     sync.Mutex
	runDir string
	again  bool      // asked for
	last   time.Time // sign of life
}

// run starts the child and waits for its end.
func (a *attempt) run(args []string) (Death, error) {
	hear, beat, err := os.Pipe()
	if err != nil {
		return Death{}, err
	}
	defer hear.Close()
	c := exec.Command(a.o.Program, args[1:]...)
	c.Args[0] = args[0]
	c.Env = append([]string{"GOTRACEBACK=crash"}, append(slices.Clone(a.o.Env), Variable+"=3")...) // a crash is SIGABRT, not exit 2
	c.Stdout, c.Stderr, c.ExtraFiles = a.o.Out, a.o.Err, []*os.File{beat}
	bindToParent(c)
	a.last = time.Now()
	w := NewWitness(a.o.root)
	defer w.Close()
	started, ended := make(chan error), make(chan int)
	go func() { // the thread that starts the child must live as long: see bindToParent
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.Start()
		started <- err
		if err == nil {
			_ = c.Wait() // its state says it all
			close(ended)
		}
	}()
	err = <-started
	beat.Close()
	if err != nil {
		return Death{}, err
	}
	w.Follow(c.Process.Pid)
	silent := make(chan int)
	go func() { a.listen(hear); close(silent) }()
	hung := a.attend(c, w, ended)
	select { // what it said last
	case <-silent:
	case <-time.After(time.Second): // somebody else holds the pipe
	}
	return judge(c.ProcessState, w, hung), nil
}

// attend passes signals on and looks at the child until it ends. It reports whether it had to end it.
func (a *attempt) attend(c *exec.Cmd, w *Witness, ended <-chan int) (hung bool) {
	tick := time.NewTicker(a.o.every)
	defer tick.Stop()
	silent, last := time.Duration(0), time.Now()
	for {
		select {
		case <-ended:
			return hung
		case s := <-a.signals:
			a.asked = true
			_ = c.Process.Signal(s) // it may have ended meanwhile
		case now := <-tick.C:
			w.Look()
			silent += min(now.Sub(last), 2*a.o.every) // of the time in which we ran ourselves
			if a.heard(last) {
				silent = 0
			}
			last = now
			if silent > a.o.silence && !hung {
				hung = true
				a.o.Told("the training process has given no sign of life for %v: it is ended", silent.Round(time.Second))
				_ = c.Process.Signal(syscall.SIGQUIT) // prints the stacks, if it still can
				time.AfterFunc(5*time.Second, func() { _ = c.Process.Kill() })
			}
		}
	}
}

// heard reports whether there was a sign of life since a time.
func (a *attempt) heard(since time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last.After(since)
}

// told returns the run directory that the child has named.
func (a *attempt) told() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.runDir
}

// wantsAgain reports whether the child's last word was that another attempt may help.
func (a *attempt) wantsAgain() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.again
}

// listen notes the signs of life.
func (a *attempt) listen(pipe io.Reader) {
	lines := bufio.NewScanner(pipe)
	for lines.Scan() {
		var b Beat
		err := json.Unmarshal(lines.Bytes(), &b)
		a.mu.Lock()
		a.last = time.Now()
		if err == nil && b.RunDir != "" {
			a.runDir = b.RunDir
		}
		a.again = err == nil && b.Again
		a.mu.Unlock()
	}
}

// judge says how the child ended.
func judge(s *os.ProcessState, w *Witness, hung bool) Death {
	d := Death{Code: s.ExitCode(), Hung: hung}
	ws, ok := s.Sys().(syscall.WaitStatus)
	if !ok || !ws.Signaled() {
		return d
	}
	d.Code, d.Signal = 0, ws.Signal()
	if d.Signal == syscall.SIGKILL && !hung {
		d.Verdict, d.Evidence = w.Verdict()
	}
	return d
}

// Describe is the death as an error message, with the run it concerns.
func (r Result) Describe() string {
	s := "the training process ended: " + r.Death.String()
	if r.Restarts > 0 {
		s += fmt.Sprintf("; started again %d times", r.Restarts)
	}
	return s
}
