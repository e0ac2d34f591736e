package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync/atomic"

	"apr/generate"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
	"apr/tokenizer"
)

// talk lets a person converse with a model at a terminal. Answers go to stdout, all else to stderr.
func (o *runOptions) talk(ctx context.Context, e *cli.Env, f *modelfile.Files, where backend) error {
	lines := e.Lines()
	switch {
	case e.JSON:
		return fault.New(fault.Usage, "no prompt").WithHint("a conversation has no JSON: apr run %s 'some text' --json", o.source)
	case lines == nil:
		return fault.New(fault.Usage, "no prompt").WithHint("a conversation needs stderr to be a terminal; -p - reads a prompt from stdin")
	}
	t := &talk{o: o, e: e, lines: lines, system: o.system}
	var err error
	if t.template, t.why, err = o.talkTemplate(e, f); err != nil {
		return err
	}
	t.r, err = o.load(ctx, e, f, where, nil, func(dev *opened) (err error) {
		t.positions, err = o.fitContext(dev, f, e.Settings.Given("context"))
		return err
	})
	if err != nil {
		return err
	}
	defer t.r.dev.Close()
	t.session = generate.NewSession(t.r.m, t.r.s, o.gen, t.positions)
	defer t.session.Free()
	return t.converse(ctx)
}

// talkTemplate returns the chat template; nil, and why, for a model that continues texts: it has none, or has learned
// plain text alone.
func (o *runOptions) talkTemplate(e *cli.Env, f *modelfile.Files) (chat *tokenizer.Chat, why string, err error) {
	tok, err := f.Tokenizer()
	if err != nil {
		return nil, "", err
	}
	if o.template == "none" {
		return nil, "--chat-template none", nil
	}
	if o.template == "auto" && !o.chat && o.system == "" {
		switch {
		case tok.ChatTemplate() == "":
			return nil, "no chat template", nil
		case f.Learned() == modelfile.LearnedText:
			return nil, "trained on plain text, --chat talks all the same", nil
		}
	}
	chat, err = o.chatTemplate(e, f)
	return chat, "", err
}

// leastContext is the smallest context that is taken where --context does not ask for less.
const leastContext = 512

// fitContext returns the tokens of a conversation that the model and the device have room for.
func (o *runOptions) fitContext(dev *opened, f *modelfile.Files, given bool) (int, error) {
	switch most := f.Config.MaxPositions; {
	case o.context > most && given:
		return 0, fault.In(fault.Usage, "--context", "%d: the model has %d positions", o.context, most)
	case o.context > most:
		o.context = most
	}
	for n := o.context; ; n /= 2 {
		gen := o.gen
		gen.MaxTokens = min(gen.MaxTokens, n/2)
		_, err := dev.prepare(model.Describe(f), n-gen.MaxTokens, gen)
		if fault.KindOf(err) != fault.Memory || given || n/2 < leastContext {
			return n, err
		}
	}
}

// talk is a conversation.
type talk struct {
	o         *runOptions
	e         *cli.Env
	r         *runner
	lines     *cli.Lines
	session   *generate.Session
	template  *tokenizer.Chat // nil: the model continues each text that is typed
	why       string          // there is no template
	positions int
	system    string
	turns     []tokenizer.Message
	ids       []int32 // the last text with what the model added, where there is no template
	warned    bool    // the last key was Ctrl-C
}

// converse reads and answers until the person ends it.
func (t *talk) converse(ctx context.Context) error {
	kind := "chat"
	if t.template == nil {
		kind = "continues each line (" + t.why + ")"
	}
	t.say("%s on %s, %s; /help lists commands, Ctrl-D ends", filepath.Base(t.o.source), t.r.dev.Info().Kind, kind)
	for {
		text, err := t.read(ctx)
		switch {
		case errors.Is(err, cli.ErrInterrupted) && !t.warned:
			t.warned = true
			t.say("Ctrl-C again, Ctrl-D or /bye ends")
			continue
		case errors.Is(err, io.EOF), errors.Is(err, cli.ErrInterrupted), errors.Is(err, context.Canceled) && t.warned:
			return nil
		case err != nil:
			return err
		}
		t.warned = false
		if strings.TrimSpace(text.text) == "" && len(t.ids) == 0 {
			continue
		}
		if text.command() {
			if t.command(strings.TrimSpace(text.text)) {
				return nil
			}
			continue
		}
		if err := t.answer(ctx, text.text); err != nil {
			return err
		}
	}
}

// say prints a line for the person.
func (t *talk) say(format string, args ...any) {
	fmt.Fprintf(t.e.Err, format+"\n", args...) // a terminal that is gone ends what is read
}

// typed is what a person entered: a line, or several.
type typed struct {
	text    string
	literal bool // pasted, or between quotes: no command
}

func (x typed) command() bool { return !x.literal && strings.HasPrefix(x.text, "/") }

// quotes begin and end a text of several lines.
const quotes = `"""`

// read reads a line, or several: from """ to """, or those that were pasted at once.
func (t *talk) read(ctx context.Context) (typed, error) {
	line, pasted, err := t.lines.Read(ctx, ">>> ")
	if err != nil {
		return typed{}, err
	}
	rest, quoted := strings.CutPrefix(line, quotes)
	if !quoted && !pasted {
		return typed{text: line}, nil
	}
	all := []string{rest}
	end := func() bool { // the last line ends the text
		last := all[len(all)-1]
		without, ended := strings.CutSuffix(last, quotes)
		if quoted && ended {
			all[len(all)-1] = without
		}
		return quoted && ended || !quoted && !pasted
	}
	for !end() {
		if line, pasted, err = t.lines.Read(ctx, "... "); err != nil {
			return typed{}, err
		}
		all = append(all, line)
	}
	text := strings.Join(all, "\n")
	if !quoted {
		text = strings.TrimSuffix(text, "\n") // Enter after lines that were pasted with their end
	}
	return typed{text, true}, nil
}

