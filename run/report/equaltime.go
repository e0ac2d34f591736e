package report

import (
	"fmt"

	runlog "apr/run/log"
)

// EqualTime compares both students when each has trained for the time that the shorter leg took. One of them was not at its end
// then: its learning rate was still high, and its score lies on a line between two evaluations.
type EqualTime struct {
	Seconds            float64 // of training, without evaluations and checkpoints
	Ended              string  // the leg that had ended
	Step, Of           int     // of the other leg
	Distilled, Control float64 // nats per token
}

// point is what a leg scored after some seconds of training.
type point struct{ seconds, nats float64 }

// equalTime compares the legs of a run at equal time; nil: they have too few evaluations for it, or too few steps are recorded.
func equalTime(r *runlog.Record, distilled, control *Score) *EqualTime {
	student, without := clockOf(r, "student"), clockOf(r, "control")
	if len(student) < 2 || len(without) < 2 {
		return nil
	}
	e := &EqualTime{Distilled: float64(distilled.NatsPerToken), Control: float64(control.NatsPerToken)}
	long, score, leg := student, &e.Distilled, "student"
	e.Seconds, e.Ended = without[len(without)-1], "control"
	if end := student[len(student)-1]; end < e.Seconds {
		long, score, leg = without, &e.Control, "control"
		e.Seconds, e.Ended = end, "student"
	}
	var ok bool
	if *score, ok = at(curve(r, leg, long, *score), e.Seconds); !ok {
		return nil
	}
	e.Of = len(long) - 1
	for e.Step+1 < len(long) && long[e.Step+1] <= e.Seconds {
		e.Step++
	}
	return e
}

// unequal says why a run's legs cannot be compared at equal time.
func unequal(r *runlog.Record) string {
	student, control := clockOf(r, "student"), clockOf(r, "control")
	if len(student) < 2 || len(control) < 2 {
		return "not all of their steps are recorded"
	}
	short, long, leg := "the control", "the distilled student", "student"
	most, end := student, control[len(control)-1]
	if s := student[len(student)-1]; s < end {
		short, long, leg, most, end = long, short, "control", control, s
	}
	scored := curve(r, leg, most, 0)
	if len(scored) < 2 {
		return "they were not scored on the way; --eval-every sets how often they are"
	}
	return fmt.Sprintf("%s had ended after %s, before %s was scored for the first time, after %s; "+
		"a smaller --eval-every scores sooner",
		short, duration(end), long, duration(scored[0].seconds))
}

// clockOf returns the seconds that a leg had trained for before each step, and at its end; nil if steps are missing.
func clockOf(r *runlog.Record, leg string) []float64 {
	t := []float64{0}
	for _, s := range r.Steps {
		if s.Leg != leg {
			continue
		}
		if s.Step != len(t)-1 || !(s.MS.Total > 0) {
			return nil
		}
		t = append(t, t[len(t)-1]+s.MS.Total/1e3)
	}
	return t
}

// curve returns what a leg scored on the held-out text over time, its end included.
func curve(r *runlog.Record, leg string, clock []float64, end float64) (all []point) {
	for _, e := range r.Events {
		var d struct {
			Leg  string        `json:"leg"`
			Step int           `json:"step"`
			Nats runlog.Number `json:"nats_per_token"`
		}
		if e.Kind != "evaluation" || e.Name != "held-out during training" || !decode(e.Detail, &d) || d.Leg != leg || !d.Nats.Finite() {
			continue
		}
		if d.Step > 0 && d.Step < len(clock) && (len(all) == 0 || clock[d.Step] > all[len(all)-1].seconds) {
			all = append(all, point{clock[d.Step], float64(d.Nats)})
		}
	}
	return append(all, point{clock[len(clock)-1], end})
}

// at reads a curve at a time, on a line between two points; false outside.
func at(all []point, seconds float64) (float64, bool) {
	for i := 1; i < len(all); i++ {
		if a, b := all[i-1], all[i]; a.seconds <= seconds && seconds <= b.seconds && a.seconds < b.seconds {
			return a.nats + (b.nats-a.nats)*(seconds-a.seconds)/(b.seconds-a.seconds), true
		}
	}
	return 0, false
}

// text says how the students compare at equal time; empty if that is not known.
func (e *EqualTime) text() string {
	if e == nil {
		return ""
	}
	who, other := "the distilled student", "the control"
	if e.Ended == "student" {
		who, other = other, who
	}
	ahead := "ahead"
	if e.Distilled > e.Control {
		ahead = "behind"
	}
	text := fmt.Sprintf(" At equal time, %s, the distilled student is %s: %.4f nats per token, the control %.4f", duration(e.Seconds), ahead, e.Distilled, e.Control)
	if e.Step == e.Of {
		return text + "."
	}
	return text + fmt.Sprintf("; %s had ended then, %s was at step %s of %s of its schedule.", other, who, count(int64(e.Step)), count(int64(e.Of)))
}
