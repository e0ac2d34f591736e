// Package eval scores models on held-out text: nats per token, perplexity, bits per byte, and agreement with a
// reference model (mean KL divergence, top-1 agreement, entropy).
//
// Every score carries its denominator, and no samples is an error, never a pass. All models of one comparison see the
// same windows and the same reference logits.
package eval

import (
	"context"
	"fmt"
	"math"

	"apr/corpus"
	"apr/device"
	"apr/internal/fault"
	"apr/model"
	"apr/teacher"
	"apr/tensor"
)

// Subject is a model to score.
type Subject struct {
	Name  string
	Model *model.Model // nil: Options.Reference
}

// Scores are sums over scored targets and what follows from them.
type Scores struct {
	Name    string
	Targets int64 // scored targets

	ce, d, entropy float64 // sums in nats
	variation      float64 // sum of ½Σ|p−q|
	agree          int64
	compared       bool
	blocks         []block // the same, by neighbouring windows

	Experts []ExpertUse // of a model with experts, by layer
}

// ExpertUse is how many of the positions that were scored or read each expert of a layer served.
type ExpertUse struct {
	Layer int
	Slots []int64
}

// NatsPerToken returns the mean cross-entropy.
func (s Scores) NatsPerToken() float64 { return s.ce / float64(s.Targets) }

// Perplexity returns exp of the mean cross-entropy.
func (s Scores) Perplexity() float64 { return math.Exp(s.NatsPerToken()) }

// BitsPerByte turns nats per token on a text into bits per byte of it, which can be compared between tokenizers:
//
//	nats · len(t.IDs) / t.TextBytes() / ln 2
//
// Every id of the data counts, end-of-text ids and those that no window scores included, as if they were as likely as
// those scored. It is NaN for data whose bytes are not known, as token shards: all that report bits per byte take them
// from here.
func BitsPerByte(nats float64, t *corpus.Tokens) float64 {
	bytes := t.TextBytes()
	if bytes == 0 {
		return math.NaN()
	}
	return nats * float64(len(t.IDs)) / float64(bytes) / math.Ln2
}

// KL returns the mean KL(reference‖model) in nats, and false without a reference.
func (s Scores) KL() (float64, bool) { return s.d / float64(s.Targets), s.compared }

// Top1 returns the fraction of targets where model and reference have the same most likely id, and false without a
// reference.
func (s Scores) Top1() (float64, bool) { return float64(s.agree) / float64(s.Targets), s.compared }

// Acceptance returns the probability that speculative decoding keeps a token that the model drafts for the reference,
// the mean Σ min(p, q) = 1 − ½Σ|p−q| (see Position.Accept), and false without a reference. Greedy decoding keeps
// Top1.
func (s Scores) Acceptance() (float64, bool) { return 1 - s.variation/float64(s.Targets), s.compared }

// Entropy returns the reference's mean entropy in nats, and false without a reference.
func (s Scores) Entropy() (float64, bool) { return s.entropy / float64(s.Targets), s.compared }

// Options of a comparison.
type Options struct {
	Vocab     int // V: ids that all models share
	Rows      int // windows at a time; 0: as many as make about 2048 positions
	ChunkRows int // rows whose logits exist at one time; 0: 512
	Progress  func(done, total int)
	// Reference is a reference that is no one model; Compare then gets none.
	Reference teacher.Teacher
}

// RowsFor is how many windows are scored at a time unless Options say it: as many as make about 2048 positions.
func RowsFor(seqLen int) int { return max(1, 2048/seqLen) }

func (o *Options) defaults(seqLen int) {
	if o.Rows == 0 {
		o.Rows = RowsFor(seqLen)
	}
	if o.ChunkRows == 0 {
		o.ChunkRows = 512
	}
}

