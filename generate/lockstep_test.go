package generate_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/generate"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/near"
	"apr/model"
	"apr/model/modeltest"
	"apr/tensor"
)

// ownRequests are prompts of different lengths, texts of different ends.
func ownRequests(rng *rand.Rand, vocab, n int) (all []generate.Request) {
	var stops []int32
	for id := int32(2); id < 80; id++ {
		stops = append(stops, id)
	}
	for i := range n {
		prompt := make([]int32, 1+rng.IntN(5))
		for j := range prompt {
			prompt[j] = rng.Int32N(int32(vocab))
		}
		o := generate.Options{Temperature: 1, Seed: 7, MaxTokens: 1 + rng.IntN(6), Stop: stops, Never: []int32{1}}
		all = append(all, generate.Request{Prompt: prompt, Options: o, Sample: i, KeepStop: true})
	}
	return all
}

// TestTogether: in lock-step every token is one that the model gives the probability that is told, whatever the lengths
// of prompts and texts and whatever other texts there are; and texts are the same in waves and all at once.
func TestTogether(t *testing.T) {
	dev := modeltest.CPU(t, cpu.Options{})
	f := modeltest.Open(t, "../testdata/golden/qwen2/tied_gqa/student")
	m := modeltest.On(t, dev, f)
	v := f.Config.Vocab
	requests := ownRequests(rand.New(rand.NewPCG(3, 9)), v, 9)
	write := func(rows int) []generate.Text {
		w := generate.NewTogether(m, dev.NewStream(), rows, 16, v)
		defer w.Free()
		texts, err := w.Write(t.Context(), requests)
		if err != nil {
			t.Fatal(err)
		}
		return texts
	}
	all := write(16)
	if got := write(4); fmt.Sprint(got) != fmt.Sprint(all) {
		t.Errorf("in waves of 4:\n%v, at once\n%v", got, all)
	}
	s := dev.NewStream()
	stopped := 0
	for i, text := range all {
		r := requests[i]
		if n := len(text.IDs); n == 0 || n > r.MaxTokens || !text.Stopped && n < r.MaxTokens {
			t.Fatalf("text %d of %d tokens has %v, stopped %v", i, r.MaxTokens, text.IDs, text.Stopped)
		}
		if text.Stopped {
			stopped++
		}
		checkProbabilities(t, m, s, r, text)
	}
	if stopped == 0 || stopped == len(all) {
		t.Errorf("%d of %d texts ended by themselves: nothing is tested", stopped, len(all))
	}
}

// checkProbabilities holds the probabilities of a text's tokens against those that the model gives them.
func checkProbabilities(t *testing.T, m *model.Model, s device.Stream, r generate.Request, text generate.Text) {
	t.Helper()
	v := m.Config.Vocab
	ids := append(append([]int32{}, r.Prompt...), text.IDs...)
	hidden := s.Temp("hidden", device.Activations, tensor.F32, len(ids)-1, m.Config.Hidden)
	in := s.Temp("ids", device.Batch, tensor.I32, len(ids)-1, 1)
	s.UploadInts(in, ids[:len(ids)-1])
	m.Hidden(s, hidden, model.Tokens{IDs: in, Rows: 1, SeqLen: len(ids) - 1})
	logits := make([]float32, (len(ids)-1)*v)
	z := s.Temp("logits", device.Logits, tensor.F32, len(ids)-1, v)
	m.Logits(s, z, hidden)
	if err := s.Download(logits, z); err != nil {
		t.Fatal(err)
	}
	for k, id := range text.IDs {
		row, sum := logits[(len(r.Prompt)-1+k)*v:(len(r.Prompt)+k)*v], 0.0
		for _, x := range row {
			sum += math.Exp(float64(x))
		}
		near.Check(t, "ln p", text.LogProbs[k:k+1], []float64{float64(row[id]) - math.Log(sum)}, 2e-5)
		if id == 1 {
			t.Errorf("a text of %v has an id that is never drawn", r.Prompt)
		}
	}
	s.Release(hidden, in, z)
	contracttest.Cases(t, len(text.IDs))
}

// TestTogetherReadsPrompts: prompts of several passes of positions, each read once for all texts that go on with it,
// give every token the probability that is told: with as many texts as a pass reads, fewer, more, and rows without a
// text.
func TestTogetherReadsPrompts(t *testing.T) {
	dev := modeltest.CPU(t, cpu.Options{})
	f := modeltest.Open(t, "../testdata/golden/qwen2/tied_gqa/student")
	m := modeltest.On(t, dev, f)
	s := dev.NewStream()
	for _, c := range []struct{ rows, texts, samples int }{{192, 190, 3}, {192, 100, 2}, {70, 70, 7}, {6, 5, 2}} {
		rng := rand.New(rand.NewPCG(5, uint64(c.rows)))
		var requests []generate.Request
		var prompt []int32
		for i := range c.texts {
			if i%c.samples == 0 {
				prompt = make([]int32, 2*model.PromptPositions+1+rng.IntN(9))
				for j := range prompt {
					prompt[j] = rng.Int32N(int32(f.Config.Vocab))
				}
			}
			o := generate.Options{Temperature: 1, Seed: 7, MaxTokens: 2, Never: []int32{1}}
			requests = append(requests, generate.Request{Prompt: prompt, Options: o, Sample: i})
		}
		w := generate.NewTogether(m, dev.NewStream(), c.rows, 44, f.Config.Vocab)
		texts, err := w.Write(t.Context(), requests)
		if err != nil {
			t.Fatal(err)
		}
		w.Free()
		for i := 0; i < len(texts); i += 2 {
			checkProbabilities(t, m, s, requests[i], texts[i])
		}
	}
}

