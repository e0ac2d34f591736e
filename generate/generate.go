// Package generate continues a sequence of token ids with a model: greedily or by sampling, with a key-value cache.
//
// Sampling order: repetition penalty, temperature, top-k, top-p, then one draw from the renormalised rest: by a seeded
// PCG generator, or, of the texts of an Engine, by numbers that are a function of the request. The same seed, model and
// device kind give the same ids.
package generate

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"apr/device"
	"apr/internal/fault"
	"apr/model"
	"apr/tensor"
)

// Options control a generation.
type Options struct {
	MaxTokens     int
	Temperature   float64 // 0: greedy, the largest logit, lowest id on ties
	TopK          int     // keep the k largest; 0: all
	TopP          float64 // keep the smallest set whose probability reaches p; 0 or 1: all
	Seed          uint64
	RepeatPenalty float64 // > 1 divides positive and multiplies negative logits of recent ids; 1: off
	RepeatLastN   int     // how many ids are recent
	Stop          []int32 // ids that end the text; they are not part of the result
	Vocab         int     // ids that exist; the model's further rows are padding
	Never         []int32 // ids that an Engine does not draw; log-probabilities are those of all ids
}

// Result is a finished generation.
type Result struct {
	IDs          []int32
	FinishReason string // "stop" or "length"
	PromptTokens int
	CachedTokens int           // of the prompt, whose keys and values were there: see Session
	Decoding     string        // how layers ran for one token: see model.Cache
	FirstToken   time.Duration // from the call to the first id
	Total        time.Duration
}

// promptChunk bounds the positions whose activations exist at one time while the prompt is read.
const promptChunk = 512

// Generate continues prompt; emit, if not nil, sees every id as it is made and may stop the generation by an error.
func Generate(ctx context.Context, m *model.Model, s device.Stream, prompt []int32, o Options, emit func(int32) error) (Result, error) {
	if err := o.check(m, prompt); err != nil {
		return Result{}, err
	}
	g := newGenerator(m, s, len(prompt)+o.MaxTokens, o)
	defer g.free()
	return g.turn(ctx, prompt, o.MaxTokens, emit)
}

// turn reads what is new of prompt, the whole sequence, and continues it by at most most ids.
func (g *generator) turn(ctx context.Context, prompt []int32, most int, emit func(int32) error) (Result, error) {
	start := time.Now()
	r := Result{PromptTokens: len(prompt), FinishReason: "length"}
	r.CachedTokens = g.keep(prompt)
	for lo := r.CachedTokens; lo < len(prompt); lo += promptChunk {
		g.extend(prompt[lo:min(lo+promptChunk, len(prompt))])
		if _, err := g.s.Wait(ctx); err != nil {
			return r, err
		}
		if err := ctx.Err(); err != nil {
			return r, err
		}
	}
	defer g.settle()
	for len(r.IDs) < most {
		id, err := g.next(len(r.IDs)+1 < most)
		if err != nil {
			return r, err
		}
		if len(r.IDs) == 0 {
			r.FirstToken = time.Since(start)
		}
		if slices.Contains(g.o.Stop, id) {
			r.FinishReason = "stop"
			break
		}
		r.IDs = append(r.IDs, id)
		if emit != nil {
			if err := emit(id); err != nil {
				return r, err
			}
		}
		if len(r.IDs) < most {
			g.extend([]int32{id})
		}
		if err := ctx.Err(); err != nil {
			return r, err
		}
	}
	r.Total, r.Decoding = time.Since(start), g.cache.Decoding()
	return r, nil
}

