package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"apr/internal/cli"
	"apr/internal/fault"
	runs "apr/run/list"
	runlog "apr/run/log"
)

func runsRemoveCommand() *cli.Command {
	var dir string
	var ids []string
	var yes bool
	return &cli.Command{
		Name: "rm", Short: "Remove the folders of runs",
		Long: "Removes the folders of runs with all that is in them, after a question: student, checkpoints, records.\n" +
			"Nothing is removed unless all of them can be: only the folder of a run is removed, and only while no\n" +
			"process writes to it. Links in it are removed, not followed. What the run exported elsewhere stays.",
		Example: "apr runs rm mine\napr runs rm runs/mine runs/other --yes",
		Exits:   append(runsExits, fault.Invalid, fault.UnsafePath),
		Options: []cli.Option{
			{Name: "id", Arg: true, Required: true, Complete: runNames, Value: cli.Strings(&ids),
				Help: "runs: their directories, or the beginnings of their names or identities"},
			runsDirOption(&dir),
			{Name: "yes", Short: "y", Value: cli.Bool(&yes, false), Help: "remove without asking"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) {
			var all runsRemoved
			for _, id := range ids {
				path, err := findHere(e.Settings, dir, id, "rm")
				if err != nil {
					return nil, err
				}
				r, err := toRemove(path)
				if err != nil {
					return nil, err
				}
				if !slices.ContainsFunc(all.Runs, func(o *runsRemoveResult) bool { return o.full == r.full }) {
					all.Runs = append(all.Runs, r)
				}
			}
			if err := all.remove(e, yes); err != nil {
				return nil, err
			}
			if len(ids) == 1 {
				return all.Runs[0], nil
			}
			return all, nil
		},
	}
}

// runsRemoved is the JSON of apr runs rm with several runs.
type runsRemoved struct {
	Runs []*runsRemoveResult `json:"runs"`
}

// Text says what was done.
func (all runsRemoved) Text(p *cli.Page) {
	if !all.Runs[0].Removed { // none was
		p.Printf("nothing was removed\n")
		return
	}
	for _, r := range all.Runs {
		r.Text(p)
	}
}

// runsRemoveResult is the JSON of apr runs rm with one run.
type runsRemoveResult struct {
	RunID   string `json:"run_id"`
	RunDir  string `json:"run_dir"`
	Files   int    `json:"files"`
	Bytes   int64  `json:"size_bytes"`
	Removed bool   `json:"removed"`

	full, status string // absolute path, and what the run's record says
}

// Text says what was done.
func (r *runsRemoveResult) Text(p *cli.Page) {
	if !r.Removed {
		p.Printf("nothing was removed\n")
		return
	}
	p.Printf("removed %s: %s, %s\n", cli.Clean(r.RunDir), plural(r.Files, "file"), cli.Bytes(r.Bytes))
}

// toRemove returns what there is to remove of a run. A run that may not be removed, or that is running, is refused.
func toRemove(path string) (*runsRemoveResult, error) {
	full, err := removable(path)
	if err != nil {
		return nil, err
	}
	r := &runsRemoveResult{RunID: filepath.Base(full), RunDir: path, full: full, status: "damaged"}
	if record, err := runlog.ReadStatus(full); err == nil {
		r.RunID, r.status = record.ID(), record.Status
	}
	if err := r.count(full); err != nil {
		return nil, err
	}
	if _, held := runlog.LockedBy(full); held { // before anybody is asked
		return nil, fault.In(fault.Invalid, path, "is running").
			WithHint("apr runs stop %s ends it", shellWord(path)).WithID("E-RUN-045")
	}
	return r, nil
}

// remove asks, unless yes, and removes the folders of all runs, once it has the locks of all of them.
func (all runsRemoved) remove(e *cli.Env, yes bool) (err error) {
	if !yes {
		if yes, err = confirmed(e, all.question()); err != nil || !yes {
			return err
		}
	}
	var unlocks []func() error
	for _, r := range all.Runs {
		unlock, err := runlog.Lock(r.full)
		if err != nil {
			for _, unlock := range unlocks {
				err = errors.Join(err, unlock())
			}
			return err
		}
		unlocks = append(unlocks, unlock)
	}
	var failed error
	for i, r := range all.Runs {
		err := errors.Join(removeFolder(r.full), unlocks[i]())
		r.Removed = err == nil
		failed = errors.Join(failed, err)
	}
	for _, r := range all.Runs {
		if failed != nil && r.Removed {
			e.Log.Info("removed " + r.RunDir)
		}
	}
	return failed
}

// question asks whether the runs shall be removed: with the name of each, the number of their files and their bytes.
func (all runsRemoved) question() string {
	if len(all.Runs) == 1 {
		r := all.Runs[0]
		return fmt.Sprintf("Remove %s (%s, %s, %s)? [y/N] ", r.RunDir, r.status, plural(r.Files, "file"), cli.Bytes(r.Bytes))
	}
	var names []string
	files, bytes := 0, int64(0)
	for _, r := range all.Runs {
		names, files, bytes = append(names, fmt.Sprintf("%s (%s)", r.RunDir, r.status)), files+r.Files, bytes+r.Bytes
	}
	return fmt.Sprintf("Remove %s: %s, %s? [y/N] ", strings.Join(names, ", "), plural(files, "file"), cli.Bytes(bytes))
}

// removable returns the absolute path of a run's folder that may be removed. Links, folders that hold other runs, and
// folders in which somebody works are refused.
func removable(path string) (string, error) {
	full, err := filepath.Abs(path)
	if err != nil {
		return "", fault.In(fault.IO, path, "has no absolute path").Because(err)
	}
	info, err := os.Lstat(full)
	if err != nil {
		return "", fault.In(fault.IO, path, "cannot be looked at").Because(err)
	}
	if info.Mode().Type() != fs.ModeDir {
		return "", fault.In(fault.UnsafePath, path, "is a link to a folder, not a folder").
			WithHint("name the folder of the run itself").WithID("E-RUN-040")
	}
	inside, err := runs.Paths(full)
	if err != nil {
		return "", err
	}
	if len(inside) > 0 {
		return "", fault.In(fault.Invalid, path, "holds %d other runs, %s among them", len(inside), filepath.Base(inside[0])).
			WithHint("apr runs rm --dir %s removes them one by one", shellWord(path)).WithID("E-RUN-041")
	}
	for at := workingFolder(); at != ""; at = filepath.Dir(at) {
		if here, err := os.Stat(at); err == nil && os.SameFile(here, info) {
			return "", fault.In(fault.Invalid, path, "holds the working directory").WithHint("cd out of it").WithID("E-RUN-042")
		}
		if at == filepath.Dir(at) {
			break
		}
	}
	return full, nil
}

// count adds up what is in the folder. Links are counted, not followed.
func (r *runsRemoveResult) count(full string) error {
	err := filepath.WalkDir(full, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		r.Files++
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			r.Bytes += info.Size()
		}
		return nil
	})
	if err != nil {
		return fault.In(fault.IO, full, "cannot be read").Because(err)
	}
	return nil
}

