package runlog_test

import (
	"os"
	"path/filepath"
	"testing"

	"apr/internal/atomicfile"
	"apr/internal/fault"
	runlog "apr/run/log"
)

// TestDispatchedDirectoryIsFree: what dispatching writes before a run is no run, anything else is.
func TestDispatchedDirectoryIsFree(t *testing.T) {
	dir := t.TempDir()
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{runlog.DispatchFile, runlog.DispatchLog, "." + runlog.DispatchFile + atomicfile.TempMark + "1"} {
		write(name)
		if err := runlog.Check(dir, false, false); err != nil {
			t.Errorf("with %s: %v", name, err)
		}
	}
	must(t, runlog.Prepare(dir, true, false)) // does not move aside what it is to find
	if _, err := os.Stat(filepath.Join(dir, runlog.DispatchLog)); err != nil {
		t.Error(err)
	}
	write("steps.jsonl")
	refused(t, runlog.Check(dir, false, false), fault.Invalid, "E-RUN-001")
	must(t, runlog.Prepare(dir, true, false))
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("a run was not moved aside: %v, %v", left, err)
	}
}
