package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"apr/adapter"
	"apr/corpus"
	"apr/device"
	"apr/generate"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	"apr/tokenizer"
)

// runOptions are the options of apr run.
type runOptions struct {
	source, prompt, argPrompt, system, batch, backend, template string
	adapter                                                     string
	stream, chat, noGPU, gpu, benchmark, exact                  bool
	seed                                                        int64
	context, slots                                              int
	gen                                                         generate.Options
	draft                                                       draftOptions

	talks bool // a person types the prompts
}

// defaultTokens bounds an answer, unless --max-tokens says otherwise: a model that was not trained on ends writes for ever.
const defaultTokens = 512

func runCommand() *cli.Command {
	o := &runOptions{}
	return &cli.Command{
		Name: "run", Short: "Chat with a model, or let it continue a text",
		Long: "Without a prompt, in a terminal, run starts a chat by the model's chat template. A model without one, and a new\n" +
			"student of plain text unless --chat is given, continues each line you type. /help lists the commands; Ctrl-C stops\n" +
			"an answer, Ctrl-D ends.\n" +
			"The prompt is the argument TEXT, or --prompt, or stdin: piped in, or read by -. It is continued, or answered as\n" +
			"the user's turn: with --chat, and by a student of conversations. One line end at the end of stdin is\n" +
			"dropped. Only the answer is written to stdout. It ends at the model's end token, after --max-tokens, or when the\n" +
			"model's positions are used up. SOURCE is a file, a folder, a name on the hub, or a run: its directory or the\n" +
			"beginning of its name. apr serve answers programs.",
		Example: "apr run student.apr\n" +
			"apr run 20261120 'package main' -n 64\n" +
			"apr run student.apr -p 'func ' --temperature 0.8 --top-p 0.95 --seed 7\n" +
			"git diff | apr run model/ --chat --system 'Write a commit message'\n" +
			"apr run student.apr --batch-jsonl prompts.jsonl --json",
		Exits: []fault.Kind{fault.NotFound, fault.Format, fault.Invalid, fault.Load, fault.IO, fault.Inference, fault.Unavailable, fault.Network, fault.HTTP404, fault.Stopped, fault.Memory, fault.UnsafePath},
		Options: append([]cli.Option{
			{Name: "source", Foreign: []string{"model", "model-path"}, Arg: true, Required: true, Model: true, Value: cli.String(&o.source, ""), Help: "model or run"},
			adapterOption(&o.adapter),
			{Name: "text", Replaces: []string{"prompt", "batch-jsonl"}, Arg: true, Value: cli.String(&o.argPrompt, ""), Help: "prompt; - reads stdin"},
			{Name: "prompt", Replaces: []string{"text", "batch-jsonl"}, Short: "p", Value: cli.String(&o.prompt, ""), Help: "prompt; - reads stdin"},
			{Name: "max-tokens", Foreign: []string{"max-new-tokens", "n-predict", "num-predict", "max-length"}, Short: "n", Value: cli.Int(&o.gen.MaxTokens, defaultTokens).AtLeast(1), Default: fmt.Sprintf("%d, or what the model's positions leave", defaultTokens), Help: "stop an answer after this many tokens"},
			{Name: "context", Foreign: []string{"ctx-size", "num-ctx", "context-length", "max-model-len"}, Value: cli.Int(&o.context, 8192).AtLeast(2), Default: "8192, or what fits", Help: "keep this many tokens of a chat; the oldest turns are dropped first"},
			{Name: "stream", Value: cli.Bool(&o.stream, false), Default: "on when stdout is a terminal", Help: "print text as it is generated; not with --json"},
			{Name: "chat", Value: cli.Bool(&o.chat, false), Help: "put the prompt into the chat template, as the user's turn"},
			{Name: "chat-template", Path: true, Keywords: []string{"auto", "chatml", "none"},
				Value: cli.String(&o.template, "auto"),
				Help:  "Chat template: auto (the model's own), chatml, a file with a Jinja template, or none to continue the text"},
			{Name: "system", Value: cli.String(&o.system, ""), Help: "set the system message; implies --chat"},
			{Name: "temperature", Foreign: []string{"temp"}, Value: cli.Float(&o.gen.Temperature, 0).AtLeast(0), Help: "sampling temperature; 0 = greedy"},
			{Name: "top-k", Value: cli.Int(&o.gen.TopK, 0).AtLeast(0), Help: "sample from the k likeliest tokens; 0 = all"},
			{Name: "top-p", Value: cli.Float(&o.gen.TopP, 1).In(0, 1), Help: "sample from the likeliest tokens that together have probability p; 0 or 1 = all"},
			{Name: "seed", Value: cli.Int64(&o.seed, 299792458).AtLeast(0), Help: "seed of the sampling; no effect at temperature 0"},
			{Name: "repeat-penalty", Foreign: []string{"repetition-penalty"}, Value: cli.Float(&o.gen.RepeatPenalty, 1).Above(0), Help: "lower the logits of recent tokens; 1 = off"},
			{Name: "repeat-last-n", Value: cli.Int(&o.gen.RepeatLastN, 64).AtLeast(0), Help: "recent tokens that --repeat-penalty looks at; 0 = none"},
			{Name: "batch-jsonl", Replaces: []string{"text", "prompt"}, Path: true, Value: cli.String(&o.batch, ""), Help: `file of {"prompt": …} lines; prints one line of JSON per prompt as it finishes`},
			slotsOption(&o.slots, "texts of --batch-jsonl that are written at a time; changes no text"),
			{Name: "backend", Foreign: []string{"device-map"}, Value: backendValue(&o.backend),
				Help: backendHelp},
			{Name: "no-gpu", Aliases: []string{"cpu"}, Value: cli.Bool(&o.noGPU, false), Help: "compute on the CPU"},
			{Name: "gpu", Value: cli.Bool(&o.gpu, false), Help: "compute on the GPU"},
			{Name: "exact", Value: cli.Bool(&o.exact, false), Help: "compute quantised weights in float32 on the CPU, as training does: many times slower; else activations are rounded to 16 bits"},
			{Name: "benchmark", Value: cli.Bool(&o.benchmark, false), Help: "print the speed"},
		}, o.draft.table()...),
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) { return runRun(ctx, e, o) },
	}
}

