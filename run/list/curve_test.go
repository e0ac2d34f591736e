package runs

import (
	"testing"

	runlog "apr/run/log"
)

// The small curve is of applied and refused steps of the student that have a loss, in order, each point a mean.
func TestCurve(t *testing.T) {
	var steps []runlog.Step
	for k := range 480 {
		steps = append(steps, runlog.Step{Leg: "student", Step: k, Loss: runlog.Number(k / 10)}, runlog.Step{Leg: "control", Step: k, Loss: 99})
	}
	got := curve(steps)
	if len(got) != curvePoints {
		t.Fatalf("%d points", len(got))
	}
	for i, v := range got {
		if v != runlog.Number(i) {
			t.Errorf("point %d is %v", i, v)
		}
	}
	if got := curve(steps[:2]); len(got) != 1 || got[0] != 0 {
		t.Errorf("one step: %v", got)
	}
	if got := curve(nil); got != nil {
		t.Errorf("no step: %v", got)
	}
}
