package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"apr/corpus"
	"apr/device"
	"apr/generate"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/model"
	"apr/tokenizer"
)

// runOptions are the options of apr run.
type runOptions struct {
	source, prompt, argPrompt, system, batch, backend, template string
	stream, chat, noGPU, gpu, benchmark, exact                  bool
	seed                                                        int64
	gen                                                         generate.Options
}

func runCommand() *cli.Command {
	o := &runOptions{}
	return &cli.Command{
		Name: "run", Short: "Generate text with a model",
		Example: "apr run student.apr 'package main' -n 64\n" +
			"apr run student.apr -p 'func ' --temperature 0.8 --top-p 0.95 --seed 7 --stream\n" +
			"apr run model/ --chat -p 'Explain channels' -n 128\n" +
			"apr run student.apr --batch-jsonl prompts.jsonl --json",
		Exits: []fault.Kind{fault.NotFound, fault.Format, fault.Load, fault.Inference, fault.Unavailable, fault.Network, fault.HTTP404, fault.Stopped, fault.Memory, fault.UnsafePath},
		Options: []cli.Option{
			{Name: "source", Arg: true, Required: true, Model: true, Value: cli.String(&o.source, ""), Help: "model"},
			{Name: "text", Arg: true, Value: cli.String(&o.argPrompt, ""), Help: "prompt"},
			{Name: "prompt", Short: "p", Value: cli.String(&o.prompt, ""), Help: "prompt"},
			{Name: "max-tokens", Short: "n", Value: cli.Int(&o.gen.MaxTokens, 32).AtLeast(1), Help: "tokens to make at most"},
			{Name: "stream", Value: cli.Bool(&o.stream, false), Help: "print the text as it is made"},
			{Name: "chat", Value: cli.Bool(&o.chat, false), Help: "the prompt is a user's turn of a conversation"},
			{Name: "chat-template", Path: true, Keywords: []string{"auto", "chatml"}, Value: cli.String(&o.template, "auto"), Help: "of the conversation: auto is the model's own, chatml, or a file"},
			{Name: "system", Value: cli.String(&o.system, ""), Help: "system message of the conversation"},
			{Name: "temperature", Value: cli.Float(&o.gen.Temperature, 0).AtLeast(0), Help: "0 = greedy"},
			{Name: "top-k", Value: cli.Int(&o.gen.TopK, 0).AtLeast(0), Help: "sample among the k likeliest; 0 = all"},
			{Name: "top-p", Value: cli.Float(&o.gen.TopP, 1).In(0, 1), Help: "sample among the likeliest that make up p"},
			{Name: "seed", Value: cli.Int64(&o.seed, 299792458).AtLeast(0), Help: "of the sampling"},
			{Name: "repeat-penalty", Value: cli.Float(&o.gen.RepeatPenalty, 1).Above(0), Help: "lower the logits of recent tokens; 1 = off"},
			{Name: "repeat-last-n", Value: cli.Int(&o.gen.RepeatLastN, 64).AtLeast(0), Help: "how many tokens are recent"},
			{Name: "batch-jsonl", Path: true, Value: cli.String(&o.batch, ""), Help: `file of {"prompt": …} lines, one result a line`},
			{Name: "backend", Value: cli.Enum(&o.backend, "auto", "auto", "cpu", "cuda"), Help: "where to compute; auto takes a GPU if there is one"},
			{Name: "no-gpu", Aliases: []string{"cpu"}, Value: cli.Bool(&o.noGPU, false), Help: "compute on the CPU"},
			{Name: "gpu", Value: cli.Bool(&o.gpu, false), Help: "compute on the GPU"},
			{Name: "exact", Value: cli.Bool(&o.exact, false), Help: "on a CPU: multiply quantised weights in float32 as training and evaluation do, many times slower; else activations are rounded to 16 bits"},
			{Name: "benchmark", Value: cli.Bool(&o.benchmark, false), Help: "print the speed"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) { return runRun(ctx, e, o) },
	}
}

// runResult is the JSON of apr run.
type runResult struct {
	Prompt       string       `json:"prompt"`
	Output       string       `json:"text"`
	PromptTokens int          `json:"prompt_tokens"`
	Tokens       []int32      `json:"tokens"`
	FinishReason string       `json:"finish_reason"`
	PerSecond    float64      `json:"tokens_per_second"`
	FirstMS      float64      `json:"time_to_first_token_ms"`
	Backend      string       `json:"backend"`
	Decoding     string       `json:"decoding,omitempty"` // how layers ran for one token
	Seed         int64        `json:"seed"`
	Results      []*onePrompt `json:"results,omitempty"`

	streamed, benchmark bool
}

// onePrompt is one line of --batch-jsonl.
type onePrompt struct {
	Prompt       string  `json:"prompt"`
	Output       string  `json:"text"`
	PromptTokens int     `json:"prompt_tokens"`
	Tokens       []int32 `json:"tokens"`
	FinishReason string  `json:"finish_reason"`
	PerSecond    float64 `json:"tokens_per_second"`
	FirstMS      float64 `json:"time_to_first_token_ms"`
	decoding     string
}

// runner is a loaded model.
type runner struct {
	o   *runOptions
	tok *tokenizer.Tokenizer
	m   *model.Model
	s   device.Stream
	out io.Writer // text as it is made; nil: not shown
}

// device returns where to compute.
func (o *runOptions) device() backend {
	b := backend{name: o.backend, round: !o.exact}
	switch {
	case o.noGPU:
		b.name = "cpu"
	case o.gpu:
		b.name = "cuda"
	}
	return b
}

func runRun(ctx context.Context, e *cli.Env, o *runOptions) (cli.Result, error) {
	prompts, err := o.prompts(e)
	if err != nil {
		return nil, err
	}
	f, err := openFiles(ctx, e, o.source)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	tok, err := f.Tokenizer()
	if err != nil {
		return nil, err
	}
	if err := f.CheckTensors(); err != nil {
		return nil, err
	}
	o.gen.Seed, o.gen.Vocab = uint64(o.seed), tok.RealIDs()
	if tok.EOS() != tokenizer.None {
		o.gen.Stop = []int32{tok.EOS()}
	}
	encoded, longest, err := o.encode(tok, prompts)
	if err != nil {
		return nil, err
	}
	dev, err := o.device().open(e)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	if _, err := dev.prepare(f.Outline(), longest, o.gen); err != nil {
		return nil, err
	}
	m, err := model.LoadFrozenAs(dev, f, device.StudentWeights, generationForm)
	if err != nil {
		return nil, err
	}
	r := &runner{o: o, tok: tok, m: m, s: dev.NewStream()}
	if o.stream && !e.JSON && o.batch == "" {
		r.out = e.Out
	}
	result := &runResult{Backend: dev.Info().Kind, Seed: o.seed, benchmark: o.benchmark, streamed: r.out != nil}
	for i, p := range prompts {
		one, err := r.generate(ctx, p, encoded[i])
		if err != nil {
			return nil, err
		}
		if o.batch != "" {
			result.Results = append(result.Results, one)
		}
		result.Prompt, result.Output, result.PromptTokens, result.Tokens = one.Prompt, one.Output, one.PromptTokens, one.Tokens
		result.FinishReason, result.PerSecond, result.FirstMS = one.FinishReason, one.PerSecond, one.FirstMS
		result.Decoding = cmp.Or(one.decoding, result.Decoding)
	}
	return result, nil
}

// prompts returns what to continue: one prompt, or those of a file.
func (o *runOptions) prompts(e *cli.Env) ([]string, error) {
	if o.prompt != "" && o.argPrompt != "" {
		return nil, fault.New(fault.Usage, "a prompt is given twice: as argument and by --prompt")
	}
	p := o.prompt + o.argPrompt
	if o.batch == "" {
		if p == "" {
			return nil, fault.New(fault.Usage, "no prompt").WithHint("apr run %s 'some text'", o.source)
		}
		return []string{p}, nil
	}
	if p != "" {
		return nil, fault.New(fault.Usage, "--batch-jsonl and a prompt exclude each other")
	}
	return readPrompts(o.batch)
}

// readPrompts reads {"prompt": …} lines.
func readPrompts(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.In(fault.NotFound, path, "cannot be opened").Because(errors.Unwrap(err))
	}
	defer f.Close()
	var prompts []string
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan(); n++ {
		var line struct{ Prompt *string }
		d := json.NewDecoder(strings.NewReader(lines.Text()))
		d.DisallowUnknownFields()
		if err := d.Decode(&line); err != nil || line.Prompt == nil || *line.Prompt == "" {
			return nil, fault.In(fault.Invalid, path, `is not {"prompt": "text"}`).At("line %d", n).Because(err)
		}
		prompts = append(prompts, *line.Prompt)
	}
	if err := lines.Err(); err != nil {
		return nil, fault.In(fault.IO, path, "cannot be read").Because(err)
	}
	if len(prompts) == 0 {
		return nil, fault.In(fault.Invalid, path, "holds no prompt")
	}
	return prompts, nil
}

