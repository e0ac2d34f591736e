package selfcheck

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"apr/device"
	"apr/internal/fault"
	"apr/model"
	"apr/tensor"
)

// What Agree compares: positions of a prompt computed at once, then positions computed one by one with a cache, and the
// least cosine of two rows of logits.
const (
	AgreePrompt = 16
	AgreeSteps  = 8
	LeastCosine = 0.9999
)

// Agreement says what Agree compared and how well it agreed.
type Agreement struct {
	Layers    int     `json:"layers"` // compared
	Of        int     `json:"of"`     // the model has
	Vocab     int     `json:"vocab"`  // ids whose logits were compared, from the first
	Positions int     `json:"positions"`
	Steps     int     `json:"steps"`
	Cosine    float64 `json:"cosine"` // the lowest of all positions and steps
	Seconds   float64 `json:"seconds"`
}

// String says the same in a line.
func (a Agreement) String() string {
	return fmt.Sprintf("%d of %d layers agree with the CPU over %d positions and %d decoding steps "+
		"(cosine at least %.7f, %.1f s)",
		a.Layers, a.Of, a.Positions, a.Steps, a.Cosine, a.Seconds)
}

// Discarder is a device that gives back the memory of frozen matrices, and forgets how much it held at its
// highest point.
type Discarder interface{ Discard(ws ...device.Weight) }

// Agree computes w, or an excerpt of it, on dev and on host, which must compute in float32, and compares the
// logits of AgreePrompt positions and of AgreeSteps decoding steps, in which both read the ids that host finds
// most likely. Where the cosine of two rows of logits is below LeastCosine, the error is of kind Unavailable and
// names the first layer and operation that differ. Other errors are those of the devices and of reading w.
//
// The whole model is compared if the host's part of the work is small: AgreePrompt+AgreeSteps positions times
// the elements of all matrices are at most maxProducts. Of a larger model it is an excerpt: one layer of each
// kind, that is, of the same shapes and stored types, more layers from the first one while they are few enough,
// and excerptRows rows of the vocabulary. Layers of one kind run the same kernels over the same shapes and
// differ in their numbers only. dev gets the memory back if it is a Discarder.
func Agree(ctx context.Context, dev, host device.Device, w model.Weights) (a Agreement, err error) {
	start := time.Now()
	x, err := newExcerpt(w)
	if err != nil {
		return a, err
	}
	c := &agreement{prompt: min(AgreePrompt, x.config.MaxPositions-AgreeSteps), vocab: x.config.Vocab}
	if c.prompt < 1 { // nothing that could be generated from a prompt
		return Agreement{Cosine: 1}, nil
	}
	a = Agreement{Layers: len(x.layers), Of: len(w.Arch().Layers), Vocab: c.vocab, Positions: c.prompt, Steps: AgreeSteps}
	ours, theirs := &lent{Device: host, adds: dev.Info().Adds}, &lent{Device: dev, adds: dev.Info().Adds}
	defer theirs.giveBack()
	onHost, err := model.LoadFrozenThrough(ours, x, device.TeacherWeights, device.Form{}, asIs)
	if err != nil {
		return a, err
	}
	onDev, err := model.LoadFrozenThrough(theirs, x, device.TeacherWeights, device.Form{}, asIs)
	if err != nil {
		return a, err
	}
	want, err := c.logits(ctx, onHost, ours.NewStream())
	if err != nil {
		return a, err
	}
	got, err := c.logits(ctx, onDev, theirs.NewStream())
	if err != nil {
		return a, err
	}
	a.Cosine = 1
	first := -1
	for i := range want {
		if cos := cosine(got[i], want[i]); !(cos >= a.Cosine) {
			a.Cosine = cos
		}
		if first < 0 && !(a.Cosine >= LeastCosine) {
			first = i
		}
	}
	a.Seconds = time.Since(start).Seconds()
	if first < 0 {
		return a, nil
	}
	where, err := c.firstDifference(ctx, onHost, ours, onDev, theirs, x)
	if err != nil {
		return a, err
	}
	return a, fault.New(fault.Unavailable, "%s computes this model wrongly: at %s its logits have a cosine of %.6f to "+
		"the CPU's, and %g is the least that is accepted; %s", dev.Info().Name, c.place(first),
		cosine(got[first], want[first]),
		LeastCosine, where).WithID("E-CHECK-010").
		WithHint("a newer driver may help; --backend cpu works everywhere")
}

