package generate

import (
	"context"

	"apr/device"
	"apr/model"
)

// Text is a text that a Writer wrote.
type Text struct {
	IDs      []int32   // without the prompt; with Request.KeepStop the id that ended it is the last
	LogProbs []float64 // ln softmax(logits)[id] of each, over all ids, at temperature 1; zeros if Request.LogProbs < 0
	Stopped  bool      // it ended by itself, not at Request.MaxTokens
}

// Writer is an Engine that works when it is asked to, in the caller's goroutine: between two calls of Write the
// stream and the weights are the caller's. It reads the weights that the model has at each call, so those of a model
// in training are its present ones.
type Writer struct{ e *Engine }

// NewWriter reserves memory on the model's device.
func NewWriter(m *model.Model, s device.Stream, o EngineOptions) *Writer {
	return &Writer{newEngine(m, s, o)}
}

// Free gives the memory back; the writer must not be used afterwards.
func (w *Writer) Free() { w.e.free() }

// Write continues all texts and returns them in the order of the requests. A text depends on its request, the weights
// and the device kind alone: see Engine. The end of ctx is its error; the texts are then lost.
func (w *Writer) Write(ctx context.Context, all []Request) ([]Text, error) {
	e := w.e
	qs := make([]*Sequence, len(all))
	for i, r := range all {
		var err error
		if qs[i], err = e.Submit(ctx, r); err != nil {
			e.waiting = nil
			return nil, err
		}
	}
	for e.stats.Active > 0 || len(e.waiting) > 0 {
		e.admit()
		e.leave()
		err := e.readOne()
		if err == nil {
			err = e.step()
		}
		if err != nil {
			e.fail(err)
			return nil, err
		}
	}
	texts := make([]Text, len(qs))
	for i, q := range qs {
		if q.err != nil {
			return nil, q.err
		}
		t := &texts[i]
		t.Stopped = q.result.FinishReason == "stop"
		for token := range q.tokens {
			t.IDs, t.LogProbs = append(t.IDs, token.ID), append(t.LogProbs, token.LogProb)
		}
	}
	return texts, nil
}

// Rehearse does on a dry device what a Writer does with full slots and prompts of every size that devices
// distinguish: what memory and operations a plan has to know. It reserves memory as NewWriter does.
func Rehearse(m *model.Model, s device.Stream, o EngineOptions) *Writer {
	w := NewWriter(m, s, o)
	w.e.rehearse()
	return w
}

// Rehearse does again on a dry device what Rehearse did.
func (w *Writer) Rehearse() { w.e.rehearse() }
