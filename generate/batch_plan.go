package generate

import (
	"context"
	"fmt"
	"slices"

	"apr/device"
	"apr/device/dry"
	"apr/internal/fault"
	"apr/model"
	"apr/plan"
)

// EngineDryRun describes an Engine without weights: enough to run it on a device that computes nothing.
type EngineDryRun struct {
	Target    func() dry.Target // afresh for each run
	Model     *model.Outline
	Component device.Component // of the weights
	Form      device.Form
	Options   EngineOptions
	Score     bool // prompts are scored, too
}

// Record runs an engine dry whose slots are as full as its pages allow, with prompts of every size that devices distinguish.
func (d EngineDryRun) Record() (*dry.Record, error) {
	dev := dry.New(d.Target())
	m, err := d.Model.LoadFrozen(dev, d.Component, d.Form)
	if err != nil {
		return nil, err
	}
	e := newEngine(m, dev.NewStream(), d.Options)
	q := &Sequence{r: Request{Options: Options{Temperature: 1, RepeatPenalty: 1}, LogProbs: -1}}
	if d.Score {
		q.r.Prompt = make([]int32, e.o.Capacity)
		_ = e.score(q) // fails, as choose does: a dry device has no values
	}
	e.rehearse()
	return dev.Record(), nil
}

// rehearse reads prompts of every size that devices distinguish, and makes a pass over as many sequences as the pages
// allow, on a dry device.
func (e *Engine) rehearse() {
	for slot := range e.slots { // of a rehearsal before
		e.paged.Leave(slot)
	}
	for _, n := range []int{promptChunk, 64, 8, 1} {
		if n = min(n, e.o.Capacity); e.prompt.Len() > 0 {
			e.prompt.Reset()
		}
		e.m.Extend(e.s, e.hidden.RowRange(0, 1), e.prompt, e.ids.RowRange(0, n))
	}
	if n := e.o.Capacity; n > 1 {
		e.prompt.Assume(n - 1)
		e.m.Extend(e.s, e.hidden.RowRange(0, 1), e.prompt, e.ids.RowRange(0, 1))
	}
	_ = e.choose(e.sampled(1), e.hidden.RowRange(0, 1))
	var slots []int
	for slot := range e.slots {
		if !e.paged.Admits(1) {
			break
		}
		e.paged.Admit(e.s, slot, 1)
		e.prompt.Reset()
		e.m.Extend(e.s, e.hidden.RowRange(0, 1), e.prompt, e.ids.RowRange(0, 1))
		e.paged.Load(e.s, slot, e.prompt)
		slots = append(slots, slot)
	}
	rows := e.hidden.Rows
	all := e.sampled(rows)
	for i, slot := range slots[:min(len(slots), rows)] {
		q := *all[i].q
		q.slot, all[i].q = slot, &q
	}
	_ = e.pass(all[:min(len(slots), rows)], rows)
	_, _ = e.s.Wait(context.Background()) // clears the error of a device without values
}

// sampled returns rows of sequences whose tokens are drawn, on the device if it draws.
func (e *Engine) sampled(n int) []row {
	q := &Sequence{r: Request{Options: Options{Temperature: 1, RepeatPenalty: 1}, LogProbs: -1}}
	return slices.Repeat([]row{{q: q, chooses: true}}, n)
}

// Plan returns the record of an engine that fits the target's budget. One that does not is a fault of kind Memory that says what it
// needs, and how many slots would fit.
func (d EngineDryRun) Plan() (*dry.Record, error) {
	target := d.Target()
	available := target.Budget
	total := func(slots int) (int64, error) {
		d := d
		d.Options.Slots = slots
		r, err := d.Record()
		if err != nil {
			return 0, err
		}
		return r.Total(), nil
	}
	r, err := d.Record()
	if err != nil || available == 0 || r.Total() <= available {
		return r, err
	}
	most, err := plan.Largest(d.Options.Slots, available, total)
	if err != nil {
		return nil, err
	}
	hint := "not even one slot fits: a shorter --context, or a quantised model (apr quantize)"
	if most > 0 {
		hint = fmt.Sprintf("with --slots %d it fits", most)
	}
	return nil, fault.New(fault.Memory, "%d texts at a time, each of up to %d tokens, do not fit: they need %s with the model, %s are available",
		d.Options.Slots, d.Options.Capacity, plan.Amount(r.Total()), plan.Amount(available)).WithHint("%s", hint).WithID("E-GENERATE-002")
}
