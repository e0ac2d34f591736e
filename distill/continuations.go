package distill

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"apr/corpus"
	"apr/device"
	"apr/eval"
	"apr/generate"
	"apr/model"
	runlog "apr/run/log"
	"apr/tokenizer"
)

// Bounds of the continuations: tokens of a prompt from plain text and of one that ends where the assistant answers,
// tokens that a model adds to a prompt, and the time that a model may take for all prompts.
const (
	promptTokens, longestPrompt = 40, 256
	newTokens                   = 64
	continuationTime            = 15 * time.Second
)

// PhaseContinuations is the last phase of a run whose report shows continued texts.
const PhaseContinuations = "continuing held-out text"

// prompt is a piece of held-out text that models continue.
type prompt struct {
	ids  []int32
	next []int32 // what the text goes on with; of a conversation, the answer
	last int32   // of a conversation: the id behind which the assistant writes no more; else tokenizer.None
}

// errTime ends a continuation that has taken long enough.
var errTime = errors.New("out of time")

// continueTexts lets the teacher and the trained students continue held-out text greedily, and records the size and the
// speed of teacher and student. The student is written by then: a device that has no room for a cache costs the run its
// continuations, not its end.
func (r *Run) continueTexts(ctx context.Context, big *model.Model, trained []eval.Subject) error {
	sizes := r.sizes()
	if prompts := r.prompts(); len(prompts) > 0 {
		r.obs.Phase(PhaseContinuations)
		subjects := trained
		// Several teachers are no one model.
		if len(r.in.more) == 0 && r.in.cache == nil && r.in.projected == nil && !r.in.elsewhere {
			subjects = append([]eval.Subject{{Name: nameTeacher, Model: big}}, trained...)
		}
		all, err := r.continueAll(ctx, subjects, prompts, sizes)
		if errors.Is(err, context.Canceled) {
			return r.stoppedAfterTraining()
		}
		if err != nil {
			r.obs.Message("warning: the report has no continued texts: %v", err)
			return errors.Join(r.dir.Event("warning", "no continued texts", nil, err.Error()), r.recordSizes(sizes))
		}
		r.samples.Continuations = all
		if err := r.dir.WriteSamples(r.samples); err != nil {
			return err
		}
	}
	return r.recordSizes(sizes)
}

// sizes are teacher and student without their speed.
func (r *Run) sizes() []runlog.ModelSize {
	now, _ := r.dev.Memory()
	student := runlog.ModelSize{Name: nameDistilled, Parameters: r.in.studentConfig.Parameters(), MemoryBytes: 4 * r.in.studentConfig.Parameters()}
	if r.in.adapter != nil {
		student.MemoryBytes = now[device.StudentWeights]
	}
	if st, err := os.Stat(r.dir.File("student.apr")); err == nil {
		student.FileBytes = st.Size()
	}
	if r.in.cache != nil || r.in.elsewhere { // it says nothing of the teacher's size
		return []runlog.ModelSize{student}
	}
	return []runlog.ModelSize{
		{Name: nameTeacher, Parameters: r.in.teacher.Config.Parameters(), FileBytes: r.in.teacher.Bytes(), MemoryBytes: now[device.TeacherWeights]},
		student,
	}
}

func (r *Run) recordSizes(all []runlog.ModelSize) error {
	return r.dir.Event("evaluation", runlog.SizesEvent, all, "memory and speed are those of this run's device and types")
}

// prompts chooses pieces of the held-out text, evenly spread: nothing without a tokenizer, or where none is asked for.
func (r *Run) prompts() (all []prompt) {
	held, tok := r.in.held, r.in.tokenizer
	if held == nil || tok == nil {
		return nil
	}
	room := min(r.in.teacher.Config.MaxPositions, r.in.studentConfig.MaxPositions) - newTokens
	for i := range r.Samples {
		p := cutPrompt(held, (2*i+1)*len(held.IDs)/(2*r.Samples), min(longestPrompt, room), func(id int32) bool { return strings.HasSuffix(r.text(id), "\n") })
		if bos := tok.BOS(); len(p.ids) > 0 && bos >= 0 && slices.Contains(held.IDs[:1], bos) && p.ids[0] != bos {
			p.ids = slices.Insert(p.ids, 0, bos)
		}
		if len(p.ids) > 0 && len(p.ids) <= room {
			all = append(all, p)
		}
	}
	return all
}

