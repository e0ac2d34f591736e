package report

import (
	"fmt"
	"math"

	"apr/eval"
	runlog "apr/run/log"
)

// Score is a model on the held-out text. KL and Top1 compare it with the teacher.
type Score struct {
	Name         string        `json:"name"`
	Targets      int64         `json:"targets"`
	NatsPerToken runlog.Number `json:"nats_per_token"`
	Interval     Interval      `json:"nats_interval_95"`
	Perplexity   runlog.Number `json:"perplexity"`
	BitsPerByte  runlog.Number `json:"bits_per_byte"`
	KL           runlog.Number `json:"kl"`
	Top1         runlog.Number `json:"top1_agreement"`
	Acceptance   runlog.Number `json:"acceptance"`
}

// Interval is where a number lies with 95 % confidence: two bounds, or none if that is not known.
type Interval []runlog.Number

func (i Interval) known() bool { return len(i) == 2 && i[0].Finite() && i[1].Finite() }

// Half is half the interval's width.
func (i Interval) Half() runlog.Number {
	if !i.known() {
		return runlog.Number(math.NaN())
	}
	return (i[1] - i[0]) / 2
}

// minus is the interval of the number's negative.
func (i Interval) minus() Interval {
	if !i.known() {
		return i
	}
	return Interval{-i[1], -i[0]}
}

// String prints the bounds.
func (i Interval) String() string {
	if !i.known() {
		return "–"
	}
	return fixed(4, i[0]) + " to " + fixed(4, i[1])
}

// Margin is by how many nats per token the distilled student is better than another model.
type Margin struct {
	Over     string        `json:"over"`
	Nats     runlog.Number `json:"nats_per_token"`
	Error    runlog.Number `json:"standard_error"`
	Interval Interval      `json:"interval_95"`
	Blocks   *int          `json:"blocks"` // of held-out windows, by whose spread the error is judged; nil: not recorded
}

// few is how many windows the error rests on, where they are too few for the interval to mean something; else 0.
func (m Margin) few() int {
	if m.Blocks == nil || *m.Blocks >= eval.EnoughBlocks {
		return 0
	}
	return *m.Blocks
}

// Errors is the margin in standard errors.
func (m Margin) Errors() runlog.Number { return m.Nats / m.Error }

// Canary is a broken variant of the distilled student that went through the same evaluation.
type Canary struct {
	Name       string        `json:"name"`
	What       string        `json:"what"`
	Targets    int64         `json:"targets"`
	Nats       runlog.Number `json:"nats_per_token"`
	Perplexity runlog.Number `json:"perplexity"`
	Margin     Margin        `json:"margin"`
	Caught     bool          `json:"caught"`
}

// Names of evaluated models.
const (
	teacherScore   = "teacher"
	untrainedScore = "untrained student"
	distilledScore = "distilled student"
	controlScore   = "control student"
)

// evaluated reads what the run's last evaluation wrote down under a name: nothing if it did not.
func evaluated[T any](r *runlog.Record, name string) (rows []T) {
	if e := of(r, "evaluation", name); e != nil {
		decode(e.Detail, &rows)
	}
	return rows
}

// margins are those over the other models, then those over the canaries.
func margins(r *runlog.Record, canaries []Canary) []Margin {
	all := evaluated[Margin](r, "margins")
	for _, c := range canaries {
		m := c.Margin
		m.Over = "canary: " + c.Name
		all = append(all, m)
	}
	return all
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
	Tone      string
	Headline  string
	Detail    string
	Tiles     []Tile
	Gap       *Gap
	EqualTime *EqualTime // nil: not known
	Base      bool       // what the records call the teacher is the model that the student began as: there was no teacher
}

// Tile is a big number.
type Tile struct{ Name, Value, Unit, Note, Class string }

// judge words the verdict: the one place that says what a run was worth.
func judge(r *runlog.Record, out *outcome, rows []Score, margins []Margin, canaries []Canary) Verdict {
	distilled, control := find(rows, distilledScore), find(rows, controlScore)
	teacher, untrained := find(rows, teacherScore), find(rows, untrainedScore)
	alone := untaught(r)
	v := Verdict{Tone: Neutral, Base: ofBase(r)}
	v.Tiles = tiles(alone, v.Base, teacher, distilled, control, untrained)
	ignorant := !alone && (of(r, "warning", runlog.TeacherBelowFrequencies) != nil || of(r, "warning", runlog.TeacherBelowUniform) != nil)
	way := distilled != nil && uncaught(canaries) == nil && !ignorant && !alone // the way to a teacher that knows nothing, or taught nothing, says nothing
	if way {
		v.Gap = gapOf(untrained, distilled, control, teacher)
	}
	switch {
	case distilled == nil:
		v.unfinished(r)
	case uncaught(canaries) != nil:
		v.void(uncaught(canaries), distilled)
	case alone && control == nil:
		v.withoutTeacher(distilled, untrained, margins)
	case control == nil:
		v.withoutControl(distilled)
	default:
		v.EqualTime = equalTime(r, distilled, control)
		v.againstControl(r, distilled, control, out, margins)
	}
	if way {
		v.Detail += noGap(untrained, teacher)
	}
	if distilled != nil && ignorant {
		v.Detail += " The teacher knows no more of this text than how often each token occurs: see the warnings."
		if v.Tone == Good {
			v.Tone = Neutral
		}
	}
	if distilled != nil && r.Status != runlog.Completed {
		v.Detail += " The run itself is " + r.Status + "."
	}
	return v
}

