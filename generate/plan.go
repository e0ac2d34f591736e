package generate

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"apr/device"
	"apr/device/dry"
	"apr/internal/fault"
	"apr/model"
	"apr/plan"
)

// DryRun describes a generation without weights and prompt: enough to run it on a device that computes nothing.
type DryRun struct {
	Target    func() dry.Target // afresh for each run
	Model     *model.Outline
	Component device.Component // of the weights
	Form      device.Form
	Prompt    int // tokens
	Options   Options

	Draft       *model.Outline // proposes DraftTokens at a time; nil: there is none
	DraftTokens int
}

// Record runs the generation of two tokens dry, with room for all of them: no later one needs more.
func (d DryRun) Record() (*dry.Record, error) {
	dev := dry.New(d.Target())
	m, err := d.Model.LoadFrozen(dev, d.Component, d.Form)
	if err != nil {
		return nil, err
	}
	prompt := make([]int32, d.Prompt)
	if err := d.Options.check(m, prompt); err != nil {
		return nil, err
	}
	if d.Draft != nil {
		return d.drafted(dev, m, prompt)
	}
	g := newGenerator(m, dev.NewStream(), len(prompt)+d.Options.MaxTokens, d.Options)
	for lo := 0; lo < len(prompt); lo += promptChunk {
		g.extend(prompt[lo:min(lo+promptChunk, len(prompt))])
	}
	if d.Options.MaxTokens > 1 {
		_, _ = g.next(true) // fails: a dry device has no values
		g.extend([]int32{0})
		g.recompute(len(prompt))
	}
	_, _ = g.next(false)
	return dev.Record(), nil
}

// drafted runs a round of a text with a draft dry.
func (d DryRun) drafted(dev *dry.Device, m *model.Model, prompt []int32) (*dry.Record, error) {
	small, err := d.Draft.LoadFrozen(dev, d.Component, d.Form)
	if err != nil {
		return nil, err
	}
	ctx, k, s := context.Background(), d.DraftTokens, dev.NewStream()
	capacity := len(prompt) + d.Options.MaxTokens + k
	g := &speculation{o: d.Options, s: s, target: newReader(m, capacity, k+1)}
	g.small = newReader(small, capacity, max(1, k))
	ids := append(slices.Clone(prompt), make([]int32, k+1)...)
	for _, r := range []*reader{g.target, g.small} {
		_, _ = g.read(ctx, r, prompt, 1) // fails, as a dry device has no values
		_, _ = s.Wait(ctx)
	}
	_, _ = g.read(ctx, g.small, ids[:len(prompt)+1], 1)
	_, _ = s.Wait(ctx)
	_, _ = g.read(ctx, g.target, ids, k+1)
	return dev.Record(), nil
}

// recompute runs the token with which all positions are computed again, if there is one after a prompt.
func (g *generator) recompute(prompt int) {
	if n := g.m.Recomputes(prompt, prompt+g.o.MaxTokens-1); n > 0 {
		g.cache.Assume(n - 1)
		g.m.Extend(g.s, g.hidden, g.cache, g.ids.RowRange(0, 1))
	}
}

// Plan returns the record of a generation that fits the target's budget. One that does not is a fault of kind Memory that says
// what it needs, and how many tokens would fit.
func (d DryRun) Plan() (*dry.Record, error) {
	target := d.Target()
	available := target.Budget
	fits := func(tokens int) (*dry.Record, bool, error) {
		d := d
		d.Options.MaxTokens = tokens
		r, err := d.Record()
		return r, err == nil && (available == 0 || r.Total() <= available), err
	}
	r, ok, err := fits(d.Options.MaxTokens)
	if err != nil || ok {
		return r, err
	}
	most, err := plan.Largest(d.Options.MaxTokens, available, func(n int) (int64, error) {
		r, _, err := fits(n)
		if err != nil {
			return 0, err
		}
		return r.Total(), nil
	})
	if err != nil {
		return nil, err
	}
	elsewhere := ""
	if target.Info.Kind != "cpu" {
		elsewhere = ", or --backend cpu if that has more memory"
	}
	hint := "not even one token fits: a shorter prompt" + elsewhere
	switch weights := r.ByComponent()[d.Component]; {
	case most > 0:
		hint = fmt.Sprintf("with --max-tokens %d it fits", most)
	case weights > available:
		hint = fmt.Sprintf("the weights alone are %s: a quantised model (apr quantize)%s", plan.Amount(weights), elsewhere)
	}
	return nil, fault.New(fault.Memory, "a prompt of %d tokens and %d more do not fit: they need %s with the model, %s are available",
		d.Prompt, d.Options.MaxTokens, plan.Amount(r.Total()), plan.Amount(available)).
		WithHint("%s\n%s", hint, d.table(r, target)).WithID("E-GENERATE-001")
}

// table prints what is needed by component.
func (d DryRun) table(r *dry.Record, t dry.Target) string {
	of := r.ByComponent()
	return strings.TrimSuffix(plan.Table([]plan.Row{
		{Name: "weights", Bytes: of[d.Component]}, {Name: "key-value cache", Bytes: of[device.KVCache]}, {Name: "activations", Bytes: of[device.Activations]},
		{Name: "logits", Bytes: of[device.Logits]}, {Name: "ids", Bytes: of[device.Batch]}, {Name: "scratch", Bytes: of[device.Scratch]}, {Name: "total", Bytes: r.Total()},
	}, t.Budget, t.Reserve), "\n")
}
