package runlog

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"apr/internal/fault"
)

// CheckOutput refuses a file or folder of a run that is not what the run wrote, by the hashes of its receipt:
// student.apr, the folder student and the files in it. A path outside of a run passes, and one of a run whose receipt
// does not count. It reads all bytes of what it checks.
func CheckOutput(path string) error {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		abs = real
	}
	for run := filepath.Dir(abs); ; run = filepath.Dir(run) {
		if IsRun(run) {
			return checkOutput(run, abs)
		}
		if run == filepath.Dir(run) || run == filepath.Dir(filepath.Dir(abs)) { // outputs are one folder deep
			return nil
		}
	}
}

func checkOutput(run, path string) error {
	rel, err := filepath.Rel(run, path)
	if err != nil {
		return nil
	}
	r, err := ReadStatus(run)
	if err != nil || r.Receipt == nil || r.Status != r.Receipt.Status {
		return nil // a record that is damaged is what `apr verify` is for
	}
	rel = filepath.ToSlash(rel)
	for _, name := range slices.Sorted(maps.Keys(r.Receipt.Outputs)) {
		if name != rel && !strings.HasPrefix(name, rel+"/") {
			continue
		}
		file := filepath.Join(run, filepath.FromSlash(name))
		switch sum, err := hashRecord(file); {
		case missing(err):
			return fault.In(fault.Invalid, file, "is gone; receipt.json says that the run wrote it").
				WithHint("apr verify %s", run).WithID("E-RUN-046")
		case err != nil:
			return err
		case sum != r.Receipt.Outputs[name]:
			return fault.In(fault.Invalid, file, "is not what the run wrote: its SHA-256 is %s, receipt.json says %s",
				sum, r.Receipt.Outputs[name]).
				WithHint("apr verify %s says what else was changed; a copy outside of the run is taken as it is", run).
				WithID("E-RUN-046")
		}
	}
	return nil
}