func (o Options) check(m *model.Model, prompt []int32) error {
	switch {
	case len(prompt) == 0:
		return fault.New(fault.Inference, "the prompt has no tokens")
	case o.Vocab < 1 || o.Vocab > m.Config.Vocab:
		return fault.New(fault.Inference, "%d ids exist but the model has %d", o.Vocab, m.Config.Vocab)
	case o.MaxTokens < 0:
		return fault.New(fault.Usage, "%d tokens to generate", o.MaxTokens)
	case o.MaxTokens > m.Config.MaxPositions-len(prompt):
		return fault.New(fault.Inference, "a prompt of %d tokens and %d more exceed the model's %d positions", len(prompt), o.MaxTokens, m.Config.MaxPositions)
	case !(o.Temperature >= 0) || math.IsInf(o.Temperature, 0):
		return fault.New(fault.Usage, "temperature %g is not finite and non-negative", o.Temperature)
	case !(o.TopP >= 0 && o.TopP <= 1):
		return fault.New(fault.Usage, "top-p %g is not in [0,1]", o.TopP)
	case !(o.RepeatPenalty > 0) || math.IsInf(o.RepeatPenalty, 0):
		return fault.New(fault.Usage, "repetition penalty %g is not positive", o.RepeatPenalty)
	}
	for i, id := range prompt {
		if id < 0 || int(id) >= o.Vocab {
			return fault.New(fault.Inference, "prompt token %d is id %d, outside the vocabulary of %d", i, id, o.Vocab)
		}
	}
	for _, id := range o.Never {
		if id < 0 || int(id) >= o.Vocab || len(o.Never) >= o.Vocab {
			return fault.New(fault.Usage, "id %d cannot be left out of the %d that exist", id, o.Vocab)
		}
	}
	return nil
}

// generator is the state of one generation.
type generator struct {
	m      *model.Model
	s      device.Stream
	o      Options
	rng    *rand.Rand
	cache  *model.Cache
	ids    device.Tensor // I32 [promptChunk, 1]
	hidden device.Tensor // [1, h]
	greedy *model.Greedy // nil: the host needs all logits
	early  *early        // nil: the device has nothing to do while the host waits for an id
	logits []float32
	order  []int32
	seen   []int32 // ids of the sequence; at the end of a turn those whose positions are cached
}

// newGenerator makes room for sequences of so many positions.
func newGenerator(m *model.Model, s device.Stream, positions int, o Options) *generator {
	dev := m.Device()
	g := &generator{
		m: m, s: s, o: o,
		rng:    rand.New(rand.NewPCG(o.Seed, 0)),
		cache:  m.NewCache(positions),
		ids:    dev.Alloc("generate.ids", device.Batch, tensor.I32, promptChunk, 1),
		hidden: dev.Alloc("generate.hidden", device.Activations, dev.Info().Activations, 1, m.Config.Hidden),
		logits: make([]float32, o.Vocab),
	}
	if o.greedy() {
		g.greedy = m.NewGreedy(o.Vocab)
		if _, ok := s.(device.Fetcher); ok {
			g.early = &early{hidden: dev.Alloc("generate.hidden", device.Activations, dev.Info().Activations, 1, m.Config.Hidden)}
		}
	}
	return g
}

// free gives the device's memory back.
func (g *generator) free() {
	dev := g.m.Device()
	if g.early != nil {
		g.early.drop()
		dev.Free(g.early.hidden)
	}
	g.cache.Free(dev)
	dev.Free(g.ids, g.hidden)
	if g.greedy != nil {
		g.greedy.Free()
	}
}

// extend feeds ids to the model.
func (g *generator) extend(ids []int32) {
	if g.early != nil && g.early.wait != nil { // it is under way
		g.hidden, g.early.hidden = g.early.hidden, g.hidden
		g.seen = append(g.seen, ids...)
		return
	}
	view := g.ids.RowRange(0, len(ids))
	g.s.UploadInts(view, ids)
	g.m.Extend(g.s, g.hidden, g.cache, view)
	g.seen = append(g.seen, ids...)
}

// early is a position that the device works at before the host knows its id.
type early struct {
	hidden device.Tensor                             // [1, h], of that position
	wait   func() (id int32, finite bool, err error) // for the id that follows it; nil: there is none
	id     int32                                     // of that position, once the host knows it
}

