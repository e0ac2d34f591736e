package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"apr/adapter"
	"apr/corpus"
	"apr/device"
	"apr/distill"
	"apr/generate"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	"apr/tokenizer"
)

// writingOptions are the options of --stage generate.
type writingOptions struct {
	MaxTokens, TargetTokens, SamplesPerPrompt, MinCompletionTokens, MaxPromptChars, Slots int
	SamplingTemperature, TopP                                                             float64
}

// textTable are the options of text that a teacher writes.
func (o *distillOptions) textTable() []cli.Option {
	t := &o.Texts
	return []cli.Option{
		{Name: "max-tokens", Value: cli.Int(&t.MaxTokens, 256).AtLeast(1), Help: "generate: stop an answer after this many tokens"},
		{Name: "sampling-temperature", Value: cli.Float(&t.SamplingTemperature, 0.8).In(0, 100), Help: "generate: sampling temperature, 0 = greedy; --temperature on the command line is taken for it"},
		{Name: "top-p", Value: cli.Float(&t.TopP, 0.95).In(0, 1), Help: "generate: sample from the likeliest tokens that together have probability p; 0 or 1 = all"},
		{Name: "target-tokens", Value: cli.Int(&t.TargetTokens, 0).AtLeast(0), Help: "generate: begin no answer once the answers have this many tokens; 0 = answer every prompt"},
		{Name: "samples-per-prompt", Value: cli.Int(&t.SamplesPerPrompt, 1).In(1, 10000),
			Help: "texts for each prompt, of --stage generate and of --on-policy"},
		{Name: "min-completion-tokens", Value: cli.Int(&t.MinCompletionTokens, 1).AtLeast(0), Help: "generate: leave out answers with fewer tokens"},
		{Name: "max-prompt-chars", Value: cli.Int(&t.MaxPromptChars, 0).AtLeast(0), Help: "generate: leave out prompts with more characters; 0 = none"},
		slotsOption(&t.Slots, "generate: texts that are written at a time; changes no text"),
	}
}

// textNames are the options of textTable.
var textNames = []string{"max-tokens", "sampling-temperature", "top-p", "target-tokens", "samples-per-prompt", "min-completion-tokens", "max-prompt-chars", "slots"}

// textAlso are the further options that --stage generate reads.
var textAlso = []string{"teacher", "data", "output", "force", "seed", "temperature", "chat-template", "backend", "dtype", "device", "stage", "kernel-log", "managed-memory", "plan"}

// writes reports whether the teacher writes text.
func (o *distillOptions) writes() bool { return o.Stage == "generate" }

// ofThisCall is the flag or variable that gave an option its value; "": a configuration did, or nothing.
func ofThisCall(v cli.Setting) string {
	if v.Origin == "flag" {
		return "--" + v.Name
	}
	name, ok := strings.CutPrefix(v.Origin, "env ")
	if !ok {
		return ""
	}
	return name
}

// checkTexts refuses options that another stage reads. A configuration may be that of all stages.
func (o *distillOptions) checkTexts(s cli.Settings) error {
	for _, v := range s {
		mine := slices.Contains(textNames, v.Name)
		if v.Name == "samples-per-prompt" && o.Policy.Fraction > 0 {
			continue
		}
		by := ofThisCall(v)
		if by == "" || !s.Changed(v.Name) || mine == o.writes() || o.writes() && slices.Contains(textAlso, v.Name) {
			continue
		}
		if mine {
			return fault.New(fault.Usage, "%s has no effect without --stage generate", by)
		}
		return fault.New(fault.Usage, "%s has no effect with --stage generate", by)
	}
	switch {
	case !o.writes():
		return nil
	case o.Teacher == "":
		return fault.New(fault.Usage, "missing argument TEACHER: %s", teacherHelp)
	case len(o.Data) == 0:
		return fault.New(fault.Usage, `missing --data FILE: lines of {"prompt": "text", "source": "text", "kind": "text"}`)
	case o.Output == "":
		return fault.New(fault.Usage, "missing --output FILE, where the answers go")
	case o.Plan:
		return fault.New(fault.Unavailable, "not built yet: a plan of --stage generate")
	}
	return nil
}

