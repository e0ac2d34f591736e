package generate

import (
	"context"
	"math"
	"slices"
	"time"

	"apr/device"
	"apr/internal/fault"
	"apr/model"
	"apr/tensor"
)

// Draft is a smaller model that proposes tokens, which the model itself reads in one pass and keeps as far as they
// are its own (speculative decoding: Leviathan et al. 2023, arXiv:2211.17192).
//
// A drawn token is that of the largest ln p(i) + g(i), with Gumbel numbers g that are a function of seed, position
// and id; both models use the same ones, so that they often agree (Daliri et al. 2025, arXiv:2408.07978). A proposal
// is kept if it is the token that the model draws itself: what is written is a function of the model, the prompt,
// options and seed, and not of the draft, of how many tokens it proposes or of when it is turned off.
type Draft struct {
	Model  *model.Model
	Tokens int // proposed at a time
	Trial  int // tokens that are made without it first, to know the speed to improve; 0: it is never turned off
	// Forced, above 0, keeps every proposal with this probability whatever the model draws: a measurement of speed, by
	// models whose weights are random. The text says nothing then.
	Forced float64

	clock func() time.Duration // nil: the time since the start
}

// DraftStats say what a draft was worth.
type DraftStats struct {
	Rounds     int       `json:"rounds"` // passes of the model over proposals
	Proposed   int       `json:"proposed"`
	Accepted   int       `json:"accepted"`
	ByPosition []float64 `json:"acceptance_by_position"`    // of those read at each place, kept
	Plain      *float64  `json:"tokens_per_second_without"` // of the trial; null: there was none
	PerSecond  *float64  `json:"tokens_per_second_with"`
	Off        bool      `json:"turned_off"`

	read, kept []int
}

// draftLoss is the part of the speed without a draft below which it is turned off, judged over draftJudged tokens.
const draftLoss, draftJudged = 0.95, 32

// speculation is the state of a text.
type speculation struct {
	o             Options
	s             device.Stream
	target, small *reader
	ids           []int32
}

// reader is a model with what it has read of the text.
type reader struct {
	m      *model.Model
	cache  *model.Cache
	ids    device.Tensor // I32 [promptChunk, 1]
	hidden device.Tensor // [rows, h]
	best   device.Tensor // [rows, 2]
	chosen device.Tensor // I32 [rows, 1]
}

func newReader(m *model.Model, capacity, rows int) *reader {
	dev := m.Device()
	return &reader{
		m: m, cache: m.NewCache(capacity),
		ids:    dev.Alloc("generate.ids", device.Batch, tensor.I32, promptChunk, 1),
		hidden: dev.Alloc("generate.hidden", device.Activations, dev.Info().Activations, rows, m.Config.Hidden),
		best:   dev.Alloc("generate.best", device.Logits, tensor.F32, rows, 2),
		chosen: dev.Alloc("generate.chosen", device.Logits, tensor.I32, rows, 1),
	}
}

func (r *reader) free() {
	dev := r.m.Device()
	r.cache.Free(dev)
	dev.Free(r.ids, r.hidden, r.best, r.chosen)
}

