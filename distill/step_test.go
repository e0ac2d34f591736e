package distill

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/corpus"
	"apr/device"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/near"
	"apr/model"
	runlog "apr/run/log"
	"apr/teacher"
)

// countingTeacher counts what is asked of it.
type countingTeacher struct {
	teacher.Teacher
	begun, rows int
}

func (c *countingTeacher) Begin(s device.Stream, b *model.Batch) {
	c.begun++
	c.Teacher.Begin(s, b)
}

func (c *countingTeacher) Logits(s device.Stream, lo, hi int, dst device.Tensor) {
	c.rows += hi - lo
	c.Teacher.Logits(s, lo, hi, dst)
}

// splits are ways to cut 8 rows into micro-batches and their kept positions into chunks.
var splits = []struct{ micro, chunk int }{{8, 1024}, {8, 5}, {4, 1024}, {2, 1024}, {1, 1024}, {3, 7}, {1, 1}}

// unevenBatch has rows with many, few and no targets.
func unevenBatch() corpus.Batch {
	b := randomBatch(8, 12, 320, 2)
	for r, keep := range []int{12, 1, 0, 7, 12, 3, 0, 2} {
		for i := keep; i < b.SeqLen; i++ {
			b.Mask[r*b.SeqLen+(i*5)%b.SeqLen] = 0 // 5 and 12 have no common factor: other places every time
		}
	}
	return b
}

// The gradient of a step depends neither on how the batch is split into micro-batches, some of them without a target,
// nor on the chunks of the loss. The teacher's body runs once, and every kept row is asked for once.
func TestSplitsDoNotChangeTheGradient(t *testing.T) {
	b := unevenBatch()
	var want map[string][]float32
	var whole Record
	for _, split := range splits {
		contracttest.Cases(t, 1)
		tr := tinyTrainer(t, b, device.LossSpec{Alpha: 0.5, Temperature: 2})
		te := &countingTeacher{Teacher: tr.Teacher}
		tr.Teacher, tr.MicroRows, tr.Loss.ChunkRows = te, split.micro, split.chunk
		rec := apply(t, tr, b)
		if te.begun != 1 || te.rows != b.TargetCount() || rec.Targets != b.TargetCount() || rec.Tokens != 96 {
			t.Errorf("%v: begun %d times, %d rows, %d targets, %d tokens; the batch has %d targets", split, te.begun, te.rows, rec.Targets, rec.Tokens, b.TargetCount())
		}
		got := get(t, tr, grad)
		if want == nil {
			want, whole = got, rec
			continue
		}
		near.CheckRel(t, fmt.Sprint(split, ": loss, CE, D, norm"), []float64{rec.Loss, rec.MeanCE, rec.MeanD, rec.GradNorm},
			[]float64{whole.Loss, whole.MeanCE, whole.MeanD, whole.GradNorm}, 1e-6)
		for name, g := range got {
			near.CheckL2(t, fmt.Sprint(split, ": gradient of ", name), g, want[name], 1e-5)
		}
	}
}

// Masking is leaving out of a sum: N·g of the kept targets and M·g of the others add up to (N+M)·g of all.
func TestMaskedAndUnmaskedAddUp(t *testing.T) {
	kept := unevenBatch()
	rest, all := kept, kept
	rest.Mask, all.Mask = make([]uint8, len(kept.Mask)), slices.Repeat([]uint8{1}, len(kept.Mask))
	for i, m := range kept.Mask {
		rest.Mask[i] = 1 - m
	}
	sums := map[string][][]float64{}
	var losses []float64
	for _, b := range []corpus.Batch{kept, rest, all} {
		tr := tinyTrainer(t, b, device.LossSpec{Alpha: 0.5, Temperature: 2})
		tr.MicroRows = 3
		rec := apply(t, tr, b)
		n := float64(b.TargetCount())
		losses = append(losses, n*rec.Loss)
		for name, g := range get(t, tr, grad) {
			x := make([]float64, len(g))
			for i, v := range g {
				x[i] = n * float64(v)
			}
			sums[name] = append(sums[name], x)
		}
	}
	near.CheckRel(t, "loss", []float64{losses[0] + losses[1]}, losses[2:], 1e-6)
	for name, x := range sums {
		for i := range x[0] {
			x[0][i] += x[1][i]
		}
		near.CheckL2(t, "gradient of "+name, x[0], x[2], 1e-5)
	}
	contracttest.Cases(t, len(sums))
}

// With α = 1 targets count for nothing but their number, with α = 0 the teacher for nothing at all.
func TestAlphaLimits(t *testing.T) {
	b := unevenBatch()
	gradients := func(alpha float64, change func(*Trainer, corpus.Batch)) (map[string][]float32, Record) {
		tr := tinyTrainer(t, b, device.LossSpec{Alpha: alpha, Temperature: 2})
		c := b
		c.Targets = slices.Clone(b.Targets)
		change(tr, c)
		rec := apply(t, tr, c)
		return get(t, tr, grad), rec
	}
	same := func(*Trainer, corpus.Batch) {}
	equal := func(what string, a, b map[string][]float32) {
		t.Helper()
		for name := range a {
			near.CheckL2(t, what+": "+name, a[name], b[name], 1e-6)
		}
	}
	one, _ := gradients(1, same)
	shifted, _ := gradients(1, func(_ *Trainer, c corpus.Batch) {
		for i := range c.Targets {
			c.Targets[i] = (c.Targets[i] + 1) % 320
		}
	})
	equal("α = 1, other targets", shifted, one)

	zero, with := gradients(0, same)
	alone, without := gradients(0, func(tr *Trainer, _ corpus.Batch) { tr.Teacher = nil })
	equal("α = 0, no teacher", alone, zero)
	near.CheckRel(t, "α = 0: loss", []float64{with.Loss, with.MeanCE}, []float64{without.Loss, without.Loss}, 1e-9)
	if near.L2("", one["model.norm.weight"], zero["model.norm.weight"], 0.1) == nil {
		t.Error("α makes no difference")
	}
	contracttest.Cases(t, 2)
}

