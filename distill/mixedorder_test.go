package distill

import (
	"path/filepath"
	"testing"

	"apr/arch"
	"apr/internal/contracttest"
	runlog "apr/run/log"
	"apr/tensor"
)

// In a mixture the student is compared with the teacher whose embedding is nearest to its own, in whatever order the
// teachers are named. A copy is told. A pruned student is not told, even if another teacher is smaller than it.
func TestOrderOfMixedTeachers(t *testing.T) {
	const teacher = "../testdata/models/gosrc"
	c := tinyConfig(t)
	c.Steps = 1
	mustRun(t, c, 0)
	tiny := filepath.Join(c.Output, "student")
	mixed := func(first bool) func(*Config) {
		return func(c *Config) {
			c.Teacher, c.Ensemble = tiny, Ensemble{More: []string{teacher}, Weights: []float64{0.05, 0.95}}
			if first {
				c.Teacher, c.Ensemble = teacher, Ensemble{More: []string{tiny}, Weights: []float64{0.95, 0.05}}
			}
		}
	}
	copied := changedCopy(t, tensor.F32, both(foldedAndTurned, permuted))
	for _, first := range []bool{true, false} {
		contracttest.Cases(t, 1)
		r := oneStep(t, func(c *Config) { from(copied)(c); mixed(first)(c); c.BatchSize, c.SeqLen = 4, 64 })
		if !r.event(runlog.FirstStepAgrees) {
			t.Errorf("a copy, the teacher first: %v: %s", first, r.said)
		}
	}
	cut := reshapedCopy(t, tensor.F32, func(c *arch.Config) { c.Layers = c.Layers[:3] },
		func(_ string, _ []int, v []float32) []float32 { return v })
	for name, student := range map[string]string{"cut to 3 layers": cut, "a new one": ""} {
		r := onTexts(t, []string{"c"}, func(c *Config) {
			if student != "" {
				from(student)(c)
			}
			mixed(false)(c)
		})
		if r.event(runlog.EmbeddingAgrees) || r.event(runlog.FirstStepAgrees) {
			t.Errorf("%s: %s", name, r.said)
		}
	}
}