// sampling returns how answers are chosen. --temperature is that of a loss, unless it is typed for this stage.
func (o *distillOptions) sampling(s cli.Settings) generate.Options {
	t := o.Texts
	g := generate.Options{MaxTokens: t.MaxTokens, Temperature: t.SamplingTemperature, TopP: t.TopP, Seed: uint64(o.Seed), RepeatPenalty: 1}
	if s.Origin("temperature") == "flag" && s.Origin("sampling-temperature") != "flag" {
		g.Temperature = o.Temperature
	}
	return g
}

// textResult is the JSON of apr distill --stage generate.
type textResult struct {
	*distill.Texts
	Teacher string `json:"teacher"`
	Backend string `json:"backend"`
	Slots   int    `json:"slots"`
	Long    int    `json:"too_long"` // prompts left out
}

// runTexts lets the teacher answer prompts.
func runTexts(ctx context.Context, e *cli.Env, o *distillOptions) (cli.Result, error) {
	if err := errors.Join(o.checkTexts(e.Settings), distill.TextJob{Output: o.Output, Force: o.Force}.CheckOutput()); err != nil {
		return nil, err
	}
	paths, err := dataFiles(ctx, e, o.Data)
	if err != nil {
		return nil, err
	}
	prompts, long, err := distill.ReadTextPrompts(paths, o.Texts.MaxPromptChars)
	if err != nil {
		return nil, err
	}
	f, err := openFiles(ctx, e, o.Teacher)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	w, err := o.textWriter(f, e)
	if err != nil {
		return nil, err
	}
	all := len(prompts)
	if prompts, err = w.encode(prompts, f.Config.MaxPositions); err != nil {
		return nil, err
	}
	b := backend{name: o.Backend, dtype: o.DType, index: o.Device, round: true, kernelLog: o.KernelLog}
	dev, err := b.openFor(ctx, e, f)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	w.job.Identity += " " + dev.Info().Kind + " " + o.DType
	n, err := dev.fitEngine(f, o.Texts.Slots, w.job.Capacity, w.job.Sampling.Vocab, false)
	if err != nil {
		return nil, err
	}
	m, err := model.LoadFrozenAs(dev, f, device.TeacherWeights, generationForm)
	if err != nil {
		return nil, err
	}
	engine := generate.NewEngine(m, dev.NewStream(), n)
	defer engine.Close()
	out, err := w.write(ctx, e, engine, prompts)
	if err != nil {
		if errors.Is(err, context.Canceled) {
			e.Log.Info("what is finished is kept in " + o.Output + ".part: the same command goes on")
		}
		return nil, engineError(err)
	}
	return textResult{out, o.Teacher, dev.Info().Kind, n.Slots, long + all - len(prompts)}, nil
}

// textWriter is a job and what turns its prompts into ids.
type textWriter struct {
	job  distill.TextJob
	tok  *tokenizer.Tokenizer
	chat *tokenizer.Chat // nil: prompts are plain text that the teacher continues
}

