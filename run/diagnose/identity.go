package diagnose

import (
	"fmt"

	runlog "apr/run/log"
)

// sameModel returns a text of the manifest that says that the teacher is the student: the relation found by comparing
// values, or equal hashes.
func (r *records) sameModel() (string, bool) {
	if k := r.run.InForce.Kinship; k != nil && k.Relation == "same" {
		return `"relation"`, true
	}
	teacher, student := r.run.InForce.Inputs["teacher"].SHA256, r.run.InForce.Inputs["student_init"].SHA256
	return teacher, teacher != "" && teacher == student
}

// copies: a student that gave the teacher's distribution before training is a copy of it, whatever its values are; one that
// is the teacher in other precision has rounding errors to learn, and was allowed to; one that has most of the teacher's tensors
// may be an edited copy.
func copies(r *records) (out []Finding) {
	for _, e := range r.events {
		if e.Kind != "warning" || e.Name != runlog.FirstStepAgrees {
			continue
		}
		out = append(out, Finding{ID: "copy", Symptom: fmt.Sprintf("the divergence of the first step is %.1e nats", number(e.detail["kl"])),
			Cause: "before any training the student computed what the teacher computes: there is nothing to learn", Fatal: true,
			Evidence: []Evidence{e.evidence()}, at: e.Time, Advice: "give another teacher or student"})
	}
	if k := r.run.InForce.Kinship; k != nil && k.Relation == "derived" {
		out = append(out, Finding{ID: "derived", Symptom: "the student can learn no more than rounding errors", Cause: "teacher and student are one model: " + k.Text,
			Evidence: r.find("manifest.json", `"relation"`), at: r.run.Manifest.Started, Advice: "give another teacher or student"})
	}
	if k := r.run.InForce.Kinship; k != nil && k.Relation == "different" && k.Alike > 0 {
		out = append(out, Finding{ID: "alike", Symptom: fmt.Sprintf("%d of %d tensors of the student are those of the teacher", k.Alike, k.Tensors),
			Cause: "teacher and student are different models by little: " + k.Text, Evidence: r.find(r.run.Settings, `"tensors_alike"`),
			at: r.run.Manifest.Started, Advice: "make sure that the student is no edited copy of the teacher"})
	}
	return out
}
