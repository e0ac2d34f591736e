package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"apr/internal/cli"
	"apr/internal/fault"
	"apr/run/dispatch"
	runlog "apr/run/log"
)

func runsResumeCommand() *cli.Command {
	var dir, id string
	var allowChanged bool
	return &cli.Command{
		Name: "resume", Short: "Go on with a stopped or killed run",
		Long: "Goes on with a run from its newest valid checkpoint, or from the beginning if it has none. The run's\n" +
			"manifest knows models, data and settings; the student is bit for bit that of a run that nothing\n" +
			"stopped. A run that --supervise watched is supervised again. To change a setting that decides no\n" +
			"bits, call apr distill --resume=RUN with its flag; to go on in the background, apr dispatch\n" +
			"--resume=RUN.",
		Example: "apr runs resume mine\napr runs resume runs/mine\napr distill --resume=runs/mine --log-every 1",
		Exits:   distillCommand().Exits,
		Advice:  keptSettings(),
		Options: []cli.Option{
			runOption(&id), runsDirOption(&dir),
			{Name: "allow-changed", Value: cli.Bool(&allowChanged, false), Help: "go on although the program, data or machine differ, as after building apr anew; the run records it"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) {
			path, err := findHere(e.Settings, dir, id, "resume")
			if err != nil {
				return nil, err
			}
			return resumeRun(ctx, e, path, dir, allowChanged)
		},
	}
}

// keptSettings says of every flag of distill why apr runs resume has it not.
func keptSettings() map[string]string {
	all := map[string]string{}
	for _, o := range (&distillOptions{}).table() {
		for _, name := range append([]string{o.Name}, o.Aliases...) {
			all[name] = "a resumed run keeps its settings, so that the student is bit for bit that of an unbroken run; " +
				"apr distill --resume=RUN --" + name + " … changes one that decides no bits, and others with --allow-changed"
		}
	}
	for _, own := range []string{"allow-changed", "resume"} {
		delete(all, own)
	}
	return all
}

// findHere finds a run on this machine; the error of one that is elsewhere says where.
func findHere(s cli.Settings, dir, id, command string) (string, error) {
	path, err := findRun(s, dir, id)
	if fault.KindOf(err) == fault.NotFound {
		if far := farAway(dir, id, command); far != nil {
			return "", far
		}
	}
	return path, err
}

// resumeRun is apr distill --resume=PATH.
func resumeRun(ctx context.Context, e *cli.Env, path, dir string, allowChanged bool) (cli.Result, error) {
	record, err := runlog.ReadStatus(path)
	if err != nil {
		return nil, err
	}
	switch name := runName(path, dir); {
	case record.Status == runlog.Running && (record.RestartedBy == 0 || record.RestartedBy != os.Getppid()):
		return nil, fault.In(fault.Invalid, path, "is running: there is nothing to resume").
			WithHint("apr runs tail %s follows it, apr runs stop %s ends it", name, name).WithID("E-RUN-020")
	case record.Status == runlog.Completed && !reachedCap(record):
		return nil, fault.In(fault.Invalid, path, "is complete: there is nothing to resume").
			WithHint("apr runs show %s shows what it came to", name).WithID("E-RUN-021")
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, fault.In(fault.IO, path, "has no absolute path").Because(err)
	}
	o := &distillOptions{}
	table := o.table()
	if err := e.Reset(table); err != nil {
		return nil, err
	}
	was := earlierCall(record)
	was.Settings["resume"] = cli.Setting{Value: path, Origin: "flag"}
	if allowChanged {
		was.Settings["allow_changed"] = cli.Setting{Value: true, Origin: "flag"}
	}
	if err := e.TakeOver(table, was); err != nil {
		return nil, err
	}
	o.RunsDir = cmp.Or(dir, o.RunsDir)
	return runDistill(ctx, e, o)
}

// runName is how a run is named to the commands of apr runs: by its name in the runs folder, else by its directory.
func runName(path, runsDir string) string {
	full, err := filepath.Abs(path)
	folder, err2 := filepath.Abs(cmp.Or(runsDir, "runs"))
	if name := filepath.Base(full); err == nil && err2 == nil && filepath.Dir(full) == folder && !runlog.IsRun(name) {
		return shellWord(name)
	}
	return shellWord(path)
}

// shellWord quotes a word for a shell where that is needed.
func shellWord(s string) string { return dispatch.Line(nil, []string{s}) }

// resumeCommand is the command that goes on with a run.
func resumeCommand(path, runsDir string) string { return "apr runs resume " + runName(path, runsDir) }

// howToGoOn names the command that goes on with a run that a signal or a full disk has stopped. Of a run whose other
// ranks somebody else started, as launched says, it is that command for all ranks.
func (o *distillOptions) howToGoOn(path string, launched bool, err error) error {
	f := (*fault.Error)(nil)
	if !errors.As(err, &f) {
		return err
	}
	command := "go on with `" + resumeCommand(path, o.RunsDir) + "`"
	if launched {
		command = "start all ranks as before, each with --resume: they go on from the last checkpoint"
	}
	switch {
	case f.Kind == fault.Stopped:
		f.Hint = command
	case f.Hint == "" && errors.Is(err, syscall.ENOSPC) && runlog.IsRun(path):
		f.Hint = "make room, then " + command
	}
	return err
}

// announceStop tells what the first signal does, since a step and a checkpoint may take a while. The function that it
// returns ends that.
func announceStop(ctx context.Context, e *cli.Env) func() {
	stop := context.AfterFunc(ctx, func() {
		e.Log.Info("stopping in order; a second signal (Ctrl-C) ends the run at once, without a checkpoint")
	})
	return func() { stop() }
}
