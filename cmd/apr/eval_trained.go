package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"apr/corpus"
	runlog "apr/run/log"
)

// trainedOn says that a text is one that the model was trained on, as the run beside the model's file says; empty: that
// is not known. A text is known by its hash, or by its path: a file below a folder that the run read.
func trainedOn(model string, data []string, text *corpus.Tokens) string {
	dir := filepath.Dir(model)
	if !runlog.IsRun(dir) {
		dir = filepath.Dir(dir) // of the folder student/
	}
	m := runlog.ReadManifest(dir)
	if m == nil {
		return ""
	}
	in, held := m.Inputs["data"], m.Inputs["eval_data"]
	read := func(path string) bool { return within(path, in.Path, m.Folder) }
	if text.SHA256() != in.SHA256 && !slices.ContainsFunc(data, read) {
		return ""
	}
	if held.SHA256 == text.SHA256() {
		return ""
	}
	return fmt.Sprintf("the run %s trained on this text, or on most of it: the score says how well the model has learned "+
		"it, not how good it is on other text; --data of held-out text says that", m.RunID)
}

// within reports whether a path is one of a record's paths, which are relative to a folder, or below one.
func within(path, recorded, folder string) bool {
	at, err := filepath.Abs(path)
	if err != nil || recorded == "" {
		return false
	}
	for r := range strings.SplitSeq(recorded, ", ") {
		if !filepath.IsAbs(r) {
			r = filepath.Join(folder, r)
		}
		if rest, err := filepath.Rel(r, at); err == nil && filepath.IsLocal(rest) {
			return true
		}
	}
	return false
}
