package generate_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/generate"
	"apr/internal/contracttest"
	"apr/model"
	"apr/model/modeltest"
)

// written is what became of a request.
type written struct {
	tokens []generate.Token
	why    string
}

// write gives an engine of some slots the requests in an order, and returns their texts.
func write(t *testing.T, m *model.Model, o generate.EngineOptions, requests []generate.Request, order []int) []written {
	t.Helper()
	e := generate.NewEngine(m, m.Device().NewStream(), o)
	defer e.Close()
	all, out := make([]*generate.Sequence, len(requests)), make([]written, len(requests))
	for _, i := range order {
		q, err := e.Submit(t.Context(), requests[i])
		if err != nil {
			t.Fatal(err)
		}
		all[i] = q
	}
	for i, q := range all {
		for token := range q.Tokens {
			out[i].tokens = append(out[i].tokens, token)
		}
		r, err := q.Result()
		if err != nil {
			t.Fatal(err)
		}
		out[i].why = r.FinishReason
	}
	return out
}

// sameTexts compares texts with their log-probabilities, bit for bit.
func sameTexts(t *testing.T, what string, got, want []written) {
	t.Helper()
	for i := range want {
		if got[i].why != want[i].why || !slices.EqualFunc(got[i].tokens, want[i].tokens, func(a, b generate.Token) bool {
			return a.ID == b.ID && math.Float64bits(a.LogProb) == math.Float64bits(b.LogProb) && slices.Equal(a.Top, b.Top)
		}) {
			t.Errorf("%s: text %d is\n%v, alone it is\n%v", what, i, got[i], want[i])
		}
	}
}

// requestsOf returns requests of different lengths and settings, two of them of one prompt.
func requestsOf(rng *rand.Rand, vocab, n, longest, tokens int) (all []generate.Request) {
	for i := range n {
		o := generate.Options{MaxTokens: 1 + rng.IntN(tokens), Temperature: .8, TopP: .95, Seed: 7}
		r := generate.Request{Options: o, LogProbs: i%3 - 1}
		if i%4 == 3 {
			r.Options = generate.Options{MaxTokens: tokens, RepeatPenalty: 1.1, RepeatLastN: 8}
			r.LogProbs = -1
		}
		for range 1 + rng.IntN(longest) {
			r.Prompt = append(r.Prompt, int32(rng.IntN(vocab)))
		}
		if i == 1 {
			r.Prompt, r.Sample = all[0].Prompt, 1
		}
		all = append(all, r)
	}
	return all
}

// A text is the same alone, among neighbours, in any order of arrival, with any number of slots and with few pages: for every family,
// over more positions than windows and pages hold.
func TestTextsDoNotDependOnNeighbours(t *testing.T) {
	for _, dir := range families(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			contracttest.Cases(t, 1)
			f := longer{modeltest.Open(t, dir)}
			d := modeltest.CPU(t, cpu.Options{})
			m, err := model.LoadFrozen(d, f, device.StudentWeights)
			if err != nil {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			requests := requestsOf(rng, f.Config.Vocab, 7, 90, 50)
			o := generate.EngineOptions{Slots: 1, Capacity: 160, Vocab: f.Config.Vocab}
			var alone []written
			for _, r := range requests {
				alone = append(alone, write(t, m, o, []generate.Request{r}, []int{0})...)
			}
			for _, slots := range []int{2, 5} {
				o.Slots, o.Positions = slots, 320
				sameTexts(t, fmt.Sprintf("%d slots", slots), write(t, m, o, requests, rng.Perm(len(requests))), alone)
			}
			o.Slots, o.Rows = 3, 4
			sameTexts(t, "passes of 4 rows", write(t, m, o, requests, rng.Perm(len(requests))), alone)
		})
	}
}

// unpaged is a device that does not attend over pages.
type unpaged struct{ device.Device }

func (d unpaged) Info() device.Info {
	info := d.Device.Info()
	info.Lacks = append(slices.Clone(info.Lacks), device.Pages)
	return info
}

// Texts of an engine are those of one generation at a time, where that is exact: greedy, on a CPU, whose products give a row the bits
// that it has alone. The ids cross windows, pages and changes of frequencies. A device that does not attend over
// pages writes the same.
func TestTextsOfAnEngineAreThoseOfGenerate(t *testing.T) {
	for _, dir := range families(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			contracttest.Cases(t, 1)
			f := longer{modeltest.Open(t, dir)}
			d := modeltest.CPU(t, cpu.Options{})
			m, err := model.LoadFrozen(d, f, device.StudentWeights)
			if err != nil {
				t.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(3, 4))
			var requests []generate.Request
			var want []written
			for _, n := range []int{1, 5, 70, 12} {
				r := generate.Request{Options: greedy(90, f.Config.Vocab), LogProbs: -1}
				for range n {
					r.Prompt = append(r.Prompt, int32(rng.IntN(f.Config.Vocab)))
				}
				one, err := generate.Generate(t.Context(), m, d.NewStream(), r.Prompt, r.Options, nil)
				if err != nil {
					t.Fatal(err)
				}
				w := written{why: one.FinishReason}
				for _, id := range one.IDs {
					w.tokens = append(w.tokens, generate.Token{ID: id})
				}
				requests, want = append(requests, r), append(want, w)
			}
			o := generate.EngineOptions{Slots: 3, Capacity: 200, Vocab: f.Config.Vocab}
			sameTexts(t, "engine", write(t, m, o, requests, []int{3, 1, 0, 2}), want)
			gathers, err := model.LoadFrozen(unpaged{d}, f, device.StudentWeights)
			if err != nil {
				t.Fatal(err)
			}
			sameTexts(t, "keys that are gathered", write(t, gathers, o, requests[1:3], []int{1, 0}), want[1:3])
		})
	}
}

