package distill

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"apr/arch"
	"apr/internal/contracttest"
	runlog "apr/run/log"
	"apr/tensor"
)

// A first step of few targets says nothing of a copy whose rounding decides them: its embedding does.
func TestFirstStepOfFewTargets(t *testing.T) {
	run := func(text, student string) *told {
		contracttest.Cases(t, 1)
		return oneStep(t, func(c *Config) {
			dir := t.TempDir()
			c.Packing, c.BatchSize, c.SeqLen = false, 1, 8
			for name, data := range map[string]struct {
				to   *[]string
				text string
			}{"train.jsonl": {&c.Data, text}, "held.jsonl": {&c.EvalData, "package main\n\nfunc main() {}\n"}} {
				path := filepath.Join(dir, name)
				line := fmt.Sprintf("{\"text\": %q}\n", data.text)
				if err := os.WriteFile(path, []byte(line), 0o600); err != nil {
					t.Fatal(err)
				}
				*data.to = []string{path}
			}
			from(student)(c)
		})
	}
	rounded := permutedCodes(t)
	for text, agrees := range map[string]bool{"c": false, "x": false, "{": false, "y": true} {
		r := run(text, rounded)
		if r.event(runlog.FirstStepAgrees) != agrees || r.event(runlog.EmbeddingAgrees) == agrees || len(r.findings.Findings) != 1 {
			t.Errorf("%q: messages %q; findings %+v", text, r.said, r.findings.Findings)
		}
	}
	cut := reshapedCopy(t, tensor.F32, func(c *arch.Config) { c.Layers = c.Layers[:3] },
		func(_ string, _ []int, v []float32) []float32 { return v })
	for _, text := range []string{"c", "y", ")", "\t"} {
		if r := run(text, cut); r.event(runlog.FirstStepAgrees) || r.event(runlog.EmbeddingAgrees) {
			t.Errorf("cut to 3 layers, %q: messages %q", text, r.said)
		}
	}
}
