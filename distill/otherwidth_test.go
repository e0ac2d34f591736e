package distill

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/internal/contracttest"
	runlog "apr/run/log"
	"apr/teacher/cache"
	"apr/tensor"
)

// doubledColumns writes a changed copy of the first layers that has each hidden column twice, as HyperCloning does: it
// has twice the hidden size and computes the same function.
func doubledColumns(t *testing.T, layers int, change func(name string, cols int, v []float32)) string {
	return reshapedCopy(t, tensor.F32, func(c *arch.Config) { c.Hidden, c.Layers = 2*c.Hidden, c.Layers[:layers] },
		func(name string, shape []int, v []float32) []float32 {
			cols := shape[len(shape)-1]
			change(name, cols, v)
			switch {
			case strings.HasSuffix(name, "norm.weight"), strings.HasSuffix(name, "o_proj.weight"),
				strings.HasSuffix(name, "down_proj.weight"):
				return append(v, v...)
			case !strings.HasSuffix(name, ".weight"):
				return v
			}
			by := float32(0.5) // of what comes twice
			if strings.HasSuffix(name, "embed_tokens.weight") {
				by = 1
			}
			var out []float32
			for row := range slices.Chunk(v, cols) {
				for i := range row {
					row[i] *= by
				}
				out = append(append(out, row...), row...)
			}
			return out
		})
}

// halfTheColumns writes a student that was pruned from the teacher: it has the first half of the hidden columns.
func halfTheColumns(t *testing.T) string {
	return reshapedCopy(t, tensor.F32, func(c *arch.Config) { c.Hidden /= 2 },
		func(name string, shape []int, v []float32) []float32 {
			cols := shape[len(shape)-1]
			switch {
			case strings.HasSuffix(name, "norm.weight"), strings.HasSuffix(name, "o_proj.weight"),
				strings.HasSuffix(name, "down_proj.weight"):
				return v[:len(v)/2]
			case !strings.HasSuffix(name, ".weight"):
				return v
			}
			var out []float32
			for row := range slices.Chunk(v, cols) {
				out = append(out, row[:cols/2]...)
			}
			return out
		})
}

// A copy of another hidden size is told by the angles of its embedding: in codes of 4 bits after AWQ by its divergence,
// which is above a fifth of the entropy, and without one by draws at temperature 2, also with the teacher's file beside
// them. Of other sizes, students that were cut out of the teacher, trained from other numbers or new ones are not.
func TestCopyOfAnotherWidth(t *testing.T) {
	same := func(string, int, []float32) {}
	wide, cut, half := doubledColumns(t, 6, same), doubledColumns(t, 3, same), halfTheColumns(t)
	for name, student := range map[string]string{"in codes": doubledColumns(t, 6, foldedAndTurned), "cut to 3 layers": cut,
		"half the columns": half} {
		contracttest.Cases(t, 1)
		r := oneStep(t, func(c *Config) { from(student)(c); c.SeqLen = 128 })
		t.Logf("%s: angles %.4g: %s", name, float64(r.manifest.Kinship.Angles), r.said)
		if want := name == "in codes"; r.event(runlog.FirstStepAgrees) != want || hasFinding(r.findings, "agrees") != want {
			t.Errorf("%s: messages %q", name, r.said)
		}
	}
	if r := onTexts(t, []string{"c"}, func(c *Config) { from(strangerWithTable(t))(c); c.Teacher = wide }); r.event(
		runlog.EmbeddingAgrees) || r.event(runlog.FirstStepAgrees) {
		t.Errorf("half of the columns, which are all of the table: %s", r.said)
	}
	c := smallConfig(t, 40)
	c.Steps, c.BatchSize, c.SeqLen, c.Loss.Temperature = 1, 4, 64, 2
	trained := in(t, c)
	trained.Steps, trained.Loss.Temperature = 10, 1
	mustRun(t, trained, 0)
	dir, _ := cacheOf(t, c, CacheJob{Kind: cache.Draws, Draws: 50}, 2)
	for _, tt := range []struct {
		name, student, beside string
		told                  bool
	}{
		{"a copy", wide, "", true}, {"a copy beside its teacher", wide, c.Teacher, true}, {"cut to 3 layers", cut, "", false},
		{"half the columns", half, "", false}, {"trained", filepath.Join(trained.Output, "student"), "", false},
		{"a new one", "", "", false},
	} {
		contracttest.Cases(t, 1)
		other := cached(t, c, dir)
		if other.Teacher = tt.beside; tt.student != "" {
			from(tt.student)(&other)
		}
		_, q, err := runOnce(t, other, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		r := toldBy(t, other.Output, q)
		if r.event(runlog.EmbeddingAgrees) != tt.told || hasFinding(r.findings, "agrees") != tt.told {
			t.Errorf("%s at temperature 2: %s; %+v", tt.name, r.said, r.findings.Findings)
		}
	}
}
