package distill

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"apr/corpus"
	"apr/device"
	"apr/eval"
	"apr/internal/fault"
	"apr/model"
	"apr/optim"
	runlog "apr/run/log"
	"apr/teacher"
)

// maxRefused is how many steps in a row may be refused before the run gives up.
const maxRefused = 3

// leg is one training of the student over all steps.
type leg struct {
	run     *Run
	name    string
	student *model.Model
	teacher teacher.Teacher // nil: cross-entropy only

	trainer *Trainer
	loader  *corpus.Loader
	policy  *policy // writes rows of the student's own; nil: there are none
	loads   loads
	use     usage
	taught  taught // by a teacher with another tokenizer
	best    float64
	met     int            // updates before the first step with this teacher: 0, unless a resumption brought another one
	late    *side          // the teacher that a resumption brought, compared with the student there; nil: none
	equal   bool           // a divergence of nothing was told
	routes  []routeReading // of routed teachers, before any step was applied
	refused int            // steps in a row, up to the last one
	saved   struct {       // the last checkpoint
		step int // −1: there is none
		at   time.Time
	}
	last  int // steps of the leg
	asked int // steps whose lessons were asked for
	began time.Time
	cost  time.Duration // of a checkpoint, as measured for the first one; 0: not measured
}

// train runs the leg from the beginning or from its last checkpoint to its last step.
func (l *leg) train(ctx context.Context, out *Outcome) (err error) {
	r := l.run
	if err := l.prepare(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.free()) }()
	defer func() { err = errors.Join(err, l.recordLoads(), l.recordMemory(), l.recordTaught()) }()
	if err := l.restore(ctx, out); err != nil {
		return err
	}
	if err := l.share(); err != nil {
		return err
	}
	l.trainer.Ranks.Stop = func() bool { return l.wantsStop(ctx) }
	last := r.steps
	if r.MaxSteps > 0 && r.MaxSteps < last {
		last, out.StoppedBy = r.MaxSteps, "max_steps"
	}
	l.last = last
	if err := l.follow(last); err != nil {
		return err
	}
	r.obs.Leg(l.name, l.trainer.Steps, last)
	if err := r.dir.Event("record", "leg", map[string]any{"leg": l.name, "from": l.trainer.Steps, "steps": last}, ""); err != nil {
		return err
	}
	for l.trainer.Steps < last {
		if l.stopping(ctx) {
			return l.stop(out)
		}
		err := l.step(ctx, out)
		switch {
		case errors.Is(err, errSampling):
			return l.stop(out)
		case Refused(err):
			if l.refused++; l.refused >= maxRefused {
				return l.diverged(err)
			}
			continue // nothing is checkpointed in this state
		case fault.KindOf(err) == fault.Stopped:
			return l.stop(out)
		case errors.As(err, new(teacherFailed)):
			return l.keep(err, out)
		case err != nil:
			return err
		}
		l.refused = 0
		if err := l.afterStep(ctx, last, out); err != nil {
			return err
		}
	}
	if l.trainer.Optimizer.Applied == 0 {
		return fault.New(fault.Diverged, "none of the %d steps of leg %s was applied: the weights are those that it began with", last, l.name).
			WithHint("events.jsonl says why each step was refused").WithID("E-DISTILL-040")
	}
	if l.saved.step != last && l.refused == 0 {
		return l.checkpoint(out)
	}
	return nil
}

// diverged ends a leg after too many refused steps in a row, the last of which is err.
func (l *leg) diverged(err error) error {
	hint := "lower --learning-rate or lengthen the warm-up; the steps before these may have ruined the weights, also those of the newest checkpoint: " +
		"--resume=CHECKPOINT with --allow-changed goes on from an earlier one"
	if errors.Is(err, ErrDiverged) {
		hint += "; --max-loss-ratio 0 applies such steps"
	}
	return fault.New(fault.Diverged, "%d steps in a row were refused, and left the weights alone: %w", l.refused, err).WithHint("%s", hint)
}

// free gives back what prepare reserved.
func (l *leg) free() error {
	l.trainer.Free()
	if l.policy == nil {
		return nil
	}
	return l.policy.free()
}

