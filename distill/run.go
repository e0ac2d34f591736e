package distill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"apr/collective"
	"apr/corpus"
	"apr/device"
	"apr/eval"
	"apr/internal/disk"
	"apr/internal/fault"
	"apr/model"
	"apr/plan"
	runlog "apr/run/log"
	"apr/teacher"
	"apr/tensor"
)

// Duration is a time.Duration; 0 is off.
type Duration = time.Duration

// The two legs of a run.
const (
	LegStudent = "student" // learns from the teacher
	LegControl = "control" // an identical student on the same tokens without the teacher
)

// Observer is told how a run goes on; the command line shows it. All methods are called from one goroutine.
type Observer interface {
	Phase(name string)                            // a phase outside the steps begins
	Advance(done, total int)                      // the phase goes on
	Leg(leg string, done, total int)              // a leg begins or continues
	Step(leg string, r runlog.Step)               // a step was done
	Evaluated(leg string, step int, nats float64) // held-out loss during training
	Message(format string, args ...any)           // something worth a line; a warning, if it begins with "warning: " or "left out: "
	Detail(format string, args ...any)            // something that only explains
}

// Run is a distillation from opened inputs to written outputs.
type Run struct {
	Config
	dev    device.Device
	dir    *runlog.Dir
	in     *inputs
	obs    Observer
	id     string
	steps  int // K of the schedule
	stream device.Stream
	ranks  Ranks
	comm   collective.Comm // of all ranks, also those that only teach; nil: there is one rank
	pupil  *pupil          // of a rank that others teach; nil: nobody does
	hidden *Hidden         // of the student's leg, once it was asked for
	shares *shares         // what the ranks share of the student's training state; nil: nothing
	noise  *Noise          // of a teacher in 8-bit floats

	samples  runlog.Samples // as written
	ownRows  corpus.Batch   // the last rows that the student wrote itself, for the report
	ownWords corpus.Batch   // the same rows as the teacher read them, if it reads other words; else of no rows
	ownStep  int            // the step that they were of

	started time.Time
	begun   time.Time // training, after everything was opened
	before  float64   // seconds of the attempts before this one

	disk  disk.Disk // of checkpoints
	first window    // of each leg's first checkpoint
	save  func(checkpoints, state, []tensor.Source) error
}

