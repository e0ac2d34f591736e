package distill

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// maxChanged bounds the files that a refused resumption names.
const maxChanged = 5

// changedFiles names the files of the inputs that differ by their content, as diff says, and that were changed
// after a checkpoint was written: a person wants to know which one to restore, not its hash. A folder stands for
// what was added to it or removed. It is empty where no file says so by its time.
func (r *Run) changedFiles(diff []string, since time.Time) string {
	var paths []string
	for name, of := range map[string][]string{
		"inputs.data": append(slices.Clone(r.Data), r.Dataset), "inputs.eval_data": r.EvalData,
		"inputs.teacher": r.Config.Teachers(), "inputs.student_init": {r.Student}, "student_config": {r.StudentConfig},
		"inputs.tokenizer": {r.Config.Teacher, r.Student},
	} {
		if slices.ContainsFunc(diff, func(d string) bool { return strings.HasPrefix(d, name) }) {
			paths = append(paths, of...)
		}
	}
	var changed []string
	for _, p := range paths {
		if p == "" {
			continue
		}
		// what cannot be read is reported elsewhere
		_ = filepath.WalkDir(p, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil
			}
			if info, err := d.Info(); err == nil && info.ModTime().After(since) {
				changed = append(changed, path)
			}
			return nil
		})
	}
	slices.Sort(changed)
	if changed = slices.Compact(changed); len(changed) > maxChanged {
		changed = append(changed[:maxChanged], fmt.Sprintf("%d more", len(changed)-maxChanged))
	}
	return strings.Join(changed, ", ")
}
