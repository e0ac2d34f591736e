package generate

import (
	"context"
	"math"
	"slices"

	"apr/device"
	"apr/internal/fault"
	"apr/model"
	"apr/tensor"
)

// Together writes many texts in lock-step: pass t feeds position t of every text, be it of its prompt or drawn, so that
// all are at one position, and every layer attends to all of them with one operation. Positions that are of prompts in
// all texts are read before, several of them in a pass, and once for texts that go on with one prompt. A text that has
// ended is fed with padding until all have. That suits texts of about one length, as a student's own rows are; a Writer
// suits others.
//
// Where the device draws (device.NextDrawer), logits stay there, and a drawn id depends on the request, the weights and
// the number of texts of a pass. Elsewhere it is chosen on the host as a Writer's is.
//
// On an H200 a pass over 512 texts of a 0.5B model, of 640 tokens at the end, takes 6.8 ms, launched
// kernel by kernel: 60,600 tokens a second.
type Together struct {
	m      *model.Model
	s      device.Stream
	vocab  int
	cache  *model.Lockstep
	ids    device.Tensor // I32 [rows, 1]
	prompt device.Tensor // I32 [texts·model.PromptPositions, 1]: of the texts that a pass over prompts reads
	hidden device.Tensor // [rows, h]
	logits device.Tensor // [rows, V]
	drawn  device.Tensor // I32 [rows, 1]
	out    device.Tensor // [rows, 2]
	keys   device.Tensor // I32 [2·rows, 1]
	never  device.Tensor // [1, V]
}

// promptTexts are the texts of which a pass reads prompts: the passes of all steps have one size.
const promptTexts = 64

// NewTogether reserves memory on the model's device for rows texts at a time of up to capacity tokens, with their
// prompts, over the first vocab ids. The model can be extended in lock-step: see model.Model.InStep.
func NewTogether(m *model.Model, s device.Stream, rows, capacity, vocab int) *Together {
	dev := m.Device()
	ints := func(name string, n int) device.Tensor { return dev.Alloc(name, device.Batch, tensor.I32, n, 1) }
	floats := func(name string, n, cols int) device.Tensor {
		return dev.Alloc(name, device.Logits, tensor.F32, n, cols)
	}
	return &Together{
		m: m, s: s, vocab: vocab, cache: m.NewLockstep(rows, min(capacity, m.Config.MaxPositions)),
		ids: ints("generate.ids", rows), prompt: ints("generate.prompt", min(rows, promptTexts)*model.PromptPositions),
		drawn: ints("generate.drawn", rows), keys: ints("generate.keys", 2*rows),
		hidden: dev.Alloc("generate.hidden", device.Activations, dev.Info().Activations, rows, m.Config.Hidden),
		logits: floats("generate.logits", rows, vocab), out: floats("generate.out", rows, 2),
		never: floats("generate.never", 1, vocab),
	}
}

// Free gives the memory back; the writer must not be used afterwards.
func (w *Together) Free() {
	w.cache.Free()
	w.m.Device().Free(w.ids, w.prompt, w.hidden, w.logits, w.drawn, w.out, w.keys, w.never)
}

// Write continues all texts and returns them in the order of the requests. All have the same ids that are never drawn.
// Requests are drawn from the whole vocabulary at temperature 1. The end of ctx is its error; the texts are then lost.
func (w *Together) Write(ctx context.Context, all []Request) ([]Text, error) {
	qs := make([]*Sequence, len(all))
	for i, r := range all {
		r.Vocab, r.RepeatPenalty = w.vocab, 1
		if err := r.check(w.m, r.Prompt); err != nil {
			return nil, err
		}
		if n := len(r.Prompt) + r.MaxTokens; n > w.capacity() {
			return nil, fault.New(fault.Inference, "a prompt of %d tokens and %d more exceed the %d tokens of a text",
				len(r.Prompt), r.MaxTokens, w.capacity())
		}
		if r.Temperature != 1 || r.TopK > 0 || r.TopP > 0 && r.TopP < 1 {
			panic("generate: texts in lock-step are drawn from the whole vocabulary at temperature 1")
		}
		qs[i] = &Sequence{ctx: ctx, r: r, key: textKey(r), ids: append([]int32(nil), r.Prompt...)}
	}
	if len(all) > 0 {
		w.forbid(all[0].Never)
	}
	texts := make([]Text, len(all))
	for lo := 0; lo < len(all); lo += w.cache.Rows() {
		hi := min(lo+w.cache.Rows(), len(all))
		if err := w.wave(ctx, qs[lo:hi], texts[lo:hi]); err != nil {
			return nil, err
		}
	}
	return texts, nil
}

// capacity is how many tokens a text has at most, with its prompt.
func (w *Together) capacity() int { return min(w.m.Config.MaxPositions, w.cache.Capacity()+1) }

// forbid uploads the ids that are never drawn.
func (w *Together) forbid(never []int32) {
	host := make([]float32, w.vocab)
	for _, id := range never {
		host[id] = float32(math.Inf(-1))
	}
	w.s.Upload(w.never, host)
}

// wave writes as many texts as there are rows at most.
func (w *Together) wave(ctx context.Context, qs []*Sequence, texts []Text) error {
	w.cache.Reset()
	w.readPrompts(qs)
	left := 0
	for i, q := range qs {
		if !texts[i].done(q) {
			left++
		}
	}
	for left > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		ids, due := make([]int32, w.cache.Rows()), make([]bool, len(qs))
		t, any := w.cache.Len(), false
		for i, q := range qs {
			if t < len(q.ids) {
				ids[i] = q.ids[t]
				due[i] = t == len(q.ids)-1 && !texts[i].done(q)
				any = any || due[i]
			}
		}
		w.s.UploadInts(w.ids, ids)
		w.m.ExtendTogether(w.s, w.hidden, w.cache, w.ids)
		if !any {
			continue // all are in their prompts
		}
		tokens, err := w.choose(qs, due)
		if err != nil {
			return err
		}
		for i, q := range qs {
			if due[i] && texts[i].add(q, tokens[i]) {
				left--
			}
		}
	}
	return nil
}

