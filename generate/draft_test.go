package generate_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"apr/device"
	"apr/device/cpu"
	"apr/generate"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/model"
	"apr/model/modeltest"
	"apr/tensor"
	"apr/tokenizer"
)

// TestDraftGreedy: with a draft, good or bad, the greedy text is that without one, however many tokens it proposes.
func TestDraftGreedy(t *testing.T) {
	s, m, tok := load(t)
	dev := m.Device()
	f := modeltest.Open(t, "../testdata/models/gosrc-q4_k_m.gguf")
	near, err := model.LoadFrozenAs(dev, f, device.StudentWeights, device.Form{})
	if err != nil {
		t.Fatal(err)
	}
	c := m.Config
	c.Layers = c.Layers[:1]
	far := model.NewTrainable(dev, c)
	far.Init(s, 1)
	o := greedy(40, tok.RealIDs())
	o.Stop = []int32{tok.EOS()}
	for _, text := range []string{"package main\n\nfunc main() {", "// The", "import ("} {
		prompt := tok.Encode(text, tokenizer.PlainText)
		want, err := generate.Generate(context.Background(), m, s, prompt, o, nil)
		if err != nil {
			t.Fatal(err)
		}
		for name, draft := range map[string]*model.Model{"itself in 4 bits": near, "random": far, "itself": m} {
			for _, k := range []int{1, 4} {
				d := generate.Draft{Model: draft, Tokens: k}
				got, st, err := generate.Speculate(context.Background(), m, s, prompt, o, d, nil)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(got.IDs, want.IDs) || got.FinishReason != want.FinishReason {
					t.Errorf("%q, draft %s, %d tokens: %v, want %v", text, name, k, got.IDs, want.IDs)
				}
				part := float64(st.Accepted) / float64(st.Proposed)
				if name == "itself" && part != 1 || name == "random" && part > .2 || name == "itself in 4 bits" && part < .5 {
					t.Errorf("%q, draft %s, %d tokens: %.2f of the proposals were kept", text, name, k, part)
				}
				contracttest.Cases(t, 1)
			}
		}
	}
}

// tinyPair are two models that differ a little; 320 of their ids are used.
func tinyPair(t *testing.T) (s device.Stream, target, draft *model.Model) {
	s, f, target := modeltest.Load(t, "../testdata/golden/qwen2/tied_gqa/teacher", cpu.Options{Workers: 1})
	draft = model.NewTrainable(target.Device(), f.Config)
	if err := draft.LoadWeights(s, f); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, p := range draft.Params() {
		host := make([]float32, p.Rows*p.Cols)
		if err := s.Download(host, p.Value); err != nil {
			t.Fatal(err)
		}
		for i := range host {
			host[i] *= float32(1 + .3*rng.NormFloat64())
		}
		s.Upload(p.Value, host)
	}
	draft.Refresh(s)
	return s, target, draft.Frozen()
}

// TestDraftDistribution: pairs of tokens that are drawn with a draft follow the model's own distribution (χ², p >
// .001).
func TestDraftDistribution(t *testing.T) {
	const n, k = 6000, 5
	s, target, draft := tinyPair(t)
	prompt := []int32{3, 1, 4, 1, 5}
	o := generate.Options{MaxTokens: 2, RepeatPenalty: 1, Vocab: 320, Temperature: 1, TopK: k}
	counts := map[[2]int32]int{}
	kept := 0
	for seed := range n {
		o.Seed = uint64(seed)
		d := generate.Draft{Model: draft, Tokens: 2}
		r, st, err := generate.Speculate(context.Background(), target, s, prompt, o, d, nil)
		if err != nil {
			t.Fatal(err)
		}
		kept += st.Accepted
		counts[[2]int32(r.IDs)]++
	}
	if kept == 0 || kept == n {
		t.Errorf("%d of %d proposals were kept: nothing is shown", kept, n)
	}
	chi, cells := 0.0, 0
	first := topOf(t, s, target, prompt, k)
	for a, pa := range first {
		for b, pb := range topOf(t, s, target, append(slices.Clone(prompt), a), k) {
			want := n * pa * pb
			got := float64(counts[[2]int32{a, b}])
			delete(counts, [2]int32{a, b})
			chi += (got - want) * (got - want) / want
			cells++
		}
	}
	if len(counts) > 0 {
		t.Errorf("pairs of no probability: %v", counts)
	}
	// Wilson and Hilferty's approximation of the .999 quantile
	df := float64(cells - 1)
	limit := df * math.Pow(1-2/(9*df)+3.0902*math.Sqrt(2/(9*df)), 3)
	if !(chi <= limit) {
		t.Errorf("χ² = %.1f over %d cells, at most %.1f", chi, cells, limit)
	}
	contracttest.Cases(t, n)
}

