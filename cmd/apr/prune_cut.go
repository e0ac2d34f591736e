package main

import (
	"context"
	"fmt"

	"apr/arch"
	"apr/convert"
	"apr/corpus"
	"apr/device"
	"apr/eval"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	"apr/prune"
)

// prunedWindows bounds the windows of calibration text that teacher and output are scored on.
const prunedWindows = 64

// calibration is a teacher on a device, and text for it.
type calibration struct {
	dev     *opened
	teacher *model.Model
	text    *corpus.Tokens
	windows *corpus.Windows
	vocab   int
}

// cut measures the teacher f, if there is text, chooses what stays, and makes f the cut model. What is known of both
// goes into r.
func (o *pruneOptions) cut(ctx context.Context, e *cli.Env, f *modelfile.Files, r *pruneResult,
	beat *heartbeat) (prune.Kept, error) {
	var none prune.Kept
	var im *prune.Importance
	var cal *calibration
	if len(o.data) > 0 {
		var err error
		beat.doing("reading the text, loading the teacher …")
		if cal, err = o.calibrate(ctx, e, f); err != nil {
			return none, err
		}
		defer cal.dev.Close()
		r.Backend = cal.dev.Info().Kind
		beat.doing("") // how far the rest is shows by itself
		if im, err = cal.measure(ctx, e, f); err != nil {
			return none, err
		}
		r.Tokens = im.Tokens
	}
	teacher := f.Config
	kept, err := prune.Choose(teacher, o.target, im)
	if err != nil {
		return none, err
	}
	if f.Config, err = prune.Apply(f.Container, kept, im); err != nil {
		return none, err
	}
	r.Layers, r.Cuts, r.After.Parameters = kept.Layers, kept.Cuts(teacher, im), f.Config.Parameters()
	if cal != nil {
		err = cal.score(ctx, e, f, r)
	}
	return kept, err
}

// calibrate reads the text and loads the teacher.
func (o *pruneOptions) calibrate(ctx context.Context, e *cli.Env, f *modelfile.Files) (*calibration, error) {
	tok, err := f.Tokenizer()
	if err != nil {
		return nil, err
	}
	c := &calibration{vocab: tok.RealIDs()}
	if c.text, err = (&evalOptions{data: o.data, dataCache: "auto"}).read(ctx, tok, e); err != nil {
		return nil, err
	}
	if n := o.tokens + 1; len(c.text.IDs) > n {
		c.text = c.text.Head(n, func(int32) int { return 0 })
	}
	length := min(importanceWindow, len(c.text.IDs)-1, f.Config.MaxPositions)
	if length < 1 {
		return nil, fault.New(fault.Invalid, "--data has no text")
	}
	if c.windows, err = corpus.NewWindows(c.text, length, length); err != nil {
		return nil, err
	}
	if c.dev, err = (backend{name: o.backend, expand: 1 << 30}).openFor(ctx, e, f); err != nil {
		return nil, err
	}
	if err = c.dev.prewarm(); err == nil {
		c.teacher, err = model.LoadFrozen(c.dev, f, device.TeacherWeights)
	}
	if err != nil {
		c.dev.Close()
		return nil, err
	}
	return c, nil
}

// measure runs the teacher over the text.
func (c *calibration) measure(ctx context.Context, e *cli.Env, f *modelfile.Files) (*prune.Importance, error) {
	bar := e.Progress("measuring importance", int64(c.windows.Len()), cli.Count)
	defer bar.Close()
	last := 0
	return prune.Measure(ctx, c.teacher, f, c.windows, func(done, _ int) { bar.Add(int64(done - last)); last = done })
}

// score scores teacher and output on the first windows of the text.
func (c *calibration) score(ctx context.Context, e *cli.Env, f *modelfile.Files, r *pruneResult) error {
	student, err := model.LoadFrozen(c.dev, f, device.StudentWeights)
	if err != nil {
		return err
	}
	windows := c.windows
	if n := prunedWindows*windows.SeqLen + 1; len(c.text.IDs) > n {
		if windows, err = corpus.NewWindows(c.text.Head(n, func(int32) int { return 0 }), windows.SeqLen, windows.SeqLen); err != nil {
			return err
		}
	}
	bar := e.Progress("scoring", int64(windows.Len()), cli.Count)
	defer bar.Close()
	last := 0
	scores, err := eval.Compare(ctx, c.dev.NewStream(), c.teacher, []eval.Subject{{Name: "teacher", Model: c.teacher}, {Name: "output", Model: student}}, windows, eval.Options{
		Vocab: c.vocab, Progress: func(done, _ int) { bar.Add(int64(done - last)); last = done },
	})
	if err != nil {
		return err
	}
	before, after := scores[0].NatsPerToken(), scores[1].NatsPerToken()
	kl, _ := scores[1].KL()
	r.Before.Nats, r.After.Nats, r.KL, r.Scored = &before, &after, &kl, scores[1].Targets
	return nil
}

// record is what the output says of its origin.
func (o *pruneOptions) record(sum string, teacher arch.Config, kept prune.Kept, r *pruneResult) convert.Pruned {
	layers := make([]any, len(kept.Layers))
	for i, l := range kept.Layers {
		layers[i] = l
	}
	rec := convert.Pruned{"teacher_sha256": sum, "teacher": teacher.String(), "layers": layers, "layer_choice": o.target.Choice, "tokens": r.Tokens}
	for _, c := range r.Cuts {
		part := map[string]any{"kept": c.Kept, "of": c.Of}
		if c.Share != nil {
			part["share"] = *c.Share
		}
		rec["kept_"+keyOf(c.What)] = part
	}
	return rec
}

// keyOf is the key of a kind of parts: query_heads.
func keyOf(what string) string {
	key := []byte(what)
	for i, b := range key {
		if b == ' ' {
			key[i] = '_'
		}
	}
	return string(key)
}

// narrow warns of widths that were whole blocks of the K types and are no more, and of a shape that llama.cpp refuses.
func (o *pruneOptions) narrow(c, teacher arch.Config) (warnings []string) {
	now, then := c.Sizes(), teacher.Sizes()
	for _, w := range []struct {
		option  string
		is, was int
	}{{"--hidden", now.Hidden, then.Hidden}, {"--intermediate", now.Width, then.Width}, {"--heads", now.Heads * now.HeadDim, then.Heads * then.HeadDim}} {
		if w.is%256 != 0 && w.was%256 == 0 {
			warnings = append(warnings, fmt.Sprintf("%s: rows of %d values are not whole blocks of 256: schemes such as q4_k_m use other types for them", w.option, w.is))
		}
	}
	if why := c.NotInLlamaCpp(); why != "" && o.format != "gguf" { // the writer of GGUF says so itself
		warnings = append(warnings, why)
	}
	return warnings
}