// TestTogetherDistribution: the first tokens of 6,000 texts are drawn as often as they are likely, by χ² over the ten
// likeliest ids and the rest.
func TestTogetherDistribution(t *testing.T) {
	dev := modeltest.CPU(t, cpu.Options{})
	f := modeltest.Open(t, "../testdata/golden/qwen2/tied_gqa/student")
	m := modeltest.On(t, dev, f)
	w := generate.NewTogether(m, dev.NewStream(), 500, 4, f.Config.Vocab)
	defer w.Free()
	const n = 6000
	requests := make([]generate.Request, n)
	for i := range requests {
		requests[i] = generate.Request{Prompt: []int32{7, 2}, Sample: i, Options: generate.Options{Temperature: 1,
			Seed: 1, MaxTokens: 1}}
	}
	texts, err := w.Write(t.Context(), requests)
	if err != nil {
		t.Fatal(err)
	}
	counts, shares := map[int32]float64{}, map[int32]float64{}
	for _, x := range texts {
		counts[x.IDs[0]]++
		shares[x.IDs[0]] = math.Exp(x.LogProbs[0])
	}
	chi, left, rest := 0.0, float64(n), 1.0
	cells := 0
	for id, p := range shares {
		if p*n < 60 {
			continue
		}
		chi += (counts[id] - p*n) * (counts[id] - p*n) / (p * n)
		left, rest, cells = left-counts[id], rest-p, cells+1
	}
	chi += (left - rest*n) * (left - rest*n) / (rest * n)
	// Wilson and Hilferty 1931: of k degrees of freedom, 99.9 % are below k(1 − 2/9k + 3.09√(2/9k))³.
	k := float64(cells)
	if limit := k * math.Pow(1-2/(9*k)+3.09*math.Sqrt(2/(9*k)), 3); cells < 3 || !(chi < limit) {
		t.Errorf("χ² over %d cells is %g, above %g", cells+1, chi, limit)
	}
	contracttest.Cases(t, n)
}

// TestTogetherRefuses: prompts that leave no room are named before anything is written; nothing asked is nothing
// written.
func TestTogetherRefuses(t *testing.T) {
	dev := modeltest.CPU(t, cpu.Options{})
	f := modeltest.Open(t, "../testdata/golden/qwen2/tied_gqa/student")
	m := modeltest.On(t, dev, f)
	w := generate.NewTogether(m, dev.NewStream(), 2, 8, f.Config.Vocab)
	defer w.Free()
	r := generate.Request{Prompt: make([]int32, 6), Options: generate.Options{Temperature: 1, MaxTokens: 4}}
	if _, err := w.Write(t.Context(), []generate.Request{r}); fault.KindOf(err) != fault.Inference {
		t.Errorf("10 tokens in a text of 9: %v", err)
	}
	r.Prompt = nil
	if _, err := w.Write(t.Context(), []generate.Request{r}); fault.KindOf(err) != fault.Inference {
		t.Errorf("no prompt: %v", err)
	}
	r.Prompt, r.MaxTokens = make([]int32, 9), 0
	if texts, err := w.Write(t.Context(), []generate.Request{r}); err != nil || len(texts) != 1 || len(texts[0].IDs) > 0 {
		t.Errorf("nothing asked: %v, %v", texts, err)
	}
	if n := m.LockstepRows(100, 8, 3, 1); n != 3 {
		t.Errorf("%d rows where memory is short, want the least", n)
	}
	if n := m.LockstepRows(100, 8, 3, 1<<40); n != 100 {
		t.Errorf("%d rows where there is room, want all", n)
	}
	contracttest.Cases(t, 5)
}

// TestFamiliesTogether: of every family that can be extended in lock-step, drawn tokens have the probabilities that are
// told, behind prompts that are read several positions at a time.
func TestFamiliesTogether(t *testing.T) {
	const capacity, rows = model.PromptPositions + 8, 4
	tried := 0
	for _, dir := range families(t) {
		dev := modeltest.CPU(t, cpu.Options{})
		m := modeltest.On(t, dev, modeltest.Open(t, dir))
		s := dev.NewStream()
		if m.Config.MaxPositions < capacity || m.InStep(capacity) != "" {
			continue
		}
		tried++
		rng := rand.New(rand.NewPCG(11, 4))
		var requests []generate.Request
		for i := range rows - 1 {
			prompt := make([]int32, model.PromptPositions+2+i)
			for j := range prompt {
				prompt[j] = rng.Int32N(int32(m.Config.Vocab))
			}
			o := generate.Options{Temperature: 1, Seed: 7, MaxTokens: 3, Never: []int32{1}}
			requests = append(requests, generate.Request{Prompt: prompt, Options: o, Sample: i})
		}
		w := generate.NewTogether(m, s, rows, capacity, m.Config.Vocab)
		texts, err := w.Write(t.Context(), requests)
		if err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		w.Free()
		t.Run(filepath.Base(dir), func(t *testing.T) {
			for i, text := range texts {
				checkProbabilities(t, m, s, requests[i], text)
			}
		})
	}
	if tried < 15 {
		t.Errorf("%d families", tried)
	}
}
