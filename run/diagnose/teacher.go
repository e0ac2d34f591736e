package diagnose

import (
	"fmt"

	runlog "apr/run/log"
)

// uniform: a teacher that scores worse on the held-out text than equal probabilities do has nothing to teach about it.
func uniform(r *records) (out []Finding) {
	for _, e := range r.latest {
		if e.Kind == "warning" && e.Name == runlog.TeacherBelowUniform {
			out = append(out, Finding{ID: "teacher", Symptom: fmt.Sprintf("the teacher has %.4g nats per token on the held-out text, equal probabilities have %.4g", number(e.detail["nats_per_token"]), number(e.detail["uniform"])),
				Cause: "the teacher knows less of this text than a model that knows nothing", Fatal: true, Evidence: []Evidence{e.evidence()}, at: e.Time,
				Advice: "see whether the ids of the data are those of the teacher's tokenizer, and the text of the kind it was trained on"})
		}
	}
	return out
}
