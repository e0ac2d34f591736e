package report

import (
	"fmt"

	runlog "apr/run/log"
)

// untaught reports whether a run learned from its text alone: --alpha 0. The teacher that its scores name is then the student's own file, or
// one that was only compared with.
func untaught(r *runlog.Record) bool {
	if r.Manifest == nil {
		return false
	}
	alpha, ok := r.Manifest.Config["alpha"].Value.(float64)
	return ok && alpha == 0
}

// withoutTeacher words what a student has learned from the text alone.
func (v *Verdict) withoutTeacher(trained, before *Score, margins []Margin) {
	v.Headline = fmt.Sprintf("The student scores %.4f nats per token on held-out text", trained.NatsPerToken)
	v.Detail = fmt.Sprintf("It has learned from the text alone, without a teacher (--alpha 0): perplexity %s", perplexityText(trained.Perplexity))
	if before != nil {
		v.Detail += ", before training " + perplexityText(before.Perplexity)
	}
	v.Detail += "."
	for _, m := range margins {
		if m.Over != untrainedScore || !m.Interval.known() || m.few() > 0 {
			continue
		}
		switch sure := " (95 % interval " + m.Interval.String() + ")"; {
		case m.Interval[0] > 0:
			v.Headline += fmt.Sprintf(", %.4f better than before training%s", m.Nats, sure)
		case m.Interval[1] < 0:
			v.Tone = Bad
			v.Headline += fmt.Sprintf(", %.4f worse than before training (95 %% interval %s)", -m.Nats, m.Interval.minus())
		default:
			v.Headline += ", not surely another score than before training" + sure
		}
	}
}
