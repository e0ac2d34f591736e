package distill

import (
	"context"
	"errors"
	"fmt"

	"apr/corpus"
	"apr/device"
	"apr/eval"
	"apr/internal/fault"
	"apr/model"
	"apr/teacher"
)

// noiseWindows is how many windows of text tell what 8-bit floats add: thousands of positions.
const noiseWindows = 16

// Noise is what products in 8-bit floats change of a teacher, and what rounding its weights to Q4_K changes over the
// same text, which bounds it.
type Noise struct {
	KL      float64 `json:"kl"` // mean KL(in the device's type ‖ in 8-bit floats), nats, over the same weights
	Top1    float64 `json:"top1_agreement"`
	Limit   float64 `json:"q4_k_kl"` // mean KL(weights as they are ‖ rounded to Q4_K), nats: see q4k
	Targets int64   `json:"positions"`
}

// measureNoise computes the teacher both ways, and rounded to Q4_K, over held-out text, or over the training text's
// beginning without any, on devices of its own: one after the other, so that no more than two teachers take memory.
func (r *Run) measureNoise(ctx context.Context) (*Noise, error) {
	form := r.in.choice.Chosen.form
	plain := device.Form{Blocks: form.Blocks}
	fp8, err := r.compareTeachers(ctx, "teacher in 8-bit floats", func(dev device.Device) (*model.Model, error) {
		return model.LoadFrozenAs(dev, r.in.teacher, device.TeacherWeights, form)
	})
	if err != nil {
		return nil, err
	}
	rounded, err := r.compareTeachers(ctx, "teacher rounded to Q4_K", func(dev device.Device) (*model.Model, error) {
		return model.LoadFrozenThrough(dev, r.in.teacher, device.TeacherWeights, plain, func(s device.Source) device.Source {
			return newQ4K(s, form.Blocks)
		})
	})
	if err != nil {
		return nil, err
	}
	n := &Noise{Targets: fp8.Targets}
	n.KL, _ = fp8.KL()
	n.Top1, _ = fp8.Top1()
	n.Limit, _ = rounded.KL()
	return n, nil
}

// compareTeachers compares the teacher in the device's type with another form of it.
func (r *Run) compareTeachers(ctx context.Context, name string, load func(device.Device) (*model.Model, error)) (s eval.Scores, err error) {
	text := r.in.held
	if text == nil {
		text = r.in.train
	}
	some := *text
	some.IDs = some.IDs[:min(len(some.IDs), noiseWindows*r.SeqLen+1)]
	w, err := corpus.NewWindows(&some, r.SeqLen, r.SeqLen)
	if err != nil {
		return s, err
	}
	dev, err := r.OpenDevice()
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	reference, err := model.LoadFrozenAs(dev, r.in.teacher, device.TeacherWeights, device.Form{Blocks: r.in.choice.Chosen.form.Blocks})
	if err != nil {
		return s, err
	}
	other, err := load(dev)
	if err != nil {
		return s, err
	}
	scores, err := eval.Compare(ctx, dev.NewStream(), reference, []eval.Subject{{Name: name, Model: other}}, w,
		eval.Options{Vocab: r.in.vocab, ChunkRows: r.ChunkRows})
	if err != nil {
		return s, err
	}
	return scores[0], nil
}

// checkNoise measures what 8-bit floats change, if the teacher is multiplied in them, before the device's memory is
// taken, and refuses them unless that is less than what Q4_K changes.
func (r *Run) checkNoise(ctx context.Context) (err error) {
	if !r.in.choice.Chosen.form.FP8 {
		return nil
	}
	if r.OpenDevice == nil {
		return fault.In(fault.Invalid, "--teacher-gemm", "what fp8 changes cannot be measured without a second device like the run's").
			WithHint("use --teacher-gemm bf16").WithID("E-DISTILL-080")
	}
	r.obs.Phase("measuring what 8-bit floats change")
	if r.noise, err = r.measureNoise(ctx); err != nil {
		return fmt.Errorf("what 8-bit floats change could not be measured: %w", err)
	}
	return teacher.AllowFP8(r.noise.KL, r.noise.Limit)
}

// recordNoise writes down what was measured.
func (r *Run) recordNoise() error {
	n := r.noise
	if n == nil {
		return nil
	}
	reason := fmt.Sprintf("products in 8-bit floats move the teacher by a mean KL of %.2g nats (top-1 agreement %.2f %%) over %d positions of this text, less than the %.2g of rounding its weights to Q4_K",
		n.KL, 100*n.Top1, n.Targets, n.Limit)
	r.obs.Detail("fp8: %s", reason)
	return r.dir.Event("decision", "fp8 noise", n, reason)
}
