package main

import (
	"context"
	"errors"
	"math"

	"apr/corpus"
	"apr/device"
	"apr/eval"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	"apr/teacher"
	"apr/tokenizer"
)

// textTask scores windows of a text, alone or against a reference.
type textTask struct {
	o         *evalOptions
	tok       *tokenizer.Tokenizer
	all       *corpus.Tokens
	text      *corpus.Tokens // what --max-tokens leaves of it: the data that is scored
	windows   *corpus.Windows
	reference *modelfile.Files // nil: none
	vocab     int
}

func (o *evalOptions) prepareText(ctx context.Context, e *cli.Env, f *modelfile.Files, tok *tokenizer.Tokenizer) (_ task, closeTask func() error, err error) {
	t := &textTask{o: o, tok: tok, vocab: tok.RealIDs()}
	closeTask = func() error { return nil }
	if t.all, err = o.read(ctx, tok, e); err != nil {
		return nil, closeTask, err
	}
	if note := trainedOn(f.Path, o.data, t.all); note != "" {
		e.Explain("warning: " + note)
	}
	if t.text = t.all; o.maxTokens > 0 {
		t.text = t.all.Head(o.maxTokens+1, t.textBytes)
	}
	if n := len(t.text.IDs) - 1; o.text != "" && n < o.seqLen {
		o.seqLen, o.stride = n, min(o.stride, n) // a short text is one window
	}
	if t.windows, err = corpus.NewWindows(t.text, o.seqLen, o.stride); err != nil {
		return nil, closeTask, err
	}
	if t.windows.Documents = o.documentMask; o.documentMask {
		if err = model.Separable(f.Config, o.seqLen); err != nil {
			return nil, closeTask, err
		}
	}
	if o.teacher == "" {
		return t, closeTask, nil
	}
	if t.reference, err = openFiles(ctx, e, o.teacher); err != nil {
		return nil, closeTask, err
	}
	if err = t.reference.CheckTensors(); err == nil && o.documentMask {
		err = model.Separable(t.reference.Config, o.seqLen)
	}
	if err == nil {
		_, t.vocab, err = teacher.Align(t.reference, f, o.file, f.Config.Vocab)
	}
	if err != nil {
		return nil, closeTask, errors.Join(err, t.reference.Close())
	}
	return t, t.reference.Close, nil
}

// constant is the id that occurs most often in the text.
func (t *textTask) constant() int32 { return eval.MostFrequent(t.all.IDs) }

// score scores every target of the windows. Models of other shapes than the opened one have the same vocabulary.
func (t *textTask) score(ctx context.Context, e *cli.Env, m *loaded, r *evalResult) (eval.Score, error) {
	var reference *model.Model
	if t.reference != nil {
		var err error
		if reference, err = model.LoadFrozen(m.opened, t.reference, device.TeacherWeights); err != nil {
			return eval.Score{}, err
		}
	}
	bar := e.Progress("evaluating", int64(t.windows.Len()), cli.Count)
	defer bar.Close()
	last := 0
	all, err := eval.Positions(ctx, m.NewStream(), reference, m.model, t.windows, eval.Options{
		Vocab: t.vocab, Progress: func(done, _ int) { bar.Add(int64(done - last)); last = done },
	})
	if err != nil {
		return eval.Score{}, err
	}
	return t.report(all, r)
}

