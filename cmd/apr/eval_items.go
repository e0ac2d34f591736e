package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"apr/corpus"
	"apr/device"
	"apr/eval"
	"apr/generate"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/model"
	"apr/tokenizer"
)

// itemTask asks questions: choice, match or countdown.
type itemTask struct {
	o       *evalOptions
	tok     *tokenizer.Tokenizer
	eos     int32
	sum     string
	choices []eval.Choice
	matches []eval.Match
}

func (o *evalOptions) prepareItems(tok *tokenizer.Tokenizer) (_ task, err error) {
	t := &itemTask{o: o, tok: tok}
	if t.eos, err = corpus.EndOfText(tok); err != nil {
		return nil, err
	}
	if o.task == "choice" {
		t.choices, t.sum, err = eval.ReadChoices(o.data[0])
	} else if o.task == "countdown" {
		t.matches, t.sum, err = eval.ReadCountdowns(o.data[0])
	} else {
		t.matches, t.sum, err = eval.ReadMatches(o.data[0])
	}
	return t, err
}

// constant is the id that occurs most often in the answers.
func (t *itemTask) constant() int32 {
	var ids []int32
	for _, c := range t.choices {
		ids = t.tok.Append(ids, c.Choices[c.Answer], tokenizer.PlainText)
	}
	for _, m := range t.matches {
		ids = t.tok.Append(ids, m.Answers[0], tokenizer.PlainText)
	}
	return eval.MostFrequent(ids)
}

// score asks all questions. The gate judges the accuracy.
func (t *itemTask) score(ctx context.Context, e *cli.Env, m *loaded, r *evalResult) (eval.Score, error) {
	r.DataSHA256, r.Seed = t.sum, t.o.seed
	if t.matches != nil {
		w, err := newModelWriter(t.o, t.tok, m, t.o.tokens(64))
		if err != nil {
			return eval.Score{}, err
		}
		return t.match(ctx, e, w, r)
	}
	return t.choose(ctx, m.NewStream(), m.model, r)
}

// context is what every prompt begins with: the id that the tokenizer puts first, and without a prompt end-of-text, so
// that the first token of a choice is predicted from something.
func promptIDs(tok *tokenizer.Tokenizer, eos int32, prompt string) []int32 {
	ids := tok.Append(tok.Begin(nil), prompt, tokenizer.PlainText)
	if len(ids) == 0 {
		ids = append(ids, eos)
	}
	return ids
}

// choose scores choices by Σ ln q over their tokens, and by the same over their bytes.
func (t *itemTask) choose(ctx context.Context, s device.Stream, m *model.Model, r *evalResult) (eval.Score, error) {
	var rows []eval.Continuation
	for _, c := range t.choices {
		prompt := promptIDs(t.tok, t.eos, c.Prompt)
		for _, text := range c.Choices {
			ids := t.tok.Append(slices.Clone(prompt), text, tokenizer.PlainText)
			if len(ids)-1 > m.Config.MaxPositions {
				return eval.Score{}, fault.In(fault.Invalid, t.o.data[0], "prompt and choice have %d tokens, the model %d positions", len(ids), m.Config.MaxPositions).At("line %d", c.Line)
			}
			rows = append(rows, eval.Continuation{IDs: ids, From: len(prompt)})
		}
	}
	likelihoods, err := eval.LogLikelihoods(ctx, s, m, rows, t.tok.RealIDs())
	if err != nil {
		return eval.Score{}, err
	}
	score := eval.Score{Higher: true}
	byBytes := 0.0
	for _, c := range t.choices {
		n := len(c.Choices)
		sums := likelihoods[:n]
		likelihoods = likelihoods[n:]
		perByte := make([]float64, n)
		for i := range perByte {
			perByte[i] = sums[i] / float64(len(c.Choices[i]))
		}
		score.Items = append(score.Items, indicator(eval.Best(sums) == c.Answer))
		byBytes += indicator(eval.Best(perByte) == c.Answer)
	}
	byBytes /= float64(len(t.choices))
	r.AccuracyNorm = &byBytes
	return accuracy(score, r), nil
}

