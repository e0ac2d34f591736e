package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"apr/corpus"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/internal/strictjson"
	"apr/modelfile"
	"apr/tokenizer"
)

// prompt is a text to continue.
type prompt struct {
	text string
	line int // of --batch-jsonl; 0: there is no file
	ids  []int32
}

// in adds the place of a prompt to an error about it.
func (o *runOptions) in(p prompt, err error) error {
	if f := (*fault.Error)(nil); p.line > 0 && errors.As(err, &f) && f.Path+f.Place == "" {
		f.Path, f.Place = o.batch, fmt.Sprintf("line %d", p.line)
	}
	return err
}

// prompts returns what to continue: one prompt, or those of a file, or none if a person will type them.
func (o *runOptions) prompts(e *cli.Env) ([]prompt, error) {
	if o.prompt != "" && o.argPrompt != "" {
		return nil, fault.New(fault.Usage, "a prompt is given twice: as argument and by --prompt")
	}
	p := o.prompt + o.argPrompt
	switch {
	case o.batch != "" && p != "":
		return nil, fault.New(fault.Usage, "--batch-jsonl and a prompt exclude each other")
	case o.batch != "":
		return readPrompts(o.batch)
	case o.talks:
		return nil, nil
	case p == "" || p == "-":
		text, err := readStdin(e.In)
		if err != nil || text != "" {
			return []prompt{{text: text}}, err
		}
		return nil, fault.New(fault.Usage, "no prompt: stdin is empty").WithHint("apr run %s 'some text'; without a prompt, in a terminal, you can talk with the model", o.source)
	}
	return []prompt{{text: p}}, nil
}

// readStdin returns a prompt that is piped in, less one line end: programs that print a line end it.
func readStdin(in io.Reader) (string, error) {
	text, err := io.ReadAll(io.LimitReader(in, maxPromptLine+1))
	switch {
	case err != nil:
		return "", fault.In(fault.IO, "stdin", "cannot be read").Because(err)
	case len(text) > maxPromptLine:
		return "", fault.In(fault.Invalid, "stdin", "is longer than %d MiB", maxPromptLine>>20)
	case !utf8.Valid(text):
		return "", fault.In(fault.Invalid, "stdin", "is not text in UTF-8")
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r"), nil
}

// maxPromptLine bounds a line of --batch-jsonl, in bytes.
const maxPromptLine = 16 << 20

// readPrompts reads {"prompt": …} lines; blank ones are passed over.
func readPrompts(path string) ([]prompt, error) {
	f, err := os.Open(path) // a pipe may be meant, which readfile refuses
	if err != nil {
		return nil, readfile.Fault(path, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return nil, fault.In(fault.NotFound, path, "not a file: it is a directory").WithHint(`a file of {"prompt": "text"} lines is expected`)
	}
	var prompts []prompt
	lines, line := bufio.NewScanner(f), 1
	lines.Buffer(nil, maxPromptLine)
	for ; lines.Scan(); line++ {
		record := lines.Text()
		if line == 1 {
			record = strings.TrimPrefix(record, "\ufeff") // a byte order mark
		}
		if strings.TrimSpace(record) == "" {
			continue
		}
		text, err := parsePrompt(record)
		if err != nil {
			return nil, fault.In(fault.Invalid, path, `is not {"prompt": "text"}`).At("line %d", line).Because(err)
		}
		prompts = append(prompts, prompt{text: text, line: line})
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fault.In(fault.Invalid, path, "is longer than %d MiB", maxPromptLine>>20).At("line %d", line)
	case err != nil:
		return nil, fault.In(fault.IO, path, "cannot be read").Because(err)
	case len(prompts) == 0:
		return nil, fault.In(fault.Invalid, path, "holds no prompt")
	}
	return prompts, nil
}

// parsePrompt reads one line.
func parsePrompt(line string) (string, error) {
	v, err := strictjson.Parse(line, strictjson.Options{})
	if err != nil {
		return "", err
	}
	f := strictjson.NewFields(v)
	f.Only("prompt")
	text := f.Str("prompt")
	if f.Err() == nil && text == "" {
		return "", errors.New("the prompt is empty")
	}
	return text, f.Err()
}

// encode turns prompts into ids, those of a conversation in its template, and returns the length of the longest. Each must
// leave room among the positions of the model: for --max-tokens if that was given, else for one.
func (o *runOptions) encode(e *cli.Env, f *modelfile.Files, prompts []prompt, given bool) (longest int, err error) {
	tok, err := f.Tokenizer()
	if err != nil {
		return 0, err
	}
	ids := func(p string) ([]int32, error) { return tok.Append(tok.Begin(nil), p, tokenizer.PlainText), nil }
	if o.chat || o.system != "" {
		if ids, err = o.conversation(e, f); err != nil {
			return 0, err
		}
	}
	room, positions := 1, f.Config.MaxPositions
	if given {
		room = o.gen.MaxTokens
	}
	for i := range prompts {
		p := &prompts[i]
		if p.ids, err = ids(p.text); err != nil {
			return 0, err
		}
		if n := len(p.ids); room > positions-n {
			err := fault.New(fault.Inference, "a prompt of %d tokens and %d more exceed the model's %d positions", n, room, positions)
			if n < positions {
				err = err.WithHint("--max-tokens %d fits", positions-n)
			}
			return 0, o.in(*p, err)
		}
		longest = max(longest, len(p.ids))
	}
	return longest, nil
}

// conversation returns how a user's turn becomes ids. The end of a turn ends the answer.
func (o *runOptions) conversation(e *cli.Env, f *modelfile.Files) (func(prompt string) ([]int32, error), error) {
	chat, err := o.chatTemplate(e, f)
	if err != nil {
		return nil, err
	}
	return func(prompt string) ([]int32, error) {
		return rendered(chat, withSystem(o.system, []tokenizer.Message{{Role: "user", Content: prompt}}))
	}, nil
}

// chatTemplate parses the template; the token that ends its turns ends answers.
func (o *runOptions) chatTemplate(e *cli.Env, f *modelfile.Files) (*tokenizer.Chat, error) {
	tok, err := f.Tokenizer()
	if err != nil {
		return nil, err
	}
	chat, _, err := corpus.Chat(tok, o.template, time.Now())
	if err != nil {
		return nil, err
	}
	warnUnended(e, f, tok, o.template, chat)
	if end := chat.End(); end != tokenizer.None && !slices.Contains(o.gen.Stop, end) {
		o.gen.Stop = append(o.gen.Stop, end)
	}
	return chat, nil
}

// warnUnended warns if a chat template ends an answer with a mark that is no token of the vocabulary. The template is
// the model's own with option "auto", else the one of --chat-template.
func warnUnended(e *cli.Env, f *modelfile.Files, tok *tokenizer.Tokenizer, option string, chat *tokenizer.Chat) {
	if option == "auto" {
		warn(e, f.CheckTemplate(tok))
	} else if said := chat.Unended(); said != "" {
		warn(e, []string{fmt.Sprintf("--chat-template %s: %s", option, said)})
	}
}

// withSystem puts a system message before turns, unless it is empty.
func withSystem(system string, turns []tokenizer.Message) []tokenizer.Message {
	if system == "" {
		return turns
	}
	return slices.Concat([]tokenizer.Message{{Role: "system", Content: system}}, turns)
}

// rendered returns the ids of a conversation after which the assistant speaks.
func rendered(chat *tokenizer.Chat, messages []tokenizer.Message) (ids []int32, _ error) {
	segments, err := chat.Render(messages, true)
	for _, s := range segments {
		ids = append(ids, s.IDs...)
	}
	return ids, err
}
