package main

import (
	"math"
	"time"

	"apr/distill"
	runlog "apr/run/log"
)

// clock estimates how long a run still takes: all steps of both legs, the evaluations between them and the one at the end. What was
// measured of this run counts; the rest follows from the parts of a step.
type clock struct {
	o         distill.Outline
	evalEvery int
	now       func() time.Time

	leg   string
	done  int       // steps of the leg
	seen  int       // of them by this process
	began time.Time // of the leg
	last  time.Time
	wall  average // seconds between the steps of the leg, with all that happens there but evaluations
	parts average // as wall, of the student's leg alone; of the control's where an earlier process has done the student's
	// seconds of a step by its parts
	teacher, student, loss average

	first   time.Time // when the first leg of this process began
	skipped int       // steps of the first leg that an earlier process has done
	later   bool      // the first leg is the control: an earlier process has done the student's
	shown   int       // the percentage that was shown last

	eval    float64 // seconds of an evaluation of one student; 0: none was measured
	evaling bool    // the time since the last step went into an evaluation
	ending  time.Time
	ahead   float64 // seconds that the end was estimated to take when it began

	said   float64 // seconds that were left when they were last said; 0: never
	saidAt time.Time
}

// steady is an average of many steps: the time left should not jump with every slow one.
var steady = average{keep: 100}

func newClock(o distill.Outline, evalEvery int) *clock {
	return &clock{o: o, evalEvery: evalEvery, now: time.Now}
}

// begin begins or continues a leg.
func (c *clock) begin(leg string, done int) {
	c.leg, c.done, c.seen, c.last, c.wall = leg, done, 0, c.now(), steady
	c.began = c.last
	if c.first.IsZero() {
		c.first, c.skipped, c.later = c.last, done, leg == distill.LegControl
	}
}

// warmUp is how many steps may still be slower than those that follow, as kernels are loaded and memory is touched.
const warmUp = 8

// afresh reports whether an average begins again with the next step: the first of a leg is slower than others and
// counts until there is another, and so do those of which the next takes less than half.
func (a average) afresh(next float64) bool {
	return a.n == 1 || a.n > 0 && a.n < warmUp && next < a.mean/2
}

// step takes in a step that was done.
func (c *clock) step(s runlog.Step) {
	now := c.now()
	took := max(now.Sub(c.last).Seconds(), s.MS.Total/1e3)
	if c.evaling {
		took = s.MS.Total / 1e3
	}
	c.last, c.done, c.evaling = now, s.Step+1, false
	c.seen++
	if c.seen == 2 || c.seen > 2 && c.wall.afresh(took) {
		c.wall = steady
	}
	c.wall.add(took)
	if c.leg != distill.LegStudent && !c.later {
		return
	}
	if c.seen == 2 || c.seen > 2 && c.parts.afresh(took) {
		c.parts, c.teacher, c.student, c.loss = steady, steady, steady, steady
	}
	c.parts.add(took)
	c.teacher.add(c.taught(s.MS))
	c.student.add(s.MS.Student / 1e3)
	c.loss.add(s.MS.Loss / 1e3)
}

// taught is the time of the teacher in a step, or, where the steps of the control are all that there is to judge by, of
// its forward pass: a third of the student's forward and backward, by their weights.
func (c *clock) taught(s runlog.Milliseconds) float64 {
	if !c.later {
		return s.Teacher / 1e3
	}
	return s.Student / 3e3 * float64(c.o.Teacher.Parameters) / float64(max(1, c.o.Student.Parameters))
}

// evaluated takes in an evaluation between steps.
func (c *clock) evaluated() {
	now := c.now()
	c.eval, c.evaling, c.last = now.Sub(c.last).Seconds(), true, now
}

// heldSteps is the held-out text in steps.
func (c *clock) heldSteps() float64 { return float64(c.o.HeldTokens) / float64(max(1, c.o.StepTokens)) }

// evaluation is the time of one student's evaluation: a forward pass, a third of forward and backward.
func (c *clock) evaluation() float64 {
	if c.eval > 0 || c.o.HeldTokens == 0 {
		return c.eval
	}
	return c.heldSteps() * (c.student.mean + c.loss.mean) / 3
}

// evaluations is how many evaluations come between the steps of a leg from done on.
func (c *clock) evaluations(done int) float64 {
	if c.evalEvery <= 0 || c.o.HeldTokens == 0 {
		return 0
	}
	return float64(max(0, (c.o.Steps-1)/c.evalEvery-done/c.evalEvery))
}

// outputSpeed is how fast the student's files are written and hashed, in bytes a second, for an estimate.
const outputSpeed = 300e6

