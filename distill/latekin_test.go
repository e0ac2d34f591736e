package distill

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/adapter"
	"apr/internal/contracttest"
	runlog "apr/run/log"
	"apr/teacher/cache"
)

// A run of a new student that goes on beside draws of its own student is told by the embedding of its checkpoint, since
// draws at temperature 2 give no divergence: with and without entropies. One that goes on beside another model is not.
func TestCacheOfItsOwnStudent(t *testing.T) {
	c := smallConfig(t, 40)
	c.Steps, c.BatchSize, c.SeqLen, c.CheckpointEvery, c.Loss.Temperature = 2, 4, 64, 2, 2
	for name, tt := range map[string]struct {
		teacher       string // "": its own student
		entropy, told bool
	}{
		"its student": {"", true, true}, "its student, no entropies": {"", false, true},
		"another": {untrained(t, 3), false, false},
	} {
		contracttest.Cases(t, 1)
		c := in(t, c)
		mustRun(t, c, 0)
		of := c
		if of.Teacher = tt.teacher; tt.teacher == "" {
			of.Teacher = filepath.Join(c.Output, "student.apr")
		}
		dir, _ := cacheOf(t, of, CacheJob{Kind: cache.Draws, Draws: 50, Entropy: tt.entropy}, 2)
		c.Teacher, c.FromCache, c.Steps, c.Resume, c.AllowChanged = "", dir, 3, ResumeAuto, true
		_, q, err := runOnce(t, c, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		r := toldBy(t, c.Output, q)
		if r.event(runlog.EmbeddingAgrees) != tt.told || hasFinding(r.findings, "agrees") != tt.told ||
			!strings.Contains(r.said, "inputs.teacher ") {
			t.Errorf("%s: %s; %+v", name, r.said, r.findings.Findings)
		}
	}
}

// TestTextOfItsOwnStudent: a run of a new student that goes on with text which its own student wrote says so, with a
// teacher and without; text of another model does not count.
func TestTextOfItsOwnStudent(t *testing.T) {
	c := smallConfig(t, 40)
	c.Steps, c.BatchSize, c.SeqLen, c.CheckpointEvery, c.ChatTemplate = 2, 1, 16, 2, "chatml"
	for name, tt := range map[string]struct {
		writer string // "": its own student
		alpha  float64
		told   bool
	}{
		"its student": {"", 0.5, true}, "its student, no teacher": {"", 0, true},
		"another": {untrained(t, 3), 0.5, false},
	} {
		contracttest.Cases(t, 1)
		c := in(t, c)
		mustRun(t, c, 0)
		of := tt.writer
		if of == "" {
			of = filepath.Join(c.Output, "student.apr")
		}
		writer, err := adapter.Writer(openModel(t, of))
		if err != nil {
			t.Fatal(err)
		}
		c.Data, c.EvalData, c.ValFraction = []string{writtenBy(t, writer, 9)}, nil, 0
		c.Steps, c.Resume, c.AllowChanged, c.Loss.Alpha = 3, ResumeAuto, true, tt.alpha
		_, q, err := runOnce(t, c, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		r := toldBy(t, c.Output, q)
		if r.event(runlog.OwnText) != tt.told || hasFinding(r.findings, "own-text") != tt.told ||
			strings.Contains(r.said, "the student's own text") != tt.told {
			t.Errorf("%s: %s; %+v", name, r.said, r.findings.Findings)
		}
	}
}

// TestEnsembleWithItsOwnStudent: a run that goes on beside two teachers, one of them its own student, is told by values
// whatever the mixture says; beside two others it is not.
func TestEnsembleWithItsOwnStudent(t *testing.T) {
	c := tinyConfig(t)
	c.Steps, c.CheckpointEvery = 2, 2
	for name, more := range map[string]string{"its student": "", "another": untrained(t, 3)} {
		contracttest.Cases(t, 1)
		c := in(t, c)
		mustRun(t, c, 0)
		own := more == ""
		if own {
			more = filepath.Join(c.Output, "student.apr")
		}
		c.Ensemble = Ensemble{More: []string{more}, Weights: []float64{0.5, 0.5}}
		c.Steps, c.Resume, c.AllowChanged = 3, ResumeAuto, true
		_, q, err := runOnce(t, c, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		r := toldBy(t, c.Output, q)
		if r.event(runlog.TeacherIsStudent) != own || hasFinding(r.findings, "copy") != own ||
			strings.Contains(r.said, "is the student of the checkpoint") != own {
			t.Errorf("%s: %s; %+v", name, r.said, r.findings.Findings)
		}
	}
}

// TestResumeBeyondTheData: data that end before the checkpoint's place are refused before the run's records change.
func TestResumeBeyondTheData(t *testing.T) {
	contracttest.Cases(t, 1)
	c := smallConfig(t, 40)
	c.Steps, c.BatchSize, c.SeqLen, c.CheckpointEvery, c.ChatTemplate = 3, 1, 16, 3, "chatml"
	mustRun(t, c, 0)
	before := filesOf(t, c.Output)
	c.Data, c.EvalData, c.ValFraction = []string{writtenBy(t, "a.b.c", 1)}, nil, 0
	c.Steps, c.Resume, c.AllowChanged = 5, ResumeAuto, true
	if _, _, err := runOnce(t, c, 0, 0); err == nil || !strings.Contains(err.Error(), "E-CORPUS-022") {
		t.Fatalf("error %v", err)
	}
	if after := filesOf(t, c.Output); !maps.Equal(before, after) {
		t.Errorf("the run's records differ: before %d files, after %d", len(before), len(after))
	}
}

// filesOf returns the files below a folder with what they hold.
func filesOf(t *testing.T, dir string) map[string]string {
	all := map[string]string{}
	if err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(dir, path))
		all[path] = string(b)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}
