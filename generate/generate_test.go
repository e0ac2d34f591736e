package generate_test

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/generate"
	"apr/model"
	"apr/model/modeltest"
	"apr/tokenizer"
)

const gosrc = "../testdata/models/gosrc"

func load(t *testing.T) (device.Stream, *model.Model, *tokenizer.Tokenizer) {
	t.Helper()
	s, f, m := modeltest.Load(t, gosrc, cpu.Options{})
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	return s, m, tok
}

func greedy(n, vocab int) generate.Options {
	return generate.Options{MaxTokens: n, RepeatPenalty: 1, Vocab: vocab}
}

// The continuations are those of transformers in float64, token for token.
func TestGreedyReference(t *testing.T) {
	var ref struct {
		Greedy []struct {
			Prompt    string
			PromptIDs []int32 `json:"prompt_ids"`
			GreedyIDs []int32 `json:"greedy_ids"`
			Text      string
		}
	}
	b, err := os.ReadFile(gosrc + "/reference.json")
	if err == nil {
		err = json.Unmarshal(b, &ref)
	}
	if err != nil || len(ref.Greedy) != 5 {
		t.Fatalf("reference with %d continuations: %v", len(ref.Greedy), err)
	}
	s, m, tok := load(t)
	for _, want := range ref.Greedy {
		t.Run(strings.Fields(want.Prompt)[0], func(t *testing.T) {
			prompt := tok.Encode(want.Prompt, tokenizer.PlainText)
			if !slices.Equal(prompt, want.PromptIDs) {
				t.Fatalf("prompt ids %v, want %v", prompt, want.PromptIDs)
			}
			var streamed []int32
			got, err := generate.Generate(context.Background(), m, s, prompt, greedy(len(want.GreedyIDs), tok.RealIDs()),
				func(id int32) error { streamed = append(streamed, id); return nil })
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.IDs, want.GreedyIDs) || !slices.Equal(streamed, got.IDs) {
				t.Errorf("ids %v, streamed %v, want %v", got.IDs, streamed, want.GreedyIDs)
			}
			text, err := tok.Decode(got.IDs)
			if err != nil || text != want.Text {
				t.Errorf("text %q (%v), want %q", text, err, want.Text)
			}
		})
	}
}

// fetching is a stream that is a device.Fetcher.
type fetching struct{ device.Stream }

func (s fetching) Fetch(t device.Tensor) func(dst []float32) error {
	values := make([]float32, t.Rows*t.Cols)
	err := s.Download(values, t)
	return func(dst []float32) error {
		copy(dst, values)
		return err
	}
}

// TestEarly: a device that goes on before the host knows an id gives the ids of one that waits, to the same end.
func TestEarly(t *testing.T) {
	s, m, tok := load(t)
	prompt := tok.Encode("func ", tokenizer.PlainText)
	for _, n := range []int{1, 2, 12} {
		for _, stop := range []int{-1, 0, 5} {
			o := greedy(n, tok.RealIDs())
			want, err := generate.Generate(context.Background(), m, s, prompt, o, nil)
			if err != nil {
				t.Fatal(err)
			}
			if stop >= 0 && stop < n {
				o.Stop = want.IDs[stop : stop+1]
				if want, err = generate.Generate(context.Background(), m, s, prompt, o, nil); err != nil {
					t.Fatal(err)
				}
			}
			got, err := generate.Generate(context.Background(), m, fetching{s}, prompt, o, nil)
			if err != nil || !slices.Equal(got.IDs, want.IDs) || got.FinishReason != want.FinishReason {
				t.Errorf("%d tokens: %v, %s (%v), want %v, %s", n, got.IDs, got.FinishReason, err, want.IDs, want.FinishReason)
			}
		}
	}
}

func TestSampling(t *testing.T) {
	s, m, tok := load(t)
	prompt := tok.Encode("func ", tokenizer.PlainText)
	run := func(o generate.Options) []int32 {
		t.Helper()
		o.Vocab = tok.RealIDs()
		r, err := generate.Generate(context.Background(), m, s, prompt, o, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r.IDs
	}
	base := generate.Options{MaxTokens: 12, Temperature: 1, RepeatPenalty: 1, Seed: 7}
	first := run(base)
	if again := run(base); !slices.Equal(first, again) {
		t.Errorf("the same seed gave %v and %v", first, again)
	}
	other := base
	other.Seed = 8
	if slices.Equal(first, run(other)) {
		t.Error("another seed gave the same ids")
	}
	want := run(greedy(12, 0))
	for name, o := range map[string]generate.Options{
		"top-k 1":          {MaxTokens: 12, Temperature: 1, TopK: 1, RepeatPenalty: 1},
		"top-p tiny":       {MaxTokens: 12, Temperature: 1, TopP: 1e-9, RepeatPenalty: 1},
		"cold":             {MaxTokens: 12, Temperature: 1e-6, RepeatPenalty: 1},
		"penalty, nothing": {MaxTokens: 12, RepeatPenalty: 5, RepeatLastN: 0},
	} {
		if got := run(o); !slices.Equal(got, want) {
			t.Errorf("%s gave %v, greedy %v", name, got, want)
		}
	}
	if penalised := run(generate.Options{MaxTokens: 12, RepeatPenalty: 1e6, RepeatLastN: 100}); hasRepeat(penalised) {
		t.Errorf("a huge penalty still repeats: %v", penalised)
	}
}

func hasRepeat(ids []int32) bool {
	sorted := slices.Sorted(slices.Values(ids))
	return len(slices.Compact(sorted)) < len(ids)
}

func TestStopAndErrors(t *testing.T) {
	s, m, tok := load(t)
	prompt := tok.Encode("package main\n\nimport (\n", tokenizer.PlainText)
	all, err := generate.Generate(context.Background(), m, s, prompt, greedy(5, tok.RealIDs()), nil)
	if err != nil || all.FinishReason != "length" {
		t.Fatalf("reason %q, error %v", all.FinishReason, err)
	}
	o := greedy(5, tok.RealIDs())
	o.Stop = []int32{all.IDs[2]}
	got, err := generate.Generate(context.Background(), m, s, prompt, o, nil)
	if err != nil || got.FinishReason != "stop" || !slices.Equal(got.IDs, all.IDs[:2]) {
		t.Errorf("ids %v, reason %q, error %v; want %v and stop", got.IDs, got.FinishReason, err, all.IDs[:2])
	}
	for name, c := range map[string]struct {
		prompt []int32
		o      generate.Options
		want   string
	}{
		"no prompt":       {nil, greedy(1, 4096), "no tokens"},
		"too long":        {prompt, greedy(3000, 4096), "2048 positions"},
		"outside":         {[]int32{5000}, greedy(1, 4096), "outside the vocabulary"},
		"bad temperature": {prompt, generate.Options{MaxTokens: 1, Temperature: -1, RepeatPenalty: 1, Vocab: 4096}, "temperature"},
	} {
		if _, err := generate.Generate(context.Background(), m, s, c.prompt, c.o, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one that says %q", name, err, c.want)
		}
	}
}
