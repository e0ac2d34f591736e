package distill

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"apr/corpus"
	"apr/device"
	"apr/internal/fault"
	"apr/model"
	"apr/optim"
	"apr/teacher"
)

// ErrNonFinite says that a step's loss or gradient norm was not finite; the weights are as before the step.
var ErrNonFinite = errors.New("loss or gradient is not finite")

// Refused reports whether err says that a step was not applied, but done: ErrNonFinite or ErrDiverged.
func Refused(err error) bool { return errors.Is(err, ErrNonFinite) || errors.Is(err, ErrDiverged) }

// Trainer performs optimiser steps on a student.
type Trainer struct {
	Student      *model.Model
	Teacher      teacher.Teacher // nil: cross-entropy only, Loss.Spec.Alpha must be 0
	Loss         Loss
	Optimizer    optim.Optimizer
	MaxLossRatio float64         // refuse steps whose loss exceeds this × the median of those before; 0: refuse none
	Balance      float64         // of the load-balance loss of each micro-batch, a mean over positions: see model.Model.Balance; 0: none
	MicroRows    int             // sequences of a micro-batch
	Recompute    model.Recompute // what the student's forward does not keep
	Hidden       *Hidden         // compares hidden states with the teacher's, a teacher.Streams; nil: it does not
	Maps         *Maps           // compares attention maps with the teacher's, a teacher.Maps; nil: it does not
	SearchEvery  int             // of a student in blocks: see Quantize
	Steps        int             // steps applied or refused so far: the index of the next one
	Ranks        Ranks           // which of the rows are this process's; the zero Ranks: all
	BeforeUpdate func() error    // waits for what reads the weights beside a step's gradients; nil: nothing does

	stream device.Stream
	batch  *model.Batch
	losses trend
	params []*device.Param // of the student and of Hidden
	n      int             // targets of the present step, those of other ranks too
	shared shared          // of a step with other ranks
	stop   bool            // a rank wants to end after the step
	own    *ownRows        // of OwnRows; nil: the student wrote no row
	spans  *spans          // of a teacher.Chunks, once a step was taken; nil: the teacher is none
}

// NewTrainer returns a trainer for steps of rows sequences of seqLen positions.
func NewTrainer(student *model.Model, s device.Stream, rows, seqLen int) *Trainer {
	return &Trainer{
		Student: student, MicroRows: rows, stream: s,
		Loss:  Loss{ChunkRows: DefaultChunkRows(student.Device().Info())},
		batch: model.NewBatch(student.Device(), rows, seqLen),
	}
}

// SeparateDocuments restarts attention and positions at each document, in batches that say where documents begin.
func (t *Trainer) SeparateDocuments() { t.batch.SeparateDocuments(t.Student.Device()) }

// RouteRows lets a teacher.Routed read the rows of batches that say which way they go.
func (t *Trainer) RouteRows() { t.batch.RouteRows(t.Student.Device()) }

// Free gives the memory of the trainer's batch back; it must not be used afterwards.
func (t *Trainer) Free() {
	t.batch.Free(t.Student.Device())
	if t.own != nil {
		t.own.free(t.Student.Device())
	}
	if t.spans != nil {
		t.spans.free()
	}
	if a, ok := t.Teacher.(interface{ Free() }); ok { // what it keeps beside its model
		a.Free()
	}
}

// Record is what one step did. Its Loss is (1−α)·CE + α·T²·D + w·Hidden + v·Attention, means over the step's
// targets: the number that the device judged, and whose gradient was applied if the step was not refused.
type Record struct {
	device.Scalars
	MeanCE  float64 // Σ CE / N
	MeanD   float64 // Σ D / N, the divergence descended, before α·T²; of a teacher.Estimator see estimated
	Soft    bool    // MeanD is the cross-entropy of the teacher and the student at the temperature, for the teacher's entropy is not known
	Hidden  float64 // Σ over pairs of the mean squared error of hidden states, before its weight
	Targets int     // N

	Exchange  time.Duration // waiting for other ranks, and adding up what they have
	Attention float64       // the mean over pairs of the mean divergence of attention maps, before its weight
	Tokens    int           // positions, counted or not
	// Of a refused step: the first gradient that is not finite, or the loss, or the steepest parameter.
	Bad string
}

