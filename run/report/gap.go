package report

import (
	"fmt"
	"math"
)

// Gap is how far the distilled student came on the way from the untrained student to the teacher. Percent may be negative, or above
// 100. Of a run at work it is how many of its steps are done.
type Gap struct {
	From, To string
	Percent  float64
	Width    float64  // Percent cut to [0, 100]
	Control  *float64 // how far the control came, in percent; nil: there is none
}

// What makes a difference worth the name, in percent of the gap between the untrained student and the teacher: the student has come so
// far at least, and the teacher has added so much to it.
const (
	leastClosed = 10.0
	leastAdded  = 1.0
)

// leastGap is the gap between the untrained student and the teacher, in nats per token, of which a share is worth the name: half a
// percent of the perplexity. A student that is its teacher in smaller blocks begins closer than that.
const leastGap = 0.005

// closed is how far at is on the way from from to to, in percent; false: there is no way to go, or a score is missing.
func closed(from, at, to *Score) (percent float64, known bool) {
	if from == nil || at == nil || to == nil {
		return 0, false
	}
	way := float64(from.NatsPerToken - to.NatsPerToken)
	if !(way >= leastGap) {
		return 0, false
	}
	return 100 * float64(from.NatsPerToken-at.NatsPerToken) / way, true
}

// gapOf is the gap between the untrained student and the teacher, nil if there is none.
func gapOf(untrained, distilled, control, teacher *Score) *Gap {
	p, ok := closed(untrained, distilled, teacher)
	if !ok {
		return nil
	}
	g := &Gap{From: "untrained student", To: "teacher", Percent: p, Width: min(max(p, 0), 100)}
	if c, ok := closed(untrained, control, teacher); ok {
		g.Control = &c
	}
	return g
}

// text says how much of the gap both students have closed; empty without a gap.
func (g *Gap) text() string {
	if g == nil {
		return ""
	}
	const gap = " of the gap between the untrained student and the teacher"
	var text string
	switch {
	case g.Percent < 0:
		text = " The distilled student scores worse than before training"
	case g.Percent > 100:
		text = " The distilled student has closed all" + gap + ", and scores better on this text than the teacher"
	default:
		text = " The distilled student has closed " + percentText(g.Percent) + gap
	}
	if g.Control != nil {
		text += controlText(*g.Control)
	}
	return text + "."
}

// controlText says how much of the gap the control has closed.
func controlText(percent float64) string {
	switch {
	case percent < 0:
		return "; the control scores worse than before training"
	case percent > 100:
		return "; the control scores better than the teacher"
	}
	return ", the control " + percentText(percent)
}

// noGap says that there was no gap to close; empty where there was one, or where that is not known.
func noGap(untrained, teacher *Score) string {
	if untrained == nil || teacher == nil {
		return ""
	}
	switch way := float64(untrained.NatsPerToken - teacher.NatsPerToken); {
	case way <= -leastGap:
		return fmt.Sprintf(" The student was better on this text than the teacher before any training, by %.4f nats per token.", -way)
	case way < leastGap:
		return fmt.Sprintf(" There was hardly a gap to close: the untrained student and the teacher differ by %.4f nats per token.", math.Abs(way))
	}
	return ""
}