// runResult is the JSON of apr run. With --batch-jsonl the members of a prompt are those of the last one, and results are all.
type runResult struct {
	onePrompt
	Backend  string               `json:"backend"`
	Decoding string               `json:"decoding,omitempty"` // how layers ran for one token
	Seed     int64                `json:"seed"`
	Draft    *generate.DraftStats `json:"draft,omitempty"`
	Results  []*onePrompt         `json:"results,omitempty"`

	streamed, benchmark bool
}

// onePrompt is what became of a prompt, and one line of --batch-jsonl.
type onePrompt struct {
	Prompt       string   `json:"prompt"`
	Output       string   `json:"text"`
	PromptTokens int      `json:"prompt_tokens"`
	Tokens       []int32  `json:"tokens"`
	FinishReason string   `json:"finish_reason"`
	PerSecond    *float64 `json:"tokens_per_second"` // after the first token; null: there was no other
	FirstMS      float64  `json:"time_to_first_token_ms"`
	Writer       string   `json:"writer,omitempty"` // as of a record of --stage generate: adapter.Writer
	Sum          string   `json:"sum,omitempty"`    // corpus.RecordSum
	decoding     string
	draft        *generate.DraftStats
	ended        bool // its last line is printed
}

// runner is a loaded model.
type runner struct {
	o   *runOptions
	tok *tokenizer.Tokenizer
	dev *opened
	m   *model.Model
	s   device.Stream
	out io.Writer // text as it is made; nil: not shown

	draft *model.Model // proposes tokens; nil: there is none
	room  int          // positions that both have
}