// prepare makes trainer and loader at the beginning.
func (l *leg) prepare() error {
	r := l.run
	l.trainer = NewTrainer(l.student, r.stream, r.Config.Ranks.shareOf(r.Rows()), r.SeqLen)
	l.trainer.Teacher, l.trainer.MaxLossRatio, l.trainer.Balance = l.teacher, r.MaxLossRatio, r.RouterBalance
	l.trainer.SearchEvery, l.trainer.Ranks = r.searchEvery(), r.ranks
	l.loads = newLoads(r.dev)
	l.trainer.Cut(r.in.planned.Setting)
	if r.DocumentMask {
		l.trainer.SeparateDocuments()
	}
	if r.Ensemble.routed() && l.teacher != nil {
		l.trainer.RouteRows()
	}
	l.trainer.Loss.Spec, l.trainer.Loss.Vocab = r.Loss, r.in.vocab
	if l.teacher == nil {
		l.trainer.Loss.Spec = device.LossSpec{Alpha: 0, Temperature: 1}
	}
	l.trainer.Optimizer = optim.Optimizer{Schedule: r.schedule(r.steps), AdamW: r.AdamW, MaxNorm: r.MaxGradNorm}
	l.began = time.Now()
	l.saved.at = l.began
	var err error
	if l.trainer.Hidden, err = r.hiddenStates(l.teacher); err != nil {
		return err
	}
	if l.trainer.Maps, err = r.Guide.makeMaps(r.in.studentConfig, r.in.teacher.Config, l.teacher, r.steps); err != nil {
		return err
	}
	if l.loader, err = r.in.loader(r.Config); err != nil {
		return err
	}
	if l.teacher != nil { // last, since a queue has to be closed
		if l.policy, err = r.newPolicy(l.student); err != nil {
			return err
		}
		if l.policy != nil {
			l.trainer.OwnRows(l.policy.rows, r.SeqLen, r.OnPolicy.Sampled)
			l.loads.watch(l.policy.queue)
		}
	}
	return nil
}

// recordMemory writes down the highest bytes of the device by component so far, to be held against the plan.
func (l *leg) recordMemory() error {
	_, peak := l.run.dev.Memory()
	return l.run.dir.Event("record", "device memory", map[string]any{"leg": l.name, "peak": peak}, "the highest so far, by component")
}

// step performs and records one step. A step that was refused is recorded too.
func (l *leg) step(ctx context.Context, out *Outcome) error {
	r := l.run
	k, from := l.trainer.Steps, l.loader.Position()
	r.Watch.Doing(fmt.Sprintf("step %d of leg %s", k, l.name))
	var own drawn
	if l.policy != nil {
		var err error
		if own, err = l.policy.next(ctx, k, r.steps); err != nil {
			if ctx.Err() != nil { // nothing of the step is done
				return errSampling
			}
			return err
		}
	}
	b, err := l.loader.Next()
	if err != nil {
		return err
	}
	var words corpus.Batch
	if l.policy != nil {
		b, words = l.policy.add(b, own), l.giveWords(own)
	}
	done, err := l.compute(ctx, b, own, from)
	if err != nil && !Refused(err) {
		return err
	}
	if l.teacher == nil {
		done.MeanD = math.NaN() // not computed: null in the record
	}
	if l.policy != nil {
		l.policy.applied(k)
	}
	line := l.line(k, done.Record, done.took)
	if p := r.pupil; p != nil && !l.trainer.Ranks.alone() {
		done.fetched = p.readWaited() // by the parts of a step
	}
	line.MS.Teacher += milliseconds(done.fetched)
	if l.policy != nil {
		if line.OnPolicy, err = l.readOwn(own, err); err != nil && !Refused(err) {
			return err
		}
	}
	l.countTaught(&line)
	if out.FirstStep == 0 {
		out.FirstStep = time.Since(r.started).Seconds()
	}
	l.account(k, done.Record, line, out)
	r.obs.Step(l.name, line)
	if werr := r.dir.Step(line); werr != nil {
		return werr
	}
	if err != nil {
		return l.recordRefusal(err, k, from, done.Record)
	}
	if l.policy != nil {
		r.ownRows, r.ownWords, r.ownStep = b.Slice(b.Rows-min(ownSamples, l.policy.rows), b.Rows), words, k
		if err := l.guardOwn(k, line.OnPolicy); err != nil {
			return err
		}
	}
	return l.checkFirst(k, done.Record, done.first)
}

// computed is what came of a step's computation.
type computed struct {
	Record
	first   firstReading
	took    time.Duration // with fetched
	fetched time.Duration // for what the teacher says, if that is read or made before the step
}