func (v *Verdict) againstControl(r *runlog.Record, distilled, control *Score, out *outcome, margins []Margin) {
	margin := float64(control.NatsPerToken - distilled.NatsPerToken)
	same := "the same tokens"
	if out != nil && out.TokensSeen > 0 {
		same = "the same " + count(out.TokensSeen) + " tokens"
	}
	var interval Interval
	few := 0
	for _, m := range margins {
		if m.Over == controlScore {
			interval, few = m.Interval, m.few()
		}
	}
	sure := ""
	if interval.known() {
		sure = " (95 % interval " + interval.String() + ")"
	}
	switch shown := fmt.Sprintf("%.4f", margin); {
	case shown == "0.0000" || shown == "-0.0000":
		v.Headline = "Distillation made no difference" + sure
		v.Detail = fmt.Sprintf("On held-out text the distilled student and the control, trained on %s without the teacher, score the same to four digits.", same)
	case !interval.known():
		v.Headline = fmt.Sprintf("Whether distillation was worth it is not known: %+.4f nats per token against training without the teacher, with an error that is not known", margin)
		v.Detail = fmt.Sprintf("%s held-out tokens are too few to tell the distilled student from the control, trained on %s without the teacher.", count(distilled.Targets), same)
	case few > 0:
		v.Headline = fmt.Sprintf("Whether distillation was worth it is not known: %d windows are too few to tell; %+.4f nats per token against training without the teacher%s", few, margin, sure)
		v.Detail = fmt.Sprintf("On %s held-out tokens the distilled student is compared with the control, trained on %s without the teacher. An interval means something from %d windows on: more held-out text, or a smaller --seq-len, gives them.",
			count(distilled.Targets), same, eval.EnoughBlocks)
	case interval[0] <= 0 && interval[1] >= 0:
		v.Headline = fmt.Sprintf("Whether distillation was worth it is not known: %+.4f nats per token against training without the teacher%s", margin, sure)
		v.Detail = fmt.Sprintf("The interval holds 0: on %s held-out tokens the distilled student and the control, trained on %s without the teacher, cannot be told apart. More held-out text narrows it.",
			count(distilled.Targets), same)
	case margin > 0:
		v.better(margin, sure)
		v.Detail = fmt.Sprintf("On %s held-out tokens the distilled student beats a control that was trained on %s without the teacher: perplexity %s instead of %s.",
			count(distilled.Targets), same, perplexityText(distilled.Perplexity), perplexityText(control.Perplexity))
	default:
		v.Tone = Bad
		v.Headline = fmt.Sprintf("Distillation was not worth it: %.4f nats per token worse than without the teacher "+
			"at equal tokens (95 %% interval %s)", -margin, interval.minus())
		v.Detail = fmt.Sprintf("On %s held-out tokens a control that was trained on %s without the teacher does better: perplexity %s, the distilled student %s.",
			count(distilled.Targets), same, perplexityText(control.Perplexity), perplexityText(distilled.Perplexity))
	}
	v.Detail += notApplied(r)
	v.Detail += v.Gap.text()
	if v.EqualTime == nil {
		v.Detail += " How they compare at equal time cannot be told: " + unequal(r) + "."
	}
	v.Detail += v.EqualTime.text()
}

// notApplied says of how many tokens the student and the control have learned nothing, because the step was refused.
func notApplied(r *runlog.Record) string {
	lost := map[string]int64{}
	for _, s := range r.Steps {
		if s.Refused() {
			lost[s.Leg] += int64(s.Tokens)
		}
	}
	if len(lost) == 0 {
		return ""
	}
	return fmt.Sprintf(" Refused steps taught nothing: %s of these tokens of the student's, %s of the control's.",
		count(lost["student"]), count(lost["control"]))
}

