// Package runs finds and compares runs: the directories below a runs folder that hold the manifest of a run.
//
// The files of a run are the truth. The index of a folder, a file of JSON lines, only remembers what its list says of them, and
// can be made again.
package runs

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"apr/internal/fault"
	runlog "apr/run/log"
)

// Summary is a run in a list.
type Summary struct {
	RunID       string         `json:"run_id"`
	Path        string         `json:"path"`
	Status      string         `json:"status"`
	Started     time.Time      `json:"started"`
	Steps       int            `json:"steps"` // of the student's leg, done or refused
	Planned     int            `json:"steps_planned,omitempty"`
	Loss        *runlog.Number `json:"loss"` // of the last that was applied; null: none yet
	Val         *runlog.Number `json:"val_nats_per_token"`
	HeldOut     string         `json:"held_out,omitempty"`      // see HeldOut: Val can be compared where it is equal
	HeldOutName string         `json:"held_out_name,omitempty"` // of HeldOut, for people
	Problem     string         `json:"problem,omitempty"`       // why the records cannot be read

	Curve []runlog.Number `json:"-"` // of the loss, in few points
}

// Summarise takes a run's line of the list out of its records.
func Summarise(r *runlog.Record) Summary {
	s := Summary{RunID: r.ID(), Path: r.Path, Status: r.Status, Started: r.Manifest.Started,
		Planned: planned(r), Curve: curve(r.Steps)}
	for _, step := range r.Steps {
		if step.Leg == studentLeg {
			s.Steps = step.Step + 1
			if !step.Refused() {
				s.Loss = finite(step.Loss)
			}
		}
	}
	if e := evaluation(r, distilled); e != nil {
		s.Val, s.HeldOut, s.HeldOutName = finite(e.NatsPerToken), HeldOut(r), HeldOutName(r)
	}
	return s
}

func finite(n runlog.Number) *runlog.Number {
	if !n.Finite() {
		return nil
	}
	return &n
}

// summary reads a run's line. A run whose records cannot be read has a line too: it says why.
func summary(path string) Summary {
	r, err := runlog.Read(path)
	if err != nil {
		return Summary{RunID: filepath.Base(path), Path: path, Status: runlog.Failed, Problem: err.Error()}
	}
	return Summarise(r)
}

// Paths returns the run directories of a runs folder, by name. A folder that does not exist holds none. What --force has
// moved aside is left out.
func Paths(dir string) ([]string, error) {
	paths, err := candidates(dir)
	return slices.DeleteFunc(paths, func(path string) bool { return !runlog.IsRun(path) }), err
}

// candidates are the folders of a runs folder that hold a manifest.json, of a run or of something else.
func candidates(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.In(fault.IO, dir, "cannot be read").Because(err)
	}
	var paths []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if _, err := os.Stat(filepath.Join(path, "manifest.json")); err == nil && !strings.Contains(e.Name(), ".bak-") {
			paths = append(paths, path)
		}
	}
	return paths, nil
}

// List returns the runs of a folder, the newest first, with the help of its index.
func List(dir string) ([]Summary, error) {
	return OpenIndex(dir, false).List()
}

func newestFirst(all []Summary) {
	slices.SortStableFunc(all, func(a, b Summary) int {
		return cmp.Or(b.Started.Compare(a.Started), cmp.Compare(b.RunID, a.RunID))
	})
}

// Find returns the directory of the run that id means: a run's directory, or the beginning of the identity or of the name
// of exactly one run below dir. Otherwise the error is of kind NotFound, with the nearest that there is.
func Find(dir, id string) (string, error) {
	if id != "" && runlog.IsRun(id) {
		return id, nil
	}
	paths, err := Paths(dir)
	if err != nil {
		return "", err
	}
	var names, hits []string
	for _, path := range paths {
		own := namesOf(path)
		names = append(names, own...)
		if slices.Contains(own, id) {
			return path, nil
		}
		if id != "" && slices.ContainsFunc(own, func(n string) bool { return strings.HasPrefix(n, id) }) {
			hits = append(hits, path)
		}
	}
	switch {
	case len(hits) == 1:
		return hits[0], nil
	case len(hits) > 1:
		return "", fault.New(fault.NotFound, "%q is the beginning of %d runs", id, len(hits)).
			WithHint("say more: %s", strings.Join(baseNames(hits), ", ")).WithID("E-RUN-006")
	}
	f := fault.New(fault.NotFound, "there is no run %q in %s", id, dir).WithID("E-RUN-007")
	if near := fault.Nearest(id, names); near != "" {
		return "", f.WithHint("did you mean %s?", near)
	}
	if len(paths) == 0 {
		return "", f.WithHint("there are no runs there; --dir names another folder")
	}
	return "", f.WithHint("apr runs list shows what there is")
}

// Names returns the names and the identities of the runs below dir.
func Names(dir string) (names []string, err error) {
	paths, err := Paths(dir)
	for _, path := range paths {
		names = append(names, namesOf(path)...)
	}
	return names, err
}

func namesOf(path string) []string { return []string{filepath.Base(path), identity(path)} }

// identity is the run's own name for itself.
func identity(path string) string {
	if m := runlog.ReadManifest(path); m != nil && m.RunID != "" {
		return m.RunID
	}
	return filepath.Base(path)
}

func baseNames(paths []string) (names []string) {
	const most = 5
	for i, p := range paths {
		if i == most {
			return append(names, "…")
		}
		names = append(names, filepath.Base(p))
	}
	return names
}
