package distill

import (
	"apr/device/dry"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/corpus"
	"apr/device"
	"apr/device/cpu"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/model"
	"apr/plan"
	"apr/teacher"
)

// A dry step says to the byte what the CPU holds of each component at its highest point, for every way to keep weights
// and activations.
func TestDryStepIsTheStep(t *testing.T) {
	in, err := openInputs(context.Background(), tinyConfig(t), newCPU(t), &quiet{})
	if err != nil {
		t.Fatal(err)
	}
	defer in.close()
	const rows, accum, seqLen = 3, 2, 16
	for _, keep := range []int64{0, 3 << 20, 1 << 30} { // as stored, some of the weights expanded, all
		for _, r := range []model.Recompute{model.RecomputeNone, model.RecomputeNorms, model.RecomputeBlocks} {
			for _, micro := range []int{3, 2} {
				for _, alpha := range []float64{0.5, 0} {
					t.Run(fmt.Sprintf("%d bytes expanded, %v, %d rows, alpha %g", keep, r, micro, alpha), func(t *testing.T) {
						contracttest.Cases(t, 1)
						d, err := cpu.New(cpu.Options{KeepExpanded: keep})
						if err != nil {
							t.Fatal(err)
						}
						defer d.Close()
						c := tinyConfig(t)
						c.Loss.Alpha, c.SeqLen, c.GradAccum = alpha, seqLen, accum
						s := plan.Setting{BatchSize: rows, MicroRows: micro, ChunkRows: 20, Recompute: r}
						rec, err := in.dryRun(c, d.Target).Record(s)
						if err != nil {
							t.Fatal(err)
						}
						want := peakOfStep(t, d, in, c, s)
						if !maps.Equal(rec.Peak, want) {
							t.Errorf("planned %v\nheld    %v", rec.Peak, want)
						}
						if rec.Waits != 1 {
							t.Errorf("%d host waits, a step has one", rec.Waits)
						}
					})
				}
			}
		}
	}
}

// peakOfStep runs a real step and returns the highest bytes by component.
func peakOfStep(t *testing.T, d *cpu.Device, in *inputs, c Config, s plan.Setting) map[device.Component]int64 {
	t.Helper()
	stream := d.NewStream()
	big, err := model.LoadFrozen(d, in.teacher, device.TeacherWeights)
	if err != nil {
		t.Fatal(err)
	}
	student := model.NewTrainable(d, in.studentConfig)
	student.Init(stream, 1)
	tr := NewTrainer(student, stream, c.Rows()*s.BatchSize/c.BatchSize, c.SeqLen)
	tr.Cut(s)
	tr.Loss.Spec, tr.Loss.Vocab = c.Loss, in.vocab
	if c.Loss.Alpha != 0 {
		tr.Teacher = &teacher.Resident{Model: big, Group: teacher.GroupRows(d.Info(), c.SeqLen)}
	}
	for _, masked := range []bool{true, false} {
		b := dryBatch(s.BatchSize*c.GradAccum, c.SeqLen)
		for lo := 0; lo < b.Rows && masked; lo += s.MicroRows {
			b.Mask[min(lo+s.MicroRows, b.Rows)*c.SeqLen-1] = 0
		}
		if _, err := tr.Apply(context.Background(), b); err != nil {
			t.Fatal(err)
		}
	}
	_, peak := d.Memory()
	return peak
}

// Whatever positions count, a step holds no more than the dry ones.
func TestDryStepIsTheWorstMask(t *testing.T) {
	in, err := openInputs(context.Background(), tinyConfig(t), newCPU(t), &quiet{})
	if err != nil {
		t.Fatal(err)
	}
	defer in.close()
	c := tinyConfig(t)
	c.SeqLen = 16
	s := plan.Setting{BatchSize: c.BatchSize, MicroRows: 1, ChunkRows: 20}
	d := newCPU(t).(*cpu.Device)
	rec, err := in.dryRun(c, d.Target).Record(s)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(b corpus.Batch){
		"all count":       func(b corpus.Batch) { fill(b.Mask, 1) },
		"one counts":      func(b corpus.Batch) { fill(b.Mask, 0); b.Mask[3] = 1 },
		"one row counts":  func(b corpus.Batch) { fill(b.Mask[:16], 0) },
		"every other one": func(b corpus.Batch) { fill(b.Mask, 1); b.Mask[7], b.Mask[9], b.Mask[20] = 0, 0, 0 },
	} {
		d := newCPU(t)
		stream := d.NewStream()
		student := model.NewTrainable(d, in.studentConfig)
		student.Init(stream, 1)
		big, err := model.LoadFrozen(d, in.teacher, device.TeacherWeights)
		if err != nil {
			t.Fatal(err)
		}
		tr := NewTrainer(student, stream, c.Rows(), c.SeqLen)
		tr.Cut(s)
		tr.Loss.Spec, tr.Loss.Vocab = c.Loss, in.vocab
		tr.Teacher = &teacher.Resident{Model: big}
		b := dryBatch(c.Rows(), c.SeqLen)
		change(b)
		if _, err := tr.Apply(context.Background(), b); err != nil {
			t.Fatal(err)
		}
		_, peak := d.Memory()
		for comp, n := range peak {
			if n > rec.Peak[comp] {
				t.Errorf("%s: %d bytes of %s, planned %d", name, n, comp, rec.Peak[comp])
			}
		}
	}
}

