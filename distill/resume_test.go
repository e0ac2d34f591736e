package distill

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

func checkpointsOf(t *testing.T, c Config) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(c.Output, "checkpoints"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Going back to an earlier checkpoint gives up the later ones: with other settings they are of another run, and the
// next resume must continue the new one.
func TestResumeFromAnEarlierCheckpoint(t *testing.T) {
	c := tinyConfig(t)
	c.CheckpointEvery, c.KeepCheckpoints = 2, 3
	_, whole := mustRun(t, c, 0)
	if got, want := checkpointsOf(t, c), []string{"step-000004", "step-000006", "step-000008"}; !slices.Equal(got, want) {
		t.Fatalf("checkpoints %v, want %v", got, want)
	}
	c.Resume, c.AllowChanged, c.LR = filepath.Join(c.Output, "checkpoints", "step-000004"), true, 5e-3
	if _, _, err := runOnce(t, c, 0, 1); fault.KindOf(err) != fault.Stopped {
		t.Fatal(err)
	}
	if got, want := checkpointsOf(t, c), []string{"step-000004", "step-000005"}; !slices.Equal(got, want) {
		t.Errorf("checkpoints %v, want %v", got, want)
	}
	c.Resume, c.AllowChanged = ResumeAuto, false
	out, other := mustRun(t, c, 0)
	if !strings.HasSuffix(out.ResumedFrom, "step-000005") || bytes.Equal(whole, other) {
		t.Errorf("resumed from %q; the same student as before: %v", out.ResumedFrom, bytes.Equal(whole, other))
	}
	if got, want := checkpointsOf(t, c), []string{"step-000005", "step-000006", "step-000008"}; !slices.Equal(got, want) {
		t.Errorf("checkpoints %v, want %v", got, want)
	}
	if n := len(readSteps(t, c)); n != 8 {
		t.Errorf("%d steps recorded, want 8", n)
	}
	contracttest.Cases(t, 1)
}
