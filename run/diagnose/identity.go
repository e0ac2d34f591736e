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
// may be an edited copy; one that is close to it, or agrees with it from the start, may be a copy by other means.
func copies(r *records) (out []Finding) {
	for _, e := range r.events {
		if e.Kind == "warning" && e.Name == runlog.FirstStepAgrees {
			out = append(out, Finding{ID: "agrees", Symptom: fmt.Sprintf("the divergence of the first step is %.2g nats, of the teacher's entropy of %.2g", number(e.detail["kl"]), number(e.detail["entropy"])),
				Cause:    "before any training the student agreed with the teacher: it may be a copy in other shapes or types, or was distilled from it",
				Evidence: []Evidence{e.evidence()}, at: e.Time, Advice: "make sure that the student is no copy of the teacher"})
		}
		if e.Kind == "warning" && e.Name == runlog.EmbeddingAgrees {
			out = append(out, Finding{ID: "agrees", Symptom: fmt.Sprintf("the rows of the student's embedding have a mean cosine "+
				"of %.2f with the teacher's, their angles a correlation of %.2f", number(e.detail["cosine"]), number(e.detail["angles"])),
				Cause:    "the student may be a copy of the teacher, or was made from it; no step tells",
				Evidence: []Evidence{e.evidence()}, at: e.Time, Advice: "make sure that the student is no copy of the teacher"})
		}
		if e.Kind == "warning" && e.Name == runlog.BlocksChangeNothing {
			out = append(out, Finding{ID: "blocks",
				Symptom: fmt.Sprintf("the divergence of the first step is %.1e nats", number(e.detail["kl"])),
				Cause:   "the student's weights were in these blocks already: there is nothing to learn", Fatal: true,
				Evidence: []Evidence{e.evidence()}, at: e.Time, Advice: "give the model that was quantised, or other blocks"})
		}
		if e.Kind == "warning" && e.Name == runlog.TeacherIsStudent {
			out = append(out, Finding{ID: "copy", Symptom: "the run went on with its own student for a teacher",
				Cause: "nothing can be learned from it: " + e.Reason, Evidence: []Evidence{e.evidence()}, at: e.Time,
				Advice: "give another teacher"})
		}
		if e.Kind == "warning" && e.Name == runlog.CoarseTeacher {
			out = append(out, Finding{ID: "coarse-teacher", Symptom: "the teacher is the student in blocks as coarse as the " +
				"student's", Cause: e.Reason, Evidence: []Evidence{e.evidence()}, at: e.Time,
				Advice: "give the teacher in 16 or 32 bits"})
		}
		if e.Kind != "warning" || e.Name != runlog.FirstStepEqual {
			continue
		}
		out = append(out, Finding{ID: "copy", Symptom: fmt.Sprintf("the divergence of the first step is %.1e nats", number(e.detail["kl"])),
			Cause: "before any training the student computed what the teacher computes: there is nothing to learn", Fatal: true,
			Evidence: []Evidence{e.evidence()}, at: e.Time, Advice: "give another teacher or student"})
	}
	if k := r.run.InForce.Kinship; k != nil && k.Relation == "derived" && !r.inBlocks() {
		out = append(out, Finding{ID: "derived", Symptom: "the student can learn no more than rounding errors", Cause: "teacher and student are one model: " + k.Text,
			Evidence: r.find("manifest.json", `"relation"`), at: r.run.Manifest.Started, Advice: "give another teacher or student"})
	}
	if k := r.run.InForce.Kinship; k != nil && k.Relation == "different" && k.Alike == 0 && k.Close {
		out = append(out, Finding{ID: "close", Symptom: fmt.Sprintf("no matrix of the student differs from the teacher's by more than %.2g", float64(k.Within)),
			Cause: "the student may be the teacher in another encoding, or fine-tuned from it: " + k.Text, Evidence: r.find(r.run.Settings, `"close_within"`),
			at: r.run.Manifest.Started, Advice: "make sure that the student is no copy of the teacher; a model fine-tuned from it can learn"})
	}
	if k := r.run.InForce.Kinship; k != nil && k.Relation == "different" && k.Alike > 0 {
		out = append(out, Finding{ID: "alike", Symptom: fmt.Sprintf("%d of %d tensors of the student are those of the teacher", k.Alike, k.Tensors),
			Cause: "teacher and student are different models by little: " + k.Text, Evidence: r.find(r.run.Settings, `"tensors_alike"`),
			at: r.run.Manifest.Started, Advice: "make sure that the student is no edited copy of the teacher"})
	}
	if k := r.run.InForce.Kinship; k != nil && k.Relation == "different" && k.Moved > 0 {
		out = append(out, Finding{ID: "alike", Symptom: fmt.Sprintf("%d layers of the student are those of the teacher",
			k.Moved),
			Cause: "the student has the teacher's layers in another order: " + k.Text, Evidence: r.find(r.run.Settings,
				`"layers_moved"`),
			at: r.run.Manifest.Started, Advice: "make sure that the student is no edited copy of the teacher"})
	}
	return out
}
