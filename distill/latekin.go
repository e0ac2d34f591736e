package distill

import (
	"context"
	"fmt"
	"slices"

	"apr/arch"
	"apr/format/safetensors"
	"apr/modelfile"
	runlog "apr/run/log"
)

// meet compares the student of a checkpoint with the teachers that a resumption brought, by their embeddings: a new
// student was compared with none, and one that was trained is no longer the one that was. Of a student whose embedding
// is not trained the checkpoint has none, and the comparison at the start holds.
func (l *leg) meet(ctx context.Context, checkpoint *safetensors.File) error {
	if _, ok := checkpoint.Tensor(embedding); !ok || l.teacher == nil {
		return nil
	}
	in := l.run.in
	beside := *in
	beside.student = l.studentOf(checkpoint)
	for i, f := range in.teachers() {
		if in.cache == nil && l.holds(checkpoint, func(arch.Slot) bool { return true }) {
			if err := l.meetValues(ctx, l.run.Config.Teachers()[i], f, beside.student); err != nil {
				return err
			}
		}
		beside.teacher = f
		cosine, angles, err := beside.likenessBeside()
		if err != nil {
			return err
		}
		at := in.teacherSide()
		if len(in.more) > 0 {
			at.config = f.Config
		}
		if i < len(in.kins) {
			at.kin = in.kins[i]
		}
		kin := runlog.Kinship{Relation: string(modelfile.Different)}
		if at.kin != nil {
			kin = *at.kin
		}
		kin.Embedding, kin.Angles = runlog.Number(cosine), runlog.Number(angles)
		if at.kin = &kin; l.late == nil || nearer(at.kin, l.late.kin) {
			l.late = &at
		}
	}
	return nil
}

// studentOf returns the student of a checkpoint as a model, of which the tensors that are not trained are missing.
func (l *leg) studentOf(checkpoint *safetensors.File) *modelfile.Files {
	held := &modelfile.Container{Path: checkpoint.Path(), File: checkpoint, Stored: checkpoint}
	return &modelfile.Files{Container: held, Config: l.run.in.studentConfig}
}

// holds reports whether the checkpoint has those of the student's tensors that are asked for.
func (l *leg) holds(checkpoint *safetensors.File, asked func(arch.Slot) bool) bool {
	return !slices.ContainsFunc(arch.Slots(l.run.in.studentConfig), func(s arch.Slot) bool {
		_, ok := checkpoint.Tensor(s.Name)
		return !ok && asked(s)
	})
}

// meetValues tells of a teacher that is the student of the checkpoint by its values: beside others its share hides it.
func (l *leg) meetValues(ctx context.Context, name string, teacher, student *modelfile.Files) error {
	k, err := modelfile.Identify(ctx, teacher, student, func(_, _ int64) {})
	if err != nil || k.Relation == modelfile.Different {
		return err
	}
	text := fmt.Sprintf("%s is the student of the checkpoint: %s", name, k.String())
	l.run.obs.Message("warning: %s", text)
	return l.run.dir.Event("warning", runlog.TeacherIsStudent, map[string]any{"teacher": name, "leg": l.name,
		"relation": k.Relation, "rounding": k.Rounding}, text)
}

// meetTexts compares the writers of the text that a resumption brought with the student of the checkpoint: what that
// one wrote it knows. Where norms or embedding are not trained they are those of the start.
func (l *leg) meetTexts(checkpoint *safetensors.File) error {
	in := l.run.in
	if !l.holds(checkpoint, func(s arch.Slot) bool { return s.Role == arch.Norm || s.Name == embedding }) {
		return nil
	}
	before := in.written
	if err := in.compareWriters(l.run.Config, l.studentOf(checkpoint)); err != nil {
		return err
	}
	now := in.written
	if now.own+now.alike <= before.own+before.alike && now.taughtBy <= before.taughtBy {
		in.written = before
		return nil
	}
	return l.run.recordTexts()
}

// likenessBeside is embeddingLikeness, also beside a cache, whose teacher may be known by a sketch alone.
func (in *inputs) likenessBeside() (cosine, angles float64, err error) {
	if in.cache == nil {
		return in.embeddingLikeness()
	}
	sketch, ok, err := modelfile.ReadSketch(in.teacher)
	if err != nil || !ok {
		return 0, 0, err
	}
	return sketch.Embedding(in.taughtBy, in.student)
}

// teacherSide is the side of the teacher of the leg, as it is compared with the student that the leg began with here.
func (l *leg) teacherSide() side {
	if l.late != nil {
		return *l.late
	}
	return l.run.in.teacherSide()
}
