package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"apr/collective"
	"apr/device"
	"apr/internal/cli"
	"apr/internal/fault"
	runlog "apr/run/log"
	"apr/run/supervise"
	"apr/run/watch"
)

// sentry is the watchdog of a run, with what it needs to end the process.
type sentry struct {
	*watch.Watchdog
	e     *cli.Env
	dir   atomic.Pointer[string] // the run directory, once it is this run's
	state atomic.Pointer[func() string]
	heart *supervise.Heart
	comm  atomic.Pointer[collective.Comm] // with the other ranks
}

// newSentry starts to watch. timeout 0 is the rule of package watch.
func newSentry(e *cli.Env, timeout time.Duration) *sentry {
	s := &sentry{e: e, heart: supervise.Open(e.Getenv(supervise.Variable))}
	s.Watchdog = watch.Start(watch.Options{Timeout: timeout, State: s.device, Stalled: s.stalled, Tick: s.tick})
	s.Phase("opening the device")
	e.Ending(s.ended)
	return s
}

// setRunDir records the run directory and reports it to a supervisor at once: the run may be killed before the next beat.
func (s *sentry) setRunDir(dir string) {
	s.dir.Store(&dir)
	s.heart.Beat(supervise.Beat{Doing: "beginning", RunDir: dir})
}

// setComm records the communicator, so that a stall of this rank is told to the others.
func (s *sentry) setComm(c collective.Comm) { s.comm.Store(&c) }

// lostRank tells a supervisor that the run ends for the loss of another rank: a new attempt starts all of them.
func (s *sentry) lostRank(err error) {
	var lost *collective.Lost
	if errors.As(err, &lost) {
		s.heart.Beat(supervise.Beat{Doing: lost.Error(), RunDir: s.runDir(), Again: true})
	}
}

// attend watches what a device ends, and names it in the report of a stall. A sentry that is nil does nothing.
func (s *sentry) attend(d device.Device) {
	if s == nil {
		return
	}
	i := d.Info()
	name := fmt.Sprintf("%s (%s)", i.Kind, i.Name)
	p, ok := d.(device.Pulse)
	if !ok {
		s.setDeviceState(func() string { return name })
		return
	}
	s.Follow(p.Ended)
	s.setDeviceState(func() string { return fmt.Sprintf("%s, %d pieces of work ended", name, p.Ended()) })
}

// setDeviceState sets the function that describes the device in the report of a stall; it must not wait for the device.
func (s *sentry) setDeviceState(state func() string) { s.state.Store(&state) }

func (s *sentry) runDir() string {
	if dir := s.dir.Load(); dir != nil {
		return *dir
	}
	return ""
}

func (s *sentry) device() string {
	if state := s.state.Load(); state != nil {
		return (*state)()
	}
	return "none is open yet"
}

// tick reports a sign of life to the supervisor.
func (s *sentry) tick(b watch.Beat) {
	s.heart.Beat(supervise.Beat{Doing: b.Doing, Steps: b.Steps, Idle: b.Idle, Limit: b.Limit, RunDir: s.runDir()})
}

// lastWords is how long the report of a stall may take: what hangs may be the disk or the terminal.
const lastWords = 3 * time.Second

// stalled writes the evidence to the run directory and to stderr, and ends the process with exit 22.
func (s *sentry) stalled(r watch.Report) {
	written, told := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(written)
		s.record(r)
	}()
	go func() {
		defer close(told)
		fmt.Fprintf(s.e.Err, "%s\n", r)
		s.e.Abort(s.fault(r))
	}()
	if comm := s.comm.Load(); comm != nil {
		go (*comm).Abort(fault.New(fault.Hung, "no progress for %v in %q", r.Idle.Round(time.Second), r.Where()))
	}
	limit := time.After(lastWords)
	for _, done := range []chan struct{}{written, told} {
		select {
		case <-done:
		case <-limit:
			os.Exit(int(fault.Hung))
		}
	}
	os.Exit(int(fault.Hung))
}

// ended writes down that a second signal ends the process, if it has a run directory and the disk lets it.
func (s *sentry) ended(sig os.Signal) {
	if dir := s.runDir(); dir != "" {
		_ = runlog.AppendEvent(dir, runlog.Abort, "second signal ("+sig.String()+")", nil, "the process ended at once, without a checkpoint")
	}
}

