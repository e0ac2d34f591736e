package main

import (
	"context"

	"apr/eval"
	"apr/eval/sandbox"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/tokenizer"
)

// problemResult is what was executed of one problem.
type problemResult struct {
	ID        string  `json:"id"`
	Samples   int     `json:"samples"`
	Generated int     `json:"generated"`
	Passed    int     `json:"passed"`
	Failure   *string `json:"failure"` // of the first sample that did not pass
}

// passAtK is the unbiased estimate, with a 95 % interval over problems.
type passAtK struct {
	K    int     `json:"k"`
	Rate float64 `json:"rate"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// codeTask lets a model write programs and runs them.
type codeTask struct {
	o        *evalOptions
	tok      *tokenizer.Tokenizer
	sum      string
	problems []eval.Problem
	programs eval.Runner
	limits   []string
}

// checkCode judges the options of code tasks before anything is opened.
func (o *evalOptions) checkCode() error {
	switch {
	case o.codeOff:
		return fault.New(fault.Unavailable, "--task %s runs generated programs, and --no-code-execution refuses them", o.task).WithID("E-EVAL-032")
	case o.k > o.samples:
		return fault.New(fault.Usage, "--k %d of --samples %d: pass@k needs at least k samples; it is never extrapolated", o.k, o.samples)
	case o.samples > 1 && o.temperature == 0:
		return fault.New(fault.Usage, "--samples %d at --temperature 0 would all be the same", o.samples).WithHint("--temperature 0.8, or --samples 1")
	}
	return nil
}

// prepareCode reads the problems and makes sure that programs can be run, and confined.
func (o *evalOptions) prepareCode(ctx context.Context, e *cli.Env, tok *tokenizer.Tokenizer) (_ task, closeTask func() error, err error) {
	t := &codeTask{o: o, tok: tok}
	closeTask = func() error { return nil }
	if t.problems, t.sum, err = eval.ReadProblems(o.data[0], o.task); err != nil {
		return nil, closeTask, err
	}
	box, err := sandbox.Open(ctx, sandbox.DefaultLimits, o.network)
	if err != nil {
		return nil, closeTask, err
	}
	t.limits = box.Limits()
	if !box.Confined() {
		e.Log.Warn("generated programs are not confined: they can do whatever you can")
	}
	e.Log.Debug("generated programs run under", "limits", t.limits)
	programs, err := eval.NewPrograms(ctx, box, t.problems)
	if err != nil {
		return nil, closeTask, err
	}
	t.programs = programs
	return t, programs.Close, nil
}

// constant is the id that occurs most often in the prompts.
func (t *codeTask) constant() int32 {
	var ids []int32
	for _, p := range t.problems {
		ids = t.tok.Append(ids, p.Prompt, tokenizer.PlainText)
	}
	return eval.MostFrequent(ids)
}

func (t *codeTask) score(ctx context.Context, e *cli.Env, m *loaded, r *evalResult) (eval.Score, error) {
	w, err := newModelWriter(t.o, t.tok, m, t.o.tokens(512))
	if err != nil {
		return eval.Score{}, err
	}
	return t.scoreWriter(ctx, e, w, r)
}

// scoreWriter runs what a writer writes. The gate judges pass@k.
func (t *codeTask) scoreWriter(ctx context.Context, e *cli.Env, w eval.Writer, r *evalResult) (eval.Score, error) {
	o := t.o
	bar := e.Progress("running programs", int64(len(t.problems)*o.samples), cli.Count)
	defer bar.Close()
	report, err := eval.RunCode(ctx, t.problems, o.samples, w, t.programs, func() { bar.Add(1) })
	if err != nil {
		return eval.Score{}, err
	}
	r.Mode, r.failure = report.Mode(), report.Err()
	r.DataSHA256, r.Seed, r.Limits, r.Items = t.sum, o.seed, t.limits, len(t.problems)
	r.Samples, r.Generated, _ = report.Totals()
	if report.InferenceError != "" {
		r.InferenceErr = &report.InferenceError
	}
	for _, p := range report.Problems {
		out := problemResult{ID: p.ID, Samples: p.Samples, Generated: p.Generated, Passed: p.Passed}
		if p.Failure != "" {
			out.Failure = &p.Failure
		}
		r.Problems = append(r.Problems, out)
	}
	score := eval.Score{Higher: true}
	for _, k := range []int{1, o.k} {
		if k == 1 && o.k == 1 && len(r.PassAtK) == 1 {
			break
		}
		rate, each, err := report.PassAtK(k)
		if err != nil {
			return score, err
		}
		low, high := eval.Wilson(rate, len(each))
		r.PassAtK = append(r.PassAtK, passAtK{k, rate, low, high})
		score.Value, score.Items = rate, each
	}
	return score, nil
}