// check refuses flags that would do nothing. A value that only says "off" is none of them, and neither is a seed: the text is
// the same each time, as whoever gives it wants.
func (o *runOptions) check(e *cli.Env) error {
	template, greedy := o.chat || o.system != "" || o.talks, o.gen.Temperature == 0
	only := func(name, of string) *fault.Error { return fault.New(fault.Usage, "--%s belongs to %s", name, of) }
	exclude := func(a, b string) *fault.Error {
		return fault.New(fault.Usage, "--%s and --%s exclude each other", a, b)
	}
	batch := o.batch != ""
	switch {
	case o.template == "none" && (o.chat || o.system != ""):
		return fault.In(fault.Usage, "--chat-template", "a conversation cannot be written without a template: give auto, chatml or a file").
			WithHint("without --chat and --system the prompt is plain text")
	case e.Settings.Given("system") && o.system == "":
		return fault.In(fault.Usage, "--system", "is empty")
	case e.Settings.Given("chat-template") && !template && o.template != "none":
		return only("chat-template", "--chat or --system")
	case e.Settings.Given("context") && !o.talks:
		return only("context", "a chat in a terminal")
	case e.Settings.Given("slots") && o.slots > 0 && !batch:
		return only("slots", "--batch-jsonl")
	case o.benchmark && o.talks:
		return only("benchmark", "a prompt")
	case greedy && o.gen.TopK > 0:
		return only("top-k", "a --temperature above 0").WithHint("at 0 the likeliest token is taken")
	case greedy && o.gen.TopP > 0 && o.gen.TopP < 1:
		return only("top-p", "a --temperature above 0").WithHint("at 0 the likeliest token is taken")
	case e.Settings.Given("repeat-last-n") && o.gen.RepeatLastN > 0 && o.gen.RepeatPenalty == 1:
		return only("repeat-last-n", "a --repeat-penalty other than 1")
	case o.gen.RepeatPenalty != 1 && o.gen.RepeatLastN == 0:
		return only("repeat-penalty", "a --repeat-last-n above 0").WithHint("with 0 no token is recent")
	case o.stream && e.JSON:
		return exclude("stream", "json")
	case o.stream && batch:
		return exclude("stream", "batch-jsonl").WithHint("each line is printed as soon as it is there")
	case o.benchmark && batch:
		return exclude("benchmark", "batch-jsonl").WithHint("each line has tokens_per_second and time_to_first_token_ms")
	}
	return nil
}

// device returns where to compute: --backend, --gpu or --no-gpu. A flag wins over a configuration; those of one place must not
// contradict each other.
func (o *runOptions) device(s cli.Settings) (backend, error) {
	b := backend{name: o.backend, round: !o.exact}
	from, said := "backend", "--backend "+o.backend
	for _, f := range []struct {
		name, backend string
		on            bool
	}{{"gpu", "cuda", o.gpu}, {"no-gpu", "cpu", o.noGPU}} {
		switch {
		case !f.on || s.Over(from, f.name):
		case s.Over(f.name, from) || b.name == "auto" || b.name == f.backend:
			b.name, from, said = f.backend, f.name, "--"+f.name
		default:
			return b, fault.New(fault.Usage, "%s and --%s contradict each other", said, f.name)
		}
	}
	switch {
	case o.exact && b.name == "cuda":
		return b, fault.New(fault.Usage, "--exact belongs to the CPU").WithHint("--no-gpu")
	case o.exact:
		b.name = "cpu" // auto takes what can do it
	}
	return b, nil
}

