package distill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"apr/format/safetensors"
	"apr/internal/disk"
	"apr/internal/fault"
	runlog "apr/run/log"
	"apr/tensor"
)

// ResumeAuto continues the run in the output directory from its newest valid checkpoint.
const ResumeAuto = "auto"

// restore puts the trainer where a checkpoint's was: its step, its updates, and what losses are judged by.
func (t *Trainer) restore(st state) {
	t.Steps, t.Optimizer.Applied, t.losses = st.Step, st.Applied, st.Losses
}

// folder returns the leg's checkpoint folder.
func (l *leg) folder() checkpoints {
	name := checkpointFolder
	if l.name != LegStudent {
		name += "-" + l.name
	}
	return checkpoints{dir: l.run.dir.File(name), keep: l.run.KeepCheckpoints, disk: l.run.disk, alive: l.run.Watch.Doing}
}

// checkpoint writes the leg's present state.
func (l *leg) checkpoint(out *Outcome) error {
	r := l.run
	start := time.Now()
	if err := l.trainer.Agree(); err != nil {
		return err
	}
	if !r.Config.Ranks.leads() {
		l.saved.step, l.saved.at = l.trainer.Steps, start
		return r.endShares()
	}
	if err := errors.Join(r.dir.Held(), r.dir.Sync()); err != nil {
		return err
	}
	progress := *out
	progress.Seconds = r.seconds()
	st := state{
		Schema: checkpointSchema, Leg: l.name, Step: l.trainer.Steps, Applied: l.trainer.Optimizer.Applied,
		Position: l.loader.Position(), Seed: r.Seed, World: r.ranks.World(), Must: r.mustAgree(), Progress: progress,
		Best: l.best, Losses: l.trainer.losses, Refused: l.refused,
		Written: start.UTC(),
	}
	var written []tensor.Source
	if l.policy != nil {
		st.Own = &l.policy.guard
		st.Ahead, written = l.policy.state()
	}
	r.Watch.Doing(fmt.Sprintf("checkpoint of leg %s after step %d", l.name, st.Step))
	tensors := trainingTensors(l.student, r.stream)
	tensors = append(tensors, written...)
	if l.trainer.Hidden != nil {
		tensors = append(tensors, l.trainer.Hidden.tensors(r.stream)...)
	}
	if err := errors.Join(r.save(l.folder(), st, tensors), r.endShares()); err != nil {
		return err
	}
	l.saved.step, l.saved.at = l.trainer.Steps, time.Now()
	out.Checkpoints++
	took := time.Since(start).Seconds()
	out.CheckpointTime += took
	return r.dir.Event("checkpoint", l.name, map[string]any{"step": st.Step, "seconds": took}, "")
}

// checkResume refuses a resumption that would not continue what the checkpoints hold, before anything is written, and
// takes over the identity of the run.
func (r *Run) checkResume() error {
	if r.Resume == "" {
		return nil
	}
	if b, err := os.ReadFile(r.dir.File("manifest.json")); err == nil {
		var m runlog.Manifest
		if err := json.Unmarshal(b, &m); err == nil && m.RunID != "" {
			r.id = m.RunID
		}
	}
	loader, err := r.in.loader(r.Config)
	if err != nil {
		return err
	}
	for _, name := range []string{LegStudent, LegControl} {
		l := &leg{run: r, name: name}
		st, f, from, err := l.find()
		if err != nil {
			return err
		}
		if f == nil {
			continue
		}
		if err := errors.Join(l.mayContinue(st, from), f.Close()); err != nil {
			return err
		}
		if err := loader.Seek(st.Position); err != nil {
			return err
		}
	}
	return nil
}

// ResumedWithChanges is the name of the event of a run that goes on with other settings than its checkpoint was made
// with.
const ResumedWithChanges = "resumed with changes"

