package distill

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/internal/contracttest"
	"apr/internal/fault"
	runlog "apr/run/log"
	"apr/teacher"
	"apr/tokenizer"
	"apr/tokenizer/train"
)

// learned trains a tokenizer of pieces, or a byte-level one, on the program's own text.
func learned(t testing.TB, pieces bool) *tokenizer.Tokenizer { return learnedOf(t, pieces, 700) }

// learnedOf is learned with so many ids.
func learnedOf(t testing.TB, pieces bool, n int) *tokenizer.Tokenizer {
	t.Helper()
	var texts []string
	for _, name := range []string{"run.go", "leg.go", "inputs.go", "step.go"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(b))
	}
	tok, err := train.ByteLevel(texts, n)
	if pieces {
		tok, err = train.Pieces(texts, n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// projectedConfig is a run of the gosrc teacher and a student with another tokenizer.
func projectedConfig(t *testing.T, pieces bool) Config {
	t.Helper()
	c := tinyConfig(t)
	c.StudentConfig, c.Align, c.SeqLen = "", AlignProject, 48
	tok := learned(t, pieces)
	c.Student = narrowModel(t, tok, tok.RealIDs()+5)
	return c
}

// A run with each kind of tokenizer: it says how much it teaches, what W is, and scores the teacher in its own ids; its
// steps are those of a second run, also of one that is stopped and goes on; a plan knows its memory.
func TestProjected(t *testing.T) {
	for name, pieces := range map[string]bool{"byte-level": false, "pieces": true} {
		t.Run(name, func(t *testing.T) {
			c := in(t, projectedConfig(t, pieces))
			c.ValFraction = .1
			out, q, err := runOnce(t, c, 2, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range q.steps {
				if s.Taught == nil || !(*s.Taught > .2 && *s.Taught < 1) || !(s.KL > 0) {
					t.Errorf("step %d: taught %v, divergence %g", s.Step, s.Taught, float64(s.KL))
				}
			}
			all := strings.Join(q.messages, "\n")
			for _, want := range []string{"projection of the teacher's ids to the student's: ", "alignment of 64 rows: ",
				"the teacher taught "} {
				if !strings.Contains(all, want) {
					t.Errorf("no message says %q", want)
				}
			}
			m := runlog.ReadManifest(out.RunDir)
			if r := m.Inputs["projection"]; len(r.SHA256) != 64 || r.Bytes == 0 ||
				!strings.Contains(r.Detail, "special tokens by role") {
				t.Errorf("the manifest records %+v", r)
			}
			big := out.Evaluations[0]
			if big.Name != nameTeacher || !(big.BitsPerByte > 1 && big.BitsPerByte < 3) || !math.IsNaN(float64(big.KL)) {
				t.Errorf("the teacher's scores are %+v", big)
			}
			theirs := studentBytes(t, c)
			c.Output = filepath.Join(t.TempDir(), "stopped")
			if _, _, err := runOnce(t, c, 1, 5); fault.KindOf(err) != fault.Stopped {
				t.Fatal(err)
			}
			c.Resume = ResumeAuto
			if _, _, err := runOnce(t, c, 2, 0); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(studentBytes(t, c), theirs) {
				t.Error("a run that was stopped gives another student")
			}
			contracttest.Cases(t, len(q.steps))
		})
	}
}

// The memory of a step is at most what its plan says, in every component.
func TestProjectedPlan(t *testing.T) {
	c := in(t, projectedConfig(t, true))
	c.Steps = 2
	d, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	r, err := Start(t.Context(), c, d, &quiet{}, func(*runlog.Manifest) {})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Execute(t.Context()); err != nil {
		t.Fatal(err)
	}
	planned := r.Planned().Memory
	_, peak := d.Memory()
	var most int64
	for _, n := range peak {
		most += n
	}
	if planned.Total < most*9/10 {
		t.Errorf("planned %d bytes, taken %d: %v", planned.Total, most, peak)
	}
}

// Where the teacher does not teach, the loss is cross-entropy alone, and the record's loss is the sum of its terms.
func TestProjectedLoss(t *testing.T) {
	c := in(t, projectedConfig(t, false))
	c.Loss.Temperature, c.Loss.Divergence, c.Loss.Beta = 2, device.JSD, .5
	_, q, err := runOnce(t, c, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	whole := in(t, c) // where the text teaches, no cross-entropy is needed beside
	whole.Loss = device.LossSpec{Alpha: 1, Temperature: 1}
	if _, _, err := runOnce(t, whole, 1, 0); err != nil {
		t.Error(err)
	}
	for _, s := range q.steps {
		want := .5*float64(s.CE) + .5*4*float64(s.KL)
		if math.Abs(float64(s.Loss)-want) > 1e-6*want {
			t.Errorf("step %d: loss %g, its terms are %g", s.Step, float64(s.Loss), want)
		}
	}
}

// auto projects where tokenizers differ, and changes nothing where they are one.
func TestAlignAuto(t *testing.T) {
	c := projectedConfig(t, true)
	c.Align = AlignAuto
	_, q, err := runOnce(t, in(t, c), 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	if q.steps[0].Taught == nil {
		t.Error("auto does not project other ids")
	}
	same := tinyConfig(t)
	_, before := mustRun(t, in(t, same), 1)
	same.Align = AlignAuto
	if _, after := mustRun(t, in(t, same), 1); !bytes.Equal(before, after) {
		t.Error("auto changes a run of one tokenizer")
	}
}

// What cannot be aligned is refused before anything is written: with its kind, its id, and what would do.
func TestAlignRefused(t *testing.T) {
	good := projectedConfig(t, true)
	cases := []struct {
		name, id, words string
		kind            fault.Kind
		change          func(*Config)
	}{
		{"same", "E-VOCAB-001", "--align project", fault.Invalid, func(c *Config) { c.Align = AlignSame }},
		{"the default", "E-VOCAB-001", "--align project", fault.Invalid, func(c *Config) { c.Align = "" }},
		{"chunk by another divergence", "E-ALIGN-017", "--align chunk", fault.Unavailable, func(c *Config) {
			c.Align, c.Loss.Divergence = AlignChunk, device.TVD
		}},
		{"chunk with alpha 1", "E-ALIGN-012", "--align chunk", fault.Usage, func(c *Config) {
			c.Align, c.Loss.Alpha = AlignChunk, 1
		}},
		{"chunk with guides", "E-ALIGN-011", "--align chunk with", fault.Unavailable, func(c *Config) {
			c.Align, c.Guide.Attention = AlignChunk, 1
		}},
		{"the default with rows of the student's own", "E-VOCAB-001", "without --on-policy, --align project", fault.Invalid,
			func(c *Config) {
				c.Align, c.Loss.Alpha, c.OnPolicy = "", 1, OnPolicy{Fraction: 1, MaxTokens: 8, PromptTokens: 8, Samples: 1}
			}},
		{"the default with fp8", "E-VOCAB-001", "--align project is not built with --teacher-gemm fp8", fault.Invalid,
			func(c *Config) { c.Align, c.TeacherFP8 = "", true }},
		{"several teachers", "E-ALIGN-011", "several teachers", fault.Unavailable,
			func(c *Config) { c.Ensemble.More = []string{"../testdata/models/gosrc-q4_k_m.gguf"} }},
		{"rows of the student's own", "E-ALIGN-011", "--on-policy", fault.Unavailable, func(c *Config) {
			c.Loss.Alpha, c.OnPolicy = 1, OnPolicy{Fraction: .5, MaxTokens: 8, PromptTokens: 8, Samples: 1}
		}},
		{"guides", "E-ALIGN-011", "position by position", fault.Unavailable, func(c *Config) { c.Guide.Attention = 1 }},
		{"reverse KL", "E-ALIGN-013", "reverse KL", fault.Unavailable,
			func(c *Config) { c.Loss.Divergence = device.ReverseKL }},
		{"the end of JSD that is reverse KL", "E-ALIGN-013", "reverse KL", fault.Unavailable,
			func(c *Config) { c.Loss.Divergence, c.Loss.Beta = device.JSD, 1 }},
		{"alpha 1", "E-ALIGN-012", "--alpha", fault.Usage, func(c *Config) { c.Loss.Alpha, c.Loss.Temperature = 1, 2 }},
		{"a new student", "E-ALIGN-014", "--student-config", fault.Usage, func(c *Config) {
			c.Student, c.StudentConfig = "", filepath.Join(filepath.Dir(c.Output), "config.json")
		}},
	}
	contracttest.Cases(t, len(cases))
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bad := good
			c.change(&bad)
			_, _, err := runOnce(t, bad, 1, 0)
			var f *fault.Error
			if fault.KindOf(err) != c.kind || !errors.As(err, &f) || f.ID != c.id ||
				!strings.Contains(err.Error()+f.Hint, c.words) {
				t.Errorf("got %v (%v), want %s of kind %v", err, fault.KindOf(err), c.id, c.kind)
			}
			if entries, err := os.ReadDir(bad.Output); err == nil && len(entries) > 0 {
				t.Errorf("%d files were written", len(entries))
			}
		})
	}
}

// A device whose streams move no probabilities refuses by name.
func TestAlignLacked(t *testing.T) {
	inputs := &inputs{projected: &projected{}}
	err := inputs.projectedBy(lacking{})
	if fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), string(device.Projects)) {
		t.Errorf("got %v", err)
	}
}

