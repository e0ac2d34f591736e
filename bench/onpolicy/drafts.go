package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"apr/device"
	"apr/generate"
	"apr/model"
)

// drafted is what a draft was worth, in tokens per second. Predicted is the speed-up of the rule: a pass of the target
// over the proposals yields (1−a^(k+1))/(1−a) tokens at acceptance a, and costs a token of the target and k of
// the draft.
type drafted struct {
	Device     string  `json:"device"`
	Shape      string  `json:"shape"`
	Tokens     int     `json:"tokens"`
	Proposed   int     `json:"draft_tokens"`
	Forced     float64 `json:"acceptance_forced"`
	Acceptance float64 `json:"acceptance"`
	Target     float64 `json:"target_tokens_per_second"`
	Draft      float64 `json:"draft_tokens_per_second"`
	With       float64 `json:"with_tokens_per_second"`
	SpeedUp    float64 `json:"speed_up"`
	Predicted  float64 `json:"predicted"`
}

// drafts times a target alone, its draft alone, and both together with acceptance forced, one text at a time, for
// several numbers of proposals. It prints a line of JSON each.
func (o options) drafts(ctx context.Context, dev device.Device, big, small *model.Model) error {
	s := dev.NewStream()
	rng := rand.New(rand.NewPCG(3, 4))
	prompt := make([]int32, o.prompt)
	for i := range prompt {
		prompt[i] = rng.Int32N(int32(o.vocab))
	}
	options := generate.Options{MaxTokens: o.tokens, RepeatPenalty: 1, Vocab: o.vocab}
	alone := func(m *model.Model) (speed float64, err error) {
		for range 2 {
			r, err := generate.Generate(ctx, m, s, prompt, options, nil)
			if err != nil {
				return 0, err
			}
			speed = max(speed, float64(len(r.IDs)-1)/(r.Total-r.FirstToken).Seconds())
		}
		return speed, nil
	}
	target, err := alone(big)
	if err != nil {
		return err
	}
	draft, err := alone(small)
	if err != nil {
		return err
	}
	for _, k := range []int{2, 3, 4, 6} {
		d := drafted{Device: dev.Info().Name, Shape: o.shape, Tokens: o.tokens, Proposed: k, Forced: .7,
			Target: target, Draft: draft}
		for range 2 {
			var first time.Duration
			begun := time.Now()
			emit := func(int32) error {
				if first == 0 {
					first = time.Since(begun)
				}
				return nil
			}
			r, st, err := generate.Speculate(ctx, big, s, prompt, options, generate.Draft{Model: small, Tokens: k,
				Forced: d.Forced}, emit)
			if err != nil {
				return err
			}
			d.With = max(d.With, float64(len(r.IDs)-1)/(time.Since(begun)-first).Seconds())
			d.Acceptance = float64(st.Accepted) / float64(max(1, st.Proposed))
		}
		tokens, a := 1.0, 1.0
		for range k {
			a *= d.Forced
			tokens += a
		}
		d.SpeedUp, d.Predicted = d.With/d.Target, tokens/(1+float64(k)*d.Target/d.Draft)
		fmt.Fprintf(os.Stderr, "draft of %d: %.0f tokens/s, %.0f without: %.2f x, %.2f x predicted\n", k, d.With,
			d.Target, d.SpeedUp, d.Predicted)
		if err := json.NewEncoder(os.Stdout).Encode(d); err != nil {
			return err
		}
	}
	return nil
}

// table prints what a folder of card.sh holds.
func table(dir string) error {
	var b strings.Builder
	b.WriteString("| | sampling, tokens/s | in all, tokens/s | sampling, s | scoring and training, s |\n" +
		"|---|--:|--:|--:|--:|\n")
	for _, name := range []string{"q4k", "fp8", "torch"} {
		text, err := os.ReadFile(dir + "/onpolicy-" + name + ".json")
		d := json.NewDecoder(bytes.NewReader(text))
		found := 0
		for err == nil {
			var r result
			if err = d.Decode(&r); err == nil {
				r.row(&b, name)
				found++
			}
		}
		if found == 0 {
			fmt.Fprintf(&b, "| %s | not measured | | | |\n", name)
		}
	}
	_, err := os.Stdout.WriteString(b.String())
	return err
}

// row prints the fastest round.
func (r result) row(b *strings.Builder, name string) {
	switch r.Lag {
	case "before":
		name += ", a step ahead, before the step"
	case "beside":
		name += ", a step ahead, beside the step"
	}
	if r.Lag == "beside" && !r.Graphs {
		name += ", kernel by kernel"
	}
	seconds := func(x round) float64 {
		if x.Seconds > 0 {
			return x.Seconds
		}
		return x.Sampling + x.Training // of PyTorch's loop
	}
	best := r.First
	for i, x := range r.Rounds {
		if i == 0 || seconds(x) < seconds(best) {
			best = x
		}
	}
	fmt.Fprintf(b, "| %s | %.0f | %.0f | %.2f | %.2f |\n", name, r.Sampled, r.PerSecond, best.Sampling, best.Training)
}