// restore continues from the leg's checkpoint if the run is a resumed one.
func (l *leg) restore(ctx context.Context, out *Outcome) error {
	r := l.run
	l.saved.step = -1
	if r.Resume == "" {
		return nil
	}
	if err := l.folder().sweep(); err != nil {
		return err
	}
	st, f, from, err := l.find()
	if err != nil {
		return err
	}
	if f == nil {
		r.obs.Message("the %s has no checkpoint: it starts again at step 0", l.name)
		return r.dir.TruncateSteps(l.name, 0)
	}
	defer f.Close()
	if err := l.mayContinue(st, from); err != nil {
		return err
	}
	diff, err := l.changes(st)
	if err != nil {
		return err
	}
	if len(diff) > 0 {
		why := "--allow-changed"
		if r.Config.Ranks.onlyRanks(diff) {
			why = "--elastic"
		}
		if err := r.dir.Event("warning", ResumedWithChanges, diff, why); err != nil {
			return err
		}
		if r.AllowChanged {
			r.obs.Message("warning: the %s goes on although this differs from the checkpoint: %s", l.name,
				inShort(r.flagged(diff)))
		}
		if otherTeacher(diff) {
			l.met = st.Applied
			if err := l.meet(ctx, f); err != nil {
				return err
			}
		}
		if l.name == LegStudent {
			if err := l.meetTexts(f); err != nil {
				return err
			}
		}
	}
	if err := l.restoreTensors(f); err != nil {
		return err
	}
	if err := l.loader.Seek(st.Position); err != nil {
		return err
	}
	l.trainer.restore(st)
	l.best, l.refused, l.saved.step = st.Best, st.Refused, st.Step
	if l.policy != nil && st.Own != nil {
		l.policy.guard = *st.Own
	}
	if l.policy != nil {
		if err := l.policy.restore(st.Ahead, f, st.Step); err != nil {
			return err
		}
	}
	r.obs.Message("the %s continues after step %d from %s", l.name, st.Step, from)
	if err := errors.Join(r.dir.TruncateSteps(l.name, st.Step), r.dir.Event("decision", "resume", map[string]any{"from": from, "step": st.Step}, "")); err != nil {
		return err
	}
	steps, events, err := r.dir.Written()
	if err != nil {
		return err
	}
	r.before = max(r.before, out.takeOver(l.name, st.Progress, steps, events))
	out.ResumedFrom = from
	return nil
}

// restoreTensors puts the student, and what is trained beside it, into the state of a checkpoint.
func (l *leg) restoreTensors(f *safetensors.File) error {
	spread := func(param, companion int) error { return l.run.shares.spread(param, companions[companion].of) }
	if err := restoreTensors(l.student, l.run.stream, f, spread); err != nil || l.trainer.Hidden == nil {
		return err
	}
	return l.trainer.Hidden.restore(l.run.stream, f)
}

// find opens the checkpoint to continue from: the named one for the leg it belongs to, else the leg's newest valid one.
func (l *leg) find() (state, *safetensors.File, string, error) {
	r := l.run
	if r.Resume != ResumeAuto && filepath.Dir(r.Resume) == l.folder().dir {
		st, f, err := l.folder().open(r.Resume)
		return st, f, r.Resume, err
	}
	st, f, from, skipped, err := l.folder().newest()
	for _, s := range skipped {
		r.obs.Message("checkpoint skipped: %v", s)
		if l.trainer != nil { // not when it is only asked whether the run may continue
			err = errors.Join(err, r.dir.Event("warning", "checkpoint skipped", s.Error(), "it is not what was written"))
		}
	}
	return st, f, from, err
}

// VerifyCheckpoint returns what is wrong with the checkpoint in the folder dir: nil if every byte is what was written.
func VerifyCheckpoint(dir string) error {
	_, err := checkpoints{dir: filepath.Dir(dir), disk: disk.OS{}}.verify(dir)
	return err
}

// ResolveResume turns the argument of --resume into a run directory and what to continue from: ResumeAuto and output,
// a run directory, or a checkpoint of one.
func ResolveResume(resume, output string) (dir, from string, err error) {
	if resume == ResumeAuto {
		return output, ResumeAuto, nil
	}
	path, err := filepath.Abs(resume)
	if err != nil {
		return "", "", fault.In(fault.IO, resume, "has no absolute path").Because(err)
	}
	if _, err := os.Stat(filepath.Join(path, stateFile)); err == nil {
		return filepath.Dir(filepath.Dir(path)), path, nil
	}
	if !runlog.IsRun(path) {
		return "", "", fault.In(fault.NotFound, resume, "is neither a run directory nor a checkpoint").
			WithHint("a run directory holds the manifest.json of a run, a checkpoint %s", stateFile)
	}
	return path, ResumeAuto, nil
}
