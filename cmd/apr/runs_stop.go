package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"apr/internal/atomicfile"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/internal/readfile"
	runlog "apr/run/log"
	"apr/run/supervise"
)

// stopOptions are the options of apr runs stop.
type stopOptions struct {
	dir, id string
	wait    time.Duration
	now     bool
}

func runsStopCommand() *cli.Command {
	o := &stopOptions{}
	return &cli.Command{
		Name: "stop", Short: "Stop a run wherever it is: here, by ssh, in Slurm or Kubernetes",
		Long: "Tells a run to finish its step, write a checkpoint and end; apr runs resume goes on with it. Here, only\n" +
			"the process that holds the run's lock is signalled. A run that was dispatched elsewhere, found by its\n" +
			"ticket or name in the runs folder's dispatch records, is stopped there: by apr runs stop through ssh,\n" +
			"by scancel, or by kubectl delete job. A run that is not running is left as it is.",
		Example: "apr runs stop mine\napr runs stop apr-20261120-144700-a1b2c3 --wait 10m\napr runs stop mine --now",
		Exits:   append(runsExits, fault.Invalid, fault.Unavailable, fault.Network, fault.Stopped),
		Options: []cli.Option{
			runOption(&o.id), runsDirOption(&o.dir),
			{Name: "wait", Value: cli.Duration(&o.wait, 5*time.Minute), Help: "time to wait for the run's end; 0 = none. Slurm: none"},
			{Name: "now", Value: cli.Bool(&o.now, false), Help: "end the run at once, without a checkpoint of its last steps"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) { return o.run(ctx, e) },
	}
}

// runsStopResult is the JSON of apr runs stop.
type runsStopResult struct {
	RunID     string `json:"run_id"`
	RunDir    string `json:"run_dir"`
	Where     string `json:"where"` // local, ssh, slurm or k8s
	Host      string `json:"host"`
	PID       *int   `json:"pid"`       // of the process here; null: none
	Signalled bool   `json:"signalled"` // false: it was not running, or had been told before
	RunStatus string `json:"run_status"`
	Step      *int   `json:"step"` // after which it stopped; null: not known here
	said      string // what a scheduler's program printed
	resume    string // the command that goes on
}

// Text says how it ended.
func (r *runsStopResult) Text(p *cli.Page) {
	switch {
	case r.RunStatus == runlog.Stopped && r.Step != nil:
		p.Printf("stopped after step %d; go on with `%s`\n", *r.Step, cli.Clean(r.resume))
	case r.RunStatus == runlog.Stopped:
		p.Printf("stopped; go on with `%s`\n", cli.Clean(r.resume))
	case r.RunStatus != "" && r.RunStatus != runlog.Running:
		p.Printf("the run is not running: it is %s\n", cli.Clean(r.RunStatus))
	default:
		p.Printf("told to stop: it finishes its step and writes a checkpoint\n")
	}
	if r.said != "" {
		p.Printf("%s\n", cli.Clean(r.said))
	}
}

func (o *stopOptions) run(ctx context.Context, e *cli.Env) (cli.Result, error) {
	exact, begun, unread := dispatchedRun(o.dir, o.id)
	if exact != nil {
		return o.stopElsewhere(ctx, exact)
	}
	path, err := findRun(e.Settings, o.dir, o.id)
	switch {
	case err == nil:
		return o.stopHere(ctx, e, path)
	case begun != nil:
		return o.stopElsewhere(ctx, begun)
	}
	return nil, cmp.Or(unread, err)
}

// stopElsewhere stops a dispatched run on its machine.
func (o *stopOptions) stopElsewhere(ctx context.Context, far *dispatchRecord) (cli.Result, error) {
	if far.DispatchedAt == nil {
		return nil, fault.New(fault.Invalid, "%s was never started: its record has no time of it", far.Ticket).
			WithID("E-RUN-035")
	}
	a, err := far.started().Stop(ctx, o.wait, o.now)
	if err != nil {
		return nil, err
	}
	return &runsStopResult{
		RunID: far.RunName, RunDir: far.RunDir, Where: far.Scheduler, Host: far.Host, Signalled: true,
		RunStatus: a.Status, Step: a.Step, said: a.Said,
		resume: "apr runs resume " + shellWord(flagValue(far.Command, "output")) + ", on " + far.Host,
	}, nil
}

// stopHere signals the process that writes a run on this machine, and waits for its end.
func (o *stopOptions) stopHere(ctx context.Context, e *cli.Env, path string) (cli.Result, error) {
	record, err := runlog.ReadStatus(path)
	if err != nil {
		return nil, err
	}
	r := &runsStopResult{RunID: record.ID(), RunDir: path, Where: "local",
		resume: cli.AsCalled(resumeCommand(path, o.dir))}
	r.Host, _ = os.Hostname()
	process, who, err := supervise.Writer(path)
	if err != nil {
		return nil, err
	}
	if process != nil {
		r.PID = &who.PID
		if r.Signalled, err = o.signal(ctx, path, process, who); err != nil {
			return nil, err
		}
		if o.wait > 0 {
			err = o.await(ctx, path)
		}
		if err != nil {
			return nil, err
		}
	}
	if record, err = runlog.ReadStatus(path); err != nil {
		return nil, err
	}
	r.RunStatus, r.Step = record.Status, stoppedAfter(record)
	return r, nil
}

// stopFile says which process of the run was told to stop, and so is not told a second time, which would end it at
// once.
const stopFile = ".stop"

// signal tells the process to stop, unless it was told before; with --now it tells it twice.
func (o *stopOptions) signal(ctx context.Context, path string, p *os.Process, who runlog.Process) (bool, error) {
	name := filepath.Join(path, stopFile)
	told := false
	if text, err := readfile.String(name, 4096); err == nil {
		var before runlog.Process
		told = json.Unmarshal([]byte(text), &before) == nil && before == who
	}
	if told && !o.now {
		return false, nil
	}
	if !told {
		text, err := json.Marshal(who)
		if err != nil {
			return false, fault.New(fault.Other, "the process cannot be written as JSON").Because(err)
		}
		if err := atomicfile.WritePrivate(name, text, true); err != nil {
			return false, err
		}
		if err := terminate(path, p, who); err != nil || !o.now {
			return err == nil, err
		}
		if err := sleep(ctx, cli.SecondSignal); err != nil { // a signal that comes twice at once is taken for one
			return true, err
		}
	}
	p, again, err := supervise.Writer(path)
	if p == nil || err != nil || again != who { // it has ended
		return true, nil
	}
	return true, terminate(path, p, who)
}

// terminate sends SIGTERM to a process; one that has just ended is not told.
func terminate(path string, p *os.Process, who runlog.Process) error {
	if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fault.In(fault.Other, path, "process %d cannot be signalled", who.PID).Because(err).WithID("E-RUN-036")
	}
	return nil
}

// await waits until no process writes the run.
func (o *stopOptions) await(ctx context.Context, path string) error {
	for last := time.Now().Add(o.wait); ; {
		if _, held := runlog.LockedBy(path); !held {
			return nil
		}
		if !time.Now().Before(last) {
			return fault.In(fault.Other, path,
				"was told to stop and has not ended within %v: it finishes its step and writes a checkpoint", o.wait).
				WithHint("apr runs stop waits again; with --now it ends the run without a checkpoint").WithID("E-RUN-037")
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// sleep waits for a time, or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// stoppedAfter returns the step after which a stopped run stopped, as its last event of that kind says.
func stoppedAfter(r *runlog.Record) *int {
	for i := len(r.Events) - 1; i >= 0 && r.Status == runlog.Stopped; i-- {
		if e := r.Events[i]; e.Kind == "stop" {
			detail, _ := e.Detail.(map[string]any)
			if step, ok := detail["step"].(float64); ok {
				n := int(step)
				return &n
			}
			return nil
		}
	}
	return nil
}
