package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"apr/internal/fault"
	"apr/internal/keep"
	"apr/internal/readfile"
	runlog "apr/run/log"
)

// keepRecord refuses a report in place of a file of the run's record, also of one that the run has not written yet: in a run's folder
// a report is called as reports are.
func keepRecord(r *runlog.Record, path string) error {
	isReport := func(name string) bool {
		ext := strings.ToLower(filepath.Ext(name))
		return slices.ContainsFunc(reportFormats, func(f outputFormat) bool { return slices.Contains(f.endings, ext) })
	}
	if keep.Below(path, r.Path) && !isReport(path) {
		return fault.In(fault.Invalid, path, "would be a file of the run's record, %s", r.Path).
			WithHint("name a file elsewhere, or one that ends in .html or .md").WithID("E-RUN-009")
	}
	entries, err := os.ReadDir(r.Path)
	if err != nil {
		return readfile.Fault(r.Path, err)
	}
	for _, e := range entries {
		if !isReport(e.Name()) {
			if err := keep.Inputs(path, filepath.Join(r.Path, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
