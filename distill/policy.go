package distill

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"apr/corpus"
	"apr/device"
	"apr/generate"
	"apr/internal/fault"
	"apr/model"
	runlog "apr/run/log"
	"apr/tokenizer"
)

// OnPolicy says which rows of a step the student writes itself: prompts that it goes on with by its present weights,
// at temperature 1. The teacher scores what it wrote, and the loss is the run's divergence there (generalised
// knowledge distillation, Agarwal et al. 2024, arXiv:2306.13649, whose λ is Fraction).
type OnPolicy struct {
	Fraction     float64 // of a step's rows; 0: none
	MaxTokens    int     // of what the student adds to a prompt
	PromptTokens int     // of a prompt from plain text; 0: plain text has none
	Samples      int     // texts for each prompt
	// Sampled descends the divergence by the drawn ids alone: see ownRows. Else by the whole vocabulary.
	Sampled bool
	Lag     int // updates of the weights between writing and training: 0, or 1 as in ahead.go
}

// On reports whether there are such rows.
func (o OnPolicy) On() bool { return o.Fraction > 0 }

// Rows returns how many of n rows the student writes.
func (o OnPolicy) Rows(n int) int {
	if !o.On() {
		return 0
	}
	return min(n, max(1, int(math.Round(o.Fraction*float64(n)))))
}

// validateOnPolicy refuses what rows of the student's own do not go with.
func (c Config) validateOnPolicy() error {
	o := c.OnPolicy
	if !o.On() {
		return nil
	}
	for _, t := range []struct {
		asked bool
		what  string
	}{
		{c.Loss.Alpha != 1, "--alpha below 1: cross-entropy on words that the student has drawn itself teaches nothing"},
		{c.FromCache != "", "--cache: it holds no logits of what the student is going to write"},
		{c.Ensemble.routed(), "--route"},
		{c.Control, "--control ce"},
		{c.Ranks.World > 1 || c.Ranks.SameBits, "several ranks, or --deterministic=world"},
	} {
		if t.asked {
			return fault.New(fault.Unavailable, "not built: --on-policy with %s", t.what).WithID("E-POLICY-001")
		}
	}
	if o.Sampled && o.Lag > 0 {
		return fault.New(fault.Unavailable, "not built: --on-policy-lag 1 with --on-policy-estimator sampled: a token that "+
			"older weights drew estimates the divergence of theirs").
			WithHint("--on-policy-estimator full").WithID("E-POLICY-007")
	}
	if o.Sampled && (c.Loss.Divergence != device.ReverseKL || c.Loss.Temperature != 1) {
		return fault.New(fault.Usage, "--on-policy-estimator sampled estimates the reverse KL divergence at temperature 1").
			WithHint("--divergence reverse-kl --temperature 1").WithID("E-POLICY-002")
	}
	return nil
}

// ownSlots bounds the texts that are written at a time.
const ownSlots = 64

// On a device other than a CPU rows are written in lock-step: togetherRows at a time at most, fewer where their keys
// and values would take more than togetherBytes.
const togetherRows, togetherBytes = 512, 8 << 30

// ownWriter writes texts by the weights that a model has at each call.
type ownWriter interface {
	Write(ctx context.Context, all []generate.Request) ([]generate.Text, error)
	Rehearse()
	Free()
}

// manner returns how many of a step's rows are written at a time, and whether in lock-step.
func (o OnPolicy) manner(m *model.Model, rows, seqLen int) (n int, together bool) {
	n = o.Rows(rows)
	if m.Device().Info().Kind == "cpu" || m.InStep(seqLen) != "" {
		return min(n, ownSlots), false
	}
	return m.LockstepRows(min(n, togetherRows), seqLen, ownSlots, togetherBytes), true
}

// newWriter reserves what writes the student's rows of a step; each has room for a whole row.
func (o OnPolicy) newWriter(m *model.Model, s device.Stream, rows, seqLen, vocab int) ownWriter {
	n, together := o.manner(m, rows, seqLen)
	if together {
		return generate.NewTogether(m, s, n, seqLen, vocab)
	}
	return generate.NewWriter(m, s, generate.EngineOptions{
		Slots: n, Capacity: seqLen + 1, Rows: generate.PassRows(m.Device()), Vocab: vocab,
	})
}

// policy writes the rows of a leg that are the student's own.
type policy struct {
	OnPolicy
	rows    int // of a step
	prompts *corpus.Prompts
	writer  ownWriter
	options generate.Options
	seqLen  int
	pad     int32
	guard   ownGuard
	ahead   *drawn // rows that are written before their step; nil: none are
	atOnce  bool   // they are written beside a step
	queue   *Queue // in which they are; nil: in the device's own
}

