package distill

import (
	"context"
	"fmt"
	"math"
	"os"

	"apr/internal/fault"
	"apr/modelfile"
	runlog "apr/run/log"
)

// identify compares teacher and student value by value and refuses a student that is the teacher, in whatever file or type,
// unless that was asked for. A new student is nobody's copy.
func (in *inputs) identify(ctx context.Context, c Config, obs Observer) error {
	if in.student == nil {
		return nil
	}
	k, how := modelfile.Kinship{Relation: modelfile.Same}, "both are the same file"
	if !sameFile(c.Teacher, c.Student) {
		obs.Phase("comparing teacher and student")
		var err error
		if k, err = modelfile.Identify(ctx, in.teacher, in.student, func(done, total int64) { obs.Advance(int(100*done/max(total, 1)), 100) }); err != nil {
			return err
		}
		how = fmt.Sprintf("the relative difference of their values is at most %.1g", k.Difference)
	}
	related := k.Relation != modelfile.Different
	in.kin = &runlog.Kinship{
		Relation: string(k.Relation), Tensor: k.Tensor, Field: k.Field, Difference: runlog.Number(k.Difference), Rounding: k.Rounding,
		Values: k.Values, Allowed: related && c.AllowSameModel, Text: k.String(),
	}
	if k.Alike != nil {
		in.kin.Tensors, in.kin.Alike, in.kin.Others = k.Alike.Tensors, k.Alike.Alike, k.Alike.Others
	}
	switch {
	case !related || c.AllowSameModel:
		return nil
	case k.Relation == modelfile.Derived:
		return fault.In(fault.Invalid, c.Student, "teacher and student are the same model in other precision: %s, up to a relative difference of %.2g in %s", k.Rounding, k.Difference, k.Tensor).
			WithHint("only rounding can be learned from it; --allow-same-model trains anyway and records it").WithID("E-DISTILL-007")
	}
	return fault.In(fault.Invalid, c.Student, "teacher and student are the same model: %s", how).
		WithHint("nothing can be learned from it; --allow-same-model trains anyway and records it").WithID("E-DISTILL-003")
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
	kind := "decision"
	if k.Allowed {
		kind = "warning"
		r.obs.Message("warning: teacher and student are related, which --allow-same-model allows: %s", k.Text)
	}
	return r.dir.Event(kind, "teacher and student", k, k.Text)
}

// noDivergence is a divergence in nats that arithmetic in float32 makes of zero.
const noDivergence = 1e-6

// checkFirst reports a first step in which student and teacher agree although their values are different: a copy that a
// comparison of values cannot see, such as one with its neurons in another order.
func (l *leg) checkFirst(k int, rec Record) error {
	r := l.run
	if k != 0 || l.teacher == nil || rec.Refused() || !(math.Abs(rec.MeanD) <= noDivergence) || r.in.kin != nil && r.in.kin.Relation != string(modelfile.Different) {
		return nil
	}
	r.obs.Message("warning: the divergence of the first step is %.1e: before any training the student gives the teacher's distribution; is it a copy of the teacher?", rec.MeanD)
	return r.dir.Event("warning", runlog.FirstStepAgrees, map[string]any{"leg": l.name, "step": k, "kl": rec.MeanD, "at_most": noDivergence},
		"the student computes what the teacher computes, though its file is another one")
}
