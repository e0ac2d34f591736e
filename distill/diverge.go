package distill

import (
	"errors"
	"slices"
)

// ErrDiverged says that a step's loss was finite, and far above those before; the weights are as before the step.
var ErrDiverged = errors.New("the loss is far above those before")

// The rule of finite divergence: a loss above factor times the median of the last trendLength that were not, and more
// than trendRoom nats above the leg's first. Of 5,120 steps of the example, of 512 noisy targets each, the highest was
// 1.92 times the median (step 2221 of the student) and 0.65 nats above the first.
//
// Few losses have no median that says anything: a row of 64 tokens may be three times as hard as the one before it.
// Until trendStart steps were applied, a loss is not divergence either that is at most trendRoom above that of a
// student which knows nothing.
const (
	trendLength = 100
	trendRoom   = 1.0
	trendStart  = 8
)

// trend is what the losses of a leg's applied steps have been. It is part of a checkpoint, so that a resumed run judges
// as one that was never stopped.
type trend struct {
	First  *float64  `json:"first,omitempty"`  // nil before the first step
	Recent []float64 `json:"recent,omitempty"` // the last, the oldest first
}

// limit is the highest loss that is not divergence, more than 0; or 0, no limit: before the first step, or with
// factor 0. uniform is the loss of a student to which all ids are alike.
func (t *trend) limit(factor, uniform float64) float64 {
	if factor == 0 || t.First == nil {
		return 0
	}
	sorted := slices.Sorted(slices.Values(t.Recent))
	if len(sorted) < trendStart {
		return max(factor*sorted[len(sorted)/2], *t.First+trendRoom, uniform+trendRoom)
	}
	return max(factor*sorted[len(sorted)/2], *t.First+trendRoom)
}

// add takes the loss of a step that was applied into the trend.
func (t *trend) add(loss float64) {
	if t.First == nil {
		t.First = &loss
	}
	if len(t.Recent) == trendLength {
		t.Recent = slices.Delete(t.Recent, 0, 1)
	}
	t.Recent = append(t.Recent, loss)
}
