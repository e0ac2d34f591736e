package main

import (
	"context"

	"apr/convert"
	"apr/corpus"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/modelfile"
)

// importanceTokens bounds the text that importance is measured on: more of it hardly changes the means of columns.
const importanceTokens = 128 << 10

// importanceWindow is the length of its windows.
const importanceWindow = 512

// importanceOptions are those of the commands that make blocks.
func (w *rewriting) importanceOptions() []cli.Option {
	return []cli.Option{
		{Name: "imatrix", Path: true, Value: cli.String(&w.imatrix, ""), Help: "weigh errors of blocks by this importance matrix of llama-imatrix"},
		{Name: "data", Short: "d", Path: true, Value: cli.Strings(&w.data), Help: "weigh errors of blocks by activations on the first 128k tokens of this text: .jsonl, .parquet, .txt, a folder; repeatable"},
	}
}

// importance reads or measures what --imatrix and --data ask for; nil: nothing.
func (w *rewriting) importance(ctx context.Context, e *cli.Env, c *convert.Container) (convert.Importance, error) {
	switch {
	case w.imatrix == "" && len(w.data) == 0:
		return nil, nil
	case w.imatrix != "" && len(w.data) > 0:
		return nil, fault.New(fault.Usage, "--imatrix and --data exclude each other")
	case !convert.Scheme(w.scheme).Quantises():
		return nil, fault.New(fault.Usage, "--imatrix and --data have no effect without a scheme that makes blocks")
	}
	cfg, err := c.Config()
	if err != nil {
		return nil, err
	}
	if w.imatrix != "" {
		return convert.ReadImatrix(w.imatrix, cfg)
	}
	return w.measure(ctx, e, c.Path)
}

// measure runs the model on the text.
func (w *rewriting) measure(ctx context.Context, e *cli.Env, path string) (convert.Importance, error) {
	f, err := modelfile.Open(path, e.AllowConfigKeys...)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := merge(e, f, w.adapter); err != nil {
		return nil, err
	}
	tok, err := f.Tokenizer()
	if err != nil {
		return nil, err
	}
	text, err := (&evalOptions{data: w.data, dataCache: "auto"}).read(ctx, tok, e)
	if err != nil {
		return nil, err
	}
	if n := importanceTokens + 1; len(text.IDs) > n {
		text = text.Head(n, func(int32) int { return 0 })
	}
	length := min(importanceWindow, len(text.IDs)-1, f.Config.MaxPositions)
	if length < 1 {
		return nil, fault.New(fault.Invalid, "--data has no text")
	}
	windows, err := corpus.NewWindows(text, length, length)
	if err != nil {
		return nil, err
	}
	dev, err := backend{name: "cpu"}.open(e)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	bar := e.Progress("measuring activations", int64(windows.Len()), cli.Count)
	defer bar.Close()
	last := 0
	return convert.Activations(ctx, dev, f, windows, tok.RealIDs(), func(done, _ int) { bar.Add(int64(done - last)); last = done })
}
