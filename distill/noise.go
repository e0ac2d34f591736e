package distill

import (
	"context"
	"errors"
	"fmt"

	"apr/corpus"
	"apr/device"
	"apr/eval"
	"apr/model"
)

// noiseWindows is how many windows of text tell what 8-bit floats add: thousands of positions.
const noiseWindows = 16

// Noise is what products in 8-bit floats change of a teacher: the same weights, the same text, multiplied both ways.
type Noise struct {
	KL      float64 `json:"kl"` // mean KL(in the device's type ‖ in 8-bit floats), nats
	Top1    float64 `json:"top1_agreement"`
	Targets int64   `json:"positions"`
}

// measureNoise computes the teacher both ways over held-out text, or over the training text's beginning without any, on a
// device of its own.
func (r *Run) measureNoise(ctx context.Context) (n *Noise, err error) {
	text := r.in.held
	if text == nil {
		text = r.in.train
	}
	some := *text
	some.IDs = some.IDs[:min(len(some.IDs), noiseWindows*r.SeqLen+1)]
	w, err := corpus.NewWindows(&some, r.SeqLen, r.SeqLen)
	if err != nil {
		return nil, err
	}
	dev, err := r.OpenDevice()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	form := r.in.choice.Chosen.form
	var as [2]*model.Model
	for i, f := range []device.Form{{Blocks: form.Blocks}, form} {
		if as[i], err = model.LoadFrozenAs(dev, r.in.teacher, device.TeacherWeights, f); err != nil {
			return nil, err
		}
	}
	scores, err := eval.Compare(ctx, dev.NewStream(), as[0], []eval.Subject{{Name: "teacher in 8-bit floats", Model: as[1]}}, w,
		eval.Options{Vocab: r.in.vocab, ChunkRows: r.ChunkRows})
	if err != nil {
		return nil, err
	}
	kl, _ := scores[0].KL()
	top1, _ := scores[0].Top1()
	return &Noise{KL: kl, Top1: top1, Targets: scores[0].Targets}, nil
}

// findNoise measures what 8-bit floats change, if the teacher is multiplied in them, before the device's memory is taken.
func (r *Run) findNoise(ctx context.Context) (err error) {
	if !r.in.choice.Chosen.form.FP8 || r.OpenDevice == nil {
		return nil
	}
	r.obs.Phase("measuring what 8-bit floats change")
	if r.noise, err = r.measureNoise(ctx); err != nil {
		return fmt.Errorf("what 8-bit floats change could not be measured: %w", err)
	}
	return nil
}

// recordNoise writes down what was measured.
func (r *Run) recordNoise() error {
	n := r.noise
	if n == nil {
		return nil
	}
	reason := fmt.Sprintf("products in 8-bit floats move the teacher by a mean KL of %.2g nats (top-1 agreement %.2f %%) over %d positions of this text",
		n.KL, 100*n.Top1, n.Targets)
	r.obs.Message("fp8: %s", reason)
	return r.dir.Event("decision", "fp8 noise", n, reason)
}
