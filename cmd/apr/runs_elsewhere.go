package main

import (
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

// dispatchedRun returns the record of a run that was dispatched elsewhere and that id means: its ticket, its name or its directory
// there, or the beginning of exactly one ticket or name. Of several of one name it is the newest; nil if there is none.
func dispatchedRun(dir, id string) (*dispatchRecord, error) {
	all, err := dispatchRecords(filepath.Join(dir, "dispatch"))
	if err != nil || id == "" {
		return nil, err
	}
	var exact, begun *dispatchRecord
	names := map[string]bool{}
	for _, r := range all { // in order of time
		switch {
		case id == r.Ticket || id == r.RunName || id == r.RunDir:
			exact = r
		case strings.HasPrefix(r.Ticket, id) || strings.HasPrefix(r.RunName, id):
			begun, names[r.RunName] = r, true
		}
	}
	if exact != nil || len(names) != 1 {
		return exact, nil
	}
	return begun, nil
}

// dispatchRecords reads the records of runs elsewhere in a folder, those dispatched last at the end. What is no such record is left out.
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
		text, err := readfile.String(name, 1<<20)
		if err != nil {
			return nil, err
		}
		r := &dispatchRecord{}
		if err := json.Unmarshal([]byte(text), r); err != nil {
			return nil, fault.In(fault.Format, name, "is no record of a dispatch").Because(err).WithID("E-RUN-038")
		}
		if r.Ticket+".json" == e.Name() && r.Scheduler != "local" {
			all = append(all, r)
		}
	}
	return all, nil
}

// started is the job of a record, for its scheduler.
func (r *dispatchRecord) started() dispatch.Started {
	s := dispatch.Started{Scheduler: r.Scheduler, Ticket: r.Ticket, Host: r.Host, Dir: r.Dir, RunDir: flagValue(r.Command, "output")}
	if len(r.Command) > 0 {
		s.Program = r.Command[0]
	}
	if r.JobID != nil {
		s.JobID = *r.JobID
	}
	return s
}

// farAway is the error of a command for runs here that names a run elsewhere; nil: it does not.
func farAway(dir, id, command string) error {
	r, err := dispatchedRun(dir, id)
	if r == nil || err != nil {
		return nil // what was looked for first says what is wrong
	}
	where := map[string]string{"ssh": "on " + r.Host, "slurm": "in Slurm", "k8s": "in Kubernetes"}[r.Scheduler]
	return fault.New(fault.Invalid, "the run %q is %s, in %s", r.RunName, where, r.RunDir).
		WithHint("call apr runs %s %s there", command, shellWord(path.Clean(r.RunDir))).WithID("E-RUN-039")
}
