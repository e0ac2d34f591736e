package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"apr/corpus"
	"apr/device"
	"apr/device/dry"
	"apr/distill"
	"apr/generate"
	"apr/model"
)

// writer lets the student write, in the device's own queue or in one beside it.
type writer struct {
	*generate.Together
	queue *distill.Queue // nil: the device's own
	next  *written       // of the next step; nil: nothing was written yet
}

// written are the texts of a step.
type written struct {
	requests []generate.Request
	texts    []generate.Text
	took     time.Duration
}

// newWriter reserves what writes rows texts of up to seqLen tokens that are read again.
func (o options) newWriter(dev device.Device, s device.Stream, student *model.Model, rows, seqLen int) (
	*writer, error,
) {
	switch o.lag {
	case "0", "before":
		return &writer{Together: generate.NewTogether(student.Frozen(), s, rows, seqLen, o.vocab)}, nil
	case "beside":
	default:
		return nil, fmt.Errorf("-lag %s is not 0, before or beside", o.lag)
	}
	p, ok := dev.(dry.Planned)
	if _, can := dev.(device.Besider); !ok || !can {
		return nil, fmt.Errorf("-lag beside: %s has one queue", dev.Info().Name)
	}
	beside := dry.New(p.Target())
	m := model.NewTrainable(dry.New(p.Target()), student.Config).Beside(beside)
	generate.NewTogether(m, beside.NewStream(), rows, seqLen, o.vocab).Rehearse()
	q, err := distill.OpenQueue(dev, beside.Record())
	if err != nil {
		return nil, err
	}
	m = student.Beside(q.Device)
	return &writer{Together: generate.NewTogether(m, q.Device.NewStream(), rows, seqLen, o.vocab), queue: q}, nil
}

// free gives it back.
func (w *writer) free() error {
	w.Together.Free()
	if w.queue == nil {
		return nil
	}
	return w.queue.Close()
}

// follow lets a queue see the weights as they are.
func (w *writer) follow() {
	if w.queue != nil {
		w.queue.Device.Follow()
	}
}

// write writes the texts of a step.
func (o options) write(ctx context.Context, w *writer, step int) (*written, error) {
	rng := rand.New(rand.NewPCG(7, uint64(step)))
	x := &written{}
	for range o.prompts {
		prompt := make([]int32, o.prompt)
		for i := range prompt {
			prompt[i] = rng.Int32N(int32(o.vocab))
		}
		for k := range o.samples {
			x.requests = append(x.requests, generate.Request{Prompt: prompt, Sample: k, Options: generate.Options{
				Temperature: 1, Seed: uint64(step), MaxTokens: o.tokens}})
		}
	}
	begun := time.Now()
	var err error
	x.texts, err = w.Write(ctx, x.requests)
	x.took = time.Since(begun)
	return x, err
}

// step lets the student write, and trains it on what was written for the step.
func (o options) step(ctx context.Context, w *writer, tr *distill.Trainer, step int) (r round, err error) {
	if w.next == nil && o.lag != "0" { // of the first step, before any update
		w.follow()
		if w.next, err = o.write(ctx, w, step); err != nil {
			return r, err
		}
	}
	begun := time.Now()
	now, after := w.next, (*written)(nil)
	tr.BeforeUpdate = nil
	switch o.lag {
	case "0":
		if now, err = o.write(ctx, w, step); err != nil {
			return r, err
		}
		after = now
	case "before":
		if after, err = o.write(ctx, w, step+1); err != nil {
			return r, err
		}
	case "beside":
		w.follow()
		var failed error
		done := make(chan struct{})
		go func() {
			defer close(done)
			after, failed = o.write(ctx, w, step+1)
		}()
		tr.BeforeUpdate = func() error {
			<-done
			return failed
		}
		defer func() { // the step may have ended before it waited
			<-done
			err = errors.Join(err, failed)
		}()
	}
	b, err := o.batch(now)
	if err != nil {
		return r, err
	}
	training := time.Now()
	rec, err := tr.Apply(ctx, b)
	if err != nil {
		return r, err
	}
	w.next = after
	r.Seconds, r.Training = time.Since(begun).Seconds(), time.Since(training).Seconds()
	r.Sampling, r.Phases, r.Loss = after.took.Seconds(), map[string]float64{}, rec.Loss
	for p := range device.NumPhases {
		if d := rec.Phases[p].Seconds(); d > 0 {
			r.Phases[p.String()] = d
		}
	}
	return r, nil
}

// batch is what the step trains on: of each text the drawn tokens count.
func (o options) batch(x *written) (b corpus.Batch, err error) {
	seqLen := o.prompt + o.tokens - 1
	b = corpus.Batch{Rows: len(x.texts), SeqLen: seqLen}
	for i, t := range x.texts {
		ids := append(append([]int32(nil), x.requests[i].Prompt...), t.IDs...)
		if len(ids) != seqLen+1 {
			return b, fmt.Errorf("text %d has %d tokens, want %d", i, len(ids), seqLen+1)
		}
		b.Tokens, b.Targets = append(b.Tokens, ids[:seqLen]...), append(b.Targets, ids[1:]...)
		for at := range seqLen {
			counts := uint8(0)
			if at+1 >= o.prompt {
				counts = 1
			}
			b.Mask = append(b.Mask, counts)
		}
	}
	return b, nil
}
