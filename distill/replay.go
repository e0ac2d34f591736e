package distill

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"apr/adapter"
	"apr/arch"
	"apr/corpus"
	"apr/device"
	"apr/eval"
	"apr/internal/disk"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	"apr/optim"
	runlog "apr/run/log"
	"apr/tokenizer/align"
)

// Replay does parts of a run again from its inputs: the inputs are read and hashed, the student is put into any state
// that is known, the initial one or that of a kept checkpoint, and steps are taken from there. It writes nothing.
type Replay struct {
	run      *Run
	teachers []*model.Model
	student  *model.Model
}

// OpenReplay opens the inputs of the run in c.Output.
func OpenReplay(ctx context.Context, c Config, dev device.Device, obs Observer) (*Replay, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.FromCache != "" {
		return nil, fault.New(fault.Unavailable, "not built yet: recomputing the steps of a run that learned from a teacher's cache").WithID("E-DISTILL-111")
	}
	if c.OnPolicy.On() {
		return nil, fault.New(fault.Unavailable, "not built yet: recomputing the steps of a run with --on-policy").
			WithID("E-POLICY-003")
	}
	if c.Align == AlignChunk {
		return nil, fault.New(fault.Unavailable, "not built yet: recomputing the steps of a run with --align chunk").
			WithID("E-ALIGN-018")
	}
	c.TokenCache = nil // what is judged is made again from the texts
	in, err := openInputs(ctx, c, dev, obs)
	if err != nil {
		return nil, err
	}
	c.Ensemble.projected = in.projected
	r := &Run{Config: c, dev: dev, in: in, obs: obs, stream: dev.NewStream()}
	if r.steps = c.Steps; r.steps == 0 {
		r.steps = int(in.loaderSteps)
	}
	p := &Replay{run: r}
	if err := prepare(dev, in.planned); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if p.teachers, p.student, err = in.models(c, dev); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Close releases the files.
func (p *Replay) Close() error { return p.run.in.close() }

// Conventions returns in what the tokenizers of teacher and student differ, as a run's manifest does.
func (p *Replay) Conventions() []runlog.Convention { return p.run.in.conventions }

// Inputs returns what was read, as a run's manifest does.
func (p *Replay) Inputs() map[string]runlog.Input { return p.run.in.records }

// Teachers returns the files of all teachers.
func (p *Replay) Teachers() []*modelfile.Files { return p.run.in.teachers() }

// StudentConfig returns the student's shape, with its adapters merged if it has any.
func (p *Replay) StudentConfig() arch.Config { return p.run.in.mergedConfig() }

// Vocab returns V, the number of ids in the loss.
func (p *Replay) Vocab() int { return p.run.in.vocab }

// Projection says how a teacher with another tokenizer than the student's teaches; see teacher.Aligned.
type Projection struct {
	Pair        *align.Pair
	Most        int
	Fresh, Text bool
}

// Projection returns how the teacher teaches if its tokenizer is not the student's; nil: it is.
func (p *Replay) Projection() *Projection {
	if q := p.run.in.projected; q != nil {
		return &Projection{q.pair, q.most, q.fresh, q.text}
	}
	return nil
}

// Schedule returns the learning rates of the run's steps.
func (p *Replay) Schedule() optim.Schedule { return p.run.schedule(p.run.steps) }

// Schedules returns the learning rates of a run of k steps.
func (c Config) Schedules(k int) optim.Schedule { return c.schedule(k) }

// Spec returns the loss of a leg.
func (p *Replay) Spec(leg string) device.LossSpec {
	if leg == LegControl {
		return device.LossSpec{Alpha: 0, Temperature: 1}
	}
	return p.run.Loss
}

// Known is a state of a leg that is known: that before step Step.
type Known struct {
	Leg  string
	Step int
	dir  string // of its checkpoint; empty: before training
}

// KnownStates returns the states of a leg that are known, in order of step: before training, and each kept checkpoint.
func (p *Replay) KnownStates(leg string) ([]Known, error) {
	c := p.checkpoints(leg)
	names, err := c.list()
	if err != nil {
		return nil, err
	}
	all := []Known{{Leg: leg}}
	for _, dir := range names {
		st, err := c.verify(dir)
		if err != nil {
			return nil, err
		}
		if st.Leg != leg {
			return nil, fault.In(fault.Invalid, dir, "is a checkpoint of leg %q, not of %q", st.Leg, leg).WithID("E-CKPT-003")
		}
		all = append(all, Known{leg, st.Step, dir})
	}
	return all, nil
}

// Setting is a setting that decides bits, as the newest checkpoint of a leg has it and as the run's configuration does.
type Setting struct {
	Leg, Checkpoint, Name string
	Was, Is               any
	Agrees                bool
}

// Settings compares the configuration with the newest checkpoint of a leg, as far as that has the same settings;
// nothing if no checkpoint is kept.
func (p *Replay) Settings(leg string) ([]Setting, error) {
	c := p.checkpoints(leg)
	names, err := c.list()
	if err != nil || len(names) == 0 {
		return nil, err
	}
	dir := names[len(names)-1]
	st, err := c.verify(dir)
	if err != nil {
		return nil, err
	}
	var all []Setting
	for _, name := range slices.Sorted(maps.Keys(p.run.Options)) {
		was, ok := st.Must[name]
		if !ok {
			continue
		}
		is := p.run.Options[name]
		same := len(differences(map[string]any{name: was}, map[string]any{name: is})) == 0
		all = append(all, Setting{leg, filepath.Base(dir), name, was, is, same})
	}
	return all, nil
}

func (p *Replay) checkpoints(leg string) checkpoints {
	name := checkpointFolder
	if leg != LegStudent {
		name += "-" + leg
	}
	return checkpoints{dir: filepath.Join(p.run.Output, name), disk: disk.OS{}}
}

// Trainer puts the student into a state and returns a trainer and a loader that stand at its step. With microRows 0
// steps are cut as the run's. Only one trainer is valid at a time; Free it.
func (p *Replay) Trainer(at Known, microRows int) (*Trainer, *corpus.Loader, error) {
	r := p.run
	l := &leg{run: r, name: at.Leg, student: p.student}
	if at.Leg == LegStudent && r.Loss.Alpha != 0 {
		l.teacher = r.Ensemble.of(p.teachers, r.dev.Info(), r.SeqLen, r.Loss.Temperature)
	}
	if err := l.prepare(); err != nil {
		return nil, nil, err
	}
	if microRows > 0 {
		l.trainer.MicroRows = microRows
	}
	if err := r.initialise(p.student); err != nil {
		return nil, nil, err
	}
	if at.dir == "" {
		return l.trainer, l.loader, nil
	}
	st, f, err := p.checkpoints(at.Leg).open(at.dir)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if err := l.restoreTensors(f); err != nil {
		return nil, nil, err
	}
	l.trainer.restore(st)
	return l.trainer, l.loader, l.loader.Seek(st.Position)
}

// Weights returns the student's present weights by name, as files have them, with its adapters merged if it has any.
func (p *Replay) Weights() (map[string][]float32, error) {
	if p.run.in.adapter == nil {
		return p.student.Stored(p.run.stream)
	}
	a, err := p.Adapter()
	if err != nil {
		return nil, err
	}
	f, err := p.run.in.openMerged(p.run.Config, a)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all := map[string][]float32{}
	for _, s := range arch.Slots(f.Config) {
		if all[s.Name], err = f.ReadFloat32(s.Name); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Adapter returns the student's adapter with its present values; nil: all weights train.
func (p *Replay) Adapter() (*adapter.Adapter, error) {
	if p.run.in.adapter == nil {
		return nil, nil
	}
	return p.run.in.present(p.student, p.run.stream)
}

// Final opens the student that the run has written.
func (p *Replay) Final() (*modelfile.Files, error) { return p.run.in.openFinal(p.run.Config) }

// trained returns the student that the run has written, in the file final, on the device.
func (p *Replay) trained(final *modelfile.Files) (*model.Model, error) {
	r := p.run
	if r.in.adapter != nil {
		a, err := adapter.Open(filepath.Join(r.Output, adapterFolder), r.in.student)
		if err != nil {
			return nil, err
		}
		p.student.SetAdapters(r.stream, a.Values())
		return p.student.Snapshot(r.stream), nil
	}
	m := model.NewTrainable(r.dev, final.Config)
	if err := m.LoadWeights(r.stream, final); err != nil {
		return nil, err
	}
	return m.Frozen(), nil
}

// Evaluate scores the teacher, the untrained student, the distilled one in the file final, and the control in its last
// state, as the run did at its end; empty without held-out data.
func (p *Replay) Evaluate(ctx context.Context, final *modelfile.Files, control bool) (h HeldOut, err error) {
	r := p.run
	if r.in.held == nil {
		return h, nil
	}
	if err := final.CheckTensors(); err != nil {
		return h, err
	}
	trained, err := p.trained(final)
	if err != nil {
		return h, err
	}
	subjects := []eval.Subject{{Name: nameDistilled, Model: trained}}
	if control {
		starts, err := p.KnownStates(LegControl)
		if err != nil {
			return h, err
		}
		t, _, err := p.Trainer(starts[len(starts)-1], 0)
		if err != nil {
			return h, err
		}
		t.Free()
		subjects = append(subjects, eval.Subject{Name: nameControl, Model: p.student.Snapshot(r.stream)})
	}
	if err := r.initialise(p.student); err != nil {
		return h, err
	}
	subjects = append([]eval.Subject{{Name: nameTeacher}, {Name: nameUntrained, Model: p.student.Frozen()}}, subjects...)
	if h, err = r.scoreHeldOut(ctx, p.teachers, p.student, final, subjects); err != nil {
		return h, fmt.Errorf("held-out scores: %w", err)
	}
	return h, nil
}