// better words a student that is better than the control. It is only good news where the student has learned, and where the teacher
// has added to that.
func (v *Verdict) better(margin float64, sure string) {
	than := fmt.Sprintf("%.4f nats per token better than without the teacher at equal tokens%s", margin, sure)
	switch g := v.Gap; {
	case g == nil || g.Control == nil:
		v.Headline = "Distillation helped, by which part of the gap to the teacher is not known: " + than
	case g.Percent < leastClosed:
		v.Headline = fmt.Sprintf("The student has hardly learned yet: it has closed %s of the gap to the teacher; %s", percentText(g.Percent), than)
	case g.Percent-*g.Control < leastAdded:
		v.Headline = fmt.Sprintf("Distillation helped little, by %s of the gap to the teacher: %s", percentText(g.Percent-*g.Control), than)
	default:
		v.Tone = Good
		v.Headline = "Distillation was worth it: " + than
	}
}

// percentText prints a share: whole percents but for small ones.
func percentText(p float64) string {
	if math.Abs(p) < 10 {
		return fmt.Sprintf("%.1f %%", p)
	}
	return fmt.Sprintf("%.0f %%", p)
}

// perplexityText prints a perplexity in words: a digit behind the point, or thousands in groups.
func perplexityText(p runlog.Number) string {
	if p >= 1000 && p < 1e15 {
		return count(int64(math.Round(float64(p))))
	}
	return fmt.Sprintf("%.1f", p)
}

// uncaught returns a canary that the evaluation cannot tell from the student, nil without one.
func uncaught(canaries []Canary) *Canary {
	for i := range canaries {
		if !canaries[i].Caught {
			return &canaries[i]
		}
	}
	return nil
}

// void is the verdict on an evaluation that cannot tell the student from a broken model: whatever its scores
// compare, they do not say it. The detail says the rule with its numbers, since the student's score may look better
// than the broken model's.
func (v *Verdict) void(c *Canary, distilled *Score) {
	v.Tone = Bad
	v.Headline = fmt.Sprintf("The scores say nothing: the distilled student is not surely better than a broken model (%s: %s)", c.Name, c.What)
	v.Detail = fmt.Sprintf("It has %.4f nats per token, the broken model %.4f; to count, it is better by five standard "+
		"errors. What the teacher was worth cannot be read from these scores. More held-out text, or more training, may "+
		"change that.", distilled.NatsPerToken, float64(c.Nats))
}

func (v *Verdict) withoutControl(distilled *Score) {
	v.Headline = fmt.Sprintf("The distilled student scores %.4f nats per token on held-out text", distilled.NatsPerToken)
	v.Detail = "No control was trained, so what the teacher was worth is not known: --control ce tells." + v.Gap.text()
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
	at := fmt.Sprintf("Step %s of the %s: loss %.4f.", count(int64(last.Step+1)), last.Leg, last.Loss)
	if n := StepsOf(r, last.Leg); n > 0 {
		at = fmt.Sprintf("Step %s of %s of the %s: loss %.4f.", count(int64(last.Step+1)), count(int64(n)), last.Leg, last.Loss)
		if r.Status == runlog.Running {
			v.Gap = &Gap{From: "start", To: "end of the " + last.Leg, Percent: 100 * float64(last.Step+1) / float64(n)}
			v.Gap.Width = min(max(v.Gap.Percent, 0), 100)
		}
	}
	if v.Detail != "" {
		at = ". " + at
	}
	v.Detail += at
}

// StepsOf is how many steps a leg is to have, 0 if the run does not say.
func StepsOf(r *runlog.Record, leg string) int {
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
func tiles(alone, base bool, teacher, distilled, control, untrained *Score) (all []Tile) {
	learned, there := "learned from the teacher", "what there was to learn"
	if alone {
		learned, there = "learned from the text", "compared with, not learned from"
	}
	if base {
		there = "what the student began as"
		if teacher != nil && untrained != nil && teacher.NatsPerToken == untrained.NatsPerToken {
			untrained = nil
		}
	}
	for _, t := range []struct {
		s                 *Score
		name, note, class string
	}{
		{distilled, distilledScore, learned, "distilled"},
		{control, controlScore, "same tokens, no teacher", "control"},
		{teacher, teacherScore, there, "teacher"},
		{untrained, untrainedScore, "before the first step", "untrained"},
	} {
		if t.s != nil {
			unit := "nats/token"
			if half := t.s.Interval.Half(); half.Finite() {
				unit = "± " + fixed(4, half) + " nats/token"
			}
			all = append(all, Tile{Label(base, t.name), fmt.Sprintf("%.4f", t.s.NatsPerToken), unit, t.note, t.class})
		}
	}
	return all
}
