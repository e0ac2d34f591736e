package diagnose

import (
	"fmt"
	"math"
	"slices"
	"strings"

	runlog "apr/run/log"
)

// A fate is what the name of a death says.
type fate struct{ id, cause, advice string }

// fateOf returns the fate of a process by the name of its death; false: it has told its reason itself.
func fateOf(name string) (fate, bool) {
	switch name {
	case "out of memory":
		return fate{"oom", "out of memory: the kernel killed the process",
			"apr plan says what the step needs; a smaller --batch-size with a larger --grad-accum gives the same gradient"}, true
	case "not out of memory":
		return fate{"killed", "killed by somebody, not for want of memory", "who sent SIGKILL is not recorded: ask the scheduler, or the person"}, true
	case "hung":
		return fate{"hung", "hung: it gave no sign of life, and the supervisor ended it", ""}, true
	case "aborted", "segmentation fault", "bus error", "illegal instruction", "floating point exception", "bad system call":
		return fate{"crash", "a crash in code: " + name, "a defect: the stacks are on the standard error of the run; please report them"}, true
	}
	return fate{"killed-unknown", Unknown, ""}, !strings.HasPrefix(name, "exit code ")
}

// deaths are the ends of the process that the supervisor saw.
func deaths(r *records) (out []Finding) {
	for _, e := range r.latest {
		if e.Kind != "death" {
			continue
		}
		if f, ok := fateOf(e.Name); ok {
			out = append(out, Finding{ID: f.id, Symptom: e.Reason, Cause: f.cause, Advice: f.advice, Fatal: true, Evidence: []Evidence{e.evidence()}, at: e.Time})
		}
	}
	return out
}

// restarts are the ends of the process after which the supervisor started it again, and the run went on.
func restarts(r *records) (out []Finding) {
	for i, e := range r.events[:len(r.events)-len(r.latest)] {
		if again, _ := e.detail["started_again"].(bool); e.Kind != "death" || !again {
			continue
		}
		fate, _ := fateOf(e.Name)
		f := Finding{ID: "restarted", Symptom: e.Reason, Cause: fate.cause, Evidence: []Evidence{e.evidence()}, at: e.Time,
			Advice: "it was started again by itself, from the beginning: there was no checkpoint yet"}
		if leg := e.get("leg"); leg != "" {
			f.Symptom = fmt.Sprintf("after step %.0f of the %s: %s", number(e.detail["step"]), leg, e.Reason)
		}
		for _, next := range r.events[i+1:] {
			if next.Kind == "death" {
				break
			}
			if next.Kind == "decision" && next.Name == "resume" {
				f.Advice = fmt.Sprintf("it was started again by itself and went on after step %.0f; nothing is to be done", number(next.detail["step"]))
				f.Evidence = append(f.Evidence, next.evidence())
				break
			}
		}
		out = append(out, f)
	}
	return out
}

// stalls are hangs that the watchdog saw.
func stalls(r *records) (out []Finding) {
	for _, e := range r.latest {
		if e.Kind != "stall" {
			continue
		}
		at := e.get("last_operation")
		if phase := e.get("phase"); phase != "" && phase != at {
			at = phase + ": " + at
		}
		f := Finding{
			ID: "hung", Symptom: fmt.Sprintf("no progress for %.0f s, exit 22", number(e.detail["idle_seconds"])), Fatal: true, at: e.Time,
			Cause: "hung in " + at, Evidence: []Evidence{e.evidence()},
			Advice: "the stacks of all goroutines say where each waits; " + r.resumption(),
		}
		if name := e.get("stacks"); name != "" {
			f.Evidence = append(f.Evidence, r.find(name, "last operation")...)
		}
		out = append(out, f)
	}
	return out
}

func number(v any) float64 {
	x, ok := v.(float64)
	if !ok {
		return math.NaN()
	}
	return x
}