// A run with α = 0 does not call the teacher: it is the control leg, to the bit.
func TestAlphaZeroDoesNotCallTheTeacher(t *testing.T) {
	c := tinyConfig(t)
	c.Loss.Alpha, c.Steps, c.Control = 0, 3, true
	mustRun(t, c, 0)
	steps := readSteps(t, c)
	for i, s := range steps {
		if s["kl"] != nil || s["ms"].(map[string]any)["teacher"] != 0.0 {
			t.Errorf("record %d: kl %v, %v", i, s["kl"], s["ms"])
		}
		if s["loss"] != steps[i%3]["loss"] || s["loss"] != s["ce"] {
			t.Errorf("record %d: loss %v, CE %v; the other leg's %v", i, s["loss"], s["ce"], steps[i%3]["loss"])
		}
	}
}

// A student that is its teacher has nothing to learn: D = 0 and, with α = 1, no gradient, for every divergence.
func TestStudentIsTeacher(t *testing.T) {
	b := unevenBatch()
	for div := device.ForwardKL; div <= device.SkewReverse; div++ {
		contracttest.Cases(t, 1)
		d := newCPU(t)
		s := d.NewStream()
		path := filepath.Join(tiedDir, "student")
		tr := newTrainer(loadStudent(t, d, s, path), s, b, loadTeacher(t, d, path),
			device.LossSpec{Alpha: 1, Temperature: 2, Divergence: div, Beta: 0.3})
		rec := apply(t, tr, b)
		near.Check(t, fmt.Sprintf("divergence %d: D, ‖g‖", div), []float64{rec.MeanD, rec.GradNorm}, []float64{0, 0}, 1e-6)
		if int(rec.Agree) != rec.Targets {
			t.Errorf("divergence %d: %d of %d agree", div, rec.Agree, rec.Targets)
		}
	}
}

// A student of zeros is uniform: CE = ln V and forward KL = ln V less the teacher's entropy.
func TestUniformStudent(t *testing.T) {
	b := unevenBatch()
	tr := tinyTrainer(t, b, device.LossSpec{Alpha: 0.5, Temperature: 1})
	for _, p := range tr.Student.Params() {
		tr.stream.Zero(p.Value)
	}
	tr.Student.Refresh(tr.stream)
	rec := apply(t, tr, b)
	lnV := math.Log(320)
	near.CheckRel(t, "CE, D", []float64{rec.MeanCE, rec.MeanD}, []float64{lnV, lnV - rec.Entropy/float64(rec.Targets)}, 1e-6)
	contracttest.Cases(t, rec.Targets)
}

// A batch without targets has no mean loss: it is refused, and nothing is done to the student.
func TestBatchWithoutTargets(t *testing.T) {
	b := unevenBatch()
	tr := tinyTrainer(t, b, device.LossSpec{Alpha: 0.5, Temperature: 1})
	before := get(t, tr, value)
	empty := b
	empty.Mask = make([]uint8, len(b.Mask))
	if _, err := tr.Apply(context.Background(), empty); fault.KindOf(err) != fault.Invalid || errors.Is(err, ErrNonFinite) {
		t.Errorf("error %v, want one of kind invalid", err)
	}
	for name, v := range get(t, tr, value) {
		if !slices.Equal(v, before[name]) {
			t.Errorf("%s changed", name)
		}
	}
	if tr.Steps != 0 || tr.Optimizer.Applied != 0 {
		t.Errorf("%d steps, %d applied", tr.Steps, tr.Optimizer.Applied)
	}
}

// The outcome begins with the first step that was not refused.
func TestAccountSkipsRefusedSteps(t *testing.T) {
	l := &leg{name: LegStudent}
	out := &Outcome{}
	for k, rec := range []Record{
		{Scalars: device.Scalars{Loss: math.NaN()}, Targets: 5, Tokens: 8},
		{Scalars: device.Scalars{Finite: true, Diverged: true, Loss: 38}, Targets: 5, Tokens: 8},
		{Scalars: device.Scalars{Finite: true, Loss: 3}, Targets: 5, Tokens: 8},
		{Scalars: device.Scalars{Finite: true, Loss: 2}, Targets: 4, Tokens: 8},
		{Scalars: device.Scalars{Finite: true, Diverged: true, Loss: 1}, Targets: 5, Tokens: 8},
	} {
		l.account(k, rec, runlog.Step{}, out)
	}
	if out.InitialLoss != 3 || out.BestLoss != 2 || out.FinalLoss != 2 || out.StepsCompleted != 4 || out.TargetsSeen != 9 || out.TokensSeen != 16 {
		t.Errorf("outcome %+v", out)
	}
}

// What decides which targets count must be as it was when a run is resumed.
func TestResumeRefusesOtherTargets(t *testing.T) {
	c := tinyConfig(t)
	if _, _, err := runOnce(t, c, 0, 2); fault.KindOf(err) != fault.Stopped {
		t.Fatal(err)
	}
	c.Resume, c.AssistantOnly = ResumeAuto, !c.AssistantOnly
	if _, _, err := runOnce(t, c, 0, 0); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "assistant_only was true, is false") {
		t.Errorf("error %v, want the changed choice of targets", err)
	}
	contracttest.Cases(t, 1)
}