const talkHelp = `/system TEXT   set the system message; without TEXT there is none
/reset         forget the conversation, or the text
/bye           end, as Ctrl-D and Ctrl-C twice do
"""            begin a text of several lines; """ at the end of a line ends it
Ctrl-C stops an answer. Between """ and """ a line that begins with / is
no command. Where the model continues texts, each line is a new text, and
Enter alone goes on with the last one.`

// command does what a line that begins with / says, and reports whether it ends the conversation.
func (t *talk) command(line string) (ends bool) {
	name, rest, _ := strings.Cut(line, " ")
	rest = strings.TrimSpace(rest)
	switch name {
	case "/help", "/?":
		t.say("%s", talkHelp)
	case "/bye", "/exit", "/quit":
		return true
	case "/reset", "/clear":
		t.turns, t.ids = nil, nil
		t.say("the conversation begins anew")
	case "/system":
		switch {
		case t.template == nil:
			t.say("the model continues texts, so there is no system message; --chat or --chat-template chatml has one")
		case rest == "":
			t.system = ""
			t.say("no system message")
		default:
			t.system = rest
			t.say("system message set")
		}
	default:
		t.say("unknown command %s; /help lists them", name)
	}
	return false
}

// answer continues the conversation. What is wrong with a turn is said, and the turn forgotten; an error ends the conversation.
func (t *talk) answer(ctx context.Context, text string) error {
	turns, ids := t.turns, t.ids
	prompt, err := t.prompt(text)
	if err != nil {
		t.turns, t.ids = turns, ids
		t.say("%v", err)
		return nil
	}
	turn, stop := context.WithCancel(ctx)
	defer stop()
	var stopped atomic.Bool
	t.e.Interrupts(func() bool { // the first Ctrl-C ends the answer; a second one that finds it still there, the program
		first := !stopped.Swap(true)
		stop()
		return first
	})
	defer t.e.Interrupts(nil)
	out, res, err := t.stream(turn, prompt)
	switch {
	case stopped.Load() && errors.Is(err, context.Canceled):
		t.warned = true
		t.say("stopped; Ctrl-C again ends")
	case err != nil:
		return err
	case len(res.IDs) == 0:
		t.say("the model ends its answer at once")
	case res.FinishReason == "length":
		t.say("stopped after %s (%s)%s", plural(len(res.IDs), "token"), t.limit(len(prompt)+len(res.IDs)), t.further())
	}
	switch {
	case t.template == nil:
		t.ids = append(prompt, res.IDs...)
	case out == "": // then the question is none either: some templates refuse two turns of one side in a row
		t.turns = turns
	default:
		t.turns = append(t.turns, tokenizer.Message{Role: "assistant", Content: out})
	}
	return nil
}

// further says how a text goes on.
func (t *talk) further() string {
	if t.template == nil {
		return "; Enter goes on"
	}
	return ""
}

// limit names what ended an answer of which the conversation now has so many tokens.
func (t *talk) limit(tokens int) string {
	if tokens >= t.positions {
		return "the context is full; /reset, or a larger --context"
	}
	return "--max-tokens"
}

// stream prints an answer as it is made, and ends its line.
func (t *talk) stream(ctx context.Context, prompt []int32) (string, generate.Result, error) {
	decoder := t.r.tok.NewStream()
	t.r.out = t.e.Out
	var text strings.Builder
	res, err := t.session.Continue(ctx, prompt, func(id int32) error {
		piece, err := decoder.Push(id)
		return cmp.Or(err, t.r.show(&text, piece))
	})
	err = cmp.Or(err, t.r.show(&text, decoder.Flush()))
	_, _ = io.WriteString(t.e.Out, "\n") // buffered: flush has the error
	return text.String(), res, cmp.Or(err, flush(t.e.Out))
}

// prompt adds what the person said to the conversation and returns its ids. Where they leave no room for an answer, the oldest
// turns are left out.
func (t *talk) prompt(text string) ([]int32, error) {
	const room = 16 // tokens of an answer, at least
	most := t.positions - min(room, t.positions/2)
	if t.template == nil {
		ids := t.ids
		if strings.TrimSpace(text) != "" {
			ids = t.r.tok.Append(t.r.tok.Begin(nil), text, tokenizer.PlainText)
		}
		if len(ids) > most {
			ids = ids[len(ids)-t.positions/2:]
			t.say("the context of %d tokens is full: the text before the last %d is left out", t.positions, len(ids))
		}
		return ids, nil
	}
	t.turns = append(t.turns[:len(t.turns):len(t.turns)], tokenizer.Message{Role: "user", Content: text})
	left := 0
	for {
		ids, err := rendered(t.template, withSystem(t.system, t.turns))
		switch {
		case err != nil:
			return nil, err
		case len(ids) <= most && left > 0:
			t.say("the context of %d tokens is full: the oldest %d turns are left out", t.positions, left)
			return ids, nil
		case len(ids) <= most:
			return ids, nil
		case len(t.turns) < 3:
			return nil, fault.New(fault.Inference, "%d tokens leave no room for an answer in a context of %d", len(ids), t.positions)
		}
		t.turns = t.turns[2:] // what the person said and what the model answered
		left += 2
	}
}