// removeFolder removes a folder: first its name, so that half of a run is never taken for one. Nothing outside of it
// can be reached: names below the root do not lead out, and links are removed as such.
func removeFolder(full string) error {
	failed := func(err error) error {
		return fault.In(fault.IO, full, "cannot be removed").Because(err).WithID("E-RUN-043")
	}
	root, err := os.OpenRoot(filepath.Dir(full))
	if err != nil {
		return failed(err)
	}
	name := filepath.Base(full)
	gone := "." + name + ".removed-" + time.Now().UTC().Format("20060102T150405.000000")
	if err = root.Rename(name, gone); err == nil {
		err = root.RemoveAll(gone)
	}
	if err := errors.Join(err, root.Close()); err != nil {
		return failed(err)
	}
	return nil
}

// confirmed puts a question to the person at the terminal. Without one it is a usage error.
func confirmed(e *cli.Env, question string) (bool, error) {
	if e.JSON || !e.StdinIsTerminal() {
		return false, fault.New(fault.Usage, "there is nobody to ask: --yes removes without a question").WithID("E-RUN-044")
	}
	fmt.Fprint(e.Err, question)
	line, err := bufio.NewReader(e.In).ReadString('\n')
	if err != nil && line == "" {
		fmt.Fprintln(e.Err)
		return false, nil // closed: no answer
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return true, nil
	}
	return false, nil
}
