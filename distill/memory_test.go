package distill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"apr/corpus"
	"apr/device"
	"apr/device/arena"
	"apr/device/cpu"
	"apr/device/dry"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/model"
	"apr/plan"
	"apr/teacher"
	"apr/tensor"
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

// accounted is a device that says what it held.
type accounted interface {
	device.Device
	Memory() (now, peak map[device.Component]int64)
}

// peakOfStep runs a real step and returns the highest bytes by component.
func peakOfStep(t *testing.T, d accounted, in *inputs, c Config, s plan.Setting) map[device.Component]int64 {
	t.Helper()
	return stepped(t, d, in, c, s, true, false)
}

// stepped takes steps in which all targets count, or all but the last of each micro-batch, and returns what was held at
// most.
func stepped(t *testing.T, d accounted, in *inputs, c Config, s plan.Setting, masks ...bool) map[device.Component]int64 {
	t.Helper()
	stream := d.NewStream()
	var teachers []*model.Model
	for _, f := range in.teachers() {
		big, err := model.LoadFrozen(d, f, device.TeacherWeights)
		if err != nil {
			t.Fatal(err)
		}
		teachers = append(teachers, big)
	}
	student := model.NewTrainable(d, in.studentConfig)
	student.Init(stream, 1)
	tr := NewTrainer(student, stream, c.Rows()*s.BatchSize/c.BatchSize, c.SeqLen)
	tr.Cut(s)
	tr.Balance = c.RouterBalance
	tr.Optimizer.AdamW.Eps = 1e-8 // experts without tokens have gradients of 0
	tr.Loss.Spec, tr.Loss.Vocab = c.Loss, in.vocab
	if c.Loss.Alpha != 0 {
		tr.Teacher = c.Ensemble.of(teachers, d.Info(), c.SeqLen, c.Loss.Temperature)
	}
	if p := in.projected.idle(); p != nil {
		tr.Teacher = p.of(teachers[0], d.Info(), c.Loss.Temperature)
	}
	if c.Ensemble.routed() {
		tr.RouteRows()
	}
	var err error
	if tr.Hidden, err = c.Guide.make(d, in.studentConfig, in.teacher.Config, tr.Teacher, 0); err != nil {
		t.Fatal(err)
	}
	if tr.Maps, err = c.Guide.makeMaps(in.studentConfig, in.teacher.Config, tr.Teacher, 0); err != nil {
		t.Fatal(err)
	}
	if tr.Hidden != nil {
		tr.Hidden.Init(stream, 1)
	}
	if c.DocumentMask {
		tr.SeparateDocuments()
	}
	for _, masked := range masks {
		b := dryBatch(s.BatchSize*c.GradAccum, c.SeqLen)
		if c.DocumentMask {
			b.Starts = make([]int32, len(b.Tokens))
		}
		for lo := 0; lo < b.Rows && masked; lo += s.MicroRows {
			b.Mask[min(lo+s.MicroRows, b.Rows)*c.SeqLen-1] = 0
		}
		for _, b.Routes = range (DryRun{Ensemble: c.Ensemble, Loss: c.Loss, More: make([]*model.Outline, len(in.more))}).splits(b.Rows) {
			if _, err := tr.Apply(context.Background(), b); err != nil {
				t.Fatal(err)
			}
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
			if !errors.As(err, &f) || f.Kind != fault.Memory || !strings.Contains(f.Hint, "activations") || !strings.Contains(f.Hint, fmt.Sprint(p.Largest.Size)) {
				t.Errorf("error %#v", err)
			}
			if n := p.Largest.Size; n < 1 || n >= 16 {
				t.Fatalf("largest batch size %d", n)
			}
			c.BatchSize = p.Largest.Size
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

// unrepeated is a stream that runs every part.
type unrepeated struct{ device.Stream }

// gpuLike describes a GPU: bf16, an arena, a step that may be cut in any way.
func gpuLike(budget int64) func() dry.Target {
	return func() dry.Target {
		return dry.Target{
			Info: device.Info{Kind: "cuda", Activations: tensor.BF16}, Matrices: tensor.BF16, Keep: dry.As(tensor.BF16), Temps: arena.New(256),
			Align: 256, Budget: budget,
		}
	}
}

// dryRuns are steps of the tiny models on a CPU and on a GPU.
func dryRuns(t *testing.T, change func(*Config)) map[string]DryRun {
	t.Helper()
	c := tinyConfig(t)
	change(&c)
	d := newCPU(t).(*cpu.Device)
	in, err := openInputs(context.Background(), c, d, &quiet{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.close() })
	return map[string]DryRun{"cpu": in.dryRun(c, budgeted{d, 0}.Target), "gpu": in.dryRun(c, gpuLike(0))}
}

// TestRepeatedPartsCount: a dry run that counts micro-batches and groups it has seen instead of running them records
// the same.
func TestRepeatedPartsCount(t *testing.T) {
	cases := 0
	for _, shape := range []struct{ seqLen, accum int }{{8, 1}, {64, 1}, {64, 3}, {256, 1}} {
		for name, d := range dryRuns(t, func(c *Config) { c.SeqLen, c.GradAccum, c.BatchSize = shape.seqLen, shape.accum, 4 }) {
			for _, rows := range []int{1, 2, 3, 7, 40} {
				for _, micro := range []int{1, 2, 3, 5, rows} {
					for _, again := range []model.Recompute{model.RecomputeNone, model.RecomputeBlocks} {
						s := plan.Setting{BatchSize: rows, MicroRows: min(micro, rows), ChunkRows: 256, Recompute: again}
						got, err := d.Record(s)
						if err != nil {
							t.Fatal(err)
						}
						dev := dry.New(d.Target())
						want, err := d.run(dev, unrepeated{dev.NewStream()}, 0, s)
						if err != nil {
							t.Fatal(err)
						}
						cases++
						slices.SortFunc(got.AtMost, byName)
						slices.SortFunc(want.AtMost, byName)
						if diff := cmp.Diff(want, got); diff != "" {
							t.Fatalf("%s, %+v, %v (-all run +counted):\n%s", name, shape, s, diff)
						}
					}
				}
			}
		}
	}
	contracttest.Cases(t, cases)
}

func byName(a, b dry.Held) int { return strings.Compare(a.Name, b.Name) }

// TestLeastSettingNeedsLeast: what Choose and LargestBatch rest on. The smallest micro-batch and chunk with the most
// computed again need least of all settings, and on a GPU a row more never needs less.
func TestLeastSettingNeedsLeast(t *testing.T) {
	cases := 0
	for _, seqLen := range []int{8, 64, 256} {
		for name, d := range dryRuns(t, func(c *Config) { c.SeqLen, c.BatchSize = seqLen, 4 }) {
			before := int64(0)
			for _, rows := range []int{1, 2, 3, 4, 5, 7, 8, 12, 16, 33, 64, 100} {
				r := d.request(Choice{BatchSize: rows}, d.Target())
				least, err := r.Need(d.Record)
				if err != nil {
					t.Fatal(err)
				}
				for _, micro := range r.MicroRows {
					for _, chunk := range r.ChunkRows {
						for _, again := range r.Recompute {
							s := plan.Setting{BatchSize: rows, MicroRows: micro, ChunkRows: chunk, Recompute: again}
							rec, err := d.Record(s)
							if err != nil {
								t.Fatal(err)
							}
							if cases++; rec.Total() < least {
								t.Errorf("%s, %d rows of %d: %v needs %d bytes, the least setting %d", name, rows, seqLen, s, rec.Total(), least)
							}
						}
					}
				}
				if name == "gpu" && least < before {
					t.Errorf("%d rows of %d need %d bytes, fewer rows %d", rows, seqLen, least, before)
				}
				before = least
			}
		}
	}
	contracttest.Cases(t, cases)
}

// TestLargestBatchIsOne: whatever batch size is asked for, the largest is the same; it fits by the plan, and one row
// more does not.
func TestLargestBatchIsOne(t *testing.T) {
	cases := 0
	for name, d := range dryRuns(t, func(c *Config) { c.SeqLen, c.BatchSize = 64, 4 }) {
		one, err := d.request(Choice{BatchSize: 1}, d.Target()).Need(d.Record)
		if err != nil {
			t.Fatal(err)
		}
		for _, budget := range []int64{one - 1, one, one + 1, one * 5 / 4, one * 2, one * 9} {
			target := d.Target
			d.Target = func() dry.Target { t := target(); t.Budget = budget; return t }
			want, err := d.LargestBatch(Choice{BatchSize: 1})
			if err != nil {
				t.Fatal(err)
			}
			for _, asked := range []int{2, 16, 1000} {
				if got, err := d.LargestBatch(Choice{BatchSize: asked}); err != nil || got != want {
					t.Errorf("%s, %d bytes, asked for %d: %+v, %v; asked for 1: %+v", name, budget, asked, got, err, want)
				}
			}
			for _, n := range []int{want.Size, want.Size + 1} {
				if n == 0 || n > want.Size && want.IsBound {
					continue
				}
				p, err := d.Plan(Choice{BatchSize: n})
				if cases++; (err == nil) != (n == want.Size) || fault.KindOf(err) != fault.Memory && err != nil {
					t.Errorf("%s, %d bytes: %d rows, largest %+v: %v", name, budget, n, want, err)
				}
				if err != nil && (p.Largest == nil || *p.Largest != want) {
					t.Errorf("%s, %d bytes: the refusal of %d rows says %+v, want %+v", name, budget, n, p.Largest, want)
				}
			}
			d.Target = target
		}
		if l, err := d.LargestBatch(Choice{}); err != nil || !l.IsBound || l.Size != min(searched/64, searchedRows) {
			t.Errorf("%s: of a memory of unknown size %+v, %v", name, l, err)
		}
	}
	contracttest.Cases(t, cases)
}
