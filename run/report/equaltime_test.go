package report

import (
	"fmt"
	"strings"
	"testing"

	runlog "apr/run/log"
)

// timed is a run of two legs, whose steps take so many milliseconds, scored on the way after these steps.
func timed(student, control float64, scored map[int]float64) *runlog.Record {
	r := &runlog.Record{Manifest: &runlog.Manifest{}, Status: runlog.Completed}
	for _, l := range []struct {
		leg string
		ms  float64
	}{{"student", student}, {"control", control}} {
		for k := range 10 {
			r.Steps = append(r.Steps, runlog.Step{Leg: l.leg, Step: k, MS: runlog.Milliseconds{Total: l.ms}})
		}
		for k := range 10 {
			if nats, ok := scored[k]; ok {
				r.Events = append(r.Events, runlog.Event{Kind: "evaluation", Name: "held-out during training", Detail: map[string]any{"leg": l.leg, "step": k, "nats_per_token": nats}})
			}
		}
	}
	return r
}

func TestEqualTime(t *testing.T) {
	distilled, control := &Score{NatsPerToken: 3}, &Score{NatsPerToken: 4}
	for name, tt := range map[string]struct {
		r    *runlog.Record
		want string // seconds, who ended, step, scores; empty: not known
		text string
	}{
		"between two":      {timed(1000, 500, map[int]float64{4: 6, 8: 5}), "5 control 5/10 5.7500 4.0000", "behind: 5.7500"},
		"ahead":            {timed(1000, 900, map[int]float64{4: 3.6, 8: 3.2}), "9 control 9/10 3.1000 4.0000", "ahead: 3.1000"},
		"a longer control": {timed(500, 1000, map[int]float64{4: 6, 8: 5}), "5 student 5/10 3.0000 5.7500", "ahead: 3.0000"},
		"as long":          {timed(500, 500, map[int]float64{4: 6}), "5 control 10/10 3.0000 4.0000", "ahead: 3.0000"},
		"scored too late": {timed(1000, 300, map[int]float64{4: 6, 8: 5}), "",
			"the control had ended after 3s, before the distilled student was scored for the first time, after 4s"},
		"never scored": {timed(1000, 500, nil), "", "they were not scored on the way"},
		"no steps":     {&runlog.Record{Manifest: &runlog.Manifest{}}, "", "not all of their steps are recorded"},
	} {
		t.Run(name, func(t *testing.T) {
			e := equalTime(tt.r, distilled, control)
			got := ""
			if e != nil {
				got = fmt.Sprintf("%.6g %s %d/%d %.4f %.4f", e.Seconds, e.Ended, e.Step, e.Of, e.Distilled, e.Control)
			}
			text := e.text()
			if e == nil {
				text = unequal(tt.r)
			}
			if got != tt.want || !strings.Contains(text, tt.text) {
				t.Errorf("%q, %q; want %q and %q", got, text, tt.want, tt.text)
			}
		})
	}
	broken := timed(1000, 500, map[int]float64{4: 6, 8: 5})
	broken.Steps = broken.Steps[1:] // a step without a record
	if e := equalTime(broken, distilled, control); e != nil {
		t.Errorf("without the first step: %+v", e)
	}
}