func (s *sentry) fault(r watch.Report) error {
	err := fault.New(fault.Hung, "no progress for %v in %q", r.Idle.Round(time.Millisecond), r.Where()).
		WithID("E-WATCH-001")
	if dir := s.runDir(); dir != "" {
		if all, _ := filepath.Glob(filepath.Join(dir, "checkpoints", "step-*")); len(all) == 0 { // the pattern is well formed
			return err.WithHint("stacks are in %s/stall.txt; no checkpoint was written yet", dir)
		}
		return err.WithHint("stacks are in %s/stall.txt; the last checkpoint is intact: go on with `apr runs resume %s`", dir, shellWord(dir))
	}
	return err.WithHint("--stall-timeout allows more time")
}

// record writes stall.txt and an event. What fails here cannot be told elsewhere than on stderr.
func (s *sentry) record(r watch.Report) {
	dir := s.runDir()
	if dir == "" {
		return
	}
	if err := os.WriteFile(dir+"/stall.txt", []byte(r.String()), 0o600); err != nil {
		s.e.Log.Warn("the stall cannot be written down", "error", err)
	}
	detail := map[string]any{
		"phase": r.Phase, "last_operation": r.Doing, "steps": r.Steps, "idle_seconds": r.Idle.Seconds(),
		"limit_seconds": r.Limit.Seconds(), "device": r.State, "stacks": "stall.txt",
	}
	if err := runlog.AppendEvent(dir, "stall", "no progress", detail, "exit 22: "+r.Where()); err != nil {
		s.e.Log.Warn("the stall cannot be written down", "error", err)
	}
}

// superviseRun runs the same command as a watched child and ends as it does.
func superviseRun(e *cli.Env) error {
	if err := supervise.Supported(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fault.New(fault.Other, "the program's own path is not known").Because(err)
	}
	r, err := supervise.Run(supervise.Options{
		Program: self,
		Command: func(resume string) []string { return append(os.Args[:1:1], childArgs(e.Command[1:], resume)...) },
		Env:     os.Environ(), Out: os.Stdout, Err: os.Stderr,
		Told: func(format string, args ...any) { e.Log.Warn(fmt.Sprintf(format, args...)) },
		Death: func(dir string, d supervise.Death, restart bool) {
			if dir == "" {
				return
			}
			detail := map[string]any{"death": d, "started_again": restart, "supervisor": runlog.ThisProcess()}
			if r, err := runlog.Read(dir); err == nil && r.Last() != nil { // before the next attempt takes back the steps after its checkpoint
				detail["step"], detail["leg"] = r.Last().Step+1, r.Last().Leg
			}
			if err := runlog.AppendEvent(dir, "death", d.Cause(), detail, d.String()); err != nil {
				e.Log.Warn("the death cannot be written down", "error", err)
			}
		},
	})
	if err != nil {
		return fault.New(fault.Other, "the training process cannot be started").Because(err)
	}
	exit := &cli.Exit{Code: r.ExitCode()}
	if !r.Told() {
		kind := fault.Other
		switch {
		case r.Hung:
			kind = fault.Hung
		case r.Verdict == supervise.OutOfMemory:
			kind = fault.Memory
		}
		exit.Err = fault.New(kind, "%s", r.Describe()).WithID("E-SUPERVISE-001")
		if r.RunDir != "" {
			exit.Err = fault.New(kind, "%s", r.Describe()).WithID("E-SUPERVISE-001").
				WithHint("apr runs diagnose %[1]s; go on with `apr runs resume %[1]s`", shellWord(r.RunDir))
		}
	}
	return exit
}

// childArgs is a command line of distill that continues a run, or as it is if there is none to continue.
func childArgs(args []string, resume string) []string {
	if resume == "" {
		return args
	}
	var out []string
	done := false
	for i, a := range args {
		if a == "--" {
			return append(out, args[i:]...)
		}
		if a == "--resume" || strings.HasPrefix(a, "--resume=") {
			continue
		}
		out = append(out, a)
		if a == "distill" && !done {
			out, done = append(out, "--resume="+resume), true
		}
	}
	return slices.Clip(out)
}