// encode turns prompts into ids, those of a conversation in its template, and returns the length of the longest.
func (o *runOptions) encode(tok *tokenizer.Tokenizer, prompts []string) (all [][]int32, longest int, err error) {
	ids := func(p string) ([]int32, error) { return tok.Encode(p, tokenizer.PlainText), nil }
	if o.chat || o.system != "" {
		if ids, err = o.conversation(tok); err != nil {
			return nil, 0, err
		}
	}
	for _, p := range prompts {
		one, err := ids(p)
		if err != nil {
			return nil, 0, err
		}
		all, longest = append(all, one), max(longest, len(one))
	}
	return all, longest, nil
}

// conversation returns how a user's turn becomes ids. The end of a turn ends the answer.
func (o *runOptions) conversation(tok *tokenizer.Tokenizer) (func(prompt string) ([]int32, error), error) {
	template, err := corpus.Template(tok, o.template)
	if err != nil {
		return nil, err
	}
	chat, err := tokenizer.NewChat(tok, template)
	if err != nil {
		return nil, err
	}
	o.gen.Stop = append(o.gen.Stop, chat.End())
	var system []tokenizer.Message
	if o.system != "" {
		system = append(system, tokenizer.Message{Role: "system", Content: o.system})
	}
	return func(prompt string) (ids []int32, _ error) {
		segments, err := chat.Render(append(system[:len(system):len(system)], tokenizer.Message{Role: "user", Content: prompt}), true)
		for _, s := range segments {
			ids = append(ids, s.IDs...)
		}
		return ids, err
	}, nil
}