// Compare scores subjects on the windows w, against the reference if it is not nil. The reference itself may be one of
// the subjects: its KL is then 0. An error names the first model with a score that is not finite; when ctx ends between
// two batches of windows, the error is its own.
func Compare(ctx context.Context, s device.Stream, reference *model.Model, subjects []Subject, w *corpus.Windows, o Options) ([]Scores, error) {
	if w.Len() == 0 || len(subjects) == 0 {
		return nil, fault.New(fault.Invalid, "nothing to evaluate: %d windows, %d models", w.Len(), len(subjects))
	}
	o.defaults(w.SeqLen)
	if reference != nil && reference.Config.Vocab < o.Vocab {
		return nil, fault.New(fault.Load, "the reference has %d vocabulary rows, fewer than the %d ids of the data", reference.Config.Vocab, o.Vocab)
	}
	c := &comparison{s: s, o: o, reference: reference, subjects: subjects, scores: make([]Scores, len(subjects))}
	var dev device.Device
	for i, sub := range subjects {
		c.scores[i] = Scores{Name: sub.Name, compared: c.compares()}
		if sub.Model == nil {
			continue
		}
		dev = sub.Model.Device()
		if sub.Model.Config.Vocab < o.Vocab {
			return nil, fault.New(fault.Load, "%s has %d vocabulary rows, fewer than the %d ids of the data", sub.Name, sub.Model.Config.Vocab, o.Vocab)
		}
	}
	c.together = max(1, min(o.ChunkRows/w.SeqLen, w.Len()/minBlocks))
	c.batch = model.NewBatch(dev, o.Rows, w.SeqLen)
	if w.Documents {
		c.batch.SeparateDocuments(dev)
	}
	if o.Reference != nil && w.Routed() {
		c.batch.RouteRows(dev)
	}
	defer c.batch.Free(dev)
	c.countExperts()
	defer c.release()
	for lo := 0; lo < w.Len(); lo += o.Rows {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		hi := min(lo+o.Rows, w.Len())
		if err := c.add(ctx, w.Batch(lo, hi)); err != nil {
			return nil, err
		}
		if o.Progress != nil {
			o.Progress(hi, w.Len())
		}
	}
	if err := c.readExperts(); err != nil {
		return nil, err
	}
	return c.scores, c.check()
}

// comparison scores several models on the same windows.
type comparison struct {
	s         device.Stream
	o         Options
	batch     *model.Batch
	reference *model.Model
	subjects  []Subject
	scores    []Scores
	used      map[*model.Model]device.Tensor // [layers with experts, experts]: their slots
	together  int                            // windows of a block: no more than fit a chunk, unless that is none
}

// compares reports whether there is a reference.
func (c *comparison) compares() bool { return c.reference != nil || c.o.Reference != nil }

// add scores one batch of windows. The reference's logits of a chunk are computed once for all subjects.
func (c *comparison) add(ctx context.Context, b corpus.Batch) error {
	if b.TargetCount() == 0 {
		return nil
	}
	if f, ok := c.o.Reference.(teacher.Fetcher); ok {
		if err := f.Fetch(b); err != nil {
			return err
		}
	}
	c.batch.Load(c.s, b, b.Rows)
	var ref device.Tensor
	if c.reference != nil {
		ref = c.hidden(c.reference)
		defer c.s.Release(ref)
	}
	if c.o.Reference != nil {
		c.o.Reference.Begin(c.s, c.batch)
		defer c.o.Reference.End(c.s)
	}
	xs := make([]device.Tensor, len(c.subjects))
	for i, sub := range c.subjects {
		if xs[i] = ref; sub.Model != c.reference {
			xs[i] = c.hidden(sub.Model)
			defer c.s.Release(xs[i])
		}
	}
	n := min(c.o.ChunkRows, c.batch.N)
	z := c.s.Temp("logits", device.Logits, tensor.F32, n, c.o.Vocab)
	defer c.s.Release(z)
	var t device.Tensor
	if c.compares() {
		t = c.s.Temp("logits.reference", device.Logits, tensor.F32, n, c.o.Vocab)
		defer c.s.Release(t)
	}
	first := 0 // kept row
	for lo := 0; lo < b.Rows; lo += c.together {
		hi := min(lo+c.together, b.Rows)
		kept := 0
		for _, on := range b.Mask[lo*b.SeqLen : hi*b.SeqLen] {
			kept += int(on)
		}
		if kept == 0 {
			continue
		}
		for i := range c.scores {
			c.scores[i].blocks = append(c.scores[i].blocks, block{})
		}
		for end := first + kept; first < end; first = min(first+n, end) {
			if err := c.chunk(ctx, xs, ref, z, t, first, min(first+n, end)); err != nil {
				return err
			}
		}
	}
	return nil
}

