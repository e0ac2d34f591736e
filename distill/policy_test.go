package distill

import (
	"bytes"
	"testing"

	"apr/device"
	"apr/internal/contracttest"
)

// ownConfig is tinyConfig with rows that the student writes.
func ownConfig(t *testing.T) Config {
	c := tinyConfig(t)
	c.Loss = device.LossSpec{Alpha: 1, Temperature: 1, Divergence: device.ReverseKL}
	c.BatchSize, c.SeqLen = 4, 24
	c.OnPolicy = OnPolicy{Fraction: .5, MaxTokens: 12, PromptTokens: 8, Samples: 1}
	return c
}

// TestSamplerAndTrainerAgree: the probability of each drawn token is the same in the step as when it was drawn,
// within float32, for mixed steps and for those of the student's rows alone, by either estimator.
func TestSamplerAndTrainerAgree(t *testing.T) {
	for _, v := range []struct {
		fraction float64
		sampled  bool
	}{{.5, false}, {1, false}, {.25, true}, {1, true}} {
		c := ownConfig(t)
		c.OnPolicy.Fraction, c.OnPolicy.Sampled = v.fraction, v.sampled
		_, q, err := runOnce(t, c, 2, 0)
		if err != nil {
			t.Fatal(err)
		}
		tokens := 0
		for _, s := range q.steps {
			o := s.OnPolicy
			if o == nil || o.Rows != int(4*v.fraction) || o.Tokens < o.Rows || float64(o.Tokens) != o.Length*float64(o.Rows) {
				t.Fatalf("step %d: %+v", s.Step, o)
			}
			if !(o.OffMost <= 2e-5) || !(o.Off <= o.Off999) || !(o.Off999 <= o.OffMost) {
				t.Errorf("fraction %g, step %d: ln p of the sampler and of the trainer differ by %g (mean %g)",
					v.fraction, s.Step, o.OffMost, o.Off)
			}
			tokens += o.Tokens
		}
		contracttest.Cases(t, tokens)
	}
}

// TestOwnRowsResume: a run that stops after some steps and goes on ends in the same student.
func TestOwnRowsResume(t *testing.T) {
	c := ownConfig(t)
	_, want := mustRun(t, c, 1)
	for _, after := range []int{1, 4} {
		c := in(t, c)
		if _, _, err := runOnce(t, c, 2, after); err == nil {
			t.Fatal("the run did not stop")
		}
		c.Resume = ResumeAuto
		if _, got := mustRun(t, c, 3); !bytes.Equal(got, want) {
			t.Errorf("stopped after %d steps: another student", after)
		}
		contracttest.Cases(t, 1)
	}
}