// topOf is the distribution of the token behind ids among the k likeliest.
func topOf(t *testing.T, s device.Stream, m *model.Model, ids []int32, k int) map[int32]float64 {
	dev := m.Device()
	in := dev.Alloc("ids", device.Batch, tensor.I32, len(ids), 1)
	defer dev.Free(in)
	s.UploadInts(in, ids)
	x := s.Temp("x", device.Activations, tensor.F32, len(ids), m.Config.Hidden)
	z := s.Temp("z", device.Logits, tensor.F32, 1, 320)
	m.Hidden(s, x, model.Tokens{IDs: in, Rows: 1, SeqLen: len(ids)})
	m.Logits(s, z, x.RowRange(len(ids)-1, len(ids)))
	host := make([]float32, 320)
	if err := s.Download(host, z); err != nil {
		t.Fatal(err)
	}
	s.Release(z)
	s.Release(x)
	order := make([]int32, 320)
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order, func(a, b int32) int { return int(math.Copysign(1, float64(host[b]-host[a]))) })
	sum, p := 0.0, map[int32]float64{}
	for _, id := range order[:k] {
		p[id] = math.Exp(float64(host[id]))
		sum += p[id]
	}
	for id := range p {
		p[id] /= sum
	}
	return p
}

// TestDraftDoesNotDecide: the text of a seed is the same whatever the draft, the number of its proposals, and whether
// it is turned off; one that makes the text slower is, one that does not stays.
func TestDraftDoesNotDecide(t *testing.T) {
	s, target, draft := tinyPair(t)
	prompt := []int32{3, 1, 4, 1, 5}
	o := generate.Options{MaxTokens: 120, RepeatPenalty: 1, Vocab: 320, Temperature: .8, TopP: .9, Seed: 7}
	text := ""
	for _, d := range []generate.Draft{
		{Model: draft, Tokens: 1}, {Model: draft, Tokens: 5}, {Model: target, Tokens: 3}, {Model: draft, Tokens: 4, Trial: 8},
	} {
		r, _, err := generate.Speculate(context.Background(), target, s, prompt, o, d, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(r.IDs); text == "" {
			text = got
		} else if got != text {
			t.Errorf("%d tokens: %s, want %s", d.Tokens, got, text)
		}
	}
	for _, slow := range []time.Duration{time.Millisecond, 200 * time.Millisecond} { // of a round with proposals
		st := generate.DraftClock(t, slow, 8*time.Millisecond, target, draft, s, prompt, o)
		if st.Off != (slow > 8*time.Millisecond) {
			t.Errorf("a round of %v: turned off %t", slow, st.Off)
		}
		contracttest.Cases(t, 1)
	}
}

// TestDraftRefusals: a model whose cache cannot go back.
func TestDraftRefusals(t *testing.T) {
	s, target, draft := tinyPair(t)
	c := draft.Config
	c.Layers = slices.Clone(c.Layers)
	c.Layers[0].Attn.Window = 4
	c.MaxPositions = 4096
	window := model.NewTrainable(draft.Device(), c)
	o := generate.Options{MaxTokens: 2000, RepeatPenalty: 1, Vocab: 320}
	target.Config.MaxPositions = 4096
	d := generate.Draft{Model: window, Tokens: 2}
	_, _, err := generate.Speculate(context.Background(), target, s, []int32{1}, o, d, nil)
	if fault.KindOf(err) != fault.Unavailable {
		t.Errorf("a windowed draft: %v", err)
	}
}

// TestDraftBehindChunk: proposals are read in one pass where a chunk of the prompt ends between them.
func TestDraftBehindChunk(t *testing.T) {
	s, target, draft := tinyPair(t)
	target.Config.MaxPositions, draft.Config.MaxPositions = 1024, 1024
	prompt := make([]int32, 510)
	for i := range prompt {
		prompt[i] = int32(7 * i % 320)
	}
	o := generate.Options{MaxTokens: 6, RepeatPenalty: 1, Vocab: 320, Seed: 3}
	write := func(k int) []int32 {
		d := generate.Draft{Model: draft, Tokens: k}
		r, _, err := generate.Speculate(context.Background(), target, s, prompt, o, d, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r.IDs
	}
	want, err := generate.Generate(context.Background(), target, s, prompt, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := write(4); !slices.Equal(got, want.IDs) {
		t.Errorf("greedy: %v, want %v", got, want.IDs)
	}
	o.Temperature = 1
	if a, b := write(1), write(4); !slices.Equal(a, b) {
		t.Errorf("drawn: %v with one proposal, %v with four", a, b)
	}
}