// lacking is a device that lacks the projection.
type lacking struct{ device.Device }

func (lacking) Info() device.Info {
	return device.Info{Kind: "other", Lacks: []device.Feature{device.Projects}}
}

// The event of a run holds the audit, and its counts are those of its steps.
func TestProjectedEvents(t *testing.T) {
	c := in(t, projectedConfig(t, true))
	_, q, err := runOnce(t, c, 2, 0)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(c.Output, "events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var counts struct {
		Counts teacher.AlignCounts `json:"counts"`
	}
	found := false
	for _, line := range strings.Split(string(text), "\n") {
		var e struct {
			Name   string          `json:"name"`
			Detail json.RawMessage `json:"detail"`
		}
		if json.Unmarshal([]byte(line), &e) == nil && e.Name == TaughtEvent {
			found = true
			if err := json.Unmarshal(e.Detail, &counts); err != nil {
				t.Fatal(err)
			}
		}
	}
	taught, targets := 0.0, 0
	for _, s := range q.steps {
		taught += float64(*s.Taught) * float64(s.Targets)
		targets += s.Targets
	}
	if !found || counts.Counts.Targets != targets || math.Abs(float64(counts.Counts.Taught)-taught) > .5 {
		t.Errorf("the event counts %+v, the steps %g of %d", counts.Counts, taught, targets)
	}
	if !strings.Contains(string(text), ProjectionEvent) {
		t.Error("no event records the projection")
	}
}