// readPrompts reads the positions that are of prompts in all texts, as far as whole passes go. The last position of a
// prompt is left, behind which a token is drawn.
func (w *Together) readPrompts(qs []*Sequence) {
	shared := len(qs[0].ids) - 1
	for _, q := range qs {
		shared = min(shared, len(q.ids)-1)
	}
	texts := w.prompt.Rows / model.PromptPositions
	group := w.samples(qs, shared, texts)
	host := make([]int32, w.prompt.Rows)
	for w.cache.Len()+model.PromptPositions <= shared {
		from, all := w.cache.Len(), w.cache.Rows()/group
		for pass := 0; pass < all; pass += texts {
			first := min(pass, all-texts) * group // the last pass may read some again
			clear(host)
			for i := range texts {
				if at := first + i*group; at < len(qs) {
					copy(host[i*model.PromptPositions:], qs[at].ids[from:from+model.PromptPositions])
				}
			}
			w.s.UploadInts(w.prompt, host)
			w.m.ReadTogether(w.s, w.cache, w.prompt, first, group)
		}
		w.cache.Advance(model.PromptPositions)
	}
}

// samples returns of how many texts in turn each has the same first n tokens, in all of qs: so many that as many texts
// are left as a pass reads.
func (w *Together) samples(qs []*Sequence, n, texts int) int {
	same := func(group int) bool {
		for i, q := range qs {
			if !slices.Equal(q.ids[:n], qs[i-i%group].ids[:n]) {
				return false
			}
		}
		return true
	}
	for group := w.cache.Rows() / texts; group > 1; group-- {
		if w.cache.Rows()%group == 0 && same(group) {
			return group
		}
	}
	return 1
}

// done reports whether nothing is to be drawn any more.
func (t *Text) done(q *Sequence) bool { return t.Stopped || q.made == q.r.MaxTokens }

// add appends a token and reports whether the text has ended.
func (t *Text) add(q *Sequence, token Token) bool {
	q.made++
	for _, id := range q.r.Stop {
		t.Stopped = t.Stopped || id == token.ID
	}
	if !t.Stopped || q.r.KeepStop {
		t.IDs, t.LogProbs, q.ids = append(t.IDs, token.ID), append(t.LogProbs, token.LogProb), append(q.ids, token.ID)
	}
	return t.done(q)
}

// choose draws the token behind the last position of the texts that are due.
func (w *Together) choose(qs []*Sequence, due []bool) ([]Token, error) {
	w.m.Logits(w.s, w.logits, w.hidden)
	tokens := make([]Token, len(qs))
	d, ok := w.s.(device.NextDrawer)
	if !ok || slices.Contains(w.m.Device().Info().Lacks, device.DrawsNext) {
		return tokens, w.pick(tokens, qs, due)
	}
	keys := make([]int32, 2*w.cache.Rows())
	for i, q := range qs {
		keys[2*i], keys[2*i+1] = q.nextKey()
	}
	w.s.UploadInts(w.keys, keys)
	d.DrawNext(w.drawn, w.out, w.logits, w.never, w.keys, device.Tensor{})
	host := make([]float32, 2*w.cache.Rows())
	if err := w.s.Download(host, w.out); err != nil {
		return nil, err
	}
	for i, q := range qs {
		if !due[i] {
			continue
		}
		tokens[i] = Token{ID: int32(host[2*i]), LogProb: float64(host[2*i+1])}
		if math.IsNaN(tokens[i].LogProb) {
			return nil, fault.New(fault.Inference, "logits at position %d are not finite", len(q.ids))
		}
	}
	return tokens, nil
}

// pick chooses on the host.
func (w *Together) pick(tokens []Token, qs []*Sequence, due []bool) error {
	logits := make([]float32, w.cache.Rows()*w.vocab)
	if err := w.s.Download(logits, w.logits); err != nil {
		return err
	}
	for i, q := range qs {
		row := logits[i*w.vocab : (i+1)*w.vocab]
		if !due[i] {
			continue
		}
		for _, z := range row {
			if x := float64(z); math.IsNaN(x) || math.IsInf(x, 1) {
				return fault.New(fault.Inference, "logits at position %d are not finite", len(q.ids))
			}
		}
		tokens[i] = q.pick(row)
	}
	return nil
}

// Rehearse does on a dry device what Write does at the first positions of prompts and at the last ones, where it takes
// most.
func (w *Together) Rehearse() {
	for _, at := range []int{0, w.cache.Capacity() - model.PromptPositions} {
		if w.cache.Assume(at); at >= 0 && w.cache.Capacity() >= model.PromptPositions {
			w.s.UploadInts(w.prompt, make([]int32, w.prompt.Rows))
			w.m.ReadTogether(w.s, w.cache, w.prompt, 0, 1)
		}
	}
	w.cache.Assume(w.cache.Capacity() - 1)
	w.forbid(nil)
	w.s.UploadInts(w.ids, make([]int32, w.cache.Rows()))
	w.m.ExtendTogether(w.s, w.hidden, w.cache, w.ids)
	_, _ = w.choose(nil, nil)             // fails: a dry device has no values
	_, _ = w.s.Wait(context.Background()) // clears that
}