func indicator(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// accuracy completes the score of questions that were all asked.
func accuracy(s eval.Score, r *evalResult) eval.Score {
	for _, x := range s.Items {
		s.Value += x
	}
	s.Value /= float64(len(s.Items))
	r.Items, r.Accuracy = len(s.Items), &s.Value
	return s
}

// match generates greedily to the end of the line. If no prompt brought any text back, inference failed.
func (t *itemTask) match(ctx context.Context, e *cli.Env, w eval.Writer, r *evalResult) (eval.Score, error) {
	bar := e.Progress("evaluating", int64(len(t.matches)), cli.Count)
	defer bar.Close()
	score := eval.Score{Higher: true}
	r.Mode = "inference"
	for _, m := range t.matches {
		text, err := w.Continue(ctx, m.Prompt, 0, func(text string) bool {
			return strings.ContainsRune(strings.TrimLeft(text, " \t\r\n"), '\n')
		})
		if err != nil && fault.KindOf(err) != fault.Inference {
			return score, fmt.Errorf("%s: line %d: %w", t.o.data[0], m.Line, err)
		}
		r.Samples++
		line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
		line = strings.TrimSpace(line)
		switch {
		case err == nil && line != "":
			r.Generated++
		case r.InferenceErr == nil:
			why := fmt.Sprintf("line %d: no text came back", m.Line)
			if err != nil {
				why = fmt.Sprintf("line %d: %v", m.Line, err)
			}
			r.InferenceErr = &why
		}
		right := err == nil
		switch {
		case m.Judge != nil:
			right = right && m.Judge(line)
		default:
			right = right && slices.ContainsFunc(m.Answers, func(a string) bool { return strings.TrimSpace(a) == line })
		}
		score.Items = append(score.Items, indicator(right))
		bar.Add(1)
	}
	s := accuracy(score, r)
	if r.Generated == 0 {
		r.Mode = "inference_failed"
		r.failure = fault.New(fault.Inference, "none of %d prompts brought text back: %s", r.Samples, *r.InferenceErr).WithID("E-EVAL-021")
	}
	return s, nil
}

// tokens is the bound on generated tokens.
func (o *evalOptions) tokens(otherwise int) int {
	if o.maxTokens > 0 {
		return o.maxTokens
	}
	return otherwise
}

// modelWriter lets a model continue prompts.
type modelWriter struct {
	tok *tokenizer.Tokenizer
	m   *model.Model
	s   device.Stream
	gen generate.Options
}

func newModelWriter(o *evalOptions, tok *tokenizer.Tokenizer, m *loaded, tokens int) (*modelWriter, error) {
	stops, err := m.files.Stops()
	if err != nil {
		return nil, err
	}
	w := &modelWriter{tok: tok, m: m.model, s: m.NewStream()}
	w.gen = generate.Options{MaxTokens: tokens, Temperature: o.temperature, RepeatPenalty: 1, Seed: uint64(o.seed), Vocab: tok.RealIDs()}
	if id := w.endOfText(); id != tokenizer.None && !slices.Contains(stops, id) {
		stops = append(stops, id)
	}
	w.gen.Stop = stops
	return w, nil
}

// endOfText is the id that joined documents in training, if there is one.
func (w *modelWriter) endOfText() int32 {
	eos, err := corpus.EndOfText(w.tok)
	if err != nil {
		return tokenizer.None
	}
	return eos
}

// errEnough ends a generation whose text is complete.
var errEnough = fault.New(fault.Other, "the text is complete")

// Continue implements eval.Writer. Each sample has a seed of its own. The prompt and the text must fit the model's
// positions: fewer tokens are made where they do not.
func (w *modelWriter) Continue(ctx context.Context, prompt string, sample int, done func(string) bool) (string, error) {
	ids := promptIDs(w.tok, w.endOfText(), prompt)
	o := w.gen
	o.Seed += uint64(sample) << 32
	if o.MaxTokens = min(o.MaxTokens, w.m.Config.MaxPositions-len(ids)); o.MaxTokens < 1 {
		return "", fault.New(fault.Inference, "a prompt of %d tokens leaves no room in the model's %d positions", len(ids), w.m.Config.MaxPositions)
	}
	var text strings.Builder
	decoder := w.tok.NewStream()
	_, err := generate.Generate(ctx, w.m, w.s, ids, o, func(id int32) error {
		piece, err := decoder.Push(id)
		if err != nil {
			return err
		}
		if text.WriteString(piece); done(text.String()) {
			return errEnough
		}
		return nil
	})
	if err != nil && err != error(errEnough) {
		return "", err
	}
	text.WriteString(decoder.Flush())
	return text.String(), nil
}
