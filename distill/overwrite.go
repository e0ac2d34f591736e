package distill

import (
	"os"
	"path/filepath"

	"apr/internal/fault"
)

// CheckOutputs refuses outputs that would replace what the run reads, whether that is forced or not: an output that is an input by
// any name, also through links, and a run directory that an input lies in and that would be moved aside.
func (c Config) CheckOutputs() error {
	inputs := c.files()
	for _, in := range inputs {
		for _, out := range []string{c.Export, c.Output} {
			if out != "" && sameFile(in, out) {
				return fault.In(fault.Invalid, out, "is an input of the run, %s", in).WithHint("name another output").WithID("E-DISTILL-041")
			}
		}
		if c.Resume == "" && within(in, c.Output) {
			return fault.In(fault.Invalid, c.Output, "holds an input of the run, %s, which would be moved aside with it", in).
				WithHint("name another output").WithID("E-DISTILL-042")
		}
	}
	return nil
}

// files returns all that the run reads, and what lies in those that are folders.
func (c Config) files() []string {
	var all []string
	named := append([]string{c.Teacher, c.Student, c.StudentConfig, c.Dataset}, c.Data...)
	for _, path := range append(append(named, c.EvalData...), c.Settings...) {
		if path == "" {
			continue
		}
		all = append(all, path)
		entries, err := os.ReadDir(path)
		if err != nil {
			continue // a file, or nothing
		}
		for _, e := range entries {
			all = append(all, filepath.Join(path, e.Name()))
		}
	}
	return all
}

// within reports whether a folder holds a path, by the path's name or by where its links lead.
func within(path, folder string) bool {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		real = path
	}
	for _, p := range []string{path, real} {
		at, err := filepath.Abs(p)
		for err == nil && at != filepath.Dir(at) {
			if at = filepath.Dir(at); sameFile(at, folder) {
				return true
			}
		}
	}
	return false
}
