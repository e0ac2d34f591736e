package distill

import (
	"fmt"

	"apr/internal/fault"
	runlog "apr/run/log"
)

// What ends a run whose student's own text goes wrong. Means of guardSteps steps are compared: of the first ones and
// of the last ones.
const (
	guardSteps = 20

	endedLost  = 0.25 // texts end by themselves less often than this part of the first ones,
	endedWorth = 0.2  // of which so many did,
	longer     = 1.5  // and are so many times as long: length inflation

	distinctLost = 0.5  // pairs of tokens are new less often than this part of the first ones: repeated text
	entropyLost  = 0.05 // the entropy is below this part of the first one: collapse
)

// ownGuard watches what the student writes. It is part of a checkpoint.
type ownGuard struct {
	Seen  int        `json:"seen"` // steps
	First ownMeans   `json:"first"`
	Last  []ownMeans `json:"last"` // of the latest steps, up to guardSteps
}

// ownMeans are figures of a step, or their means.
type ownMeans struct {
	Length   float64 `json:"length"`
	Ended    float64 `json:"ended"`
	Entropy  float64 `json:"entropy"`
	Distinct float64 `json:"distinct_2"`
}

// mean returns the means of all.
func mean(all []ownMeans) (m ownMeans) {
	n := float64(len(all))
	for _, x := range all {
		m.Length, m.Ended = m.Length+x.Length/n, m.Ended+x.Ended/n
		m.Entropy, m.Distinct = m.Entropy+x.Entropy/n, m.Distinct+x.Distinct/n
	}
	return m
}

// add takes over a step's figures and says what has gone wrong; empty: nothing.
func (g *ownGuard) add(o *runlog.OnPolicy) (name, symptom string, now ownMeans) {
	m := ownMeans{o.Length, o.Ended, float64(o.Entropy), float64(o.Distinct)}
	if m.Distinct != m.Distinct { // every text was a single token: nothing repeats
		m.Distinct = 1
	}
	g.Last = append(g.Last, m)
	g.Last = g.Last[max(0, len(g.Last)-guardSteps):]
	if g.Seen++; g.Seen == guardSteps {
		g.First = mean(g.Last)
	}
	if g.Seen < 2*guardSteps {
		return "", "", m
	}
	now = mean(g.Last)
	switch f := g.First; {
	case f.Ended >= endedWorth && !(now.Ended >= endedLost*f.Ended) && !(now.Length < longer*f.Length):
		return runlog.OwnTextGrows, fmt.Sprintf("%.0f %% of the student's texts end by themselves, at first %.0f %%; "+
			"their mean length is %.0f tokens, at first %.0f", 100*now.Ended, 100*f.Ended, now.Length, f.Length), now
	case !(now.Distinct >= distinctLost*f.Distinct):
		return runlog.OwnTextRepeats, fmt.Sprintf("%.0f %% of the pairs of tokens in the student's texts are new there, at "+
			"first %.0f %%", 100*now.Distinct, 100*f.Distinct), now
	case !(now.Entropy >= entropyLost*f.Entropy):
		return runlog.OwnTextCollapses, fmt.Sprintf("the entropy of what the student writes is %.3f nats a token, at first "+
			"%.3f", now.Entropy, f.Entropy), now
	}
	return "", "", now
}

// guardOwn ends a run whose student's own text goes wrong: what follows would be learned from that text.
func (l *leg) guardOwn(step int, o *runlog.OnPolicy) error {
	name, symptom, now := l.policy.guard.add(o)
	if name == "" {
		return nil
	}
	detail := map[string]any{"leg": l.name, "step": step, "first": l.policy.guard.First, "last": now}
	if err := l.run.dir.Event("warning", name, detail, symptom); err != nil {
		return err
	}
	return fault.New(fault.Diverged, "step %d: %s", step, symptom).WithHint("a lower --learning-rate, a smaller " +
		"--on-policy fraction beside rows of the data, or a student that has read the data before; --resume=CHECKPOINT " +
		"with --allow-changed goes on from an earlier one").WithID("E-POLICY-004")
}
