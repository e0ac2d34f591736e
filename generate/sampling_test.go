package generate_test

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/corpus"
	"apr/device"
	"apr/device/cpu"
	"apr/generate"
	"apr/internal/near"
	"apr/model"
	"apr/model/modeltest"
	"apr/tensor"
)

const draws = 2000

// fixedModel returns a model whose logits are the given ones after every token: its body adds nothing to an embedding
// of ones, which the final norm keeps, and the head multiplies.
func fixedModel(t *testing.T, logits []float32) (device.Stream, *model.Model) {
	t.Helper()
	d := modeltest.CPU(t, cpu.Options{})
	s := d.NewStream()
	m := model.NewTrainable(d, arch.Qwen2(arch.Sizes{Hidden: 2, Layers: 1, Heads: 1, KVHeads: 1, HeadDim: 2, Width: 2,
		Vocab: len(logits), MaxPositions: draws + 10, Theta: 1e4, Eps: 1e-12,
	}))
	fill := func(x device.Tensor, row func(r int) []float32) {
		var host []float32
		for r := range x.Rows {
			host = append(host, row(r)...)
		}
		s.Upload(x, host)
	}
	for _, p := range m.Parts() {
		switch p.Name {
		case "model.embed_tokens.weight", "model.norm.weight":
			fill(p.Of(p.Param.Value), func(int) []float32 { return []float32{1, 1} })
		case "lm_head.weight":
			fill(p.Of(p.Param.Value), func(r int) []float32 { return []float32{logits[r], 0} })
		}
	}
	m.Refresh(s)
	return s, m.Frozen()
}

// The frequencies of sampled ids are those of the softmax after penalty, temperature, top-k and top-p, whose values
// follow by hand from logits ln 8, ln 4, ln 2, ln 1 (in another order): with n draws a share f varies by √(f(1−f)/n).
func TestSamplingDistribution(t *testing.T) {
	ln := func(x float64) float32 { return float32(math.Log(x)) }
	s, m := fixedModel(t, []float32{ln(2), ln(8), ln(1), ln(4)})
	for name, c := range map[string]struct {
		o    generate.Options
		want []float64
	}{
		"plain":                 {generate.Options{Temperature: 1}, []float64{2. / 15, 8. / 15, 1. / 15, 4. / 15}},
		"half the temperature":  {generate.Options{Temperature: 0.5}, []float64{4. / 85, 64. / 85, 1. / 85, 16. / 85}},
		"top-k 2":               {generate.Options{Temperature: 1, TopK: 2}, []float64{0, 2. / 3, 0, 1. / 3}},
		"top-k beyond":          {generate.Options{Temperature: 1, TopK: 9}, []float64{2. / 15, 8. / 15, 1. / 15, 4. / 15}},
		"top-p just two":        {generate.Options{Temperature: 1, TopP: 11.9 / 15}, []float64{0, 2. / 3, 0, 1. / 3}},
		"top-p a little more":   {generate.Options{Temperature: 1, TopP: 12.1 / 15}, []float64{2. / 14, 8. / 14, 0, 4. / 14}},
		"top-p of what k keeps": {generate.Options{Temperature: 1, TopK: 2, TopP: 0.6}, []float64{0, 1, 0, 0}},
		"top-p 1":               {generate.Options{Temperature: 1, TopP: 1}, []float64{2. / 15, 8. / 15, 1. / 15, 4. / 15}},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.MaxTokens, c.o.RepeatPenalty, c.o.Vocab, c.o.Seed = draws, 1, 4, 3
			r, err := generate.Generate(context.Background(), m, s, []int32{0}, c.o, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]float64, 4)
			for _, id := range r.IDs {
				got[id] += 1. / draws
			}
			for i, f := range c.want {
				near.Check(t, "share", got[i:i+1], []float64{f}, 4*math.Sqrt(f*(1-f)/draws)+1e-12)
			}
		})
	}
}

