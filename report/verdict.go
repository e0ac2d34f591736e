package report

import (
	"fmt"

	"apr/runlog"
)

// Score is a model on the held-out text. KL and Top1 compare it with the teacher.
type Score struct {
	Name         string        `json:"name"`
	Targets      int64         `json:"targets"`
	NatsPerToken runlog.Number `json:"nats_per_token"`
	Perplexity   runlog.Number `json:"perplexity"`
	BitsPerByte  runlog.Number `json:"bits_per_byte"`
	KL           runlog.Number `json:"kl"`
	Top1         runlog.Number `json:"top1_agreement"`
}

// Names of evaluated models.
const (
	teacherScore   = "teacher"
	untrainedScore = "untrained student"
	distilledScore = "distilled student"
	controlScore   = "control student"
)

// scores are the rows of the run's last evaluation, with canaries if there were any.
func scores(r *runlog.Record) []Score {
	var rows []Score
	if e := of(r, "evaluation", "held-out"); e != nil {
		decode(e.Detail, &rows)
	}
	return rows
}

// find returns the score of that name, or nil; one that is not a number does not count.
func find(rows []Score, name string) *Score {
	for i := range rows {
		if rows[i].Name == name && rows[i].NatsPerToken.Finite() {
			return &rows[i]
		}
	}
	return nil
}

// The tones of a verdict.
const (
	Good    = "good"
	Bad     = "bad"
	Neutral = "neutral"
)

// Verdict answers whether distillation was worth it.
type Verdict struct {
	Tone     string
	Headline string
	Detail   string
	Tiles    []Tile
	Gap      *Gap
}

// Tile is a big number.
type Tile struct{ Name, Value, Unit, Note, Class string }

// Gap is how far the distilled student came on the way from the control, or else from the untrained student, to the
// teacher. Percent may be negative, or above 100.
type Gap struct {
	From, To string
	Percent  float64
	Width    float64 // Percent cut to [0, 100]
}

// gap is the share of (from − to) that (from − at) is, if there is a way to go.
func gap(from, at, to *Score, name string) *Gap {
	way := float64(from.NatsPerToken - to.NatsPerToken)
	if !(way > 0) {
		return nil
	}
	p := 100 * float64(from.NatsPerToken-at.NatsPerToken) / way
	return &Gap{From: name, To: "teacher", Percent: p, Width: min(max(p, 0), 100)}
}

// judge words the verdict.
func judge(r *runlog.Record, out *outcome, rows []Score) Verdict {
	distilled, control := find(rows, distilledScore), find(rows, controlScore)
	teacher, untrained := find(rows, teacherScore), find(rows, untrainedScore)
	v := Verdict{Tone: Neutral, Tiles: tiles(teacher, distilled, control, untrained)}
	switch {
	case distilled == nil:
		v.unfinished(r)
	case control == nil:
		v.withoutControl(distilled, teacher, untrained)
	default:
		v.againstControl(distilled, control, teacher, out)
	}
	if distilled != nil && r.Status != runlog.Completed {
		v.Detail += " The run itself is " + r.Status + "."
	}
	return v
}

func (v *Verdict) againstControl(distilled, control, teacher *Score, out *outcome) {
	margin := float64(control.NatsPerToken - distilled.NatsPerToken)
	same := "the same tokens"
	if out != nil && out.TokensSeen > 0 {
		same = "the same " + count(out.TokensSeen) + " tokens"
	}
	switch shown := fmt.Sprintf("%.4f", margin); {
	case shown == "0.0000" || shown == "-0.0000":
		v.Headline = "Distillation made no difference"
		v.Detail = fmt.Sprintf("On held-out text the distilled student and the control, trained on %s without the teacher, score the same.", same)
	case margin > 0:
		v.Tone = Good
		v.Headline = fmt.Sprintf("Distillation was worth it: %.4f nats per token better than without the teacher", margin)
		v.Detail = fmt.Sprintf("On %s held-out tokens the distilled student beats a control that was trained on %s without the teacher: perplexity %.1f instead of %.1f.",
			count(distilled.Targets), same, distilled.Perplexity, control.Perplexity)
	default:
		v.Tone = Bad
		v.Headline = fmt.Sprintf("Distillation was not worth it: %.4f nats per token worse than without the teacher", -margin)
		v.Detail = fmt.Sprintf("On %s held-out tokens a control that was trained on %s without the teacher does better: perplexity %.1f, the distilled student %.1f.",
			count(distilled.Targets), same, control.Perplexity, distilled.Perplexity)
	}
	if teacher != nil {
		v.Gap = gap(control, distilled, teacher, "control")
	}
}

func (v *Verdict) withoutControl(distilled, teacher, untrained *Score) {
	v.Headline = fmt.Sprintf("The distilled student scores %.4f nats per token on held-out text", distilled.NatsPerToken)
	v.Detail = "No control was trained, so what the teacher was worth is not known: --control ce tells."
	if teacher != nil && untrained != nil {
		v.Gap = gap(untrained, distilled, teacher, "untrained student")
	}
}

func (v *Verdict) unfinished(r *runlog.Record) {
	v.Headline = map[string]string{
		runlog.Running: "The run is at work", runlog.Stopped: "The run was stopped and can go on", runlog.Failed: "The run failed",
		runlog.Completed: "The run is over; nothing was held out to judge it by",
	}[r.Status]
	if r.Status == runlog.Failed {
		v.Tone = Bad
	}
	v.Detail = r.Reason
	last := r.Last()
	if last == nil || r.Status == runlog.Completed {
		return
	}
	at := fmt.Sprintf("Step %s of leg %s: loss %.4f.", count(int64(last.Step+1)), last.Leg, last.Loss)
	if n := stepsOf(r, last.Leg); n > 0 {
		at = fmt.Sprintf("Step %s of %s of leg %s: loss %.4f.", count(int64(last.Step+1)), count(int64(n)), last.Leg, last.Loss)
		if r.Status == runlog.Running {
			v.Gap = &Gap{From: "start", To: "end of leg " + last.Leg, Percent: 100 * float64(last.Step+1) / float64(n)}
			v.Gap.Width = min(max(v.Gap.Percent, 0), 100)
		}
	}
	if v.Detail != "" {
		at = ". " + at
	}
	v.Detail += at
}

// stepsOf is how many steps a leg is to have, 0 if the run does not say.
func stepsOf(r *runlog.Record, leg string) int {
	for i := len(r.Events) - 1; i >= 0; i-- {
		var d struct {
			Leg   string `json:"leg"`
			Steps int    `json:"steps"`
		}
		if e := r.Events[i]; e.Kind == "record" && e.Name == "leg" && decode(e.Detail, &d) && d.Leg == leg {
			return d.Steps
		}
	}
	return 0
}

// tiles are the numbers that the verdict rests on.
func tiles(teacher, distilled, control, untrained *Score) (all []Tile) {
	for _, t := range []struct {
		s                 *Score
		name, note, class string
	}{
		{distilled, "distilled student", "learned from the teacher", "distilled"},
		{control, "control student", "same tokens, no teacher", "control"},
		{teacher, "teacher", "what there was to learn", "teacher"},
		{untrained, "untrained student", "before the first step", "untrained"},
	} {
		if t.s != nil {
			all = append(all, Tile{t.name, fmt.Sprintf("%.4f", t.s.NatsPerToken), "nats/token", t.note, t.class})
		}
	}
	return all
}