// newPolicy reserves the memory of generation; nil: the student writes nothing.
func (r *Run) newPolicy(student *model.Model) (p *policy, err error) {
	n := r.OnPolicy.Rows(r.Rows())
	if n == 0 {
		return nil, nil
	}
	p = &policy{
		OnPolicy: r.OnPolicy, rows: n, prompts: r.in.prompts, seqLen: r.SeqLen, pad: r.in.train.EOS,
		options: generate.Options{Temperature: 1, Seed: r.Seed, Stop: r.in.ends, Never: r.in.never},
	}
	writes, stream := student.Frozen(), r.stream
	if rec := r.queued(); rec != nil {
		if p.queue, err = OpenQueue(r.dev, rec); err != nil {
			return nil, err
		}
		p.atOnce, writes, stream = true, student.Beside(p.queue.Device), p.queue.Device.NewStream()
	} else if r.OnPolicy.beside(r.dev.Info()) {
		p.atOnce, stream = true, r.dev.NewStream()
	}
	p.writer = r.OnPolicy.newWriter(writes, stream, r.Rows(), r.SeqLen, r.in.vocab)
	return p, nil
}

// drawn is what the student wrote for a step.
type drawn struct {
	step    int // whose rows they are
	by      int // the step by whose weights, before its update, they were written: step − by is the lag
	texts   []generate.Text
	prompts [][]int32
	words   [][]int32 // what the teacher reads in the place of each prompt
	took    time.Duration
}

// write lets the student write the rows of a step by its present weights. Prompts are taken in order, Samples texts
// of each, and the random numbers are a function of seed, step and row: nothing else has to be kept to go on from a
// checkpoint.
func (p *policy) write(ctx context.Context, step int) (d drawn, err error) {
	start := time.Now()
	requests, d := p.requests(step)
	if d.texts, err = p.writer.Write(ctx, requests); err != nil {
		return d, fmt.Errorf("step %d: the student's texts: %w", step, err)
	}
	d.took = time.Since(start)
	return d, nil
}

// requests are those for the rows of a step, and the prompts of what is drawn.
func (p *policy) requests(step int) (requests []generate.Request, d drawn) {
	d.step, d.by = step, step
	requests = make([]generate.Request, p.rows)
	for i := range requests {
		k := int64(step)*int64(p.rows) + int64(i)
		prompt, words := p.prompts.At(k/int64(p.Samples), p.options.Seed)
		r := generate.Request{Prompt: prompt, Options: p.options, Sample: int(k), KeepStop: true}
		r.MaxTokens = min(p.MaxTokens, p.seqLen+1-len(prompt))
		requests[i] = r
		d.prompts, d.words = append(d.prompts, prompt), append(d.words, words)
	}
	return requests, d
}

// add returns b with the student's rows behind its own. In these the drawn ids are the targets that count; the prompt
// and what is behind the end are masked.
func (p *policy) add(b corpus.Batch, d drawn) corpus.Batch {
	rows := b.Rows + len(d.texts)
	all := corpus.Batch{
		Rows: rows, SeqLen: p.seqLen, Starts: b.Starts,
		Tokens: slices.Clip(b.Tokens), Targets: slices.Clip(b.Targets), Mask: slices.Clip(b.Mask),
	}
	for i, t := range d.texts {
		all = appendOwn(all, d.prompts[i], t.IDs, p.pad)
	}
	if b.Starts != nil {
		all.Starts = append(slices.Clip(b.Starts), make([]int32, len(all.Tokens)-len(b.Tokens))...)
	}
	return all
}

// findPrompts finds what the student goes on with, what ends it, and what it must not write.
func (in *inputs) findPrompts(c Config, end int32, obs Observer) (err error) {
	if !c.OnPolicy.On() {
		return nil
	}
	o := corpus.PromptOptions{SeqLen: c.SeqLen, Plain: c.OnPolicy.PromptTokens}
	if in.prompts, err = corpus.NewPrompts(in.train, o); err != nil {
		return err
	}
	if in.prompts.Long > 0 {
		obs.Message("warning: %d prompts of later replies are longer than a row of %d tokens and are left out",
			in.prompts.Long, c.SeqLen)
	}
	if err := in.findWords(c); err != nil {
		return err
	}
	in.ends = []int32{in.train.EOS}
	if end != tokenizer.None && !slices.Contains(in.ends, end) {
		in.ends = append(in.ends, end)
	}
	for id := range int32(in.vocab) {
		if in.tokenizer == nil || slices.Contains(in.ends, id) {
			continue
		}
		switch in.tokenizer.Kind(id) {
		case tokenizer.Control, tokenizer.Unknown, tokenizer.Unused:
			in.never = append(in.never, id)
		}
	}
	return nil
}