func runRun(ctx context.Context, e *cli.Env, o *runOptions) (cli.Result, error) {
	o.talks = o.prompt+o.argPrompt+o.batch == "" && e.StdinIsTerminal()
	if err := o.check(e); err != nil {
		return nil, err
	}
	if err := o.checkDraft(e); err != nil {
		return nil, err
	}
	where, err := o.device(e.Settings)
	if err != nil {
		return nil, err
	}
	prompts, err := o.prompts(e)
	if err != nil {
		return nil, err
	}
	f, err := o.open(ctx, e)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if o.talks {
		return nil, o.talk(ctx, e, f, where)
	}
	if o.answers(f) {
		o.chat = true
		e.Explain("in the chat template, as this student learned conversations; --chat-template none continues the text")
	}
	longest, err := o.encode(e, f, prompts, e.Settings.Given("max-tokens"))
	if err != nil {
		return nil, err
	}
	if o.batch != "" {
		return o.runBatch(ctx, e, f, where, prompts, longest)
	}
	small, err := o.openDraft(ctx, e, f)
	if err != nil {
		return nil, err
	}
	room := f.Config.MaxPositions
	if small != nil {
		defer small.Close()
		room = min(room, small.Config.MaxPositions)
		if longest >= room {
			return nil, fault.In(fault.Inference, o.draft.path, "a prompt of %d tokens leaves no room in its %d positions",
				longest, room)
		}
	}
	writer, err := adapter.Writer(f)
	if err != nil {
		return nil, err
	}
	r, err := o.loadBoth(ctx, e, f, small, where, longest, room)
	if err != nil {
		return nil, err
	}
	defer r.dev.Close()
	streamed := o.stream || !e.Settings.Given("stream") && e.StdoutIsTerminal() && !e.JSON
	if streamed {
		r.out = e.Out
	}
	one, err := r.generate(ctx, prompts[0])
	if err != nil {
		return nil, err
	}
	if one.draft != nil && !o.benchmark { // which prints it with the speed
		if err := one.explainDraft(e, streamed); err != nil {
			return nil, err
		}
	}
	one.Writer, one.Sum = writer, corpus.RecordSum(writer, one.Prompt, one.Output)
	return &runResult{
		onePrompt: *one, Decoding: one.decoding, Backend: r.dev.Info().Kind, Seed: o.seed, Draft: one.draft,
		benchmark: o.benchmark, streamed: streamed,
	}, nil
}

// loadBoth loads a model, and its draft unless that is nil, for texts of up to room tokens behind prompts of up to `longest`. The caller
// closes the device.
func (o *runOptions) loadBoth(
	ctx context.Context, e *cli.Env, f, small *modelfile.Files, where backend, longest, room int,
) (*runner, error) {
	r, err := o.load(ctx, e, f, where, small, func(dev *opened) error {
		gen := o.gen
		gen.MaxTokens = min(gen.MaxTokens, room-longest)
		if small != nil {
			return dev.prepareDraft(model.Describe(f), model.Describe(small), o.draft.tokens, longest, gen)
		}
		_, err := dev.prepare(model.Describe(f), longest, gen)
		return err
	})
	if err != nil {
		return nil, err
	}
	r.room = room
	if small != nil {
		if err := r.loadDraft(small, room); err != nil {
			r.dev.Close()
			return nil, err
		}
	}
	return r, nil
}

// explainDraft says on stderr what the draft was worth, behind the text that was streamed.
func (one *onePrompt) explainDraft(e *cli.Env, streamed bool) error {
	if f, ok := e.Out.(interface{ Flush() error }); ok && streamed {
		_, err := io.WriteString(e.Out, "\n")
		if err = errors.Join(err, f.Flush()); err != nil {
			return fault.In(fault.IO, "stdout", "cannot write the text").Because(err)
		}
		one.ended = true
	}
	e.Explain("draft: " + draftText(one.draft))
	return nil
}

// answers reports whether a prompt is the user's turn though nobody gave --chat: a student of nothing but conversations
// knows no other text.
func (o *runOptions) answers(f *modelfile.Files) bool {
	if o.chat || o.system != "" || o.template != "auto" || f.Learned() != modelfile.LearnedTalks {
		return false
	}
	tok, err := f.Tokenizer()
	return err == nil && tok.ChatTemplate() != ""
}