// report fills r and returns what a gate judges: perplexity, or with a reference mean KL.
func (t *textTask) report(all []eval.Position, r *evalResult) (eval.Score, error) {
	o, a := t.o, eval.Summarise(all, t.reference != nil)
	perplexity := math.Exp(a.NatsPerToken)
	r.DataSHA256, r.Documents, r.Tokens = t.all.SHA256(), eval.Documents(t.text, all), int64(a.Targets)
	r.Nats, r.Perplexity, r.ECE = &a.NatsPerToken, &perplexity, &a.ECE
	r.SeqLen, r.Stride, r.Seed, r.DataCache, r.DocumentMask = o.seqLen, o.stride, o.seed, o.cacheUse, o.documentMask
	if len(t.text.IDs) < len(t.all.IDs) {
		r.Mode = "limited"
	}
	tokens, bytes := int64(len(t.text.IDs)), t.text.TextBytes()
	r.DataTokens, r.DataBytes = &tokens, &bytes
	if bits := eval.BitsPerByte(a.NatsPerToken, t.text); !math.IsNaN(bits) {
		r.BitsPerByte = &bits
	}
	if t.reference == nil {
		return eval.Score{Value: perplexity, Items: eval.Clusters(all, func(p eval.Position) float64 { return p.Own.CE })}, nil
	}
	shift := a.EntropyShift()
	r.KL, r.Top1, r.EntropyShift, r.Acceptance = &a.KL.Mean, &a.Top1, &shift, &a.Acceptance
	if d := a.Draft; d.Runs > 0 {
		r.Draft = &draftResult{d.Drawn, d.Greedy, d.DrawnPerPass, d.GreedyPerPass}
	}
	r.Teacher, r.TeacherH, r.TeacherECE = &a.RefNatsPerToken, &a.RefEntropy, &a.RefECE
	k := &klPositions{Median: a.KL.Median, P95: a.KL.P95, P99: a.KL.P99, Max: a.KL.Max, MaxAt: a.KL.MaxAt}
	r.KLPositions = k
	var err error
	const before = 16
	if k.MaxText, err = t.tok.Decode(t.text.IDs[max(0, k.MaxAt-before):k.MaxAt]); err != nil {
		return eval.Score{}, err
	}
	if k.MaxNext, err = t.tok.Decode(t.text.IDs[k.MaxAt : k.MaxAt+1]); err != nil {
		return eval.Score{}, err
	}
	return eval.Score{Value: a.KL.Mean, Items: eval.Clusters(all, func(p eval.Position) float64 { return p.KL })}, nil
}

// textBytes is how many bytes of a document an id stands for: none if it is a special token, which texts do not hold.
func (t *textTask) textBytes(id int32) int {
	if k := t.tok.Kind(id); k != tokenizer.Normal && k != tokenizer.UserDefined {
		return 0
	}
	bytes, _ := t.tok.Bytes(id)
	return len(bytes)
}

// read encodes the text.
func (o *evalOptions) read(ctx context.Context, tok *tokenizer.Tokenizer, e *cli.Env) (*corpus.Tokens, error) {
	eos, err := corpus.EndOfText(tok)
	if err != nil {
		return nil, err
	}
	enc, err := corpus.ForTokenizer(tok, "auto")
	if err != nil {
		return nil, err
	}
	if o.text != "" {
		ids := append(enc.AppendText(nil, o.text), eos)
		return &corpus.Tokens{IDs: ids, EOS: eos, Docs: []corpus.Doc{{End: int64(len(ids)), Bytes: int64(len(o.text))}}}, nil
	}
	files, err := dataFiles(ctx, e, o.data)
	if err != nil {
		return nil, err
	}
	text, report, use, err := tokenCache(o.dataCache).Load(ctx, files, enc, corpus.EncodeOptions{
		Read: readOptions(e.Settings, o.textField, o.messagesField), EOS: eos, Vocab: tok.RealIDs(), Turns: corpus.AllTurns,
	})
	if err != nil {
		return nil, err
	}
	if err := report.Idle(e.Settings.Asked("messages-field"), e.Settings.Asked("text-field")); err != nil {
		return nil, err
	}
	for _, bad := range report.Bad {
		e.Log.Warn("left out: " + bad.Error())
	}
	if note := report.NotText(); note != "" {
		e.Log.Warn(note)
	}
	if note := report.RecordsAsText(); note != "" {
		e.Log.Warn(note)
	}
	if o.cacheUse = &use; use.Problem != "" {
		e.Log.Warn("cache of tokens: " + use.Problem)
	}
	if n := int64(len(text.IDs)) - 1; o.maxTokens > 0 && int64(o.maxTokens) > n {
		return nil, fault.New(fault.Invalid, "--max-tokens %d asks for more than the data's %d targets", o.maxTokens, n).
			WithHint("0 scores all there are")
	}
	return text, nil
}
