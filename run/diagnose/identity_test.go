package diagnose

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"apr/internal/contracttest"
	runlog "apr/run/log"
)

// What a run recorded of teacher and student becomes a finding: the same, derived, and a copy that only its first step shows.
func TestCopies(t *testing.T) {
	related := func(relation string) func(string, *runlog.Dir) error {
		return func(dir string, d *runlog.Dir) error {
			return errors.Join(os.Remove(filepath.Join(dir, "manifest.json")),
				d.WriteManifest(runlog.Manifest{Started: at, Kinship: &runlog.Kinship{Relation: relation, Allowed: true, Text: "q4_k of bf16"}}),
				d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}))
		}
	}
	inBlocks := func(relation string) func(string, *runlog.Dir) error {
		return func(dir string, d *runlog.Dir) error {
			return errors.Join(os.Remove(filepath.Join(dir, "manifest.json")),
				d.WriteManifest(runlog.Manifest{Started: at, Config: map[string]runlog.Value{"quantize_aware": {Value: "q8_0"}},
					Kinship: &runlog.Kinship{Relation: relation, Text: "q4_k of bf16"}}),
				d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}))
		}
	}
	for name, tt := range map[string]struct {
		more      func(string, *runlog.Dir) error
		id, cause string
		fatal     bool
	}{
		"same":    {related("same"), "degenerate", "teacher and student are the same model", true},
		"derived": {related("derived"), "derived", "teacher and student are one model: q4_k of bf16", false},
		"copy": {func(_ string, d *runlog.Dir) error {
			return errors.Join(d.Event("warning", runlog.FirstStepEqual, map[string]any{"kl": 3e-9}, ""), d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}))
		}, "copy", "before any training the student computed what the teacher computes: there is nothing to learn", true},
		"agrees": {func(_ string, d *runlog.Dir) error {
			return errors.Join(d.Event("warning", runlog.FirstStepAgrees, map[string]any{"kl": 0.07, "entropy": 2.4}, ""), d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}))
		}, "agrees", "before any training the student agreed with the teacher: it may be a copy in other shapes or types, or was distilled from it", false},
		"close": {func(dir string, d *runlog.Dir) error {
			return errors.Join(os.Remove(filepath.Join(dir, "manifest.json")),
				d.WriteManifest(runlog.Manifest{Started: at, Kinship: &runlog.Kinship{Relation: "different", Close: true, Within: 0.09, Text: "close: 0.09"}}),
				d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}))
		}, "close", "the student may be the teacher in another encoding, or fine-tuned from it: close: 0.09", false},
		"worse than uniform": {func(_ string, d *runlog.Dir) error {
			return errors.Join(d.Event("warning", runlog.TeacherBelowUniform, map[string]any{"nats_per_token": 9.5, "uniform": 8.3}, ""), d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}))
		}, "teacher", "the teacher knows less of this text than a model that knows nothing", true},
		"no better than frequencies": {func(_ string, d *runlog.Dir) error {
			return errors.Join(d.Event("warning", runlog.TeacherBelowFrequencies, map[string]any{"nats_per_token": 7.5, "frequencies": 6.4}, ""), d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}))
		}, "teacher", "the teacher knows no more of this text than how often each token occurs", true},
		"different":          {related("different"), "", "", false},
		"same, in blocks":    {inBlocks("same"), "", "", false},
		"derived, in blocks": {inBlocks("derived"), "", "", false},
		"in these blocks before": {func(_ string, d *runlog.Dir) error {
			return errors.Join(d.Event("warning", runlog.BlocksChangeNothing, map[string]any{"kl": 2e-6}, ""),
				d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}))
		}, "blocks", "the student's weights were in these blocks already: there is nothing to learn", true},
		"alike": {func(dir string, d *runlog.Dir) error {
			return errors.Join(os.Remove(filepath.Join(dir, "manifest.json")),
				d.WriteManifest(runlog.Manifest{Started: at, Kinship: &runlog.Kinship{Relation: "different", Tensors: 75, Alike: 74, Text: "74 of 75"}}),
				d.WriteReceipt(runlog.Receipt{Status: runlog.Completed}))
		}, "alike", "teacher and student are different models by little: 74 of 75", false},
	} {
		contracttest.Cases(t, 1)
		dir := makeRun(t, falling, 0.5, 1e-3, tt.more)
		f, err := Run(dir, sound)
		if err != nil {
			t.Fatal(err)
		}
		if tt.id == "" {
			if len(f.Findings) != 0 {
				t.Errorf("%s: %+v", name, f.Findings)
			}
			continue
		}
		if len(f.Findings) != 1 || f.Findings[0].ID != tt.id || f.Findings[0].Cause != tt.cause || f.Findings[0].Fatal != tt.fatal {
			t.Fatalf("%s: %+v", name, f.Findings)
		}
		checkEvidence(t, dir, f.Findings[0])
	}
}