func asIs(s device.Source) device.Source { return s }

// agreement is one comparison.
type agreement struct {
	prompt, vocab int
	ids           []int32 // of the whole sequence, as far as the host has found it
}

// place names the row i of logits.
func (c *agreement) place(i int) string {
	if i < c.prompt {
		return fmt.Sprintf("position %d", i)
	}
	return fmt.Sprintf("decoding step %d", i-c.prompt+1)
}

// logits returns the logits of each position of the prompt, computed at once, and then of each decoding step.
// The first model that it is called for chooses the ids of the steps.
func (c *agreement) logits(ctx context.Context, m *model.Model, s device.Stream) (rows [][]float32, err error) {
	dev := m.Device()
	chosen := len(c.ids) > 0
	if !chosen {
		for i := range c.prompt { // spread over the vocabulary
			c.ids = append(c.ids, int32((uint64(i)*2654435761+12345)%uint64(c.vocab)))
		}
	}
	ids := s.Temp("agree.ids", device.Batch, tensor.I32, c.prompt, 1)
	hidden := s.Temp("agree.hidden", device.Activations, dev.Info().Activations, c.prompt, m.Config.Hidden)
	z := s.Temp("agree.logits", device.Logits, tensor.F32, c.prompt, c.vocab)
	defer s.Release(ids, hidden, z)
	s.UploadInts(ids, c.ids[:c.prompt])
	m.Hidden(s, hidden, model.Tokens{IDs: ids, Rows: 1, SeqLen: c.prompt})
	m.Logits(s, z, hidden)
	host := make([]float32, c.prompt*c.vocab)
	if err := s.Download(host, z); err != nil {
		return nil, err
	}
	rows = slices.Collect(slices.Chunk(host, c.vocab))

	cache := m.NewCache(c.prompt + AgreeSteps)
	defer cache.Free(dev)
	last := hidden.RowRange(0, 1)
	m.Extend(s, last, cache, ids)
	for i := range AgreeSteps {
		if !chosen {
			c.ids = append(c.ids, int32(largest(rows[len(rows)-1])))
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		id := ids.RowRange(0, 1)
		s.UploadInts(id, c.ids[c.prompt+i:][:1])
		m.Extend(s, last, cache, id)
		row := make([]float32, c.vocab)
		if err := m.NextLogits(s, row, last); err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	_, err = s.Wait(ctx)
	return rows, err
}

func largest(row []float32) (at int) {
	for i, v := range row {
		if v > row[at] {
			at = i
		}
	}
	return at
}

// cosine of two rows; 1 of two that are zero, NaN where anything is not finite or one of them is zero.
func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i, x := range a {
		y := float64(b[i])
		ab, aa, bb = ab+float64(x)*y, aa+float64(x)*float64(x), bb+y*y
	}
	if aa == 0 && bb == 0 {
		return 1
	}
	if c := ab / (math.Sqrt(aa) * math.Sqrt(bb)); !math.IsInf(c, 0) {
		return c
	}
	return math.NaN()
}

// lent is a device that is used for a comparison: what it allocates is given back.
type lent struct {
	device.Device
	adds    bool
	tensors []device.Tensor
	weights []device.Weight
}

// Info lets both devices run the same operations.
func (l *lent) Info() device.Info {
	i := l.Device.Info()
	i.Adds = l.adds
	return i
}

func (l *lent) Alloc(name string, c device.Component, d tensor.DType, rows, cols int) device.Tensor {
	t := l.Device.Alloc(name, c, d, rows, cols)
	l.tensors = append(l.tensors, t)
	return t
}

func (l *lent) Free(ts ...device.Tensor) {
	for _, t := range ts {
		l.tensors = slices.DeleteFunc(l.tensors, func(u device.Tensor) bool { return u.Buf == t.Buf })
	}
	l.Device.Free(ts...)
}

func (l *lent) Weight(spec device.WeightSpec) (device.Weight, error) {
	w, err := l.Device.Weight(spec)
	if err == nil {
		l.weights = append(l.weights, w)
	}
	return w, err
}

// giveBack frees what is still held.
func (l *lent) giveBack() {
	l.Device.Free(l.tensors...)
	if d, ok := l.Device.(Discarder); ok {
		d.Discard(l.weights...)
	}
	l.tensors, l.weights = nil, nil
}