// cutPrompt returns a prompt of at most longest ids from the document that holds position at: of a conversation all
// before the first answer, of other text a piece at that place, from the beginning of a line if one is near. It is
// empty if there is no room.
func cutPrompt(t *corpus.Tokens, at, longest int, endsLine func(int32) bool) prompt {
	lo, hi := 0, len(t.IDs)
	for _, d := range t.Docs {
		if int(d.End) > at {
			hi = int(d.End)
			break
		}
		lo = int(d.End)
	}
	if from := answer(t, lo, hi); from > 0 {
		if from-lo > longest {
			return prompt{}
		}
		to := from
		for to < hi && t.Mask[to] == 1 {
			to++
		}
		return prompt{slices.Clone(t.IDs[lo:from]), t.IDs[from:min(from+newTokens, to)], t.IDs[to-1]}
	}
	n := min(promptTokens, longest, hi-lo-1)
	if n < 1 {
		return prompt{}
	}
	from := min(at, max(lo, hi-n-newTokens))
	for k := from; k >= lo && k > from-promptTokens; k-- {
		if k == lo || endsLine(t.IDs[k-1]) {
			from = k
			break
		}
	}
	return prompt{slices.Clone(t.IDs[from : from+n]), t.IDs[from+n : min(from+n+newTokens, hi)], tokenizer.None}
}

// answer returns where the first target of the document [lo, hi) stands, 0 if all of it are targets, or none.
func answer(t *corpus.Tokens, lo, hi int) int {
	if t.Mask == nil || hi-lo < 2 || t.Mask[lo+1] == 1 {
		return 0
	}
	if k := slices.Index(t.Mask[lo:hi], 1); k > 0 {
		return lo + k
	}
	return 0
}

// continueAll lets each model continue each prompt, and completes the sizes by the speed.
func (r *Run) continueAll(ctx context.Context, models []eval.Subject, prompts []prompt, sizes []runlog.ModelSize) ([]runlog.Continuation, error) {
	all := make([]runlog.Continuation, len(prompts))
	for i, p := range prompts {
		all[i] = runlog.Continuation{Prompt: r.join(p.ids), Text: r.join(p.next)}
	}
	done, total := 0, len(models)*len(prompts)
	for _, m := range models {
		tokens, seconds, begun := 0, 0.0, time.Now()
		for i, p := range prompts {
			a, took, err := r.continueOne(ctx, m.Model, p, r.stops(p), begun.Add(continuationTime))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", m.Name, err)
			}
			a.Model = m.Name
			all[i].Answers = append(all[i].Answers, a)
			tokens, seconds = tokens+max(0, a.Tokens-1), seconds+took.Seconds()
			done++
			r.obs.Advance(done, total)
		}
		for i := range sizes {
			if sizes[i].Name == m.Name && tokens >= newTokens/4 && seconds > 0 {
				speed := runlog.Number(float64(tokens) / seconds)
				sizes[i].TokensPerSecond = &speed
			}
		}
	}
	return all, nil
}

// continueOne continues a prompt until the deadline at most; took is the time from its first token to its last.
func (r *Run) continueOne(ctx context.Context, m *model.Model, p prompt, stops []int32, deadline time.Time) (a runlog.Answer, took time.Duration, err error) {
	var first, last time.Time
	o := generate.Options{MaxTokens: newTokens, RepeatPenalty: 1, Vocab: r.in.vocab, Stop: stops}
	res, err := generate.Generate(ctx, m, r.stream, p.ids, o, func(int32) error {
		if last = time.Now(); first.IsZero() {
			first = last
		}
		r.Watch.Doing("continuing held-out text")
		if last.After(deadline) {
			return errTime
		}
		return nil
	})
	if errors.Is(err, errTime) {
		res.FinishReason, err = "time", nil
	}
	return runlog.Answer{Text: r.join(res.IDs), Tokens: len(res.IDs), Finish: res.FinishReason}, last.Sub(first), err
}

// stops are the ids that end a text, and the control token that ends an answer, as apr run stops at it.
func (r *Run) stops(p prompt) (all []int32) {
	for _, id := range append([]int32{r.in.held.EOS, r.in.tokenizer.EOS()}, r.in.tokenizer.Ends()...) {
		if id >= 0 {
			all = append(all, id)
		}
	}
	if p.last != tokenizer.None && r.in.tokenizer.Kind(p.last) == tokenizer.Control {
		all = append(all, p.last)
	}
	return all
}

// join is the text of ids, as far as it is UTF-8.
func (r *Run) join(ids []int32) string {
	text, err := r.in.tokenizer.Decode(ids)
	if err != nil { // an id without text
		var b strings.Builder
		for _, id := range ids {
			b.WriteString(r.text(id))
		}
		text = b.String()
	}
	return text
}
