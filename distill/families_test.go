package distill

import (
	"fmt"
	"maps"
	"path/filepath"
	"testing"

	"apr/device/cpu"
	"apr/internal/contracttest"
	"apr/model"
	"apr/modelfile"
	"apr/plan"
	runlog "apr/run/log"
)

// A dry step says to the byte what the CPU holds of each component, for students and teachers of every family, whatever
// is computed again, with documents kept apart and without.
func TestDryStepOfFamilies(t *testing.T) {
	const rows, seqLen = 3, 16
	for _, kind := range []string{"families", "variants"} {
		dirs, err := filepath.Glob(filepath.Join("../testdata/golden", kind, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range dirs {
			if c, err := modelfile.ReadConfig(filepath.Join(dir, "config.json")); err != nil {
				t.Fatal(err)
			} else if c.NotComputed() != "" {
				continue
			}
			for _, r := range []model.Recompute{model.RecomputeNone, model.RecomputeNorms, model.RecomputeBlocks} {
				t.Run(fmt.Sprintf("%s, %v", filepath.Base(dir), r), func(t *testing.T) {
					contracttest.Cases(t, 1)
					c := tinyConfig(t)
					c.Teacher, c.Student, c.StudentConfig, c.AllowSameModel = dir, dir, "", true
					c.Data, c.Dataset = nil, "ids" // the goldens have no tokenizer
					c.SeqLen, c.GradAccum, c.DocumentMask = seqLen, 2, r != model.RecomputeNone
					c.Loss.Alpha = .5
					in := &inputs{records: map[string]runlog.Input{}}
					if err := in.openModels(c, &quiet{}); err != nil {
						t.Fatal(err)
					}
					defer in.close()
					for _, l := range in.studentConfig.Layers {
						if l.FFN.MoE.Experts > 0 {
							c.RouterBalance = .1
						}
					}
					d, err := cpu.New(cpu.Options{})
					if err != nil {
						t.Fatal(err)
					}
					defer d.Close()
					s := plan.Setting{BatchSize: rows, MicroRows: 2, ChunkRows: 20, Recompute: r}
					rec, err := in.dryRun(c, d.Target).Record(s)
					if err != nil {
						t.Fatal(err)
					}
					if want := peakOfStep(t, d, in, c, s); !maps.Equal(rec.Peak, want) {
						t.Errorf("planned %v\nheld    %v", rec.Peak, want)
					}
				})
			}
		}
	}
}
