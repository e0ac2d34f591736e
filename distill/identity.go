package distill

import (
	"context"
	"fmt"
	"math"
	"os"

	"apr/device"
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
		if k.Rows > 0 {
			how += fmt.Sprintf(" in the %d rows of the vocabulary that both have", k.Rows)
		}
	}
	related := k.Relation != modelfile.Different
	in.kin = &runlog.Kinship{
		Relation: string(k.Relation), Tensor: k.Tensor, Field: k.Field, Difference: runlog.Number(k.Difference), Rounding: k.Rounding,
		Values: k.Values, Allowed: related && c.AllowSameModel, Text: k.String(),
	}
	if k.Alike != nil {
		in.kin.Tensors, in.kin.Alike, in.kin.Others = k.Alike.Tensors, k.Alike.Alike, k.Alike.Others
	}
	if k.Close != nil {
		in.kin.Close, in.kin.Within, in.kin.Farthest = true, runlog.Number(k.Close.Difference), k.Close.Tensor
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
	if k.Close {
		r.obs.Message("warning: no matrix of the student differs from the teacher's by more than %.2g (relative, %s): is it the teacher in another encoding, or fine-tuned from it?", float64(k.Within), k.Farthest)
		return r.dir.Event("warning", runlog.CloseToTeacher, k, k.Text)
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

// agreeing is the part of the teacher's entropy up to which the divergence of the first step says that the student agrees with
// the teacher before it was trained. On gosrc, copies of other shapes measure 0 to 0.04, in codes of 4 bits 0.08 to
// 0.12, students that were trained from other numbers 0.5 and more, new ones 3.
const agreeing = 0.2

// checkFirst reports a first step in which student and teacher agree although their values are different: a copy that a
// comparison of values cannot see, such as one with its neurons in another order, or of other shapes. The first step is that
// before which none was applied: one that is refused says nothing, and leaves the student as it was.
func (l *leg) checkFirst(k int, rec Record) error {
	r := l.run
	if l.trainer.Optimizer.Applied != 1 || l.teacher == nil || rec.Refused() || r.in.kin != nil && r.in.kin.Relation != string(modelfile.Different) {
		return nil
	}
	if math.Abs(rec.MeanD) <= noDivergence {
		r.obs.Message("warning: the divergence of the first step is %.1e: before any training the student gives the teacher's distribution; is it a copy of the teacher?", rec.MeanD)
		return r.dir.Event("warning", runlog.FirstStepEqual, map[string]any{"leg": l.name, "step": k, "kl": rec.MeanD, "at_most": noDivergence},
			"the student computes what the teacher computes, though its file is another one")
	}
	kl, entropy, top := inNats(r.Loss, rec.MeanD), rec.Entropy*rec.InvN, float64(rec.Agree)*rec.InvN
	if !(kl <= agreeing*entropy) {
		return nil
	}
	r.obs.Message("warning: the divergence of the first step is %.2g nats, %.2g of the teacher's entropy: before any training the student already agrees with the teacher (the same first id at %.0f %% of positions); is it a copy in other shapes or types?",
		kl, kl/entropy, 100*top)
	return r.dir.Event("warning", runlog.FirstStepAgrees,
		map[string]any{"leg": l.name, "step": k, "kl": kl, "entropy": entropy, "top1_agreement": top, "at_most": agreeing * entropy},
		"the student agrees with the teacher before it was trained: it may be a copy of it, or was distilled from it")
}

// inNats returns about what a mean divergence d of the loss would be as a mean KL at temperature 1. Small divergences between
// p and Q are multiples of KL(p‖Q), and T² times that of a temperature T; by Pinsker, a total variation d bounds it by 2d² below.
func inNats(l device.LossSpec, d float64) float64 {
	switch b := l.Beta; l.Divergence {
	case device.JSD:
		if b > 0 && b < 1 {
			d /= b * (1 - b)
		}
	case device.TVD:
		d = 2 * d * d
	case device.SkewForward, device.SkewReverse:
		d /= (1 - b) * (1 - b)
	}
	return l.Temperature * l.Temperature * d
}
