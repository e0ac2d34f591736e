package main

import (
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"apr/internal/cli"
	"apr/internal/fault"
	"apr/internal/readfile"
	runs "apr/run/list"
	runlog "apr/run/log"
)

// runsFolderOf returns the folder in which runs are looked for by name; only the environment says it.
func runsFolderOf(e *cli.Env) string { return cmp.Or(e.Getenv("APR_RUNS_DIR"), "runs") }

// modelHere returns the model on this machine that an argument means: a path as it is, the student of a run's
// directory, or of the run in folder that has this name or identity, or the only one that begins so. What is there
// under its own name is never taken for a run's identity. "": there is none.
func modelHere(arg, folder string) (string, error) {
	if _, err := os.Lstat(arg); err == nil && !runlog.IsRun(arg) {
		return arg, nil
	}
	run, err := runHere(arg, folder)
	if run == "" || err != nil {
		return "", err
	}
	return trained(run)
}

// runHere returns the run that an argument means, by its directory, name or identity; "": none. A name in a
// configuration file, or of a run that is resumed from another folder, has a folder before it: the one that a relative
// runs folder is in.
func runHere(arg, folder string) (string, error) {
	if _, err := os.Lstat(arg); err == nil || arg == "" {
		if runlog.IsRun(arg) {
			return arg, nil
		}
		return "", nil
	}
	dir, name := filepath.Split(arg)
	switch {
	case dir == "":
	case inFolder(arg, folder):
	case filepath.IsAbs(folder):
		return "", nil
	default:
		if run := filepath.Join(dir, folder, name); runlog.IsRun(run) {
			return run, nil
		}
		return "", nil
	}
	run, err := runs.Find(folder, name)
	if f := (*fault.Error)(nil); errors.As(err, &f) && f.ID == "E-RUN-007" { // no run of that name
		return "", nil
	}
	return run, err
}

// inFolder reports whether a path is directly below a folder.
func inFolder(path, folder string) bool {
	return strings.ContainsAny(path, `/\`) && filepath.Dir(filepath.Clean(path)) == filepath.Clean(folder)
}

// noModel is the error of an argument that names no model here; it names the nearest file or run, or why
// nobody can look.
func noModel(arg, folder string) error {
	if _, err := os.Lstat(arg); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return readfile.Fault(arg, err)
	}
	dir, names := filepath.Dir(arg), []string{}
	entries, _ := os.ReadDir(dir) // a folder that is not there holds nothing that is near
	for _, entry := range entries {
		names = append(names, filepath.Join(dir, entry.Name()))
	}
	f := fault.In(fault.NotFound, arg, "there is no such file or folder").WithID("E-FILE-001")
	if dir == "." && !strings.ContainsAny(arg, `/\`) {
		f.Msg += ", and no run of that name in " + cli.Clean(folder)
		own, _ := runs.Names(folder) // what cannot be read holds no name
		names = append(names, own...)
	}
	if near := fault.Nearest(filepath.Clean(arg), names); near != "" {
		return f.WithHint("did you mean %s?", near)
	}
	return f.WithHint("a model is a file, a folder, org/name of a hub, or a run: apr runs list shows the runs")
}

// trained returns the student's file of a run.
func trained(run string) (string, error) {
	student := filepath.Join(run, "student.apr")
	if _, err := os.Stat(student); err == nil {
		return student, nil
	}
	if folder := filepath.Join(run, "adapter"); isFolder(folder) {
		return "", fault.In(fault.NotFound, run, "has an adapter alone: --lora-merge off wrote no student.apr").
			WithHint("give the model that it was trained on, with --adapter %s", folder).WithID("E-RUN-010")
	}
	e := fault.In(fault.NotFound, run, "has no student.apr yet: it is written when the run completes").WithID("E-RUN-010")
	if r, err := runlog.ReadStatus(run); err == nil {
		e.Msg = "has no student.apr: the run is " + r.Status
		if r.Status == runlog.Stopped {
			return "", e.WithHint("apr runs resume %s goes on with it", filepath.Base(run))
		}
	}
	return "", e.WithHint("apr runs show %s", filepath.Base(run))
}