// drop drains the pending speculative step.
func (e *early) drop() {
	if e.wait != nil {
		_, _, _ = e.wait() // an error is told by what the stream does next
		e.wait = nil
	}
}

// nextEarly is next on a device that chooses the id. With more it lets the device go on with that id at once, and the call of
// extend that follows finds it done. It reports false if the host has to look at the logits.
func (g *generator) nextEarly(more bool) (id int32, ok bool, err error) {
	e, wait := g.early, g.early.wait
	if wait == nil {
		wait = g.greedy.Begin(g.s, g.hidden)
	}
	e.wait = nil
	if more {
		g.m.Extend(g.s, e.hidden, g.cache, g.greedy.ID())
		e.wait = g.greedy.Begin(g.s, e.hidden)
	}
	id, ok, err = wait()
	if !ok && more {
		e.drop()
		g.cache.Forget(1)
	}
	e.id = id
	return id, ok, err
}

// next chooses the id that follows. more says that extend will be called with it, unless it ends the text.
func (g *generator) next(more bool) (int32, error) {
	if g.early != nil {
		if id, ok, err := g.nextEarly(more); err != nil || ok {
			return id, err
		}
	} else if g.greedy != nil {
		if id, finite, err := g.greedy.Next(g.s, g.hidden); err != nil || finite {
			return id, err
		}
	}
	if err := g.m.NextLogits(g.s, g.logits, g.hidden); err != nil {
		return 0, err
	}
	g.penalise()
	best := 0
	for i, z := range g.logits {
		if z != z || math.IsInf(float64(z), 1) {
			return 0, fault.New(fault.Inference, "logit of id %d at position %d is %g", i, len(g.seen), z)
		}
		if z > g.logits[best] {
			best = i
		}
	}
	if math.IsInf(float64(g.logits[best]), -1) {
		return 0, fault.New(fault.Inference, "all logits at position %d are %g", len(g.seen), g.logits[best])
	}
	if g.o.Temperature == 0 {
		return int32(best), nil
	}
	return g.sample(), nil
}

// penalises reports whether logits of recent ids are changed.
func (o Options) penalises() bool { return o.RepeatPenalty != 1 && o.RepeatLastN > 0 }

// penalise lowers the logits of recent ids (Keskar et al. 2019, arXiv:1909.05858, section 4.1).
func (g *generator) penalise() {
	if !g.o.penalises() {
		return
	}
	done := map[int32]bool{}
	for _, id := range g.seen[max(0, len(g.seen)-g.o.RepeatLastN):] {
		if done[id] {
			continue
		}
		done[id] = true
		if z := g.logits[id]; z > 0 {
			g.logits[id] = z / float32(g.o.RepeatPenalty)
		} else {
			g.logits[id] = z * float32(g.o.RepeatPenalty)
		}
	}
}

// sample draws from softmax(logits/temperature) restricted by top-k and top-p.
func (g *generator) sample() int32 {
	g.order = g.order[:0]
	for i := range g.logits {
		g.order = append(g.order, int32(i))
	}
	slices.SortStableFunc(g.order, func(a, b int32) int { return cmp.Compare(g.logits[b], g.logits[a]) })
	keep := g.order
	if g.o.TopK > 0 {
		keep = keep[:min(g.o.TopK, len(keep))]
	}
	top := float64(g.logits[keep[0]])
	probs := make([]float64, len(keep))
	sum := 0.0
	for i, id := range keep {
		probs[i] = math.Exp((float64(g.logits[id]) - top) / g.o.Temperature)
		sum += probs[i]
	}
	if p := g.o.TopP; p > 0 && p < 1 {
		mass, n := 0.0, 0
		for n < len(probs) && mass < p*sum {
			mass += probs[n]
			n++
		}
		probs, sum = probs[:n], mass
	}
	u := g.rng.Float64() * sum
	for i, p := range probs {
		if u -= p; u < 0 {
			return keep[i]
		}
	}
	return keep[len(probs)-1]
}