// The penalty divides positive and multiplies negative logits of the last ids, prompt included, each once.
func TestPenalty(t *testing.T) {
	s, m := fixedModel(t, []float32{4, 3, -1, -1.5, 1})
	for name, c := range map[string]struct {
		penalty float64
		last    int
		prompt  []int32
		want    []int32
	}{
		"off":             {1, 10, []int32{0}, []int32{0, 0, 0}},
		"one back":        {2, 1, []int32{0}, []int32{1, 0, 1}},
		"two back":        {8, 2, []int32{0}, []int32{1, 4, 0}},
		"once, not twice": {1.3, 3, []int32{0, 0, 0}, []int32{0, 0, 0}},
		"all low":         {2, 9, []int32{0, 1, 4}, []int32{0}},
	} {
		t.Run(name, func(t *testing.T) {
			o := generate.Options{MaxTokens: len(c.want), RepeatPenalty: c.penalty, RepeatLastN: c.last, Vocab: 5}
			r, err := generate.Generate(context.Background(), m, s, c.prompt, o, nil)
			if err != nil || !slices.Equal(r.IDs, c.want) {
				t.Errorf("ids %v (%v), want %v", r.IDs, err, c.want)
			}
		})
	}
	s, m = fixedModel(t, []float32{-3, -1, -2})
	r, err := generate.Generate(context.Background(), m, s, []int32{1}, generate.Options{MaxTokens: 1, RepeatPenalty: 4, RepeatLastN: 1, Vocab: 3}, nil)
	if err != nil || !slices.Equal(r.IDs, []int32{2}) {
		t.Errorf("a penalised negative logit: ids %v (%v), want [2]", r.IDs, err)
	}
}

// A prompt longer than is read at one time continues as Hidden over all of it says, at every length around the limit.
func TestLongPrompt(t *testing.T) {
	s, m, tok := load(t)
	text := strings.Repeat("func f(a int) error {\n\treturn nil\n}\n\n", 60)
	ids := tok.Encode(text, 0)
	for _, n := range []int{511, 512, 513, 700} {
		prompt := ids[:n]
		r, err := generate.Generate(context.Background(), m, s, prompt, greedy(3, tok.RealIDs()), nil)
		if err != nil {
			t.Fatal(err)
		}
		seq := slices.Concat(prompt, r.IDs)
		b := model.NewBatch(m.Device(), 1, len(seq))
		b.Load(s, corpus.Batch{Rows: 1, SeqLen: len(seq), Tokens: seq, Targets: seq, Mask: slices.Repeat([]uint8{1}, len(seq))}, 1)
		hidden := s.Temp("hidden", device.Activations, tensor.F32, len(seq), m.Config.Hidden)
		z := s.Temp("z", device.Logits, tensor.F32, 3, tok.RealIDs())
		m.Hidden(s, hidden, b.Tokens)
		m.Logits(s, z, hidden.RowRange(n-1, n+2))
		host := make([]float32, 3*tok.RealIDs())
		if err := s.Download(host, z); err != nil {
			t.Fatal(err)
		}
		for i, id := range r.IDs {
			row := host[i*tok.RealIDs():][:tok.RealIDs()]
			if largest := slices.Max(row); !(largest-row[id] <= 1e-4) {
				t.Errorf("prompt of %d: id %d at %d has logit %g, the largest is %g", n, id, i, row[id], largest)
			}
		}
		s.Release(z, hidden)
	}
}