// open opens the model and reads what ends its texts.
func (o *runOptions) open(ctx context.Context, e *cli.Env) (*modelfile.Files, error) {
	f, err := openAdapted(ctx, e, o.source, o.adapter)
	if err != nil {
		return nil, err
	}
	tok, err := f.Tokenizer()
	if err == nil {
		err = f.CheckTensors()
	}
	if err == nil {
		o.gen.Seed, o.gen.Vocab = uint64(o.seed), tok.RealIDs()
		o.gen.Stop, err = f.Stops()
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// load opens the device for the model and a draft model, which may be nil, lets prepare plan what comes, and loads the
// model. The caller closes the device.
func (o *runOptions) load(ctx context.Context, e *cli.Env, f *modelfile.Files, where backend, draft *modelfile.Files,
	prepare func(*opened) error) (*runner, error) {
	tok, err := f.Tokenizer()
	if err != nil {
		return nil, err
	}
	models := []*modelfile.Files{f}
	if draft != nil {
		models = append(models, draft)
	}
	dev, err := where.openFor(ctx, e, models...)
	if err != nil {
		return nil, err
	}
	r := &runner{o: o, tok: tok, dev: dev}
	if err = prepare(dev); err == nil {
		r.m, err = model.LoadFrozenAs(dev, f, device.StudentWeights, generationForm)
	}
	if err != nil {
		dev.Close()
		return nil, err
	}
	r.s = dev.NewStream()
	return r, nil
}

// generate continues one prompt.
func (r *runner) generate(ctx context.Context, p prompt) (*onePrompt, error) {
	decoder := r.tok.NewStream()
	var text strings.Builder
	emit := func(id int32) error {
		piece, err := decoder.Push(id)
		if err != nil {
			return err
		}
		return r.show(&text, piece)
	}
	gen := r.o.gen
	room := r.m.Config.MaxPositions
	if r.draft != nil {
		room = min(room, r.room)
	}
	gen.MaxTokens = min(gen.MaxTokens, room-len(p.ids))
	var res generate.Result
	var worth *generate.DraftStats
	var err error
	if r.draft == nil {
		res, err = generate.Generate(ctx, r.m, r.s, p.ids, gen, emit)
	} else {
		d := generate.Draft{Model: r.draft, Tokens: r.o.draft.tokens, Trial: draftTrial}
		worth = &generate.DraftStats{}
		res, *worth, err = generate.Speculate(ctx, r.m, r.s, p.ids, gen, d, emit)
	}
	if err != nil {
		return nil, err
	}
	if err := r.show(&text, decoder.Flush()); err != nil {
		return nil, err
	}
	one := onePromptOf(p, text.String(), res)
	one.draft = worth
	return one, nil
}

// onePromptOf describes a finished text.
func onePromptOf(p prompt, text string, res generate.Result) *onePrompt {
	one := &onePrompt{
		Prompt: p.text, Output: text, PromptTokens: res.PromptTokens, Tokens: res.IDs, FinishReason: res.FinishReason,
		FirstMS: float64(res.FirstToken.Microseconds()) / 1e3, decoding: res.Decoding,
	}
	if n := len(res.IDs); n > 1 {
		speed := float64(n-1) / (res.Total - res.FirstToken).Seconds()
		one.PerSecond = &speed
	}
	return one
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
	return flush(r.out)
}

// Text prints the text, and the speed if asked.
func (r *runResult) Text(p *cli.Page) {
	switch {
	case len(r.Results) > 0: // printed one by one
	case r.ended:
	case r.streamed:
		p.Printf("\n")
	default:
		p.Raw(harmless(r.Output) + "\n")
	}
	if r.benchmark {
		speed := "–"
		if r.PerSecond != nil {
			speed = fmt.Sprintf("%.1f tokens/s", *r.PerSecond)
		}
		p.Printf("\n")
		pairs := []string{"tokens", fmt.Sprintf("%d after %d of the prompt", len(r.Tokens), r.PromptTokens),
			"first token", time.Duration(r.FirstMS * float64(time.Millisecond)).Round(10 * time.Microsecond).String(),
			"speed", speed}
		if r.Decoding != "" {
			pairs = append(pairs, "layers", r.Decoding)
		}
		if r.Draft != nil {
			pairs = append(pairs, "draft", draftText(r.Draft))
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