// end is the time of all that comes after the steps: files, scores and continued texts. Scores are those of the
// teacher, the student before and after, the control, and two canaries; the teacher's probabilities are compared with
// those of three.
func (c *clock) end() float64 {
	t := float64(c.o.OutputBytes)/outputSpeed + c.writing()
	if c.o.HeldTokens == 0 {
		return t
	}
	students := 4.0
	if c.o.Control.On {
		students++
	}
	return t + c.heldSteps()*(c.teacher.mean+c.loss.mean/3) + students*c.evaluation()
}

// A token that is written takes some times as long as its share of a forward pass of many, and not less than some time.
const (
	writesSlower = 6
	writesLeast  = 1e-3 // seconds
)

// writing is the time of the continued texts: the teacher's, the student's and the control's.
func (c *clock) writing() float64 {
	one := func(forward float64) float64 { // of a step's tokens
		token := max(writesLeast, writesSlower*forward/float64(max(1, c.o.StepTokens)))
		return min(c.o.WritesFor.Seconds(), float64(c.o.Writes)*token)
	}
	students := 1.0
	if c.o.Control.On {
		students++
	}
	return one(c.teacher.mean) + students*one((c.student.mean+c.loss.mean)/3)
}

// left is the time until everything is done; 0 while nothing is known.
func (c *clock) left() time.Duration {
	if !c.ending.IsZero() {
		return seconds(max(0, c.ahead-c.now().Sub(c.ending).Seconds()))
	}
	alone, step := max(0, c.parts.mean-c.teacher.mean), c.wall.mean // a step without the teacher, and one of this leg
	if c.wall.n == 0 && c.leg == distill.LegControl {
		step = alone
	}
	if step == 0 {
		return 0
	}
	t := step*float64(c.o.Steps-c.done) + c.evaluation()*c.evaluations(c.done) + c.end()
	if c.leg == distill.LegStudent && c.o.Control.On {
		t += alone*float64(c.o.Steps) + c.evaluation()*c.evaluations(0)
	}
	return seconds(t)
}

// What has to be seen before the time left is said: some steps and a moment, or two that are so slow that nothing is
// gained by waiting.
const (
	settledSteps, settledSoon = 4, 2 * time.Second
	settledFew, settledLate   = 3, 10 * time.Second
	settledSlow               = 10.0 // seconds a step
)

// settled reports whether the time of a step is known: the first steps are slower than others.
func (c *clock) settled() bool {
	since := c.now().Sub(c.began)
	return c.said > 0 || !c.ending.IsZero() || c.seen >= settledSteps && since >= settledSoon || c.seen >= settledFew && since >= settledLate ||
		c.seen >= 2 && c.wall.mean >= settledSlow
}

// In a second, the time that is said may halve or double against what was said before less what has passed, or change
// by so much.
const slackSeconds = 2.0

// say returns the time left as it is shown: 0 until the time of a step is known, and then without jumps. Slow
// evaluations and checkpoints change what is left at once; what is shown follows in seconds.
func (c *clock) say() time.Duration {
	t := c.left().Seconds()
	if t == 0 || !c.settled() {
		return 0
	}
	now := c.now()
	if c.said > 0 {
		passed := now.Sub(c.saidAt).Seconds()
		expected := max(0, c.said-passed)
		share := min(1, passed)
		factor, slack := math.Exp2(share), slackSeconds*share
		t = min(max(t, min(expected/factor, expected-slack)), max(expected*factor, expected+slack))
	}
	c.said, c.saidAt = t, now
	return seconds(t)
}

// finish begins the evaluation at the end.
func (c *clock) finish() {
	if c.ending.IsZero() {
		c.ahead, c.ending = c.end(), c.now()
	}
}

// finishWriting begins the continued texts, the last of the end.
func (c *clock) finishWriting() {
	if !c.ending.IsZero() {
		c.ahead, c.ending = c.writing(), c.now()
	}
}

// percent returns how much of everything that the run does is done, by time: 100 only when no second is left. It does
// not fall. Until the time of a step is known it is otherwise.
func (c *clock) percent(otherwise int) int {
	if c.wall.n == 0 || c.first.IsZero() {
		return otherwise
	}
	left := c.said
	if left == 0 {
		left = c.left().Seconds()
	}
	before := c.wall.mean * float64(c.skipped)
	if c.later {
		before += c.wall.mean * float64(c.o.Steps)
	}
	passed := before + c.now().Sub(c.first).Seconds()
	stepped := c.done >= c.o.Steps && (c.leg == distill.LegControl || !c.o.Control.On)
	switch {
	case stepped && left < 0.5:
		c.shown = 100
	case passed+left > 0:
		c.shown = max(c.shown, min(99, int(100*passed/(passed+left))))
	}
	return c.shown
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