// divergence are refused steps, not finite or with a loss far above those before: three in a row end the run.
func divergence(r *records) []Finding {
	var row []event
	for _, e := range r.latest {
		if e.Kind != "warning" || e.Name != "non-finite step" && e.Name != "diverging step" {
			continue
		}
		if n := len(row); n > 0 && (number(e.detail["step"]) != number(row[n-1].detail["step"])+1 || e.get("leg") != row[n-1].get("leg")) {
			row = nil
		}
		row = append(row, e)
	}
	if len(row) == 0 {
		return nil
	}
	f := Finding{ID: "diverged", at: row[len(row)-1].Time, Cause: Unknown}
	for _, e := range row {
		f.Evidence = append(f.Evidence, e.evidence())
	}
	first := row[0]
	before := "no step was applied before"
	for _, s := range applied(r.steps, first.get("leg")) {
		if float64(s.Step.Step) < number(first.detail["step"]) {
			before = fmt.Sprintf("the last that was applied is step %d, at a learning rate of %.3g and with a loss of %.4g", s.Step.Step, s.LR, float64(s.Loss))
		}
	}
	cause := "the gradient was not finite in " + first.get("tensor")
	f.Symptom = fmt.Sprintf("%d steps in a row were not finite, first step %.0f in %s, and were not applied; %s", len(row), number(first.detail["step"]), first.get("tensor"), before)
	if first.Name == "diverging step" {
		cause = fmt.Sprintf("the loss rose to %.4g, where at most %.4g was expected", number(first.detail["loss"]), number(first.detail["limit"]))
		f.Symptom = fmt.Sprintf("%d steps in a row had a loss far above those before, first step %.0f with %.4g, and were not applied; %s", len(row), number(first.detail["step"]), number(first.detail["loss"]), before)
	}
	f.Advice = "lower --learning-rate (now " + r.setting("learning_rate") + "), lengthen the warm-up, or look at the rows named and at the steps before, which may have ruined the weights"
	const limit = 3
	if f.Fatal = len(row) >= limit; f.Fatal {
		f.Cause = "diverged: " + cause
	}
	return []Finding{f}
}

// ownTextEnds are the end of a run because of what its student wrote itself.
func ownTextEnds(r *records) (out []Finding) {
	for _, e := range r.latest {
		f := Finding{Symptom: e.Reason, Fatal: true, Evidence: []Evidence{e.evidence()}, at: e.Time,
			Advice: "lower --learning-rate (now " + r.setting("learning_rate") + ") or --on-policy (now " +
				r.setting("on_policy") + "), or begin with a student that has read the data"}
		switch e.Name {
		case runlog.OwnTextGrows:
			f.ID, f.Cause = "own-text-grows", "length inflation: the student no longer ends what it writes"
		case runlog.OwnTextRepeats:
			f.ID, f.Cause = "own-text-repeats", "collapse: the student repeats itself in what it writes"
		case runlog.OwnTextCollapses:
			f.ID, f.Cause = "own-text-collapses", "collapse: the student writes the same whatever is drawn"
		default:
			continue
		}
		out = append(out, f)
	}
	return out
}

// enough is how many steps a statement about a whole run needs.
const enough = 5

// inBlocks reports whether the student was trained in quantised blocks.
func (r *records) inBlocks() bool {
	scheme, _ := r.run.InForce.Config["quantize_aware"].Value.(string)
	return scheme != ""
}

// degenerate: nothing can be learned from a teacher that is the student, and nothing is if the loss does not move.
func degenerate(r *records) (out []Finding) {
	steps := finite(r.steps, "student")
	taught := len(steps) == 0 || slices.ContainsFunc(steps, func(s step) bool { return s.kl != nil })
	// However few steps there are; text alone is no teacher, a student in blocks has what rounding took to learn, and one
	// whose teacher reads other words has these.
	otherWords := slices.ContainsFunc(r.events, func(e event) bool { return e.Name == runlog.WordsOfTeacher })
	if sum, same := r.sameModel(); same && taught && !r.inBlocks() && !otherWords {
		proof := r.find(r.run.Settings, sum)
		if len(steps) > 0 {
			proof = append(proof, ends(steps)...)
		}
		return []Finding{{ID: "degenerate", Symptom: "there is nothing to learn", Cause: "teacher and student are the same model", Fatal: true,
			Evidence: proof, at: r.run.Manifest.Started, Advice: "give another teacher"}}
	}
	if len(steps) < enough {
		return nil
	}
	largest, computed := 0.0, 0
	low, high := math.Inf(1), math.Inf(-1)
	for _, s := range steps {
		low, high = min(low, float64(s.Loss)), max(high, float64(s.Loss))
		if s.kl != nil {
			computed++
			largest = max(largest, math.Abs(*s.kl))
		}
	}
	if computed == len(steps) && largest <= 1e-6 {
		out = append(out, Finding{ID: "degenerate", Symptom: fmt.Sprintf("the divergence from the teacher never exceeds %.1e nats", largest),
			Cause: "the student gives the teacher's distribution from the start: there is nothing to learn", Fatal: true, Evidence: ends(steps), at: r.run.Manifest.Started})
	}
	if high == low {
		out = append(out, Finding{ID: "constant-loss", Symptom: fmt.Sprintf("the loss is %g in all %d steps", low, len(steps)), Cause: Unknown, Fatal: true,
			Evidence: ends(steps), at: r.run.Manifest.Started})
	}
	return out
}