// generate continues one prompt.
func (r *runner) generate(ctx context.Context, prompt string, ids []int32) (*onePrompt, error) {
	decoder := r.tok.NewStream()
	var text strings.Builder
	emit := func(id int32) error {
		piece, err := decoder.Push(id)
		if err != nil {
			return err
		}
		return r.show(&text, piece)
	}
	res, err := generate.Generate(ctx, r.m, r.s, ids, r.o.gen, emit)
	if err != nil {
		return nil, err
	}
	if err := r.show(&text, decoder.Flush()); err != nil {
		return nil, err
	}
	one := &onePrompt{
		Prompt: prompt, Output: text.String(), PromptTokens: res.PromptTokens, Tokens: res.IDs, FinishReason: res.FinishReason,
		FirstMS: float64(res.FirstToken.Microseconds()) / 1e3, decoding: res.Decoding,
	}
	if n := len(res.IDs); n > 1 {
		one.PerSecond = float64(n-1) / (res.Total - res.FirstToken).Seconds()
	}
	return one, nil
}

// show keeps a piece of text and prints it when streaming.
func (r *runner) show(text *strings.Builder, piece string) error {
	text.WriteString(piece)
	if r.out == nil || piece == "" {
		return nil
	}
	if _, err := io.WriteString(r.out, harmless(piece)); err != nil {
		return fault.In(fault.IO, "stdout", "cannot be written").Because(err)
	}
	if f, ok := r.out.(interface{ Flush() error }); ok {
		return f.Flush()
	}
	return nil
}

// Text prints the text, and the speed if asked.
func (r *runResult) Text(p *cli.Page) {
	switch {
	case len(r.Results) > 0:
		for _, one := range r.Results {
			b, err := cli.MarshalJSON(one)
			if err != nil {
				panic(err) // strings and finite numbers always encode
			}
			p.Printf("%s\n", b)
		}
	case r.streamed:
		p.Printf("\n")
	default:
		p.Printf("%s\n", harmless(r.Output))
	}
	if r.benchmark {
		p.Printf("\n")
		pairs := []string{"tokens", fmt.Sprintf("%d after %d of the prompt", len(r.Tokens), r.PromptTokens),
			"first token", time.Duration(r.FirstMS * float64(time.Millisecond)).Round(10 * time.Microsecond).String(),
			"speed", fmt.Sprintf("%.1f tokens/s", r.PerSecond)}
		if r.Decoding != "" {
			pairs = append(pairs, "layers", r.Decoding)
		}
		p.Pairs(pairs...)
	}
}

// harmless returns a text with its control characters, but for line ends and tabs, in visible form: a model may write
// terminal escapes.
func harmless(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r >= ' ' && r != 0x7f && !(r >= 0x80 && r < 0xa0):
			return r
		case r < ' ':
			return 0x2400 + r // the Unicode picture of the control character
		}
		return 0xfffd
	}, s)
}
