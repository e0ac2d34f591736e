//go:build gpu || emulate

package distill

import (
	"path/filepath"
	"testing"

	"apr/device/cuda"
	"apr/internal/contracttest"
	"apr/model"
	"apr/plan"
	runlog "apr/run/log"
)

// TestCUDAExpertsPlanned: the plan of a step with experts, a load-balance loss and micro-batches takes everything
// beforehand: the steps load and allocate nothing, however tokens are split.
func TestCUDAExpertsPlanned(t *testing.T) {
	openEmulator(t)
	for _, dir := range []string{"families/qwen3_moe", "variants/qwen3_moe_mixed", "variants/gemma4_moe"} {
		for _, compute := range []cuda.Compute{cuda.BF16, cuda.F32} {
			t.Run(filepath.Base(dir)+" "+compute.String(), func(t *testing.T) {
				contracttest.Cases(t, 1)
				d, err := cuda.Open(cuda.Options{Compute: compute, StrictSeal: true})
				if err != nil {
					t.Fatal(err)
				}
				defer d.Close()
				c := tinyConfig(t)
				c.Teacher = filepath.Join("../testdata/golden", dir)
				c.Student, c.StudentConfig, c.AllowSameModel = c.Teacher, "", true
				c.Data, c.Dataset = nil, "ids" // the goldens have no tokenizer
				c.SeqLen, c.GradAccum, c.RouterBalance, c.Loss.Alpha = 16, 2, .01, .5
				in := &inputs{records: map[string]runlog.Input{}}
				if err := in.openModels(c, &quiet{}); err != nil {
					t.Fatal(err)
				}
				defer in.close()
				s := plan.Setting{BatchSize: 3, MicroRows: 2, ChunkRows: 20, Recompute: model.RecomputeNorms}
				rec, err := in.dryRun(c, d.Target).Record(s)
				if err != nil {
					t.Fatal(err)
				}
				if plan.Experts(rec) == "" {
					t.Error("the plan does not say for which split it is")
				}
				if err := d.Prepare(rec); err != nil {
					t.Fatal(err)
				}
				d.Seal()
				before := d.Stats()
				stepped(t, d, in, c, s, false)
				if after := d.Stats(); after.LateLoads != 0 || after.Allocated != before.Allocated {
					t.Errorf("%d late loads, %d bytes more than planned", after.LateLoads, after.Allocated-before.Allocated)
				}
			})
		}
	}
}