// Apply performs one optimiser step over all micro-batches of b and reports it.
// It minimises, over the N unmasked targets of the whole step,
//
//	L = 1/N Σ (1−α)·CE(y, z_s) + α·T²·D(softmax(z_t/T), softmax(z_s/T))
//
// (Hinton et al. 2015, arXiv:1503.02531), what Hidden and Maps add, and Balance times the load-balance loss of the
// student's experts, which is in the gradient but neither judged nor logged. If the loss or the gradient norm is not
// finite it returns ErrNonFinite, and if L > max(MaxLossRatio × the median of the last 100 steps applied, the first
// one's + 1) ErrDiverged (of the first 8 steps: see trendStart); weights, moments and the count of updates are then as
// before, and so are the losses that the next step is judged by. A batch without targets has no mean: it is a fault of
// kind Invalid, and nothing is done.
func (t *Trainer) Apply(ctx context.Context, b corpus.Batch) (Record, error) {
	if b.TargetCount() == 0 {
		return Record{}, fault.New(fault.Invalid, "step %d: the batch has no target", t.Steps).WithID("E-DISTILL-004")
	}
	if err := t.Student.Balance(t.Balance / float64(b.Rows*b.SeqLen)); err != nil {
		return Record{}, err
	}
	if p, ok := t.Teacher.(teacher.Partial); ok {
		if err := p.Align(b); err != nil {
			return Record{}, fmt.Errorf("step %d: %w", t.Steps, err)
		}
	}
	t.Student.Dropout(t.Steps)
	s := t.stream
	if t.Ranks.alone() {
		t.gradients(b, b.TargetCount())
		if t.spans != nil && t.spans.failed != nil {
			return Record{}, fmt.Errorf("step %d: %w", t.Steps, t.spans.failed)
		}
	} else if err := t.join(ctx, b); err != nil {
		return Record{}, fmt.Errorf("step %d: %w", t.Steps, err)
	}
	if t.BeforeUpdate != nil {
		if err := t.BeforeUpdate(); err != nil {
			return Record{}, err
		}
	}
	s.Phase(device.PhaseOptimizer)
	s.Verdict(t.trained())
	s.AdamW(t.trained(), t.Optimizer.AdamW) // leaves the weights alone if the verdict refuses the step
	if t.Ranks.Joined {
		s.(device.Exchanger).GatherWeights(t.trained())
	}
	t.quantize()

	scalars, err := s.Wait(ctx) // the step's one host wait
	if err != nil {
		return Record{}, fmt.Errorf("step %d: %w", t.Steps, err)
	}
	return t.finish(scalars, b)
}

// trained returns the parameters that a step moves.
func (t *Trainer) trained() []*device.Param {
	if t.Hidden == nil {
		return t.Student.Params()
	}
	if t.params == nil {
		t.params = slices.Concat(t.Student.Params(), t.Hidden.params)
	}
	return t.params
}

// gradients begins the record of a step of n targets and computes the gradients of all micro-batches of b, which has
// some or all of the step's rows.
func (t *Trainer) gradients(b corpus.Batch, n int) {
	if err := t.gradientsTo(nil, b, n); err != nil {
		panic(err) // only a sender has errors
	}
}

// gradientsTo is gradients that are sent to the other ranks while the last micro-batch that has targets completes them.
// send may be nil.
func (t *Trainer) gradientsTo(send *sender, b corpus.Batch, n int) error {
	s := t.stream
	t.n = n
	t.batch.Load(s, b, t.MicroRows)
	if t.own != nil {
		t.own.begin(b)
	}
	sc := t.scalars()
	if c, ok := t.Teacher.(*teacher.Chunks); ok {
		t.measure(c, b)
		sc.D = t.spans.sum
	}
	s.SetScalars(sc)

	for _, p := range t.trained() {
		s.Zero(p.Grad)
	}
	if t.Teacher != nil {
		s.Phase(device.PhaseTeacher)
		t.Teacher.Begin(s, t.batch) // its body, once over all rows
	}
	var err error
	last := lastWithTargets(t.batch.Micro)
	for i, m := range t.batch.Micro {
		switch {
		case m.Hi == m.Lo: // without targets it adds nothing
		case i == last && send != nil:
			if err = send.begin(); err == nil {
				t.micro(m, send.complete)
				send.rest()
			}
		case len(t.batch.Routed) > 0: // what the teacher does for it depends on its rows
			t.micro(m, nil)
		default:
			device.Repeat(s, microShape{t, m.Tokens.Rows, m.Hi - m.Lo, t.own.in(m.Lo, m.Hi)}, func() { t.micro(m, nil) })
		}
	}
	if t.Teacher != nil {
		t.Teacher.End(s)
	}
	return err
}

