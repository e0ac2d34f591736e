package verify

import (
	"fmt"
	"math"

	"apr/device"
	"apr/distill"
	runlog "apr/run/log"
)

// lines judges every line of steps.jsonl by itself: numbers without gaps, the learning rate of the schedule, loss =
// (1−α)·CE + α·T²·KL, and whether the gradient was clipped. One check is added for each, with the first line that is wrong.
func (v *verifier) lines() {
	c := v.Config
	k := c.Steps
	if k == 0 { // from the data: the schedule is judged when it has been read
		k = -1
	}
	for _, leg := range []string{distill.LegStudent, distill.LegControl} {
		steps := v.steps[leg]
		if len(steps) == 0 {
			continue
		}
		spec := c.Loss
		if leg == distill.LegControl {
			spec = device.LossSpec{Temperature: 1}
		}
		v.each(leg, "step", steps, func(i int, s runlog.Step) (any, any, bool) { return s.Step, i, s.Step == i })
		v.each(leg, "loss", steps, func(_ int, s runlog.Step) (any, any, bool) {
			if !s.Finite {
				return s.Loss, s.Loss, true
			}
			want := (1 - spec.Alpha) * float64(s.CE)
			if spec.Alpha != 0 {
				d := s.KL
				if s.SoftCE != nil {
					d = *s.SoftCE
				}
				want += spec.Alpha * spec.Temperature * spec.Temperature * float64(d)
			}
			if leg == distill.LegStudent && c.Guide.Weight != 0 && s.Hidden != nil {
				want += c.Guide.Weight * float64(*s.Hidden)
			}
			if leg == distill.LegStudent && c.Guide.Attention != 0 && s.Attention != nil {
				want += c.Guide.Attention * float64(*s.Attention)
			}
			return s.Loss, want, near(float64(s.Loss), want, 1e-9)
		})
		v.each(leg, "clipped", steps, func(_ int, s runlog.Step) (any, any, bool) {
			want := c.MaxGradNorm > 0 && c.MaxGradNorm/(float64(s.GradNorm)+1e-6) < 1
			return s.Clipped, want, s.Clipped == want || !s.Finite
		})
		v.each(leg, "targets", steps, func(_ int, s runlog.Step) (any, any, bool) {
			return s.Targets, fmt.Sprintf("1 to %d", s.Tokens), s.Targets >= 1 && s.Targets <= s.Tokens && s.Tokens == c.Rows()*c.SeqLen
		})
		if k > 0 {
			v.rates(leg, steps, k)
		}
	}
}

// rates compares learning rates with the schedule over k steps.
func (v *verifier) rates(leg string, steps []runlog.Step, k int) {
	schedule := v.Config.Schedules(k)
	v.each(leg, "lr", steps, func(i int, s runlog.Step) (any, any, bool) {
		want := schedule.At(i)
		return s.LR, want, near(s.LR*1e3, want*1e3, 1e-12)
	})
}

// each adds one check of a field of all lines of a leg.
func (v *verifier) each(leg, field string, steps []runlog.Step, judge func(int, runlog.Step) (logged, want any, ok bool)) {
	for i, s := range steps {
		if logged, want, ok := judge(i, s); !ok {
			v.add("lines", fmt.Sprintf("steps.jsonl: %s step %d: %s", leg, s.Step, field), logged, want, false)
			return
		}
	}
	v.add("lines", fmt.Sprintf("steps.jsonl: %s, all: %s", leg, field), len(steps), len(steps), true)
}

// summary compares the outcome with the lines.
func (v *verifier) summary() {
	var first, last, best float64
	all, seconds, begun := runlog.Sum(v.Record.Steps, distill.LegStudent), 0.0, false
	for _, s := range v.Record.Steps {
		seconds += s.MS.Total / 1e3
		if s.Leg != distill.LegStudent || s.Refused() {
			continue
		}
		if !begun {
			first, best, begun = float64(s.Loss), float64(s.Loss), true
		}
		last, best = float64(s.Loss), math.Min(best, float64(s.Loss))
	}
	r, at := v.result, "receipt.json: result."
	v.near("summary", at+"initial_loss", r.InitialLoss, first, 1e-12)
	v.near("summary", at+"final_loss", r.FinalLoss, last, 1e-12)
	v.near("summary", at+"best_loss", r.BestLoss, best, 1e-12)
	v.add("summary", at+"steps_completed", r.StepsCompleted, all.Steps, r.StepsCompleted == all.Steps)
	v.add("summary", at+"tokens_seen", r.TokensSeen, all.Tokens, r.TokensSeen == all.Tokens)
	v.near("summary", at+"seconds_in_steps", r.InSteps, all.Seconds, 1e-9)
	v.near("summary", at+"tokens_per_second", r.TokensPerSec, all.TokensPerSecond(), 1e-9)
	v.add("summary", at+"duration_seconds", r.Seconds, fmt.Sprintf("at least %g, the time in steps", seconds), r.Seconds >= seconds)
}