// textWriter describes the job, before a device is opened.
func (o *distillOptions) textWriter(f *modelfile.Files, e *cli.Env) (*textWriter, error) {
	tok, err := f.Tokenizer()
	if err != nil {
		return nil, err
	}
	w, template := &textWriter{tok: tok}, ""
	sampling := o.sampling(e.Settings)
	sampling.Vocab = tok.RealIDs()
	if sampling.Stop, err = f.Stops(); err != nil {
		return nil, err
	}
	if o.ChatTemplate != "none" && (o.ChatTemplate != "auto" || tok.ChatTemplate() != "") {
		if w.chat, template, err = corpus.Chat(tok, o.ChatTemplate, time.Now()); err != nil {
			return nil, err
		}
		warnUnended(e, f, tok, o.ChatTemplate, w.chat)
		if end := w.chat.End(); end != tokenizer.None && !slices.Contains(sampling.Stop, end) {
			sampling.Stop = append(sampling.Stop, end)
		}
	}
	sum, err := f.WeightsSHA256()
	if err != nil {
		return nil, err
	}
	writer, err := adapter.Writer(f)
	if err != nil {
		return nil, err
	}
	w.job = distill.TextJob{Output: o.Output, Force: o.Force, Writer: writer, Identity: fmt.Sprintf("%s %q", sum,
		template), Sampling: sampling, Samples: o.Texts.SamplesPerPrompt,
		MinTokens: o.Texts.MinCompletionTokens, Target: o.Texts.TargetTokens, Decode: func(ids []int32) (string, error) {
			decoder := tok.NewStream()
			return textOf(decoder.Push, decoder.Flush, ids)
		}}
	return w, nil
}

// encode turns prompts into ids. Those that leave no room for an answer are left out.
func (w *textWriter) encode(prompts []distill.TextPrompt, positions int) (fit []distill.TextPrompt, err error) {
	longest := 0
	for _, p := range prompts {
		if w.chat != nil {
			p.IDs, err = rendered(w.chat, []tokenizer.Message{{Role: "user", Content: p.Prompt}})
		} else {
			p.IDs = w.tok.Append(w.tok.Begin(nil), p.Prompt, tokenizer.PlainText)
		}
		if err != nil {
			return nil, err
		}
		if len(p.IDs) < positions {
			longest, fit = max(longest, len(p.IDs)), append(fit, p)
		}
	}
	if len(fit) == 0 {
		return nil, fault.New(fault.Inference, "no prompt leaves room for an answer among the model's %d positions", positions)
	}
	w.job.Capacity = min(positions, longest+w.job.Sampling.MaxTokens)
	return fit, nil
}

// write runs the job under a progress bar: of tokens if so many are wanted, else of answers.
func (w *textWriter) write(ctx context.Context, e *cli.Env, engine *generate.Engine, prompts []distill.TextPrompt) (*distill.Texts, error) {
	total := int64(len(prompts) * w.job.Samples)
	if w.job.Target > 0 {
		total = int64(w.job.Target)
	}
	bar := e.Progress("generate", total, cli.Count)
	defer bar.Close()
	start, made := time.Now(), int64(0)
	at, first := int64(0), true
	return w.job.Write(ctx, engine, prompts, func(answers, tokens int64) {
		now := answers
		if w.job.Target > 0 {
			now = min(tokens, total)
		}
		if first {
			first, made = false, tokens
			bar.Resume(now)
		} else {
			bar.Add(now - at)
			bar.Note(fmt.Sprintf("%.0f tokens/s", float64(tokens-made)/time.Since(start).Seconds()))
		}
		at = now
	})
}

// Text prints what was written.
func (r textResult) Text(p *cli.Page) {
	pairs := []string{"output", r.Output, "answers", fmt.Sprintf("%s to %s, %s",
		cli.Count(int64(r.Written)), plural(r.Prompts, "prompt"), plural(int(r.Tokens), "token"))}
	if r.Short+r.Long > 0 {
		pairs = append(pairs, "left out", fmt.Sprintf("too short: %s; too long: %s",
			plural(r.Short, "answer"), plural(r.Long, "prompt")))
	}
	if r.Unreadable > 0 {
		pairs = append(pairs, "unreadable", plural(r.Unreadable, "answer")+" left out: NUL or bytes that are no text")
	}
	if r.Resumed > 0 {
		pairs = append(pairs, "resumed", plural(r.Resumed, "answer")+" there")
	}
	if r.TokensPerSec != nil {
		pairs = append(pairs, "speed", fmt.Sprintf("%.0f tokens/s, %d at a time", *r.TokensPerSec, r.Slots))
	}
	p.Pairs(pairs...)
}