// ownSteps returns the steps after which every prompt was gone on with at least epochs times.
func (in *inputs) ownSteps(c Config, epochs int) int64 {
	n, all := int64(c.OnPolicy.Rows(c.Rows())), int64(epochs)*int64(in.prompts.Len())*int64(c.OnPolicy.Samples)
	return (all + n - 1) / n
}

// recordOnPolicy writes down what the student writes itself.
func (r *Run) recordOnPolicy(student *model.Model) error {
	o := r.OnPolicy
	if !o.On() {
		return nil
	}
	n := o.Rows(r.Rows())
	estimator := "full"
	if o.Sampled {
		estimator = "sampled"
	}
	at, together := o.manner(student, r.Rows(), r.SeqLen)
	beside := o.beside(r.dev.Info()) || r.queued() != nil
	detail := map[string]any{
		"rows": n, "of": r.Rows(), "prompts": r.in.prompts.Len(), "samples_per_prompt": o.Samples, "max_tokens": o.MaxTokens,
		"estimator": estimator, "lag": o.Lag, "beside_the_step": beside, "at_a_time": at,
		"in_lockstep": together, "ends": r.in.ends, "never_drawn": r.in.never,
	}
	reason := fmt.Sprintf("%d of %d rows of a step are the student's own, by its weights before it", n, r.Rows())
	switch {
	case beside:
		reason = fmt.Sprintf("%d of %d rows of a step are the student's own, by its weights before the step before it, "+
			"beside which they are written", n, r.Rows())
	case o.Lag > 0:
		reason = fmt.Sprintf("%d of %d rows of a step are the student's own, by its weights before the step before it; they "+
			"are written before that step: %s", n, r.Rows(), r.in.choice.Chosen.before)
		detail["why_before"] = r.in.choice.Chosen.before
	}
	r.obs.Detail("on-policy: %s", reason)
	return r.dir.Event("decision", "on-policy", detail, reason)
}

// errSampling says that a signal came while the student wrote: the step has not begun.
var errSampling = errors.New("stopped while the student wrote")

// readOwn describes what the student wrote for a step, and holds the probabilities that its tokens had in the step
// against those that the sampler drew them by. failed is the step's own error, which is returned if there is no
// other.
func (l *leg) readOwn(d drawn, failed error) (*runlog.OnPolicy, error) {
	now, err := l.trainer.own.logProbs(l.trainer.stream)
	if err != nil {
		return nil, err
	}
	o, at := &runlog.OnPolicy{Rows: len(d.texts), MS: float64(d.took.Microseconds()) / 1e3}, 0
	var off []float64
	var surprise, ratio, most float64
	pairs, fresh := 0, 0
	for _, t := range d.texts {
		o.Tokens += len(t.IDs)
		if t.Stopped {
			o.Ended++
		}
		seen := map[[2]int32]bool{}
		for i, before := range t.LogProbs {
			off = append(off, math.Abs(float64(now[at])-before))
			weight := math.Exp(float64(now[at]) - before)
			ratio, most = ratio+weight, math.Max(most, weight)
			surprise -= before
			at++
			if i > 0 {
				pair := [2]int32{t.IDs[i-1], t.IDs[i]}
				if pairs++; !seen[pair] {
					fresh++
				}
				seen[pair] = true
			}
		}
	}
	if at != len(now) {
		panic(fmt.Sprintf("distill: the step saw %d of %d tokens that the student drew", len(now), at))
	}
	slices.Sort(off)
	sum := 0.0
	for _, x := range off {
		sum += x
	}
	n := float64(len(off))
	o.Length, o.Ended = n/float64(o.Rows), o.Ended/float64(o.Rows)
	o.Entropy, o.Distinct = runlog.Number(surprise/n), runlog.Number(float64(fresh)/float64(pairs))
	if l.policy.Lag > 0 {
		mean, most := runlog.Number(ratio/n), runlog.Number(most)
		lag := d.step - d.by
		o.Lag, o.Ratio, o.RatioMost = &lag, &mean, &most
	}
	last := len(off) - 1
	o.Off, o.Off999, o.OffMost = runlog.Number(sum/n), runlog.Number(off[last*999/1000]), runlog.Number(off[last])
	return o, failed
}