// Start opens, checks and loads everything a run needs; nothing is written before all inputs are known to be good.
// describe completes the manifest with what the caller knows: command, settings, version.
func Start(ctx context.Context, c Config, dev device.Device, obs Observer, describe func(*runlog.Manifest)) (*Run, error) {
	started := time.Now()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.follow()
	if err := c.checkOutput(); err != nil {
		return nil, err
	}
	obs = watched{obs, c.Watch}
	obs.Phase("opening models and data")
	in, err := openInputs(ctx, c, dev, obs)
	if err != nil {
		return nil, err
	}
	c.Ensemble.elsewhere = in.elsewhere
	c.Ensemble.said, c.Ensemble.projected, c.Ensemble.GroupRows = in.cache, in.projected, in.choice.Chosen.Rows
	c.Ensemble.words = in.words
	r := &Run{Config: c, dev: dev, in: in, obs: obs, stream: dev.NewStream(), id: runID(c.Output), started: started,
		disk: disk.OS{}, first: firstWindow, save: checkpoints.write}
	if r.steps = c.Steps; r.steps == 0 {
		r.steps = int(in.loaderSteps)
	}
	if r.EvalEvery == EvalByCost && in.held != nil {
		r.EvalEvery = evalEvery(r.steps, len(in.held.IDs), r.Rows()*r.SeqLen)
	}
	if err := c.schedule(r.steps).Validate(); err != nil {
		return nil, errors.Join(err, in.close())
	}
	if err := in.chooseLogits(c, dev, r.steps); err != nil {
		return nil, errors.Join(err, in.close())
	}
	if in.made != nil {
		r.Ensemble.said = in.made
	}
	if c.Ranks.leads() {
		if err := in.checkDisk(c, r.steps); err != nil {
			return nil, errors.Join(err, in.close())
		}
	}
	if err := r.checkNoise(ctx); err != nil {
		return nil, errors.Join(err, in.close())
	}
	if err := r.meet(ctx); err != nil {
		return nil, errors.Join(err, in.close())
	}
	if err := r.prepare(); err != nil {
		r.leave(err)
		return nil, errors.Join(r.lost(err), in.close())
	}
	if r.dir, err = runlog.Open(c.Output, c.Force, c.Resume != ""); err != nil {
		r.leave(err)
		return nil, errors.Join(err, in.close())
	}
	r.disk = heldDisk{r.disk, r.dir.Held}
	if err := r.checkResume(); err != nil {
		r.leave(err)
		return nil, errors.Join(err, r.Close())
	}
	m := in.manifest()
	m.RunID, m.Started = r.id, time.Now().UTC()
	describe(&m)
	if err := r.dir.WriteManifest(m); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Inputs returns what was read: teacher, student_init, tokenizer, tokenizer_config, data, eval_data.
func (r *Run) Inputs() map[string]runlog.Input { return r.in.records }

// Planned returns how steps are cut, with what they cost if the device can be planned for.
func (r *Run) Planned() plan.Plan { return r.in.planned }

// Decision writes down what the caller chose for this run, and why.
func (r *Run) Decision(name string, detail any, reason string) error {
	return r.dir.Event("decision", name, detail, reason)
}

// Warning writes down what is odd about this run.
func (r *Run) Warning(name string, detail any, reason string) error {
	return r.dir.Event("warning", name, detail, reason)
}

// Held refuses a run directory that was moved or removed, in which nothing can be written any more.
func (r *Run) Held() error { return r.dir.Held() }

// Close releases files and locks.
func (r *Run) Close() error {
	r.leave(nil)
	return errors.Join(r.dir.Close(), r.in.close())
}

// Execute trains, evaluates and writes the outputs. When ctx ends, the step in progress is finished and checkpointed,
// or the evaluation broken off, and the error is of kind Stopped.
func (r *Run) Execute(ctx context.Context) (*Outcome, error) {
	r.begun = time.Now()
	out := &Outcome{RunID: r.id, RunDir: r.Output}
	err := r.execute(ctx, out)
	r.leave(err)
	err = r.lost(err)
	out.Seconds = r.seconds()
	_, peak := r.dev.Memory()
	for _, n := range peak {
		out.DevicePeak += n
	}
	receipt := runlog.Receipt{
		RunID: r.id, Status: runlog.Completed, By: who(), Tokens: out.TokensSeen, Targets: out.TargetsSeen, Result: out, Outputs: out.Outputs,
	}
	lost := r.dir.Held()
	if lost != nil && !errors.Is(err, lost) {
		err = errors.Join(lost, err)
	}
	switch {
	case lost != nil: // there is no place for a receipt; the events went with the directory
		out.Status = "failed"
		return out, errors.Join(err, r.dir.Event("warning", "run directory lost", nil, lost.Error()))
	case fault.KindOf(err) == fault.Stopped:
		receipt.Status, receipt.Reason = "stopped", err.Error()
		return out, errors.Join(err, r.recordLoss(err)) // a run that can go on has no receipt yet
	case err != nil:
		receipt.Status, receipt.Reason = "failed", err.Error()
	}
	out.Status = receipt.Status
	return out, errors.Join(err, r.dir.WriteReceipt(receipt))
}

// seconds is the time that all attempts have taken so far.
func (r *Run) seconds() float64 { return r.before + time.Since(r.begun).Seconds() }

func (r *Run) execute(ctx context.Context, out *Outcome) error {
	if r.Config.Ranks.teaches() {
		return r.teach(ctx)
	}
	r.obs.Phase("loading the teacher")
	teachers, student, err := r.in.models(r.Config, r.dev)
	if err != nil {
		return err
	}
	if err := errors.Join(r.recordChoice(), r.recordControl(), r.recordLogits(), r.recordNoise(), r.recordPlan(),
		r.recordDecisions(), r.recordEnsemble(), r.recordProjection(), r.recordGuide(), r.recordHeldOut(),
		r.recordQuantize()); err != nil {
		return err
	}
	if err := errors.Join(r.recordOnPolicy(student), r.recordWords(student), r.initialise(student)); err != nil {
		return err
	}
	l := &leg{run: r, name: LegStudent, student: student, teacher: r.Ensemble.of(teachers, r.dev.Info(), r.SeqLen, r.Loss.Temperature)}
	if r.Loss.Alpha == 0 {
		l.teacher = nil
	}
	r.shares = newShares(r.ranks, r.stream, student)
	if r.in.made != nil {
		if err := r.in.made.made.begin(r, teachers[0]); err != nil {
			return err
		}
	}
	if err := l.train(ctx, out); err != nil {
		return err
	}
	if err := r.endOnce(); err != nil {
		return err
	}
	if !r.Config.Ranks.leads() { // who trains a control with the others, and writes nothing
		if err := r.endShares(); err != nil {
			return err
		}
		if err := r.control(ctx, student, out); err != nil {
			return err
		}
		return r.endShares()
	}
	trained := []eval.Subject{{Name: nameDistilled, Model: student.Snapshot(r.stream)}}
	if err := errors.Join(r.writeStudent(student, out), r.endShares()); err != nil {
		return err
	}
	if err := r.control(ctx, student, out); err != nil {
		return err
	}
	if r.in.control.On {
		trained = append(trained, eval.Subject{Name: nameControl, Model: student.Snapshot(r.stream)})
	}
	if err := r.endShares(); err != nil {
		return err
	}
	if r.pupil == nil {
		r.leave(nil) // what is left, rank 0 does alone
	}
	if r.in.held != nil { // what it was before training: made again now, so that training need not keep it
		if err := r.initialise(student); err != nil {
			return err
		}
	}
	subjects := append([]eval.Subject{{Name: nameTeacher}, {Name: nameUntrained, Model: student.Frozen()}}, trained...)
	if err := r.evaluate(ctx, teachers, student, subjects, out); err != nil {
		return err
	}
	if r.pupil != nil {
		if err := r.pupil.dismiss(); err != nil {
			return err
		}
		r.leave(nil)
	}
	if err := r.writeSamples(ctx, teachers[0], trained[0].Model); err != nil {
		return err
	}
	return r.continueTexts(ctx, teachers[0], trained)
}

// control trains the control, if there is one.
func (r *Run) control(ctx context.Context, student *model.Model, out *Outcome) error {
	if !r.in.control.On {
		return nil
	}
	if err := r.initialise(student); err != nil {
		return err
	}
	l := &leg{run: r, name: LegControl, student: student}
	return l.train(ctx, out)
}

// recordDecisions writes down what was chosen for this run and why: how the teacher's weights are kept, with the bytes
// they really take, and the vocabulary.
func (r *Run) recordDecisions() error {
	now, _ := r.dev.Memory()
	stored, held := int64(0), now[device.TeacherWeights]
	for _, f := range r.in.teachers() {
		stored += f.Bytes()
	}
	if r.in.shares(r.Config, r.dev) {
		held = now[device.StudentWeights]
	}
	reason := "kept in the types of the file and decoded inside each product"
	switch form := r.in.choice.Chosen.form; {
	case r.in.elsewhere:
		reason = "the head alone: other ranks have the layers"
	case r.in.cache != nil:
		reason = "of a cache the head alone has weights, and of draws nothing has"
	case r.dev.Info().Kind == "cpu" && held > stored+stored/10:
		reason = "expanded to float32 at load: they fit the budget, and products need not decode them; --teacher-cache off keeps the blocks"
	case r.dev.Info().Kind == "cpu":
	case form.HostLayers:
		reason = "layers in page-locked host memory, fetched one after the other; embedding and head on the device; " +
			"quantised blocks as in the file"
	case form.HostExperts:
		reason = "experts in page-locked host memory, fetched for each product, the rest on the device, in quantised blocks as in the file"
	case form.Blocks && form.FP8:
		reason = "quantised blocks kept as they are in the file, expanded to 8-bit floats for each product"
	case form.Blocks:
		reason = fmt.Sprintf("quantised blocks kept as they are in the file, expanded to %v for each product", r.dev.Info().Activations)
	case form.FP8:
		reason = "kept in 8-bit floats, as products read them"
	default:
		reason = fmt.Sprintf("kept as products read them, in %v", r.dev.Info().Activations)
	}
	r.obs.Detail("teacher: %.1f MB in the file, %.1f MB in memory: %s", float64(stored)/1e6, float64(held)/1e6, reason)
	vocabulary := map[string]int{"effective_vocab": r.in.vocab, "teacher_rows": r.in.teacher.Config.Vocab, "student_rows": r.in.studentConfig.Vocab}
	cut := "both models are cut to the tokenizer's ids before the softmax"
	var warned error
	if r.in.unproven != "" {
		cut = "both models are cut to the student's rows before the softmax"
		warned = r.dir.Event("warning", "vocabulary without tokenizers", vocabulary, r.in.unproven)
	}
	if k := r.in.conventions; len(k) > 0 {
		warned = errors.Join(warned, r.dir.Event("warning", runlog.ConventionsDiffer, k, conventionsText(k)))
	}
	if r.in.unsaid != "" {
		warned = errors.Join(warned, r.dir.Event("warning", "shards of unknown tokenizer", nil, r.in.unsaid))
	}
	for _, w := range r.in.warnings() {
		warned = errors.Join(warned, r.dir.Event("warning", "model file", nil, w))
	}
	for _, line := range r.in.doubts {
		warned = errors.Join(warned, r.dir.Event("warning", runlog.DoubtfulModel, nil, line))
	}
	return errors.Join(r.recordCache(), r.recordIdentity(), r.recordTexts(), r.recordAdapter(), warned,
		r.dir.Event("decision", "teacher weights", map[string]int64{"file_bytes": stored, "device_bytes": held}, reason),
		r.dir.Event("decision", "vocabulary", vocabulary, cut))
}

// recordCache writes down which tokens were encoded and which came from the cache.
func (r *Run) recordCache() error {
	if len(r.in.cached) == 0 {
		return nil // token shards
	}
	return r.dir.Event("decision", "data cache", r.in.cached, "entries are found by a hash of the files, the tokenizer and all that decides the tokens")
}

// hiddenStates returns the term that compares hidden states with a teacher's, as it is before training; nil if there is
// none.
func (r *Run) hiddenStates(t teacher.Teacher) (_ *Hidden, err error) {
	if t == nil || r.Guide.Weight == 0 {
		return nil, nil
	}
	if r.hidden == nil {
		if r.hidden, err = r.Guide.make(r.dev, r.in.studentConfig, r.in.teacher.Config, t, r.steps); err != nil {
			return nil, err
		}
	} else if err := r.hidden.ask(t); err != nil {
		return nil, err
	}
	r.hidden.Init(r.stream, r.Seed)
	return r.hidden, nil
}

// recordGuide writes down which layers are compared.
func (r *Run) recordGuide() error {
	if err := r.recordMaps(); err != nil || r.Guide.Weight == 0 {
		return err
	}
	pairs, err := r.Guide.pairs(len(r.in.studentConfig.Layers), len(r.in.teacher.Config.Layers))
	if err != nil {
		return err
	}
	detail := map[string]any{"weight": r.Guide.Weight, "layer_map": r.Guide.Map, "pairs": pairs}
	reason := "layers count from 0; the teacher's streams are kept for a step; each pair has a projection of its own, which is trained and never exported"
	if r.Guide.bottomUp() {
		reason += fmt.Sprintf("; the i-th of the %d pairs comes in at step i·%d/%d", len(pairs), r.steps, len(pairs))
	}
	return r.dir.Event("decision", "hidden states", detail, reason)
}

// recordMaps writes down whose attention maps are compared.
func (r *Run) recordMaps() error {
	if r.Guide.Attention == 0 {
		return nil
	}
	pairs, err := r.Guide.pairs(len(r.in.studentConfig.Layers), len(r.in.teacher.Config.Layers))
	if err != nil {
		return err
	}
	detail := map[string]any{"weight": r.Guide.Attention, "layer_map": r.Guide.Map, "pairs": pairs}
	reason := "maps are means over the query heads; the divergence is a mean over targets and pairs; q, k and the log-sum-exp of the teacher's layers are kept for a step"
	if r.Guide.bottomUp() {
		reason += fmt.Sprintf("; the i-th of the %d pairs comes in at step i·%d/%d", len(pairs), r.steps, len(pairs))
	}
	return r.dir.Event("decision", "attention maps", detail, reason)
}

// initialise gives the student the weights it has before training, and no history.
func (r *Run) initialise(m *model.Model) error {
	m.ResetTraining(r.stream)
	if r.in.student == nil || r.in.adapter != nil {
		r.in.begin(m, r.stream, r.Seed)
		return nil
	}
	return m.LoadWeights(r.stream, r.in.student)
}