// lastWithTargets returns which of the micro-batches is the last one that has a gradient.
func lastWithTargets(all []model.MicroBatch) (last int) {
	for i, m := range all {
		if m.Hi > m.Lo {
			last = i
		}
	}
	return last
}

// microShape is what the operations on a micro-batch depend on, in a step of a trainer.
type microShape struct {
	t               *Trainer
	rows, kept, own int
}

// scalars are the numbers of the step that the host sets.
func (t *Trainer) scalars() device.Scalars {
	sc := t.Optimizer.Scalars(t.Steps, t.n)
	sc.CEWeight, sc.DWeight = t.Loss.Spec.Weights()
	if t.Hidden != nil {
		t.Hidden.begin(t.Steps)
		sc.Weights[device.HiddenStates] = t.Hidden.Weight
	}
	if t.Maps != nil {
		t.Maps.begin(t.Steps)
		sc.Weights[device.AttentionTransfer] = t.Maps.each()
	}
	// Where all ids are alike, a student has a cross-entropy of ln V, and as high a divergence if its teacher is sure.
	sc.MaxLoss = t.losses.limit(t.MaxLossRatio, (sc.CEWeight+sc.DWeight)*math.Log(float64(max(1, t.Loss.Vocab))))
	return sc
}

// micro adds one micro-batch's gradient. complete, if it is not nil, is Saved.Complete.
func (t *Trainer) micro(m model.MicroBatch, complete func([]*device.Param)) {
	s := t.stream
	s.Phase(device.PhaseForward)
	if t.Ranks.Joined { // weights of the step before were on their way while the teacher computed
		s.(device.Exchanger).Arrive()
	}
	saved := t.Student.Forward(s, m.Tokens, t.Recompute)
	hidden, n := saved.Hidden, m.Hi-m.Lo
	x := hidden
	if !m.Keep.IsZero() {
		x = s.Temp("hidden.kept", device.Activations, hidden.DType, n, hidden.Cols)
		s.Gather(x, hidden, m.Keep)
	}
	dx := s.Temp("dhidden.kept", device.Activations, hidden.DType, n, hidden.Cols)
	loss := t.Loss
	loss.ChunkRows, loss.positions = min(loss.ChunkRows, hidden.Rows), hidden.Rows // whatever counts: the same memory each time
	loss.own = t.own
	of := t.Teacher
	if loss.spans = t.spans; loss.spans != nil {
		of, loss.Spec = nil, device.LossSpec{Temperature: 1} // the gradient of −ln q(y), which spans weigh
	}
	loss.Backward(s, t.Student, of, dx, x, t.batch.Targets.RowRange(m.Lo, m.Hi), m.Lo)

	s.Phase(device.PhaseBackward)
	dHidden := dx
	if !m.Keep.IsZero() {
		dHidden = s.Temp("dhidden", device.Activations, hidden.DType, hidden.Rows, hidden.Cols)
		s.Scatter(dHidden, dx, m.Keep)
	}
	if t.Hidden != nil {
		saved.AtOutput = t.Hidden.guides(s, t.Teacher.(teacher.Streams), m)
	}
	if t.Maps != nil {
		saved.AtAttention = t.Maps.guides(s, t.Teacher.(teacher.Maps), m)
	}
	saved.Complete = complete
	t.Student.Backward(s, saved, dHidden)
	if !m.Keep.IsZero() {
		s.Release(dHidden)
	}
	s.Release(dx)
	if !m.Keep.IsZero() {
		s.Release(x)
	}
	saved.ReleaseTo(s)
}

