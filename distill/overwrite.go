package distill

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"apr/corpus"
	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/internal/keep"
	runlog "apr/run/log"
)

// checkOutput refuses a run directory or a file to write that cannot be used, before anything is read.
func (c Config) checkOutput() error {
	return errors.Join(runlog.Check(c.Output, c.Force, c.Resume != ""), c.CheckOutputs())
}

// CheckOutputs refuses outputs that would replace or move what the run reads, whether that is forced or not: an output
// that is an input by any name, also through links, and a run directory that would be moved aside with an input in it:
// by its name, by any link on the way to it, or by a hard link. So is a file that cannot be
// written at the end.
func (c Config) CheckOutputs() error {
	o := outputs{export: c.Export, run: c.Output, folders: map[string]bool{}}
	o.exportInfo, _ = os.Stat(c.Export)
	o.runInfo, _ = os.Stat(c.Output)
	if c.Resume == "" && c.Force && o.runInfo != nil { // unforced, one with anything in it is refused
		o.moved = map[fingerprint][]os.FileInfo{}
		if err := eachFile(c.Output, func(fs.DirEntry) bool { return false }, o.move); err != nil {
			return err
		}
	}
	if err := c.eachInput(o.check); err != nil || c.Export == "" {
		return err
	}
	f, err := atomicfile.Create(c.Export, c.replaces())
	if err != nil {
		return err
	}
	return f.Close()
}

// exportedEvent is a run's record of the file that it wrote beside its directory, with its hash.
const exportedEvent = "exported"

// replaces reports whether the file to write may be there: that is forced, or it is as an earlier part of the run,
// which was stopped in its control or its evaluation, left it.
func (c Config) replaces() bool {
	if c.Force || c.Resume == "" {
		return c.Force
	}
	record, err := runlog.ReadStatus(c.Output)
	if err != nil {
		return false
	}
	sum, _, err := hashFile(c.Export)
	return err == nil && slices.ContainsFunc(record.Events, func(e runlog.Event) bool {
		detail, ok := e.Detail.(map[string]any)
		return ok && e.Name == exportedEvent && detail["sha256"] == sum
	})
}

// eachInput visits every file and folder that the run reads.
func (c Config) eachInput(visit func(path string) error) error {
	for _, m := range append(c.Teachers(), c.Student) {
		for _, path := range keep.ModelFiles(m) {
			if err := visit(path); err != nil {
				return err
			}
		}
	}
	small := append([]string{c.StudentConfig}, c.Settings...)
	if !slices.Contains([]string{"auto", "none", "chatml"}, c.ChatTemplate) {
		small = append(small, c.ChatTemplate)
	}
	for _, path := range small {
		if err := visit(path); err != nil {
			return err
		}
	}
	folders := append(append([]string{c.Dataset}, c.Data...), c.EvalData...)
	if c.Resume != "" {
		checkpoints, _ := filepath.Glob(filepath.Join(c.Output, checkpointFolder+"*"))
		folders = append(folders, checkpoints...)
	}
	for _, path := range folders {
		if path == "" {
			continue
		}
		if err := visit(path); err != nil {
			return err
		}
		if err := eachFile(path, corpus.LeavesOut, visit); err != nil {
			return err
		}
	}
	return nil
}

// eachFile visits the files below a folder at any depth; links below it are not followed. What cannot be read is left
// to those who read it.
func eachFile(folder string, leaveOut func(fs.DirEntry) bool, visit func(path string) error) error {
	if real, err := filepath.EvalSymlinks(folder); err == nil {
		folder = real
	}
	return filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && d != nil && d.IsDir():
			return fs.SkipDir
		case err != nil || path == folder:
			return nil
		case leaveOut(d) && d.IsDir():
			return fs.SkipDir
		case leaveOut(d) || d.IsDir():
			return nil
		}
		return visit(path)
	})
}

// outputs are what a run replaces and moves.
type outputs struct {
	export, run         string
	exportInfo, runInfo os.FileInfo                   // nil: there is none yet
	moved               map[fingerprint][]os.FileInfo // files that are moved aside with the run directory; nil: none is
	folders             map[string]bool               // whether the way to a folder leads through the run directory
}

// fingerprint is equal for all names of a file.
type fingerprint struct {
	size int64
	time time.Time
}

func fingerprintOf(info os.FileInfo) fingerprint {
	return fingerprint{info.Size(), info.ModTime()}
}

// move remembers a file that is moved.
func (o *outputs) move(path string) error {
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
		key := fingerprintOf(info)
		o.moved[key] = append(o.moved[key], info)
	}
	return nil
}

// check refuses outputs that an input is, or lies in.
func (o *outputs) check(input string) error {
	info, err := os.Stat(input)
	if err != nil {
		return nil // nothing is lost; reading it says what is wrong
	}
	for _, out := range []struct {
		path string
		info os.FileInfo
	}{{o.export, o.exportInfo}, {o.run, o.runInfo}} {
		if out.info != nil && os.SameFile(info, out.info) {
			return fault.In(fault.Invalid, out.path, "is an input of the run, %s", input).WithHint("name another output").WithID("E-DISTILL-041")
		}
	}
	if o.moved == nil {
		return nil
	}
	hard := slices.ContainsFunc(o.moved[fingerprintOf(info)], func(m os.FileInfo) bool { return os.SameFile(m, info) })
	if hard || o.holds(input) {
		return fault.In(fault.Invalid, o.run, "holds an input of the run, %s, which would be moved aside with it", input).
			WithHint("name another output").WithID("E-DISTILL-042")
	}
	return nil
}

// holds reports whether the way to a path leads through the run directory.
func (o *outputs) holds(path string) bool {
	if slices.Contains(strings.Split(path, string(filepath.Separator)), "..") {
		return o.through(path)
	}
	dir := filepath.Dir(path)
	in, known := o.folders[dir]
	if !known {
		in = o.through(dir)
		o.folders[dir] = in
	}
	if in {
		return true
	}
	info, err := os.Lstat(path)
	return err == nil && info.Mode()&fs.ModeSymlink != 0 && o.through(path)
}

// through reports whether the way to a path leads through the run directory.
func (o *outputs) through(path string) bool {
	return keep.Way(path, func(at string) bool {
		info, err := os.Stat(at)
		return err == nil && os.SameFile(info, o.runInfo)
	})
}
