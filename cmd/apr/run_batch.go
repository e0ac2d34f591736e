package main

import (
	"context"
	"fmt"

	"apr/adapter"
	"apr/corpus"
	"apr/generate"
	"apr/internal/cli"
	"apr/modelfile"
)

// runBatch continues the prompts of --batch-jsonl, several at a time. The line of each is on stdout before that of the next, in the
// order of the file, and names the model, so that a run that trains on them knows who wrote its text.
func (o *runOptions) runBatch(ctx context.Context, e *cli.Env, f *modelfile.Files, where backend, prompts []prompt, longest int) (cli.Result, error) {
	writer, err := adapter.Writer(f)
	if err != nil {
		return nil, err
	}
	capacity := min(f.Config.MaxPositions, longest+o.gen.MaxTokens)
	var n generate.EngineOptions
	r, err := o.load(ctx, e, f, where, nil, func(dev *opened) (err error) {
		n, err = dev.fitEngine(f, o.slots, capacity, o.gen.Vocab, false)
		return err
	})
	if err != nil {
		return nil, err
	}
	defer r.dev.Close()
	result := &runResult{Backend: r.dev.Info().Kind, Seed: o.seed}
	engine := generate.NewEngine(r.m, r.s, n)
	defer engine.Close()
	request := func(i int) generate.Request {
		gen := o.gen
		gen.MaxTokens = min(gen.MaxTokens, capacity-len(prompts[i].ids))
		return generate.Request{Prompt: prompts[i].ids, Options: gen, LogProbs: -1}
	}
	at := 0
	err = engine.InOrder(ctx, len(prompts), request, func(i int, _ *generate.Sequence, res generate.Result) error {
		decoder := r.tok.NewStream()
		text, err := textOf(decoder.Push, decoder.Flush, res.IDs)
		if err != nil {
			return err
		}
		one := onePromptOf(prompts[i], text, res)
		one.Writer, one.Sum = writer, corpus.RecordSum(writer, one.Prompt, text)
		at, result.onePrompt, result.Results = i+1, *one, append(result.Results, one)
		line, err := cli.MarshalJSON(one)
		if err != nil {
			panic(err) // strings and finite numbers always encode
		}
		fmt.Fprintf(e.Out, "%s\n", line) // a failed write is told by flush
		return flush(e.Out)
	})
	if err != nil {
		return nil, o.in(prompts[min(at, len(prompts)-1)], engineError(err))
	}
	return result, nil
}