// finish turns the device's record into the step's and judges it.
func (t *Trainer) finish(sc device.Scalars, b corpus.Batch) (Record, error) {
	if sc.Positions != int64(t.n) {
		panic(fmt.Sprintf("distill: loss saw %d of %d targets", sc.Positions, t.n))
	}
	r := Record{Scalars: sc, MeanCE: sc.CE * sc.InvN, MeanD: sc.D * sc.InvN, Targets: t.n, Tokens: b.Rows * b.SeqLen}
	t.shared.complete(&r)
	r.Hidden = sc.Sums[device.HiddenStates] * sc.InvN
	if t.Maps != nil {
		r.Attention = sc.Sums[device.AttentionTransfer] * sc.InvN / float64(len(t.Maps.Pairs))
	}
	step := t.Steps
	t.Steps++
	if sc.Refused() {
		t.wholeGradients()
	}
	if !sc.Finite {
		r.Bad = t.firstBad()
		return r, fmt.Errorf("step %d: loss %g, gradient norm %g, first in %s: %w", step, r.Loss, sc.GradNorm, r.Bad, ErrNonFinite)
	}
	if sc.Diverged {
		r.Bad = t.steepest()
		return r, fmt.Errorf("step %d: loss %.4g, at most %.4g; the largest gradient is that of %s: %w", step, r.Loss, r.MaxLoss, r.Bad, ErrDiverged)
	}
	t.Optimizer.Applied++
	t.losses.add(r.Loss)
	if r.MeanD < -1e-5 {
		return r, fmt.Errorf("step %d: divergence %g is negative: the loss is wrong", step, r.MeanD)
	}
	return t.estimated(r), nil
}

// estimated corrects what is reported of a teacher that is an estimate p̂ of another one, p, by what no gradient
// sees. The device computes D = KL(p̂‖Q), which is too large by H(p)−H(p̂) in the mean; KL(p̂‖Q)+H(p̂)−H(p)
// is KL(p‖Q) in the mean, and may be below 0. Without H(p) it is the cross-entropy KL(p̂‖Q)+H(p̂). MeanD and Loss
// become these; the loss that was judged had the device's.
func (t *Trainer) estimated(r Record) Record {
	e, ok := t.Teacher.(teacher.Estimator)
	if !ok {
		return r
	}
	entropy, known := e.Entropy()
	if !t.Ranks.alone() {
		entropy, known = t.shared.entropy, t.shared.known
	}
	off := (r.Entropy - entropy) * r.InvN
	r.MeanD, r.Loss, r.Soft = r.MeanD+off, r.Loss+r.DWeight*off, !known
	return r
}

// wholeGradients gathers what each rank has of the gradients; all ranks come here, since they have one verdict.
func (t *Trainer) wholeGradients() {
	if !t.Ranks.Joined {
		return
	}
	for _, p := range t.Student.Params() {
		if p.Shared(device.OfM) {
			t.stream.(device.Exchanger).GatherWhole(p, device.OfGrad)
		}
	}
}

// steepest names the parameter whose gradient has the largest norm; it downloads them all.
func (t *Trainer) steepest() string {
	name, most := "", -1.0
	for _, p := range t.Student.Parts() {
		host := make([]float32, p.Elements())
		if err := t.stream.Download(host, p.Of(p.Param.Grad)); err != nil {
			return err.Error()
		}
		var squares float64
		for _, g := range host {
			squares += float64(g) * float64(g)
		}
		if squares > most {
			name, most = p.Name, squares
		}
	}
	return name
}

// firstBad names the first parameter whose gradient holds a NaN or an infinity.
func (t *Trainer) firstBad() string {
	for _, p := range t.Student.Parts() {
		host := make([]float32, p.Elements())
		if err := t.stream.Download(host, p.Of(p.Param.Grad)); err != nil {
			return err.Error()
		}
		for _, g := range host {
			if math.IsNaN(float64(g)) || math.IsInf(float64(g), 0) {
				return "gradient of " + p.Name
			}
		}
	}
	return "the loss"
}