// compute performs the step of batch b, which begins at position from of the data and whose last rows are own. A signal
// does not break it off: the weights would be worth nothing.
func (l *leg) compute(ctx context.Context, b corpus.Batch, own drawn, from corpus.Position) (done computed, err error) {
	err = l.loads.step(func() (err error) {
		mine := l.trainer.Ranks.rowsOf(b)
		if err := l.askAhead(l.trainer.Steps, b); err != nil {
			return err
		}
		// Else each part of a step fetches its rows.
		if f, ok := l.teacher.(teacher.Fetcher); ok && (l.trainer.Ranks.alone() || l.trainer.Optimizer.Applied == l.met) {
			began := time.Now()
			if err := l.fetch(ctx, f, mine, from); err != nil {
				return l.notBegun(err, from)
			}
			done.fetched = time.Since(began)
		}
		whole := context.WithoutCancel(ctx)
		if done.first, err = l.readFirst(whole, mine); err != nil {
			return err
		}
		start := time.Now()
		end := func() error { return nil }
		if l.policy != nil {
			end = l.policy.besideStep(ctx, own, l.run.steps)
			l.trainer.BeforeUpdate = end
		}
		done.Record, err = l.trainer.Apply(whole, b)
		if failed := end(); failed != nil && !errors.Is(err, failed) { // the step may have ended for that
			err = errors.Join(err, failed)
		}
		done.took = time.Since(start) + done.fetched
		return err
	})
	return done, err
}

// recordRefusal records that a step of data rows from a position on was refused, and completes its error.
func (l *leg) recordRefusal(err error, step int, from corpus.Position, rec Record) error {
	rows := l.loader.RowsFrom(from)
	err = fmt.Errorf("%w; rows %v of the data", err, rows)
	name, detail := "non-finite step", map[string]any{"step": step, "leg": l.name, "position": from, "rows": rows, "tensor": rec.Bad}
	if rec.Diverged {
		name = "diverging step"
		detail["loss"], detail["limit"] = rec.Loss, rec.MaxLoss
	}
	l.run.obs.Message("warning: a step of leg %s was refused, the weights are those before it: %v", l.name, err)
	return errors.Join(err, l.run.dir.Event("warning", name, detail, err.Error()))
}

// line is the step's record.
func (l *leg) line(k int, rec Record, took time.Duration) runlog.Step {
	ms := func(phases ...device.Phase) float64 {
		var d time.Duration
		for _, p := range phases {
			d += rec.Phases[p]
		}
		return float64(d.Microseconds()) / 1e3
	}
	now, _ := l.run.dev.Memory()
	var held int64
	for _, n := range now {
		held += n
	}
	s := runlog.Step{
		Leg: l.name, Step: k, LR: rec.LR, Loss: runlog.Number(rec.Loss), CE: runlog.Number(rec.MeanCE), KL: runlog.Number(rec.MeanD),
		GradNorm: runlog.Number(rec.GradNorm), Clipped: rec.Scale < 1, Finite: rec.Finite, Diverged: rec.Diverged, Targets: rec.Targets, Tokens: rec.Tokens,
		TokensPerSecond: runlog.Number(float64(rec.Tokens) / took.Seconds()), MemoryBytes: held,
		MS: runlog.Milliseconds{
			Data: ms(device.PhaseData), Teacher: ms(device.PhaseTeacher), Loss: ms(device.PhaseLoss),
			Student: ms(device.PhaseForward, device.PhaseBackward), Optimizer: ms(device.PhaseOptimizer), Quantize: ms(device.PhaseQuantize),
			Total: float64(took.Microseconds()) / 1e3,
		},
		CPUs: l.use.since(),
	}
	if rec.Soft {
		soft := s.KL
		s.KL, s.SoftCE = runlog.Number(math.NaN()), &soft
	}
	l.objectives(&s, rec)
	if l.run.GPU != nil {
		s.GPUPercent, s.GPUWatts = l.run.GPU()
	}
	return s
}

// objectives writes down what a step had beside cross-entropy and divergence, and which parts of the loss all were.
func (l *leg) objectives(s *runlog.Step, rec Record) {
	shares := l.trainer.Share(rec)
	if shares == nil {
		return
	}
	hidden, attention := runlog.Number(rec.Hidden), runlog.Number(rec.Attention)
	if l.trainer.Hidden != nil {
		s.Hidden = &hidden
	}
	if l.trainer.Maps != nil {
		s.Attention = &attention
	}
	s.Shares = map[string]runlog.Number{}
	for name, share := range shares {
		s.Shares[name] = runlog.Number(share)
	}
}