// ruined: a student whose loss ends far above where it began was made worse by its training.
func ruined(r *records) []Finding {
	steps := applied(r.steps, "student")
	if len(steps) < enough || r.run.Status == runlog.Running {
		return nil
	}
	const far = 1.0 // nats, as of divergence
	first, last := float64(steps[0].Loss), math.Inf(1)
	for _, s := range steps[len(steps)-enough:] { // the lowest, for one may be a bad draw
		last = min(last, float64(s.Loss))
	}
	if last <= first+far {
		return nil
	}
	return []Finding{{ID: "ruined", Symptom: fmt.Sprintf("the loss of the last %d steps is at least %.4g, that of the first was %.4g", enough, last, first),
		Cause: "training made the student worse: the steps were too large", Fatal: true, Evidence: ends(steps), at: r.run.Manifest.Started,
		Advice: "lower --learning-rate (now " + r.setting("learning_rate") + ") or lengthen the warm-up; --max-loss-ratio refuses steps that diverge"}}
}

// zeroRate: with a learning rate of zero in every step the weights cannot move.
func zeroRate(r *records) []Finding {
	steps := finite(r.steps, "student")
	if len(steps) < enough {
		return nil
	}
	for _, s := range steps {
		if s.LR != 0 {
			return nil
		}
	}
	return []Finding{{ID: "zero-learning-rate", Symptom: fmt.Sprintf("the learning rate is zero in all %d steps", len(steps)),
		Cause: "the learning rate is zero: learning_rate " + r.setting("learning_rate"), Fatal: true, at: r.run.Manifest.Started,
		Evidence: append(ends(steps), r.find(r.run.Settings, `"learning_rate"`)...)}}
}

// unmoved: a student that scores on the held-out text what it scored before the first step, to the last digit, was
// moved by less than its scores can show.
func unmoved(r *records) (out []Finding) {
	for _, e := range r.latest {
		if e.Kind != "evaluation" || e.Name != "held-out" {
			continue
		}
		nats := map[string]any{}
		all, _ := e.Detail.([]any)
		for _, x := range all {
			if m, ok := x.(map[string]any); ok {
				name, _ := m["name"].(string)
				nats[name] = m["nats_per_token"]
			}
		}
		before, known := nats["untrained student"].(float64)
		after, too := nats["distilled student"].(float64)
		if known && too && before == after {
			out = append(out, Finding{ID: "nothing-changed",
				Symptom: fmt.Sprintf("the student has %v nats per token on the held-out text before and after training, "+
					"to the last digit", after),
				Cause: "training changed nothing measurable: learning rate " + r.setting("learning_rate"), Fatal: true,
				Evidence: append([]Evidence{e.evidence()}, r.find(r.run.Settings, `"learning_rate"`)...),
				at:       r.run.Manifest.Started, Advice: "raise --learning-rate, or take more --steps"})
		}
	}
	return out
}

// stops are signals that the run obeyed.
func stops(r *records) (out []Finding) {
	for _, e := range r.latest {
		if e.Kind == "stop" {
			out = append(out, Finding{ID: "stopped", Symptom: "the run stopped in order, exit 20", Cause: "a " + e.Name, Fatal: true,
				Evidence: []Evidence{e.evidence()}, at: e.Time, Advice: r.resumption()})
		}
	}
	return out
}

// aborts are second signals, which end the process at once.
func aborts(r *records) (out []Finding) {
	for _, e := range r.latest {
		if e.Kind == runlog.Abort {
			out = append(out, Finding{ID: "aborted", Symptom: "the process ended at once, without a checkpoint", Cause: "a " + e.Name, Fatal: true,
				Evidence: []Evidence{e.evidence()}, at: e.Time, Advice: r.resumption()})
		}
	}
	return out
}

// lostRanks are the ends of runs that could not go on without a rank.
func lostRanks(r *records) (out []Finding) {
	for _, e := range r.latest {
		if e.Kind != runlog.LostRank {
			continue
		}
		advice := "the output of that rank, or of its machine, says more; "
		if e.Name == "damaged" {
			advice = "a network card, a switch or a machine's memory changes bytes: find it before the run goes on; "
		}
		out = append(out, Finding{ID: "lost-rank", Cause: e.Reason,
			Symptom: fmt.Sprintf("the run ended for want of rank %.0f", number(e.detail["rank"])),
			Fatal:   true, Evidence: []Evidence{e.evidence()}, at: e.Time, Advice: advice + r.resumption()})
	}
	return out
}

// receipt is what a failed run says itself.
func receipt(r *records) []Finding {
	if r.run.Receipt == nil || r.run.Receipt.Status != runlog.Failed {
		return nil
	}
	reason := r.run.Receipt.Reason
	f := Finding{ID: "failed", Symptom: reason, Cause: reason, Fatal: true, Evidence: r.find("receipt.json", `"reason"`), at: r.run.Receipt.Finished}
	switch {
	case strings.Contains(reason, "[E-FILE-015]"):
		f.ID, f.Symptom, f.Cause = "disk-full", "a file could not be written", "the disk is full: "+reason
		f.Advice = "make room; " + r.resumption()
	case strings.Contains(reason, "steps in a row were refused"):
		f.ID, f.Cause = "diverged", "diverged: "+reason
	}
	return []Finding{f}
}
