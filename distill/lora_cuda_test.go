//go:build gpu || emulate

package distill

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/internal/contracttest"
	"apr/internal/near"
	"apr/model"
	"apr/plan"
	runlog "apr/run/log"
)

// A dry step with adapters says what a step takes on a GPU, to the byte, beside a base in blocks and one that is
// expanded; nothing is allocated and no module loaded after it.
func TestCUDADryLoRAStep(t *testing.T) {
	openEmulator(t)
	for _, base := range []string{quantisedBase, goldens + "/qwen2/tied_gqa/student"} {
		for _, r := range []model.Recompute{model.RecomputeNone, model.RecomputeBlocks} {
			t.Run(fmt.Sprint(base, r), func(t *testing.T) {
				contracttest.Cases(t, 1)
				c := loraConfig(t)
				c.Teacher, c.Student, c.Data, c.Dataset, c.SeqLen = base, base, nil, "ids", 16
				if r == model.RecomputeNone {
					c.LoRA.Dropout = 0
				}
				in := &inputs{records: map[string]runlog.Input{}}
				if err := in.openModels(c, &quiet{}); err != nil {
					t.Fatal(err)
				}
				defer in.close()
				var log strings.Builder
				d, err := cuda.Open(cuda.Options{KernelLog: &log})
				if err != nil {
					t.Fatal(err)
				}
				defer d.Close()
				s := plan.Setting{BatchSize: 2, MicroRows: 1, ChunkRows: 40, Recompute: r}
				run := in.dryRun(c, d.Target)
				run.Form = device.Form{Blocks: true}
				rec, err := run.Record(s)
				if err != nil {
					t.Fatal(err)
				}
				if err := d.Prepare(rec); err != nil {
					t.Fatal(err)
				}
				d.Seal()
				before := d.Stats().Allocated
				in.choice = &teacherChoice{Chosen: &Candidate{form: run.Form}}
				held := loraPeak(t, d, in, c, s)
				held[device.Scratch] = rec.Peak[device.Scratch] // that of operations is the device's own, whatever runs
				if !maps.Equal(rec.Peak, held) {
					t.Errorf("planned %v\nheld    %v", rec.Peak, held)
				}
				if after := d.Stats().Allocated; after != before {
					t.Errorf("%d bytes beyond the plan", after-before)
				}
				for line := range strings.Lines(log.String()) {
					if strings.Contains(line, "late=true") && strings.Contains(line, "event=jit") {
						t.Errorf("loaded after the plan: %s", line)
					}
				}
			})
		}
	}
}

// PEFT's logits, gradients and steps on a GPU: in float32 with the tolerances of the CPU, in bfloat16 the direction of
// gradients.
func TestCUDAPEFT(t *testing.T) {
	onCUDA(t, cuda.F32)
	t.Run("float32", TestPEFT)
	onCUDA(t, cuda.BF16)
	for _, name := range peftCases {
		t.Run("bfloat16 "+name, func(t *testing.T) {
			g := openPEFT(t, name)
			d := testDevice(t)
			s := d.NewStream()
			m, b := g.student(t, d, s), g.batch()
			tr := g.trainer(m, s, b)
			if _, err := tr.Apply(t.Context(), b); err != nil {
				t.Fatal(err)
			}
			for _, p := range m.Parts() {
				got := make([]float32, p.Elements())
				if err := s.Download(got, p.Of(p.Param.Grad)); err != nil {
					t.Fatal(err)
				}
				near.CheckL2(t, "gradient of "+p.Name, got, g.x.floats("grad."+p.Name), 0.1)
			}
		})
	}
}
