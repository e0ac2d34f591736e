package distill

import (
	"context"
	"errors"
	"fmt"
	"os"

	"apr/internal/fault"
	"apr/modelfile"
	runlog "apr/run/log"
)

// identify compares teacher and student value by value and refuses a student that is the teacher, in whatever file or
// type, unless that was asked for. A new student is no copy.
func (in *inputs) identify(ctx context.Context, c Config, obs Observer) error {
	if in.student == nil || c.NoTeacher {
		return nil
	}
	if in.cache != nil {
		return in.identifyCached(ctx, c, obs)
	}
	k, how := modelfile.Kinship{Relation: modelfile.Same}, bothAreOneFile
	if !sameFile(c.Teacher, c.Student) {
		obs.Phase("comparing teacher and student")
		var err error
		if k, err = modelfile.Identify(ctx, in.teacher, in.student, func(done, total int64) { obs.Advance(int(100*done/max(total, 1)), 100) }); err != nil {
			return err
		}
		how = fmt.Sprintf("the relative difference of their values is at most %.1g", k.Difference)
		if k.Rows > 0 {
			how += fmt.Sprintf(" in the %d rows of the vocabulary that both have", k.Rows)
		}
	}
	related := k.Relation != modelfile.Different
	in.keepKinship(c, k)
	if !related {
		cosine, angles, err := in.embeddingLikeness()
		if err != nil {
			return err
		}
		in.kin.Embedding, in.kin.Angles = runlog.Number(cosine), runlog.Number(angles)
	}
	switch {
	case !related || c.AllowSameModel || c.Quantize != nil: // in blocks it is another model
		return nil
	case k.Relation == modelfile.Derived:
		return fault.In(fault.Invalid, c.Student, "teacher and student are the same model in other precision: %s, up to a relative difference of %.2g in %s", k.Rounding, k.Difference, k.Tensor).
			WithHint("only rounding can be learned from it; --allow-same-model trains anyway and records it").WithID("E-DISTILL-007")
	}
	return c.sameModel(how)
}

// sameModel refuses a student that is its teacher; how says what shows it.
func (c Config) sameModel(how string) error {
	hint := "nothing can be learned from it; --allow-same-model trains anyway and records it"
	if c.OnPolicy.On() {
		hint = "nothing can be learned from it but what a teacher_prompt tells it alone; --allow-same-model trains " +
			"anyway and records it"
	}
	return fault.In(fault.Invalid, c.Student, "teacher and student are the same model: %s", how).WithHint("%s", hint).
		WithID("E-DISTILL-003")
}

// bothAreOneFile says that teacher and student are the same by their paths alone.
const bothAreOneFile = "both are the same file"

// refuseSameFile is identify as far as it reads no values, for a plan.
func (in *inputs) refuseSameFile(c Config) error {
	if in.student == nil || c.NoTeacher || in.cache != nil || c.AllowSameModel || c.Quantize != nil ||
		!sameFile(c.Teacher, c.Student) {
		return nil
	}
	return c.sameModel(bothAreOneFile)
}

// embeddingLikeness compares the embeddings of teacher and student by rows of equal tokens: of equal ids, unless their
// tokenizers differ.
func (in *inputs) embeddingLikeness() (cosine, angles float64, err error) {
	if in.projected == nil {
		return modelfile.EmbeddingLikeness(in.teacher, in.student)
	}
	return modelfile.EmbeddingLikenessOf(in.teacher, in.student, in.projected.pair.EqualTokens())
}

// keepKinship writes down how teacher and student are related.
func (in *inputs) keepKinship(c Config, k modelfile.Kinship) {
	related := k.Relation != modelfile.Different
	in.kin = &runlog.Kinship{
		Relation: string(k.Relation), Tensor: k.Tensor, Field: k.Field, Difference: runlog.Number(k.Difference),
		Rounding: k.Rounding,
		Values:   k.Values, Allowed: related && c.AllowSameModel && c.Quantize == nil, Text: k.String(),
	}
	if k.Alike != nil {
		in.kin.Tensors, in.kin.Alike, in.kin.Others = k.Alike.Tensors, k.Alike.Alike, k.Alike.Others
	}
	in.kin.Moved = k.Moved
	if k.Close != nil {
		in.kin.Close, in.kin.Within, in.kin.Farthest = true, runlog.Number(k.Close.Difference), k.Close.Tensor
	}
}

// sameFile reports whether two paths are one file or folder.
func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// coarseTeacher reports whether most of the teacher's matrices are stored in blocks of no more bits than those that the
// student is trained in.
func (in *inputs) coarseTeacher(c Config) (bool, error) {
	types, _, err := c.Quantize.Types(in.studentConfig)
	if err != nil {
		return false, err
	}
	coarse := 0
	for name, to := range types {
		w, ok := in.teacher.File.Tensor(name)
		if ok && w.DType.IsQuantized() && w.DType.RowBytes(quantizedRow) <= to.RowBytes(quantizedRow) {
			coarse++
		}
	}
	return 2*coarse > len(types), nil
}

// quantizedRow is a length of rows that all blocks divide.
const quantizedRow = 256

// recordIdentity writes down how teacher and student are related.
func (r *Run) recordIdentity() error {
	k := r.in.kin
	if k == nil {
		return nil
	}
	if k.Alike > 0 {
		r.obs.Message("warning: %d of %d tensors of the student are those of the teacher; is it an edited copy? %s", k.Alike, k.Tensors, k.Text)
		return r.dir.Event("warning", runlog.MostlyAlike, k, k.Text)
	}
	if k.Moved > 0 {
		r.obs.Message("warning: %d layers of the student are those of the teacher in another place; is it an edited "+
			"copy? %s", k.Moved, k.Text)
		return r.dir.Event("warning", runlog.MostlyAlike, k, k.Text)
	}
	if k.Close {
		r.obs.Message("warning: no matrix of the student differs from the teacher's by more than %.2g (relative, %s): is it the teacher in another encoding, or fine-tuned from it?", float64(k.Within), k.Farthest)
		return r.dir.Event("warning", runlog.CloseToTeacher, k, k.Text)
	}
	kind := "decision"
	if r.Quantize != nil && k.Relation != string(modelfile.Different) {
		if coarse, err := r.in.coarseTeacher(r.Config); coarse || err != nil {
			text := "the teacher is the student in blocks of no more bits than those of " + r.Quantize.Scheme +
				": its rounding is what it teaches; give it in 16 or 32 bits"
			r.obs.Message("warning: %s", text)
			return errors.Join(err, r.dir.Event("warning", runlog.CoarseTeacher, k, text))
		}
		return r.dir.Event(kind, "teacher and student", k, "the student is the teacher in blocks of "+r.Quantize.Scheme+": "+k.Text)
	}
	if k.Allowed {
		kind = "warning"
		r.obs.Message("warning: teacher and student are related, which --allow-same-model allows: %s", k.Text)
		if r.OnPolicy.On() && r.in.words == nil {
			r.obs.Message("warning: no record has a teacher_prompt: the teacher reads what the student reads")
		}
	}
	return r.dir.Event(kind, "teacher and student", k, k.Text)
}
