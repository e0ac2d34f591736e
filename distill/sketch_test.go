package distill

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/arch"
	"apr/format/aprfile"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/modelfile"
	runlog "apr/run/log"
	"apr/teacher/cache"
	"apr/tensor"
)

// A student that is the teacher of a cache is refused without the teacher's file, whatever type its values have; one in
// codes of 4 bits, or in another order, is told, by what the cache keeps of its teacher and by the first step, from
// hidden states and from draws. A student that was trained from other numbers is not.
func TestTeacherOfACacheIsKnown(t *testing.T) {
	c := tinyConfig(t)
	c.Steps, c.BatchSize, c.SeqLen = 1, 4, 64
	trained := c
	trained.Output = filepath.Join(t.TempDir(), "trained")
	trained.Steps, trained.LR = 40, 3e-3
	mustRun(t, trained, 0)
	c.Output = filepath.Join(t.TempDir(), "out")
	same := func(string, int, []float32) {}
	for _, kind := range []string{cache.Hidden, cache.Draws} {
		job := CacheJob{Kind: kind}
		if kind == cache.Draws {
			job.Draws, job.Entropy = 50, true
		}
		dir, _ := cacheOf(t, c, job, 2)
		for name, tt := range map[string]struct {
			student string
			refused bool
			events  []string
		}{
			"itself": {student: "../testdata/models/gosrc", refused: true},
			"in f32": {student: changedCopy(t, tensor.F32, same), refused: true},
			"in f16": {student: changedCopy(t, tensor.F16, same), refused: true},
			"codes": {"../testdata/models/gosrc-q4_k_m.gguf", false, []string{runlog.CloseToTeacher,
				runlog.FirstStepAgrees}},
			"turned, in F32": {changedCopy(t, tensor.F32, turned), false, []string{runlog.FirstStepAgrees}},
			"louder, turned": {louder(t, turned, 40), false, []string{runlog.FirstStepAgrees}},
			"trained":        {filepath.Join(trained.Output, "student"), false, nil},
			"a layer more":   {moreLayers(t), false, []string{runlog.FirstStepAgrees}},
		} {
			contracttest.Cases(t, 1)
			other := cached(t, c, dir)
			from(tt.student)(&other)
			_, q, err := runOnce(t, other, 0, 0)
			if tt.refused {
				if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "is the teacher that "+dir+" was made by") {
					t.Errorf("%s, %s: %v", kind, name, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s, %s: %v", kind, name, err)
				continue
			}
			all := toldBy(t, other.Output, q)
			for _, event := range tt.events {
				if kind == cache.Hidden && event == runlog.FirstStepAgrees && all.event(runlog.FirstStepEqual) {
					continue
				}
				if !all.event(event) {
					t.Errorf("%s, %s: no event %q: %s", kind, name, event, all.said)
				}
			}
			if tt.events == nil && name == "trained" && (strings.Contains(all.said, "is it a copy") ||
				all.event(runlog.CloseToTeacher)) {
				t.Errorf("%s, %s: %s", kind, name, all.said)
			}
		}
	}
}

// Draws without entropies, and draws at another temperature than 1, do not say how far the student is from the
// teacher: a copy is told by its embedding, also one with a layer more, without a layer that does nothing or with
// fewer rows of the vocabulary; a student that was trained from other numbers, and one that was cut out of the
// teacher, are not.
func TestEmbeddingTellsACopyWithoutADivergence(t *testing.T) {
	c := smallConfig(t, 40)
	c.Steps, c.BatchSize, c.SeqLen = 1, 4, 64
	trained := c
	trained.Output = filepath.Join(t.TempDir(), "trained")
	trained.Steps, trained.LR = 10, 3e-3
	mustRun(t, trained, 0)
	c.Output = filepath.Join(t.TempDir(), "out")
	layerMore := withLayer(t, noisy(0.01))
	threeLayers := func(c *arch.Config) { c.Layers = c.Layers[:3] }
	cut := reshapedCopy(t, tensor.F32, threeLayers, func(_ string, _ []int, v []float32) []float32 { return v })
	fewerRows := reshapedCopy(t, tensor.F32, func(c *arch.Config) { c.Vocab = 4096 },
		func(name string, shape []int, v []float32) []float32 {
			if turned(name, shape[len(shape)-1], v); name == "model.norm.weight" {
				for i := range v {
					v[i] *= 40
				}
			}
			if strings.HasSuffix(name, "embed_tokens.weight") || name == "lm_head.weight" {
				v = v[:4096*shape[1]]
			}
			return v
		})
	for _, tt := range []struct {
		name, teacher, student string
		temperature            float64
		told                   bool
	}{
		{"louder", c.Teacher, louder(t, turned, 40), 1, true},
		{"trained", c.Teacher, filepath.Join(trained.Output, "student"), 1, false},
		{"a layer more", c.Teacher, layerMore, 1, true}, {"a layer more", c.Teacher, layerMore, 2, true},
		{"a layer less", idleLayer(t), changedCopy(t, tensor.F32, noisy(0.01)), 2, true},
		{"cut", c.Teacher, cut, 1, false}, {"cut", c.Teacher, cut, 2, false},
		{"fewer rows", c.Teacher, fewerRows, 1, true},
	} {
		contracttest.Cases(t, 1)
		c := c
		c.Teacher, c.Loss.Temperature = tt.teacher, tt.temperature
		// At another temperature entropies do not say it either.
		dir, _ := cacheOf(t, c, CacheJob{Kind: cache.Draws, Draws: 50, Entropy: tt.temperature != 1}, 2)
		for _, beside := range []string{"", tt.teacher} {
			other := cached(t, c, dir)
			from(tt.student)(&other)
			other.Teacher = beside
			_, q, err := runOnce(t, other, 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			all := toldBy(t, other.Output, q)
			if got := all.event(runlog.EmbeddingAgrees); got != tt.told || hasFinding(all.findings, "agrees") != tt.told {
				t.Errorf("%s at temperature %g, beside %q: told %v, want %v: %s; %+v", tt.name, tt.temperature, beside, got,
					tt.told, all.said, all.findings.Findings)
			}
		}
	}
}

// A cache that was made before there were sketches is read, and says what is needed to know its teacher: the teacher
// beside it, whose values are then compared.
func TestCacheWithoutASketch(t *testing.T) {
	c := smallConfig(t, 40)
	c.Steps = 1
	f := openModel(t, c.Teacher)
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	config := f.Config
	config.Tied = true
	var old []tensor.Source
	for from, to := range map[string]string{"model.norm.weight": "model.norm.weight", "lm_head.weight": embedding} {
		st, ok := f.File.Tensor(from)
		if !ok {
			t.Fatalf("no %s", from)
		}
		source := st.Source()
		source.Name = to
		old = append(old, source)
	}
	dir, _ := cacheOf(t, c, CacheJob{Kind: cache.Hidden}, 2)
	for _, name := range []string{"manifest.json", headFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	opt := aprfile.Options{Metadata: modelfile.APRMetadata(config, tok, map[string]any{}), Writer: "test", Tied: true}
	if err := aprfile.Write(filepath.Join(dir, headFile), old, opt); err != nil {
		t.Fatal(err)
	}
	if _, err := precompute(t, c, CacheJob{Kind: cache.Hidden}, 2, dir, 0); err != nil {
		t.Fatal(err)
	}
	copied := changedCopy(t, tensor.F32, func(string, int, []float32) {})
	for _, beside := range []string{"", c.Teacher} {
		contracttest.Cases(t, 1)
		other := cached(t, c, dir)
		from(copied)(&other)
		other.Teacher = beside
		_, q, err := runOnce(t, other, 0, 0)
		if beside != "" {
			if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "[E-DISTILL-003]") {
				t.Errorf("beside its teacher: %v", err)
			}
			continue
		}
		said := strings.Join(q.messages, "\n")
		if err != nil || !strings.Contains(said, "naming TEACHER beside --cache compares all values") ||
			!strings.Contains(said, "is it a copy of the teacher?") {
			t.Errorf("%v: %s", err, said)
		}
	}
}
