package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/run/dispatch"
)

// dispatchedRun returns the records of runs that were dispatched elsewhere and that id means: exact, if it is the
// ticket, the name or the directory there, and else begun, if it is the beginning of tickets and names of one run. Of
// several dispatches of one name it is the newest. Both are nil if there is none.
func dispatchedRun(dir, id string) (exact, begun *dispatchRecord, err error) {
	all, err := dispatchRecords(filepath.Join(dir, "dispatch"))
	if id == "" {
		return nil, nil, err
	}
	names := map[string]bool{}
	for _, r := range all { // in order of time
		switch {
		case id == r.Ticket || id == r.RunName || id == r.RunDir:
			exact = r
		case strings.HasPrefix(r.Ticket, id) || strings.HasPrefix(r.RunName, id):
			begun, names[r.RunName] = r, true
		}
	}
	if len(names) > 1 {
		begun = nil
	}
	return exact, begun, err
}

// dispatchRecords reads the records of runs elsewhere in a folder, those dispatched last at the end. An error says
// which of them cannot be read; the others are returned.
func dispatchRecords(folder string) (all []*dispatchRecord, err error) {
	entries, err := os.ReadDir(folder) // by name: tickets begin with the time
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, readfile.Fault(folder, err)
	}
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".json" {
			continue
		}
		name := filepath.Join(folder, e.Name())
		text, failed := readfile.String(name, 1<<20)
		r := &dispatchRecord{}
		if failed == nil {
			if bad := json.Unmarshal([]byte(text), r); bad != nil {
				failed = fault.In(fault.Format, name, "is no record of a dispatch").Because(bad).WithID("E-RUN-038")
			}
		}
		if failed != nil {
			err = failed
			continue
		}
		if r.Ticket+".json" == e.Name() && r.Scheduler != "local" {
			all = append(all, r)
		}
	}
	return all, err
}

// started is the job of a record, for its scheduler.
func (r *dispatchRecord) started() dispatch.Started {
	s := dispatch.Started{Scheduler: r.Scheduler, Ticket: r.Ticket, Host: r.Host, Dir: r.Dir,
		RunDir: flagValue(r.Command, "output"), Pods: r.Machines > 1, Set: r.Kind == kindJobSet}
	if len(r.Command) > 0 {
		s.Program = r.Command[0]
	}
	if r.JobID != nil {
		s.JobID = *r.JobID
	}
	return s
}

// farAway is the error of a command for runs here that names a run elsewhere, or what keeps that from being known; nil:
// it names none.
func farAway(dir, id, command string) error {
	exact, begun, err := dispatchedRun(dir, id)
	r := cmp.Or(exact, begun)
	if r == nil {
		return err
	}
	where := map[string]string{"ssh": "on " + r.Host, "slurm": "in Slurm", "k8s": "in Kubernetes"}[r.Scheduler]
	return fault.New(fault.Invalid, "the run %q is %s, in %s", r.RunName, where, r.RunDir).
		WithHint("call apr runs %s %s there", command, shellWord(path.Clean(r.RunDir))).WithID("E-RUN-039")
}