// account adds a step of the student's leg to the outcome.
func (l *leg) account(k int, rec Record, line runlog.Step, out *Outcome) {
	if l.name != LegStudent {
		return
	}
	if rec.Refused() {
		return
	}
	if out.StepsCompleted == 0 { // the first that was not refused
		out.InitialLoss, l.best = rec.Loss, rec.Loss
	}
	l.best = min(l.best, rec.Loss)
	out.FinalLoss, out.BestLoss, out.CE = rec.Loss, l.best, rec.MeanCE
	if l.teacher != nil && !rec.Soft {
		out.KL = rec.MeanD
	}
	out.StepsCompleted = k + 1
	out.TokensSeen += int64(rec.Tokens)
	out.TargetsSeen += int64(rec.Targets)
	out.InSteps += line.MS.Total / 1e3
	out.TokensPerSec = float64(out.TokensSeen) / out.InSteps
}

// afterStep evaluates and checkpoints when it is time.
func (l *leg) afterStep(ctx context.Context, last int, out *Outcome) error {
	r, k := l.run, l.trainer.Steps
	if r.EvalEvery > 0 && k%r.EvalEvery == 0 && k < last && r.in.held != nil && r.Config.Ranks.leads() {
		if err := l.heldOut(ctx); err != nil {
			return err
		}
	}
	bySteps := r.CheckpointEvery > 0 && k%r.CheckpointEvery == 0
	byTime := r.CheckpointInterval > 0 && time.Since(l.saved.at) >= r.CheckpointInterval
	due, err := r.decide(bySteps || byTime || k < last && l.dueFirst())
	if err == nil && due {
		err = l.checkpoint(out)
	}
	return err
}

// heldOut measures the student's cross-entropy on the held-out text.
func (l *leg) heldOut(ctx context.Context) error {
	r := l.run
	w, err := r.heldOutWindows()
	if err != nil {
		return err
	}
	subject := []eval.Subject{{Name: l.name, Model: l.student.Frozen()}}
	scores, err := eval.Compare(context.WithoutCancel(ctx), r.stream, nil, subject, w, eval.Options{
		Vocab: r.in.vocab, Progress: func(done, total int) { r.Watch.Doing(fmt.Sprintf("held-out text: %d of %d", done, total)) },
	})
	if err != nil {
		return err
	}
	nats := scores[0].NatsPerToken()
	r.obs.Evaluated(l.name, l.trainer.Steps, nats)
	if err := r.dir.Scalar("val_nats_per_token/"+l.name, l.trainer.Steps, nats); err != nil {
		return err
	}
	detail := map[string]any{"leg": l.name, "step": l.trainer.Steps, "nats_per_token": nats, "targets": scores[0].Targets}
	return r.dir.Event("evaluation", "held-out during training", detail, "")
}

// teacherFailed is the error of a teacher that said nothing about the rows of a step, before the step began.
type teacherFailed struct{ error }

func (f teacherFailed) Unwrap() error { return f.error }

// notBegun puts the loader back to the position of a batch whose teacher failed, if loading the batch is all that was
// done for its step. Ranks and rows that the student writes have done more.
func (l *leg) notBegun(err error, from corpus.Position) error {
	if l.policy != nil || !l.trainer.Ranks.alone() || fault.KindOf(err) == fault.Stopped {
		return err
	}
	if failed := l.loader.Seek(from); failed != nil {
		return errors.Join(err, failed)
	}
	return teacherFailed{err}
}

// keep writes a checkpoint of the steps before the one whose teacher failed, and returns the teacher's error.
func (l *leg) keep(why error, out *Outcome) error {
	if l.trainer.Steps == l.saved.step || l.refused > 0 || l.run.dir.Held() != nil {
		return why
	}
	if err := l.checkpoint(out); err != nil {
		return errors.Join(why, err)
	}
	l.run.obs.Message("a checkpoint after step %d is written: --resume=%s goes on once the teacher does",
		l.trainer.Steps, l.run.Output)
	return why
}

// stop checkpoints after a signal.
func (l *leg) stop(out *Outcome) error {
	if err := l.checkpoint(out); err != nil {
		return err
	}
	whose := ""
	if l.name != LegStudent {
		whose = " of the " + l.name
	}
	err := fault.New(fault.Stopped, "stopped after step %d%s", l.trainer.Steps, whose).WithHint("a checkpoint is written: --resume=%s goes on", l.run.Output)
	return errors.Join(l.run.dir.Event("stop", "signal", map[string]any{"leg": l.name, "step": l.trainer.Steps}, ""), err)
}