// Logits that are no numbers, or become none by the penalty, are errors, never an id.
func TestLogitsMustBeFinite(t *testing.T) {
	inf := float32(math.Inf(1))
	for name, c := range map[string]struct {
		logits []float32
		o      generate.Options
		want   string
	}{
		"NaN":              {[]float32{1, float32(math.NaN())}, generate.Options{RepeatPenalty: 1}, "logit of id 1"},
		"infinite":         {[]float32{inf, 1}, generate.Options{RepeatPenalty: 1, Temperature: 1}, "logit of id 0"},
		"infinite, greedy": {[]float32{1, inf}, generate.Options{RepeatPenalty: 1}, "logit of id 1"},
		"none, greedy":     {[]float32{-inf, -inf}, generate.Options{RepeatPenalty: 1}, "all logits at position 1 are -Inf"},
		"infinite penalty": {[]float32{1, 1}, generate.Options{RepeatPenalty: 1e-50, RepeatLastN: 5, Temperature: 1, TopP: 0.5}, "logit of id 0"},
		"minus infinity":   {[]float32{-inf, -inf}, generate.Options{RepeatPenalty: 1, Temperature: 1, TopP: 0.5}, "logit"},
		"endless length":   {[]float32{1, 1}, generate.Options{RepeatPenalty: 1, MaxTokens: math.MaxInt}, "exceed the model's 2010 positions"},
		"negative length":  {[]float32{1, 1}, generate.Options{RepeatPenalty: 1, MaxTokens: -1}, "-1 tokens"},
	} {
		t.Run(name, func(t *testing.T) {
			s, m := fixedModel(t, c.logits)
			c.o.Vocab = 2
			if c.o.MaxTokens == 0 {
				c.o.MaxTokens = 1
			}
			for _, s := range []device.Stream{s, fetching{s}} {
				_, err := generate.Generate(context.Background(), m, s, []int32{0}, c.o, nil)
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want one that says %q", err, c.want)
				}
			}
		})
	}
}

// Greedy finds the id itself, and leaves to the host only what is no number, +∞, or −∞ throughout.
func TestGreedyTellsFinite(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		logits []float32
		id     int32
		finite bool
	}{
		{[]float32{-3, 2, 2, -1}, 1, true}, {[]float32{-inf, -inf, -inf, -7}, 3, true}, {[]float32{-3e38, 1e30, 3e38, 3e38}, 2, true},
		{[]float32{1, nan, 3, 4}, 0, false}, {[]float32{1, inf, 3, 4}, 0, false}, {[]float32{-inf, -inf, -inf, -inf}, 0, false},
	} {
		s, m := fixedModel(t, c.logits)
		hidden := s.Temp("hidden", device.Activations, tensor.F32, 1, 2)
		s.Upload(hidden, []float32{1, 1})
		g := m.NewGreedy(4)
		id, finite, err := g.Next(s, hidden)
		early, alike, wrong := g.Begin(fetching{s}, hidden)()
		if err != nil || wrong != nil || id != c.id || finite != c.finite || early != id || alike != finite {
			t.Errorf("%v: id %d, finite %t (%v), then %d, %t (%v), want %d, %t", c.logits, id, finite, err, early, alike, wrong, c.id, c.finite)
		}
		g.Free()
		s.Release(hidden)
	}
}

// A logit of −∞ or beyond what a sum of squares holds is no error: the largest of the others follows, the lowest id of equals.
func TestGreedyBesideHugeLogits(t *testing.T) {
	for name, c := range map[string]struct {
		logits []float32
		want   int32
	}{
		"-infinite": {[]float32{-1, float32(math.Inf(-1)), 3, 2}, 2},
		"huge":      {[]float32{-1e30, 1e30, 2e30, 2e30}, 2},
		"equal":     {[]float32{1, 4, 4, 4}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s, m := fixedModel(t, c.logits)
			for _, s := range []device.Stream{s, fetching{s}} {
				r, err := generate.Generate(context.Background(), m, s, []int32{0}, generate.Options{MaxTokens: 2, RepeatPenalty: 1, Vocab: 4}, nil)
				if err != nil || !slices.Equal(r.IDs, []int32{c.want, c.want}) {
					t.Errorf("ids %v (%v), want %d twice", r.IDs, err, c.want)
				}
			}
		})
	}
}
