package distill

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"apr/corpus"
	"apr/device"
	"apr/device/cpu"
	"apr/generate"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/model"
	runlog "apr/run/log"
	"apr/teacher"
	"apr/tensor"
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

// fading is a context that ends at the n-th time that somebody asks.
type fading struct {
	context.Context
	left *int
}

func (f fading) Err() error {
	if *f.left--; *f.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestOwnRowsStopInSampling: a signal while the student writes ends the run at the step before, and the run that goes
// on ends in the same student.
func TestOwnRowsStopInSampling(t *testing.T) {
	c := ownConfig(t)
	c.Steps = 4
	_, want := mustRun(t, c, 1)
	for _, asked := range []int{10, 40} {
		c := in(t, c)
		c.Options = optionsOf(c)
		d := newCPU(t)
		r, err := Start(context.Background(), c, d, &quiet{}, func(*runlog.Manifest) {})
		if err != nil {
			t.Fatal(err)
		}
		left := asked
		if _, err := r.Execute(fading{context.Background(), &left}); fault.KindOf(err) != fault.Stopped {
			t.Fatalf("the run did not stop: %v", err)
		}
		r.Close()
		c.Resume = ResumeAuto
		if _, got := mustRun(t, c, 2); !bytes.Equal(got, want) {
			t.Errorf("stopped at question %d: another student", asked)
		}
		contracttest.Cases(t, 1)
	}
}

// TestOwnRowsMask: of a row that the student wrote the drawn tokens count, the end among them, and nothing else;
// inputs and targets are one apart.
func TestOwnRowsMask(t *testing.T) {
	p := &policy{seqLen: 8, pad: 99}
	b := corpus.Batch{Rows: 1, SeqLen: 8, Tokens: make([]int32, 8), Targets: make([]int32, 8), Mask: make([]uint8, 8)}
	type ids = []int32
	for _, v := range []struct {
		prompt, drawn   ids
		inputs, targets ids
		mask            []uint8
	}{
		{ids{1, 2, 3}, ids{4, 5}, ids{1, 2, 3, 4, 5, 99, 99, 99},
			ids{2, 3, 4, 5, 99, 99, 99, 99}, []uint8{0, 0, 1, 1, 0, 0, 0, 0}},
		{ids{1}, ids{2}, ids{1, 2, 99, 99, 99, 99, 99, 99},
			ids{2, 99, 99, 99, 99, 99, 99, 99}, []uint8{1, 0, 0, 0, 0, 0, 0, 0}},
		{ids{1, 2, 3, 4, 5, 6, 7, 8}, ids{9}, ids{1, 2, 3, 4, 5, 6, 7, 8},
			ids{2, 3, 4, 5, 6, 7, 8, 9}, []uint8{0, 0, 0, 0, 0, 0, 0, 1}},
	} {
		all := p.add(b, drawn{texts: []generate.Text{{IDs: v.drawn}}, prompts: [][]int32{v.prompt}})
		own := all.Slice(1, 2)
		if all.Rows != 2 || !slices.Equal(own.Tokens, v.inputs) || !slices.Equal(own.Targets, v.targets) ||
			!slices.Equal(own.Mask, v.mask) {
			t.Errorf("prompt %v, drawn %v: %v", v.prompt, v.drawn, own)
		}
		contracttest.Cases(t, 1)
	}
}

// ownTrainer is a trainer whose last two of four rows are the student's own, with a batch of random ids.
func ownTrainer(t *testing.T, sampled bool) (*Trainer, *teacher.Resident, corpus.Batch) {
	d := newCPU(t)
	s := d.NewStream()
	big := loadTeacher(t, d, "../testdata/models/gosrc")
	student := loadStudent(t, d, s, "../testdata/models/gosrc")
	rng := rand.New(rand.NewPCG(5, 6))
	for _, p := range student.Params() { // another model than the teacher
		host := make([]float32, p.Rows*p.Cols)
		if err := s.Download(host, p.Value); err != nil {
			t.Fatal(err)
		}
		for i := range host {
			host[i] *= float32(1 + .2*rng.NormFloat64())
		}
		s.Upload(p.Value, host)
	}
	student.Refresh(s)
	b := dryBatch(4, 12)
	for i := range b.Tokens {
		b.Tokens[i], b.Targets[i] = int32(rng.IntN(4000)), int32(rng.IntN(4000))
		b.Mask[i] = uint8(rng.IntN(2))
	}
	b.Mask[0], b.Mask[len(b.Mask)-1] = 1, 1
	tr := newTrainer(student, s, b, big, device.LossSpec{Alpha: 1, Temperature: 1, Divergence: device.ReverseKL})
	tr.Loss.Vocab, tr.Loss.ChunkRows = 4096, 4 // several chunks: the teacher's rows do not all begin at 0
	tr.OwnRows(2, 12, sampled)
	return tr, big, b
}

// rowLogits are the logits of a model for all positions of b, in float64.
func rowLogits(t *testing.T, m *model.Model, s device.Stream, b corpus.Batch, vocab int) ref.Mat {
	n := b.Rows * b.SeqLen
	ids := m.Device().Alloc("ids", device.Batch, tensor.I32, n, 1)
	s.UploadInts(ids, b.Tokens)
	x := s.Temp("x", device.Activations, tensor.F32, n, m.Config.Hidden)
	z := s.Temp("z", device.Logits, tensor.F32, n, vocab)
	m.Hidden(s, x, model.Tokens{IDs: ids, Rows: b.Rows, SeqLen: b.SeqLen})
	m.Logits(s, z, x)
	host := make([]float32, n*vocab)
	if err := s.Download(host, z); err != nil {
		t.Fatal(err)
	}
	s.Release(z)
	s.Release(x)
	out := ref.Mat{Rows: n, Cols: vocab, V: make([]float64, len(host))}
	for i, v := range host {
		out.V[i] = float64(v)
	}
	return out
}

// TestOwnRowsReference: the divergence of a step with rows of the student's own is that of float64 at the positions
// that count, each with the teacher's distribution of that position; what is read of the drawn tokens is their
// probability there; and the gradient over the whole vocabulary is that of rows of data with the same ids: none goes
// through the draw. The second student caps its logits, as Gemma 2 does.
func TestOwnRowsReference(t *testing.T) {
	for _, limit := range []float64{0, 3} {
		t.Run(fmt.Sprintf("cap %g", limit), func(t *testing.T) { ownRowsReference(t, limit) })
	}
}

func ownRowsReference(t *testing.T, limit float64) {
	tr, big, b := ownTrainer(t, false)
	tr.Student.Config.FinalCap = limit
	s, v := tr.stream, tr.Loss.Vocab
	p, q := rowLogits(t, big.Model, s, b, v), rowLogits(t, tr.Student, s, b, v)
	var d float64
	var logq []float64
	for i, m := range b.Mask {
		if m == 0 {
			continue
		}
		lp, lq := ref.LogSoftmax(p.V[i*v:(i+1)*v], 1), ref.LogSoftmax(q.V[i*v:(i+1)*v], 1)
		d += ref.Divergence(lp, lq, tr.Loss.Spec)
		if i >= 2*b.SeqLen {
			logq = append(logq, lq[b.Targets[i]])
		}
	}
	tr.gradients(b, b.TargetCount())
	sc, err := s.Wait(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	near.Check(t, "divergence", []float64{sc.D / d}, []float64{1}, 1e-5)
	got, err := tr.own.logProbs(s)
	if err != nil {
		t.Fatal(err)
	}
	near.Check(t, "ln q", got, logq, 2e-5)
	own := gradientsOf(t, tr)
	tr.own = nil
	tr.gradients(b, b.TargetCount())
	for i, g := range gradientsOf(t, tr) {
		for j := range g {
			if math.Float32bits(g[j]) != math.Float32bits(own[i][j]) {
				t.Fatalf("parameter %d: gradient %g of the student's own rows, %g of the same rows of data", i, own[i][j], g[j])
			}
		}
	}
	contracttest.Cases(t, len(logq))
}

// gradientsOf downloads the gradients of a trainer.
func gradientsOf(t *testing.T, tr *Trainer) (all [][]float32) {
	for _, p := range tr.Student.Params() {
		host := make([]float32, p.Rows*p.Cols)
		if err := tr.stream.Download(host, p.Grad); err != nil {
			t.Fatal(err)
		}
		all = append(all, host)
	}
	return all
}

func doubles(x []float32) (y []float64) {
	for _, v := range x {
		y = append(y, float64(v))
	}
	return y
}

// TestDrawnTokenGradient: the estimate by the drawn token is (ln q(y) − ln p(y))·(e_y − q)/N, and in the mean
// over y ~ q the gradient over the whole vocabulary; through a cap of the logits, if there is one.
func TestDrawnTokenGradient(t *testing.T) {
	for _, limit := range []float64{0, 3} {
		t.Run(fmt.Sprintf("cap %g", limit), func(t *testing.T) { drawnTokenGradient(t, limit) })
	}
}

func drawnTokenGradient(t *testing.T, limit float64) {
	const n, v = 70, 33
	d, err := cpu.New(cpu.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s := d.NewStream()
	rng := rand.New(rand.NewPCG(1, 2))
	column := func(dt tensor.DType, rows int) device.Tensor { return d.Alloc("column", device.Batch, dt, rows, 1) }
	o := &ownRows{
		rows: 1, sampled: true, index: column(tensor.I32, ownPiece), logq: column(tensor.F32, n),
		logp: column(tensor.F32, ownPiece), weight: column(tensor.F32, ownPiece),
		identity: column(tensor.I32, ownPiece), starts: column(tensor.I32, 2),
	}
	z, p := make([]float32, n*v), make([]float32, n*v)
	for i := range z {
		z[i], p[i] = float32(2*rng.NormFloat64()), float32(2*rng.NormFloat64())
		if limit > 0 {
			z[i] = float32(limit * math.Tanh(float64(z[i])/limit))
		}
	}
	for r := v; r < n*v; r++ { // one row of logits, so that all its ids can be the target
		z[r], p[r] = z[r%v], p[r%v]
	}
	logits := func() device.Tensor { return s.Temp("z", device.Logits, tensor.F32, n, v) }
	zt, pt, gt, targets := logits(), logits(), logits(), column(tensor.I32, n)
	for i := range n {
		o.targets = append(o.targets, int32(i%v))
	}
	s.UploadInts(targets, o.targets)
	s.Upload(zt, z)
	s.Upload(pt, p)
	spec := device.LossSpec{Alpha: 1, Temperature: 1, Divergence: device.ReverseKL, Cap: limit}
	s.SetScalars(device.Scalars{InvN: 1})
	o.loss(s, gt, zt, pt, targets, spec, 0)
	got := make([]float32, n*v)
	if err := s.Download(got, gt); err != nil {
		t.Fatal(err)
	}
	slope := make([]float64, v) // of the capped logits over those before
	for i := range slope {
		if slope[i] = 1; limit > 0 {
			slope[i] -= math.Pow(float64(z[i])/limit, 2)
		}
	}
	lq, lp := ref.LogSoftmax(doubles(z[:v]), 1), ref.LogSoftmax(doubles(p[:v]), 1)
	want, mean := make([]float64, n*v), make([]float64, v)
	for i := range n {
		y := i % v
		for j := range v {
			e := 0.0
			if j == y {
				e = 1
			}
			want[i*v+j] = (lq[y] - lp[y]) * (e - math.Exp(lq[j])) * slope[j]
			if i < v {
				mean[j] += math.Exp(lq[y]) * float64(got[i*v+j])
			}
		}
	}
	near.Check(t, "by the drawn token", got, want, 1e-5)
	spec.Cap = 0
	all := ref.LossGradAt(doubles(z[:v]), doubles(p[:v]), 0, spec)
	for i := range all {
		all[i] *= slope[i]
	}
	near.Check(t, "in the mean", mean, all, 1e-5)
	contracttest.Cases(t, n)
}

// TestOwnGuard: what goes wrong with a student's own text ends the run once it is seen over many steps, and what does
// not, does not.
func TestOwnGuard(t *testing.T) {
	fine := runlog.OnPolicy{Length: 50, Ended: .8, Entropy: 2, Distinct: .9}
	with := func(change func(*runlog.OnPolicy)) runlog.OnPolicy { o := fine; change(&o); return o }
	for name, v := range map[string]struct {
		later runlog.OnPolicy
		want  string
	}{
		"nothing":           {fine, ""},
		"shorter":           {with(func(o *runlog.OnPolicy) { o.Length = 5; o.Ended = 1 }), ""},
		"longer, but ended": {with(func(o *runlog.OnPolicy) { o.Length = 200 }), ""},
		"more certain":      {with(func(o *runlog.OnPolicy) { o.Entropy = .5 }), ""},
		"inflated":          {with(func(o *runlog.OnPolicy) { o.Length, o.Ended = 100, .1 }), runlog.OwnTextGrows},
		"repeating":         {with(func(o *runlog.OnPolicy) { o.Distinct = .3 }), runlog.OwnTextRepeats},
		"collapsed":         {with(func(o *runlog.OnPolicy) { o.Entropy = .01 }), runlog.OwnTextCollapses},
		"not a number": {with(func(o *runlog.OnPolicy) { o.Entropy = runlog.Number(math.NaN()) }),
			runlog.OwnTextCollapses},
	} {
		var g ownGuard
		got := ""
		for k := range 3 * guardSteps {
			o := fine
			if k >= 3*guardSteps/2 {
				o = v.later
			}
			if at, _, _ := g.add(&o); at != "" && got == "" {
				got = at
			}
		}
		if got != v.want {
			t.Errorf("%s: %q, want %q", name, got, v.want)
		}
		contracttest.Cases(t, 1)
	}
}
