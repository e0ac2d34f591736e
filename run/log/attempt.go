package runlog

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"apr/internal/fault"
)

// Attempt is the kind of the event with which each process that works on a run begins: the first one, and one for each
// resumption. Its name is the attempt's number.
const Attempt = "attempt"

// LastAttempt returns the index of the first event of a run's last attempt, which began at a time. Runs of versions that did not
// write down where an attempt begins are cut by that time.
func LastAttempt(events []Event, began time.Time) int {
	for i := range slices.Backward(events) {
		if events[i].Kind == Attempt {
			return i
		}
	}
	i := slices.IndexFunc(events, func(e Event) bool { return !e.Time.Before(began) })
	if i < 0 {
		return len(events)
	}
	return i
}

// Totals are sums over the steps of a leg that were applied, by all attempts. A step that a resumption did again counts once.
type Totals struct {
	Steps   int // of the leg, up to the last that was applied
	Tokens  int64
	Targets int64
	Seconds float64 // in steps
}

// Sum adds up the steps of a leg. The order of additions is that of the steps, so that whoever adds them one by one gets the
// same bits.
func Sum(steps []Step, leg string) (t Totals) {
	for _, s := range steps {
		if s.Leg == leg && !s.Refused() {
			t.Add(s)
		}
	}
	return t
}

// Add adds a step that was applied.
func (t *Totals) Add(s Step) {
	t.Steps = s.Step + 1
	t.Tokens += int64(s.Tokens)
	t.Targets += int64(s.Targets)
	t.Seconds += s.MS.Total / 1e3
}

// TokensPerSecond is the rate of the steps: tokens over the time in steps. NaN without a step.
func (t Totals) TokensPerSecond() float64 {
	if !(t.Seconds > 0) {
		return math.NaN()
	}
	return float64(t.Tokens) / t.Seconds
}

// Written returns the steps and events that the run directory holds so far.
func (d *Dir) Written() (steps []Step, events []Event, err error) {
	if err := d.Flush(); err != nil {
		return nil, nil, err
	}
	damaged := 0
	if err := readLines(d.File("steps.jsonl"), &steps, &damaged); err != nil {
		return nil, nil, err
	}
	return steps, events, readLines(d.File("events.jsonl"), &events, &damaged)
}

// MakePrivate gives files of the run that others have written, and all below its folders, the modes of a run directory.
func (d *Dir) MakePrivate(names ...string) error {
	if err := d.Held(); err != nil {
		return err
	}
	for _, name := range names {
		err := filepath.WalkDir(d.File(name), func(path string, e os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			mode := os.FileMode(0o600)
			if e.IsDir() {
				mode = 0o700
			}
			return os.Chmod(path, mode)
		})
		if err != nil {
			return fault.In(fault.IO, d.File(name), "its mode cannot be changed").Because(err)
		}
	}
	return nil
}
