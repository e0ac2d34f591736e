package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"apr/hub"
	"apr/internal/cli"
	"apr/internal/fault"
	runs "apr/run/list"
	runlog "apr/run/log"
)

// runsEnvOption is the folder in which runs are looked for by their identity; only the environment says it.
func runsEnvOption(p *string) cli.Option {
	return cli.Option{Name: "runs-dir", EnvOnly: true, Path: true, Env: "APR_RUNS_DIR", Value: cli.String(p, "runs"), Help: "folder in which runs are looked for"}
}

// studentOf returns the model that an argument means where a run may be named: the student of a run's directory, or of the
// run in dir that arg is the identity of, or the beginning of that. Any other argument stays as it is; what is there under its
// own name is never taken for a run's identity.
func studentOf(arg, dir string) (string, error) {
	if _, err := os.Stat(arg); err == nil {
		if !runlog.IsRun(arg) {
			return arg, nil
		}
		return trained(arg)
	}
	if strings.HasPrefix(arg, hub.Scheme) || strings.ContainsAny(arg, `/\`) {
		return arg, nil
	}
	path, err := runs.Find(dir, arg)
	if err == nil {
		return trained(path)
	}
	var f *fault.Error
	if errors.As(err, &f) && f.ID == "E-RUN-007" { // no run of that name: what opens models says what is missing
		return arg, nil
	}
	return "", err
}

// trained returns the student's file of a run.
func trained(run string) (string, error) {
	student := filepath.Join(run, "student.apr")
	if _, err := os.Stat(student); err == nil {
		return student, nil
	}
	e := fault.In(fault.NotFound, run, "has no student.apr yet: it is written when the run completes").WithID("E-RUN-010")
	if r, err := runlog.ReadStatus(run); err == nil {
		e.Msg = "has no student.apr: the run is " + r.Status
	}
	return "", e.WithHint("apr runs show %s", filepath.Base(run))
}