// A closed engine gives back what it took.
func TestEngineGivesMemoryBack(t *testing.T) {
	for _, dir := range families(t) {
		f := modeltest.Open(t, dir)
		d := modeltest.CPU(t, cpu.Options{})
		m, err := model.LoadFrozen(d, f, device.StudentWeights)
		if err != nil {
			t.Fatal(err)
		}
		before, _ := d.Memory()
		o := generate.EngineOptions{Slots: 3, Capacity: 100, Vocab: f.Config.Vocab}
		write(t, m, o, requestsOf(rand.New(rand.NewPCG(5, 6)), f.Config.Vocab, 4, 5, 5), []int{0, 1, 2, 3})
		after, _ := d.Memory()
		for c, n := range after {
			if n != before[c] {
				t.Errorf("%s: %s holds %d bytes, %d before", dir, c, n, before[c])
			}
		}
	}
}

// A request whose context ends gives its slot back and leaves its neighbours' texts alone; more than may wait are refused; a closed
// engine finishes what it accepted.
func TestEngineRequestsEnd(t *testing.T) {
	_, f, m := modeltest.Load(t, "../testdata/models/gosrc", cpu.Options{})
	vocab := f.Config.Vocab
	o := generate.EngineOptions{Slots: 2, Capacity: 400, Vocab: vocab, Queue: 1}
	rng := rand.New(rand.NewPCG(7, 8))
	r := requestsOf(rng, vocab, 1, 20, 2)[0]
	r.MaxTokens = 30
	alone := write(t, m, o, []generate.Request{r}, []int{0})
	e := generate.NewEngine(m, m.Device().NewStream(), o)
	ctx, cancel := context.WithCancel(t.Context())
	long := r
	long.MaxTokens = 300
	var dropped []*generate.Sequence
	for range 2 {
		q, err := e.Submit(ctx, long)
		if err != nil {
			t.Fatal(err)
		}
		dropped = append(dropped, q)
		<-q.Tokens // it is in a slot
	}
	kept, err := e.Submit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Submit(t.Context(), r); !errors.Is(err, generate.ErrBusy) {
		t.Errorf("a second request may wait: %v", err)
	}
	if _, err := e.Submit(t.Context(), long); err == nil {
		t.Error("a request beyond the queue was accepted")
	}
	cancel()
	for _, q := range dropped {
		if _, err := q.Result(); !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled request ended by %v", err)
		}
	}
	go e.Close()
	var got written
	for token := range kept.Tokens {
		got.tokens = append(got.tokens, token)
	}
	result, err := kept.Result()
	if err != nil {
		t.Fatal(err)
	}
	got.why = result.FinishReason
	sameTexts(t, "behind cancelled ones", []written{got}, alone)
	e.Close()
	if _, err := e.Submit(t.Context(), r); !errors.Is(err, generate.ErrClosed) {
		t.Errorf("a closed engine accepts: %v", err)
	}
}

// The log-probabilities of a prompt are those of softmax, whatever is generated, and those of a text are what the model gives its own
// tokens when it reads them.
func TestEngineScores(t *testing.T) {
	_, f, m := modeltest.Load(t, "../testdata/models/gosrc", cpu.Options{})
	o := generate.EngineOptions{Slots: 2, Capacity: 200, Vocab: f.Config.Vocab}
	r := requestsOf(rand.New(rand.NewPCG(9, 10)), f.Config.Vocab, 1, 1, 1)[0]
	r.Prompt, r.MaxTokens, r.LogProbs = []int32{500, 600, 700, 30}, 40, 3
	text := write(t, m, o, []generate.Request{r}, []int{0})[0].tokens
	read := r
	for _, token := range text {
		read.Prompt = append(slices.Clone(read.Prompt), token.ID)
	}
	read.MaxTokens, read.Score = 0, true
	e := generate.NewEngine(m, m.Device().NewStream(), o)
	defer e.Close()
	q, err := e.Submit(t.Context(), read)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Result(); err != nil {
		t.Fatal(err)
	}
	scores := q.Scores()
	if len(scores) != len(read.Prompt)-1 {
		t.Fatalf("%d scores of %d tokens", len(scores), len(read.Prompt))
	}
	for i, token := range text {
		s := scores[len(r.Prompt)-1+i]
		if s.ID != token.ID || !(math.Abs(s.LogProb-token.LogProb) <= 1e-4) || s.Top[0].ID != token.Top[0].ID || !(s.LogProb <= s.Top[0].LogProb) {
			t.Errorf("token %d: read %v, written %v", i, s, token)
		}
	}
}