func fill(mask []uint8, v uint8) {
	for i := range mask {
		mask[i] = v
	}
}

// A step that cannot fit is refused before anything is written, with the largest batch that could.
func TestTooLargeSteps(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"rows":         func(c *Config) { c.BatchSize = 100_000_000 },
		"accumulation": func(c *Config) { c.GradAccum = 1_000_000_000_000 },
		"both":         func(c *Config) { c.BatchSize, c.GradAccum = 1<<31, 1<<33 },
	} {
		c := tinyConfig(t)
		change(&c)
		_, _, err := runOnce(t, c, 0, 0)
		if fault.KindOf(err) != fault.Memory || !strings.Contains(fmt.Sprint(err), "step") {
			t.Errorf("%s: error %v, want one of kind memory", name, err)
		}
	}
}

// budgeted is the CPU with a budget of its own.
type budgeted struct {
	*cpu.Device
	budget int64
}

func (b budgeted) Target() dry.Target {
	t := b.Device.Target()
	t.Budget = b.budget
	return t
}

// A step that does not fit is planned with more recomputation; if that does not help either, it is refused with the
// table and with the largest batch size that fits, which then does.
func TestPlanFitsTheBudget(t *testing.T) {
	c := tinyConfig(t)
	c.BatchSize, c.SeqLen, c.GradAccum = 16, 64, 1
	d := newCPU(t).(*cpu.Device)
	in, err := openInputs(context.Background(), c, d, &quiet{})
	if err != nil {
		t.Fatal(err)
	}
	defer in.close()
	if in.planned.Recompute != model.RecomputeNone {
		t.Fatalf("with plenty of memory: %v", in.planned.Setting)
	}
	need := func(r model.Recompute) int64 {
		s := in.planned.Setting
		s.Recompute = r
		rec, err := in.dryRun(c, d.Target).Record(s)
		if err != nil {
			t.Fatal(err)
		}
		return rec.Total()
	}
	none, norms, blocks := need(model.RecomputeNone), need(model.RecomputeNorms), need(model.RecomputeBlocks)
	if !(blocks < norms && norms < none) {
		t.Fatalf("needs %d, %d, %d bytes", none, norms, blocks)
	}
	for _, tt := range []struct {
		name   string
		budget int64
		ask    []model.Recompute
		want   model.Recompute
		fits   bool
	}{
		{"all is kept", none, nil, model.RecomputeNone, true},
		{"a byte less", none - 1, nil, model.RecomputeNorms, true},
		{"blocks", norms - 1, nil, model.RecomputeBlocks, true},
		{"asked for, although not needed", none, []model.Recompute{model.RecomputeBlocks}, model.RecomputeBlocks, true},
		{"asked for, and too large", none - 1, []model.Recompute{model.RecomputeNone}, model.RecomputeNone, false},
		{"too large", blocks - 1, nil, model.RecomputeBlocks, false},
		{"unknown budget", 0, nil, model.RecomputeNone, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			c.Recompute = tt.ask
			p, err := planOf(in, c, budgeted{d, tt.budget})
			if p.Recompute != tt.want || (err == nil) != tt.fits || p.BatchSize != 16 || p.MicroRows != 16 {
				t.Fatalf("%v, error %v", p.Setting, err)
			}
			if tt.fits {
				return
			}
			var f *fault.Error
			if !errors.As(err, &f) || f.Kind != fault.Memory || !strings.Contains(f.Hint, "activations") || !strings.Contains(f.Hint, fmt.Sprint(p.LargestBatchSize)) {
				t.Errorf("error %#v", err)
			}
			if n := p.LargestBatchSize; n < 1 || n >= 16 {
				t.Fatalf("largest batch size %d", n)
			}
			c.BatchSize = p.LargestBatchSize
			if _, err := planOf(in, c, budgeted{d, tt.budget}); err != nil {
				t.Errorf("the largest batch size does not fit: %v", err)
			}
			c.BatchSize++
			if _, err := planOf(in, c, budgeted{d, tt.budget}); err == nil {
				t.Error("a larger one fits, too")
			}
			c.BatchSize = 16
		})
	}
}

// However a step is cut and whatever is computed again, the student is the same: to the bit for recomputation.
func TestRecomputeIsTheSameRun(t *testing.T) {
	c := tinyConfig(t)
	c.Steps = 3
	_, want := mustRun(t, c, 0)
	for _, r := range []model.Recompute{model.RecomputeNorms, model.RecomputeBlocks} {
		c := in(t, c)
		c.Recompute = []model.Recompute{r}
		if _, got := mustRun(t, c, 0); !bytes.Equal(got, want) {
			t.Errorf("%v: another student", r)
		}
		events, err := os.ReadFile(filepath.Join(c.Output, "events.jsonl"))
		if err != nil || !strings.Contains(string(events), fmt.Sprintf(`"recompute":%q`, r)) {
			t.Errorf("%v is not recorded: %v", r, err)
		}
	}
}

// planOf plans the steps of a run on a device.
func planOf(in *inputs, c Config, dev dry.Planned) (plan.Plan, error) {
	var k Candidate
	err := in.planCandidate(c, &k, dev)
	return k.plan, err
}