// chunk scores kept rows [lo,hi) of all subjects, whose hidden states are xs and the reference's ref; z and t are room
// for logits.
func (c *comparison) chunk(ctx context.Context, xs []device.Tensor, ref, z, t device.Tensor, lo, hi int) error {
	var tl device.Tensor
	switch {
	case c.o.Reference != nil:
		tl = t.RowRange(0, hi-lo)
		c.o.Reference.Logits(c.s, lo, hi, tl)
	case c.reference != nil:
		tl = t.RowRange(0, hi-lo)
		c.reference.Logits(c.s, tl, ref.RowRange(lo, hi))
	}
	for i := range c.subjects {
		if err := c.score(ctx, i, xs[i], z.RowRange(0, hi-lo), tl, lo, hi); err != nil {
			return err
		}
	}
	return nil
}

// hidden returns the final hidden states of the kept positions.
func (c *comparison) hidden(m *model.Model) device.Tensor {
	act, n := m.Device().Info().Activations, c.batch.Tokens.Rows*c.batch.Tokens.SeqLen
	all := c.s.Temp("hidden", device.Activations, act, n, m.Config.Hidden)
	m.HiddenCounting(c.s, all, c.batch.Tokens, c.used[m])
	if c.batch.Keep.IsZero() {
		return all
	}
	kept := c.s.Temp("hidden.kept", device.Activations, act, c.batch.N, m.Config.Hidden)
	c.s.Gather(kept, all, c.batch.Keep)
	c.s.Release(all)
	return kept
}

// score adds subject i's sums over kept rows [lo,hi): x are its hidden states, z is room for its logits, t the
// reference's logits or zero.
func (c *comparison) score(ctx context.Context, i int, x, z, t device.Tensor, lo, hi int) error {
	c.s.SetScalars(device.Scalars{InvN: 1})
	if sub := c.subjects[i].Model; sub == c.reference {
		z = t
	} else {
		sub.Logits(c.s, z, x.RowRange(lo, hi))
	}
	c.s.Loss(device.Tensor{}, z, t, c.batch.Targets.RowRange(lo, hi), device.LossSpec{Alpha: 0, Temperature: 1})
	sc, err := c.s.Wait(ctx)
	if err != nil {
		return fmt.Errorf("evaluating %s: %w", c.subjects[i].Name, err)
	}
	r := &c.scores[i]
	r.Targets += sc.Positions
	r.ce += sc.CE
	r.d += sc.D
	r.entropy += sc.Entropy
	r.agree += sc.Agree
	if r.compared {
		if r.variation, err = c.variation(ctx, r.variation, z, t, lo, hi); err != nil {
			return fmt.Errorf("evaluating %s: %w", c.subjects[i].Name, err)
		}
	}
	last := &r.blocks[len(r.blocks)-1]
	last.targets += sc.Positions
	last.ce += sc.CE
	return nil
}

// variation returns sum + Σ_rows ½Σ|p−q| of the logits z and the reference's t, kept rows [lo,hi).
func (c *comparison) variation(ctx context.Context, sum float64, z, t device.Tensor, lo, hi int) (float64, error) {
	c.s.SetScalars(device.Scalars{InvN: 1})
	spec := device.LossSpec{Divergence: device.TVD, Temperature: 1}
	c.s.Loss(device.Tensor{}, z, t, c.batch.Targets.RowRange(lo, hi), spec)
	sc, err := c.s.Wait(ctx)
	return sum + sc.D, err
}

// check refuses scores that are not finite or stand on nothing.
func (c *comparison) check() error {
	for _, r := range c.scores {
		if r.Targets == 0 {
			return fault.New(fault.Invalid, "%s: no target was scored", r.Name)
		}
		if sum := r.ce + r.d + r.variation; math.IsNaN(sum) || math.IsInf(sum, 0) {
			return fault.New(fault.Inference, "%s: the loss is not finite (%g nats, KL %g)", r.Name, r.ce, r.d)
		}
	}
	return nil
}
