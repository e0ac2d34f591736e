package diagnose

import (
	"cmp"
	"fmt"

	runlog "apr/run/log"
)

// doubtful: a file with a long run of zeros, or without most of its merges, was perhaps not fetched whole.
func doubtful(r *records) []Finding {
	f := Finding{ID: "doubtful-file", Cause: Unknown, Advice: "compare the file's checksum with the publisher's; if it differs, fetch the file and train again"}
	for _, e := range r.latest {
		if e.Kind == "warning" && e.Name == runlog.DoubtfulModel {
			f.Evidence = append(f.Evidence, e.evidence())
			f.Symptom, f.at = cmp.Or(f.Symptom, e.Reason), e.Time
		}
	}
	if len(f.Evidence) == 0 {
		return nil
	}
	return []Finding{f}
}

// ownText: a student that learns what it wrote learns nothing new; and records that were changed since a model wrote
// them are no longer that model's word.
func ownText(r *records) (out []Finding) {
	for _, e := range r.latest {
		switch {
		case e.Kind != "warning":
		case e.Name == runlog.OwnText:
			cause := "the student is taught by text that it wrote itself"
			if related, _ := e.detail["related_only"].(bool); related {
				cause = "the text may be the student's own: its writer has the student's shapes and embedding"
			}
			out = append(out, Finding{ID: "own-text", Symptom: e.Reason,
				Cause: cause, Evidence: []Evidence{e.evidence()}, at: e.Time,
				Advice: "give text of another model, or another teacher"})
		case e.Name == runlog.EditedText:
			out = append(out, Finding{ID: "edited-text", Symptom: e.Reason, Cause: Unknown, Evidence: []Evidence{e.evidence()},
				at:     e.Time,
				Advice: "generate the text again, unless it was edited on purpose"})
		}
	}
	return out
}

// uniform: a teacher that scores worse on the held-out text than equal probabilities, or than the frequencies of
// tokens, has nothing to teach about it.
func uniform(r *records) (out []Finding) {
	for _, e := range r.latest {
		if e.Kind == "warning" && e.Name == runlog.TeacherBelowUniform {
			out = append(out, Finding{ID: "teacher", Symptom: fmt.Sprintf("the teacher has %.4g nats per token on the held-out text, equal probabilities have %.4g", number(e.detail["nats_per_token"]), number(e.detail["uniform"])),
				Cause: "the teacher knows less of this text than a model that knows nothing", Fatal: true, Evidence: []Evidence{e.evidence()}, at: e.Time,
				Advice: "see whether the ids of the data are those of the teacher's tokenizer, and the text of the kind it was trained on"})
		}
		if e.Kind == "warning" && e.Name == runlog.TeacherBelowFrequencies {
			out = append(out, Finding{ID: "teacher", Symptom: fmt.Sprintf("the teacher has %.4g nats per token on the held-out text, the frequencies of tokens %.4g", number(e.detail["nats_per_token"]), number(e.detail["frequencies"])),
				Cause: "the teacher knows no more of this text than how often each token occurs", Fatal: true, Evidence: []Evidence{e.evidence()}, at: e.Time,
				Advice: "see whether the teacher was trained, its files are whole, config.json (rope_theta, rms_norm_eps) is its own, and the text is of the kind it was trained on"})
		}
	}
	return out
}
