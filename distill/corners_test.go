package distill

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/internal/contracttest"
	runlog "apr/run/log"
	"apr/tensor"
)

// fewBits rounds matrices to the even steps of so many levels on each side of 0, one scale for a row, which is where
// its squares are least of a few.
func fewBits(levels float64) func(name string, cols int, v []float32) {
	return func(name string, cols int, v []float32) {
		if cols == len(v) || !strings.HasSuffix(name, "proj.weight") {
			return
		}
		for row := range slices.Chunk(v, cols) {
			most := float64(max(slices.Max(row), -slices.Min(row)))
			best, least := most/levels, math.Inf(1)
			for part := 0.3; part <= 1; part += 0.1 {
				step, errs := part*most/levels, 0.0
				for _, x := range row {
					d := min(max(math.Round(float64(x)/step), -levels), levels)*step - float64(x)
					errs += d * d
				}
				if errs < least {
					best, least = step, errs
				}
			}
			for i, x := range row {
				row[i] = float32(min(max(math.Round(float64(x)/best), -levels), levels) * best)
			}
		}
	}
}

// reversedLayers writes a copy with its layers from the last to the first.
func reversedLayers(t *testing.T) string {
	t.Helper()
	f := openModel(t, "../testdata/models/gosrc")
	last := len(f.Config.Layers) - 1
	return reshapedCopy(t, tensor.F32, func(*arch.Config) {}, func(name string, _ []int, v []float32) []float32 {
		var at int
		if _, err := fmt.Sscanf(name, "model.layers.%d.", &at); err != nil {
			return v
		}
		other, err := f.ReadFloat32(strings.Replace(name, fmt.Sprintf("layers.%d.", at), fmt.Sprintf("layers.%d.", last-at),
			1))
		if err != nil {
			t.Fatal(err)
		}
		return other
	})
}

// foldedAndTurned folds AWQ's scales into the norms before q, k, v and the MLP, rounds to codes of 4 bits, and turns
// the hidden columns.
func foldedAndTurned(name string, cols int, v []float32) {
	scale := func(column int) float32 {
		return float32(math.Exp(0.6 * 1.7 * math.Sin(float64(7*column*column+column))))
	}
	for i := range v {
		switch {
		case strings.HasSuffix(name, "layernorm.weight"):
			v[i] /= scale(i)
		case strings.HasSuffix(name, "q_proj.weight"), strings.HasSuffix(name, "k_proj.weight"), strings.HasSuffix(name,
			"v_proj.weight"),
			strings.HasSuffix(name, "gate_proj.weight"), strings.HasSuffix(name, "up_proj.weight"):
			v[i] *= scale(i % cols)
		}
	}
	groupCodes(name, cols, v)
	turned(name, cols, v)
}

// Copies that were changed far are told, by their values or by their first step; what was made of a teacher to be
// taught, and what was trained from other numbers, trains.
func TestFarCopiesAreTold(t *testing.T) {
	for name, tt := range map[string]struct{ student, event string }{
		"codes of 2 bits":                    {changedCopy(t, tensor.F32, fewBits(1)), runlog.CloseToTeacher},
		"codes of 3 bits":                    {changedCopy(t, tensor.F32, fewBits(3)), runlog.CloseToTeacher},
		"noise as large as the values":       {changedCopy(t, tensor.F32, noisy(1)), runlog.CloseToTeacher},
		"noise of half, louder":              {louder(t, noisy(0.5), 40), runlog.CloseToTeacher},
		"layers reversed":                    {reversedLayers(t), runlog.MostlyAlike},
		"AWQ, 4 bits, columns turned":        {changedCopy(t, tensor.F32, foldedAndTurned), runlog.FirstStepAgrees},
		"AWQ, 4 bits, columns turned, quiet": {louder(t, foldedAndTurned, 0.02), runlog.FirstStepAgrees},
		"codes of 3 bits, columns turned":    {changedCopy(t, tensor.F32, both(fewBits(3), turned)), runlog.FirstStepAgrees},
	} {
		contracttest.Cases(t, 1)
		r := oneStep(t, func(c *Config) { from(tt.student)(c); c.BatchSize, c.SeqLen = 4, 64 })
		k := r.manifest.Kinship
		t.Logf("%s: within %.3g, cosine %.3g, angles %.3g: %s", name, float64(k.Within), float64(k.Embedding),
			float64(k.Angles), r.said)
		if !r.event(tt.event) {
			t.Errorf("%s: no event %q: %s", name, tt.event, r.said)
		}
	}
	trained := tinyConfig(t)
	ofFrame(&trained)
	trained.Steps, trained.BatchSize, trained.LR, trained.CheckpointEvery = 60, 4, 3e-3, 60
	mustRun(t, trained, 0)
	for name, student := range map[string]string{"trained": filepath.Join(trained.Output, "student"),
		"a stranger's layers with the teacher's table": strangerWithTable(t)} {
		contracttest.Cases(t, 1)
		r := oneStep(t, func(c *Config) { from(student)(c); c.BatchSize, c.SeqLen = 4, 64 })
		k := r.manifest.Kinship
		t.Logf("%s: cosine %.3g, angles %.3g: %s", name, float64(k.Embedding), float64(k.Angles), r.said)
		for _, event := range []string{runlog.CloseToTeacher, runlog.MostlyAlike, runlog.FirstStepAgrees,
			runlog.FirstStepEqual} {
			if r.event(event) {
				t.Errorf("%s: event %q: %s", name, event, r.said)
			}
		}
	}
}
