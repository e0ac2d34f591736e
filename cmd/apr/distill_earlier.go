package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
	runlog "apr/run/log"
)

// takeEarlier completes the options of a call that resumes a run with what the run was asked to do: models, data and
// every setting. What this call gives counts; if it changes bits, the run's checkpoint refuses it by name.
func (o *distillOptions) takeEarlier(e *cli.Env, opts []cli.Option) error {
	if err := o.takeRun(e, opts); err != nil {
		return err
	}
	return o.firstTeacher(e, opts)
}

// takeRun is takeEarlier for all but the first of several teachers, which only a call that begins a run may leave open.
func (o *distillOptions) takeRun(e *cli.Env, opts []cli.Option) error {
	if o.Resume != "newest" {
		run, err := runHere(o.Resume, o.RunsDir)
		if err != nil {
			return err
		}
		o.Resume = cmp.Or(run, o.Resume)
	}
	dir, err := o.resumes()
	if dir == "" || err != nil {
		return err
	}
	record, err := runlog.ReadStatus(dir)
	switch {
	case err == nil:
		was := earlierCall(record)
		dropRivals(e.Settings, was.Settings)
		return e.TakeOver(opts, was)
	case o.Teacher == "":
		return err // there is nothing else to go by
	}
	return nil // the run's records are judged when it is opened
}

// takeEarlierHere is takeEarlier for a run that is dispatched: elsewhere, --resume names a run there.
func (d *dispatchOptions) takeEarlierHere(e *cli.Env, opts []cli.Option) error {
	if d.scheduler != "local" {
		return d.implied(e, opts)
	}
	return d.complete(e, opts)
}

// resumes returns the run directory that the call resumes, as far as it says which. A call that says nothing else is
// refused.
func (o *distillOptions) resumes() (dir string, err error) {
	switch resume := o.Resume; {
	case resume == "":
		return "", nil
	case resume != "newest":
		dir, _, err = distill.ResolveResume(resume, o.Output)
	case o.Output != "" && isRun(o.Output):
		return o.Output, nil
	case o.Output == "" && o.Teacher == "":
		err = fault.New(fault.Usage, "--resume needs --output, the run directory, or --resume PATH")
	}
	if o.Teacher != "" {
		return dir, nil // told when all is known of the call
	}
	return dir, err
}

// onlyNow are settings that belong to one call and not to its run.
var onlyNow = []string{"resume", "allow_changed", "plan", "print_config", "runs_dir", "rank", "rendezvous", "expect"}

// earlierCall returns what a run was asked to do when it was begun or last resumed.
func earlierCall(r *runlog.Record) cli.Earlier {
	was := cli.Earlier{Settings: map[string]cli.Setting{}, Folder: r.InForce.Folder}
	if _, err := os.Stat(was.Folder); err != nil || was.Folder == workingFolder() {
		was.Folder = "" // paths stay as they were given
	}
	for key, v := range r.InForce.Config {
		was.Settings[key] = cli.Setting{Value: v.Value, Origin: originFrom(was.Folder, v.Origin)}
	}
	for _, key := range onlyNow {
		delete(was.Settings, key)
	}
	if reachedCap(r) {
		delete(was.Settings, "max_steps")
	}
	return was
}

// originFrom is a recorded origin; a configuration file in it is found from a folder, unless that is empty.
func originFrom(folder, origin string) string {
	const config = "config "
	name, ok := strings.CutPrefix(origin, config)
	if !ok || folder == "" || filepath.IsAbs(name) {
		return origin
	}
	return config + filepath.Join(folder, name)
}

// reachedCap reports whether a run has ended at APR_DISTILL_MAX_STEPS: who resumes it wants the rest of the schedule.
func reachedCap(r *runlog.Record) bool {
	if r.Receipt == nil {
		return false
	}
	result, _ := r.Receipt.Result.(map[string]any)
	return result["stopped_by"] == "max_steps"
}

// conversations are options that only matter to conversations.
var conversations = []string{"chat-template", "messages-field", "assistant-only"}

// rivals are, by an option, those that take its place, or that mean nothing beside it: they give way to it where it is
// given in a stronger place, and recorded ones to another value of it. Whether that changes bits is for the checkpoint
// to say.
var rivals = map[string][]string{
	"student": {"student-config"}, "student-config": {"student"},
	"data": {"dataset"}, "dataset": append([]string{"data", "text-field", "data-cache"}, conversations...),
	"eval-data": {"val-fraction"}, "val-fraction": {"eval-data"},
	"warmup-steps": {"warmup-ratio"}, "warmup-ratio": {"warmup-steps"}, "epochs": {"steps"},
}

// dropRivals takes out of the recorded settings those that give way to a setting of this call.
func dropRivals(now cli.Settings, was map[string]cli.Setting) {
	key := func(name string) string { return strings.ReplaceAll(name, "-", "_") }
	present, recorded := now.Map(), maps.Clone(was)
	earlier := maps.Clone(rivals)
	earlier["text-field"] = conversations // of the data before
	for name, others := range earlier {
		if !now.Given(name) || sameJSONValue(present[key(name)].Value, recorded[key(name)].Value) {
			continue
		}
		for _, other := range others {
			delete(was, key(other))
		}
	}
}

// sameJSONValue compares a value with one that was read from a record.
func sameJSONValue(a, b any) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}

// workingFolder is the folder that relative paths of this call start from; empty: it is gone.
func workingFolder() string {
	dir, err := os.Getwd()
	if err != nil {
		return ""
	}
	return dir
}