// extend reads what is new of ids, the whole sequence, and leaves the states of its last n positions.
func (g *speculation) extend(ctx context.Context, r *reader, ids []int32, n int) error {
	for r.cache.Len() < len(ids) {
		next := ids[r.cache.Len():]
		rows := min(len(next), promptChunk)
		if left := len(next) - rows; left > 0 && left < n { // the last n are read together
			rows -= n - left
		}
		view, kept := r.ids.RowRange(0, rows), 1
		if rows == len(next) {
			kept = n
		}
		g.s.UploadInts(view, next[:rows])
		r.m.Extend(g.s, r.hidden.RowRange(0, kept), r.cache, view)
		if rows < len(next) {
			if _, err := g.s.Wait(ctx); err != nil {
				return err
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// logits are those behind the first n states. The device also finds the largest of each, at place `at` and later ones.
func (g *speculation) logits(r *reader, at, n int) device.Tensor {
	z := g.s.Temp("logits", device.Logits, tensor.F32, n, g.o.Vocab)
	r.m.Logits(g.s, z, r.hidden.RowRange(0, n))
	g.s.ArgMax(r.chosen.RowRange(at, at+n), r.best.RowRange(at, at+n), z)
	return z
}

// largest waits for what the device found at the first n places. The last one is behind a sequence of so many ids.
func (g *speculation) largest(r *reader, n, ids int) ([]int32, error) {
	best := make([]float32, 2*n)
	if err := g.s.Download(best, r.best.RowRange(0, n)); err != nil {
		return nil, err
	}
	out := make([]int32, n)
	for i := range n {
		if top := float64(best[2*i+1]); math.IsNaN(top) || math.IsInf(top, 0) {
			return nil, fault.New(fault.Inference, "logits at position %d are not finite", ids-n+i+1)
		}
		out[i] = int32(best[2*i])
	}
	return out, nil
}

// read reads what is new of ids, the whole sequence, and returns the token behind each of its last n positions: the
// i-th by the noise of that place.
func (g *speculation) read(ctx context.Context, r *reader, ids []int32, n int) ([]int32, error) {
	if err := g.extend(ctx, r, ids, n); err != nil {
		return nil, err
	}
	z := g.logits(r, 0, n)
	defer g.s.Release(z)
	out, err := g.largest(r, n, len(ids))
	if err != nil || g.o.greedy() {
		return out, err
	}
	logits := make([]float32, n*g.o.Vocab)
	if err := g.s.Download(logits, z); err != nil {
		return nil, err
	}
	for i := range n {
		at := len(ids) - n + i + 1 // the place of the token
		out[i] = g.o.choose(logits[i*g.o.Vocab:(i+1)*g.o.Vocab], ids[:at], at)
	}
	return out, nil
}

// greedy reports whether the token is that of the largest logit, in a place where float32 holds it.
func (o Options) greedy() bool { return o.Temperature == 0 && !o.penalises() && o.Vocab < 1<<24 }

// together returns n greedy proposals and the tokens of the model itself behind the sequence and each of them. Both
// read what the device has chosen, and the host waits once.
func (g *speculation) together(ctx context.Context, n int) (proposed, own []int32, err error) {
	small, target, last := g.small, g.target, len(g.ids)-1
	if err := g.extend(ctx, small, g.ids, 1); err != nil {
		return nil, nil, err
	}
	for i := range n {
		if i > 0 {
			small.m.Extend(g.s, small.hidden.RowRange(0, 1), small.cache, small.chosen.RowRange(i-1, i))
		}
		g.s.Release(g.logits(small, i, 1))
	}
	if err := g.extend(ctx, target, g.ids[:last], 1); err != nil { // of the prompt
		return nil, nil, err
	}
	g.s.UploadInts(target.ids.RowRange(0, 1), g.ids[last:])
	g.s.Copy(target.ids.RowRange(1, n+1), small.chosen.RowRange(0, n))
	target.m.Extend(g.s, target.hidden.RowRange(0, n+1), target.cache, target.ids.RowRange(0, n+1))
	g.s.Release(g.logits(target, 0, n+1))
	if proposed, err = g.largest(small, n, len(g.ids)+n-1); err != nil {
		return nil, nil, err
	}
	own, err = g.largest(target, n+1, len(g.ids)+n)
	return proposed, own, err
}

// choose returns the token at a place behind seen, by logits, which it may change.
func (o Options) choose(logits []float32, seen []int32, at int) int32 {
	if o.penalises() {
		lower(logits, seen, o)
	}
	top := slices.Max(logits)
	if o.Temperature == 0 {
		return int32(slices.Index(logits, top))
	}
	weight := func(id int32) float64 { return math.Exp((float64(logits[id]) - float64(top)) / o.Temperature) }
	best, most := int32(0), math.Inf(-1)
	try := func(id int32) {
		x := (float64(logits[id]) - float64(top)) / o.Temperature
		if x < -noiseRange { // it cannot win
			return
		}
		if x += gumbel(o.Seed, at, id); x > most || x == most && id < best {
			best, most = id, x
		}
	}
	if o.TopK > 0 && o.TopK < len(logits) || o.TopP > 0 && o.TopP < 1 {
		all := 0.0
		for i := range logits {
			all += weight(int32(i))
		}
		for _, id := range nucleus(logits, o, top, all, weight) {
			try(id)
		}
		return best
	}
	for i := range logits {
		try(int32(i))
	}
	return best
}

// noiseRange is more than two Gumbel numbers of 53 bits differ by.
const noiseRange = 42

// gumbel returns −ln(−ln u) of the uniform number u of an id at a place: the first 53 bits of SplitMix64's mix of
// them and the seed.
func gumbel(seed uint64, at int, id int32) float64 {
	key := mix(mix(seed+splitGamma) + uint64(at)*splitGamma)
	u := math.Ldexp(float64(mix(key+(uint64(id)+1)*splitGamma)>>11)+.5, -53)
	return -math.Log(-math.Log(u))
}

const splitGamma = 0x9e3779b97f4a7c15

// mix is the output function of SplitMix64 (Steele et al. 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Drafts says why a model cannot be read in rounds of proposals, or propose, up to so many positions; nil: it can.
func Drafts(m *model.Model, capacity int) error {
	if why := m.Rewinds(capacity); why != "" {
		return fault.New(fault.Unavailable, "not built yet: a draft with a model that has %s", why).WithID("E-GENERATE-003")
	}
	return nil
}

// Speculate continues prompt with a draft. Greedy ids are those of Generate, as far as the device gives a row of a
// product the same bits in any company, which a CPU does; drawn ones have its distribution and are other ones.
func Speculate(
	ctx context.Context, m *model.Model, s device.Stream, prompt []int32, o Options, d Draft, emit func(int32) error,
) (Result, DraftStats, error) {
	st := DraftStats{read: make([]int, d.Tokens), kept: make([]int, d.Tokens)}
	for _, x := range []*model.Model{m, d.Model} {
		if err := o.check(x, prompt); err != nil {
			return Result{}, st, err
		}
		if err := Drafts(x, len(prompt)+o.MaxTokens); err != nil {
			return Result{}, st, err
		}
	}
	start := time.Now()
	clock := d.clock
	if clock == nil {
		clock = func() time.Duration { return time.Since(start) }
	}
	capacity := len(prompt) + o.MaxTokens + d.Tokens
	g := &speculation{o: o, s: s, ids: slices.Clone(prompt)}
	g.target, g.small = newReader(m, capacity, d.Tokens+1), newReader(d.Model, capacity, max(1, d.Tokens))
	defer g.target.free()
	defer g.small.free()
	r := Result{PromptTokens: len(prompt), FinishReason: "length"}
	judge := trial{d: d, st: &st, clock: clock}
	for len(r.IDs) < o.MaxTokens {
		next, err := g.round(ctx, d, &st, judge.begin(len(r.IDs)), o.MaxTokens-len(r.IDs))
		if err != nil {
			return r, st, err
		}
		for _, id := range next {
			if len(r.IDs) == 0 {
				r.FirstToken = time.Since(start)
			}
			if slices.Contains(o.Stop, id) {
				r.FinishReason = "stop"
				break
			}
			r.IDs = append(r.IDs, id)
			if emit != nil {
				if err := emit(id); err != nil {
					return r, st, err
				}
			}
		}
		judge.end(len(r.IDs))
		if r.FinishReason == "stop" {
			break
		}
	}
	r.Total = time.Since(start)
	st.finish(judge)
	return r, st, nil
}

// round returns the next tokens, one at least and left at most, with proposals or without.
func (g *speculation) round(ctx context.Context, d Draft, st *DraftStats, propose bool, left int) ([]int32, error) {
	n := 0
	if propose {
		n = min(d.Tokens, left-1)
	}
	known := len(g.ids)
	proposed, own, err := g.tokens(ctx, n)
	if err != nil {
		return nil, err
	}
	kept := 0
	for kept < n && own[kept] == proposed[kept] {
		kept++
	}
	if d.Forced > 0 {
		for kept = 0; kept < n && d.Forced > forced(known+kept); kept++ {
			own[kept] = proposed[kept]
		}
	}
	for i := range min(kept+1, n) {
		st.read[i]++
		if i < kept {
			st.kept[i]++
		}
	}
	if n > 0 {
		st.Rounds++
	}
	g.ids = append(g.ids, own[:kept+1]...)
	for _, r := range []*reader{g.target, g.small} { // proposals that were not kept
		r.cache.Forget(max(0, r.cache.Len()-(known+kept)))
	}
	return own[:kept+1], nil
}

// tokens returns n proposals, and the tokens of the model itself behind the sequence and each of them.
func (g *speculation) tokens(ctx context.Context, n int) (proposed, own []int32, err error) {
	if n > 0 && g.o.greedy() {
		return g.together(ctx, n)
	}
	ids := slices.Clone(g.ids)
	for range n {
		next, err := g.read(ctx, g.small, ids, 1)
		if err != nil {
			return nil, nil, err
		}
		ids = append(ids, next[0])
	}
	own, err = g.read(ctx, g.target, ids, n+1)
	return ids[len(g.ids):], own, err
}

// forced is the uniform number by which the proposal for a place is kept, where that is forced.
func forced(place int) float64 { return math.Ldexp(float64(mix(uint64(place+1)*splitGamma)>>11), -53) }

// trial turns a draft off that makes the text slower.
type trial struct {
	d     Draft
	st    *DraftStats
	clock func() time.Duration

	with            bool // the round that began
	made            int
	at              time.Duration
	plain, drafted  time.Duration // of tokens behind the first
	plainN, draftN  int
	recentT         time.Duration
	recentN, rounds int
}

// begin says whether the round that begins, behind so many tokens, has proposals.
func (t *trial) begin(made int) bool {
	t.with = !t.st.Off && made > t.d.Trial || t.d.Trial == 0
	t.made, t.at = made, t.clock()
	return t.with
}

// end takes the time of a round.
func (t *trial) end(made int) {
	took, n := t.clock()-t.at, made-t.made
	switch {
	case t.made == 0: // the prompt was read, too
	case !t.with:
		t.plain, t.plainN = t.plain+took, t.plainN+n
	default:
		t.drafted, t.draftN = t.drafted+took, t.draftN+n
		t.rounds++
		if t.rounds == 1 && t.d.Trial > 0 { // the draft read the prompt
			return
		}
		t.recentT, t.recentN = t.recentT+took, t.recentN+n
		if t.d.Trial == 0 || t.plainN == 0 || t.recentN < draftJudged {
			return
		}
		with, without := float64(t.recentN)/t.recentT.Seconds(), float64(t.plainN)/t.plain.Seconds()
		t.st.Off = !(with >= draftLoss*without)
		t.recentT, t.recentN = 0, 0
	}
}

// finish completes the figures.
func (st *DraftStats) finish(t trial) {
	speed := func(n int, d time.Duration) *float64 {
		if n == 0 || d <= 0 {
			return nil
		}
		v := float64(n) / d.Seconds()
		return &v
	}
	st.Plain, st.PerSecond = speed(t.plainN, t.plain), speed(t.draftN, t.drafted)
	st.ByPosition = []float64{}
	for i, n := range st.read {
		st.Proposed, st.Accepted = st.Proposed+n, st.Accepted+st.kept[i]
		if n > 0 {
			st.ByPosition = append(st.ByPosition, float64(st.kept[i])/float64(n))
		}
	}
}
